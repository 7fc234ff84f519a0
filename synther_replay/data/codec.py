"""TransitionCodec: transitions <-> the flat, normalised codes that the generator models.

Per column of a row:

* Continuous and ordinal columns are standardised with statistics of the data, see `standardisation`. Rewards are
  optional.
* Bounded continuous actions are optionally mapped through atanh (`unsquash_actions`). Most policies end in a tanh,
  which crowds actions near their bounds; the inverse spreads them out.
* Values that lie exactly on a bound in many rows (saturated actions, a speed limit) are moved outwards by half a
  standard deviation, and clipping restores them. A continuous model would otherwise smear such a point mass. With
  `find_limits`, the smallest and largest value of observations and rewards also count as bounds if they are frequent.
* A discrete value is encoded by its binary digits, see `categories`.
* ``terminated`` (never `truncated`) stays 0 or 1 and is thresholded at 0.5 when decoding.
* With `exact`, a column with few distinct values decodes to the nearest of them, see `levels`, and a discrete one to a
  value that the data have. Rewards of terminated rows are shifted and scaled to the distribution of the others.
  `restore_terminal_rewards` undoes that once `terminated` is known, so a bonus at the end of an episode always goes
  with the end. Values that many rows of an observation or reward have exactly come back exactly, see `atoms`.

Columns that are constant in the data decode to exactly that constant. Statistics are per model of a stack. Rows are
processed in blocks, so that memory stays bounded by rows and codes. Which column has which code is in `code_layout`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from synther_replay.common.stacks import take_rows
from synther_replay.data.atoms import MAX_ATOMS, close_gaps, find_atoms, gap_widths, open_gaps
from synther_replay.data.code_layout import CodeLayout
from synther_replay.data.levels import MAX_LEVELS, find_levels, nearest_level
from synther_replay.data.standardisation import STATISTICS as STANDARDISATION
from synther_replay.data.standardisation import Standardisation, plausible_range
from synther_replay.data.terminal_rewards import find_shift, no_shift, restored, shifted
from synther_replay.data.transitions import TransitionSpec
from synther_replay.errors import CheckpointError

# A bound has a point mass if at least this share of the rows lies on it ...
_PILE_SHARE = 0.01
_PILE_DISTANCE = 0.5  # ... which is moved outwards by this many standard deviations.
# `find_limits`: an extreme value is a limit if at least this many rows, and this share, have exactly that value.
# Unclipped floating-point values hardly ever repeat.
_LIMIT_ROWS = 10
_LIMIT_SHARE = 0.001
_BLOCK = 65_536  # rows encoded at once, over all models
_LARGEST_RAW_REWARD = 3.0  # standard deviation up to which rewards can stay un-normalised; the model's data has 1
_STATISTICS = (*STANDARDISATION, "clip_low", "clip_high", "push_low", "push_high", "constant")
_EXACT_STATISTICS = ("levels", "terminal", "atoms", "gap", "present")


class TransitionCodec:
    """Encodes rows for a stack of M models and decodes generated codes.

    Args:
        spec: Layout of the rows.
        normalise_rewards: Whether to standardise the reward column (the paper does for Gym, not for DMC).
        unsquash_actions: Whether to map bounded continuous actions through atanh.
        find_limits: Whether frequent extreme values of observations and rewards are treated as clipping limits that
            the space does not declare.
        exact: Whether columns with few distinct values keep exactly these, frequent values of others stay exact, and
            rewards of terminated rows are modelled relative to their own mean.
    """

    def __init__(
        self,
        spec: TransitionSpec,
        *,
        normalise_rewards: bool = True,
        unsquash_actions: bool = False,
        find_limits: bool = False,
        exact: bool = True,
    ) -> None:
        """Lay out the codes; `fit` computes the statistics."""
        self.spec = spec
        self.normalise_rewards = normalise_rewards
        self.find_limits = find_limits
        self.exact = exact
        self.layout = CodeLayout(spec, unsquash_actions=unsquash_actions)
        self.code_dim = self.layout.dim
        self.statistics: dict[str, Tensor] = {}
        self._level_columns: list[int] = []  # see `_index_columns`
        self._outlying, self._pushed, self._opened = torch.empty(3, 0, dtype=torch.long, device="cpu")
        self._limits = torch.empty(2, 0, device="cpu")

    def fit(self, rows: Tensor, extremes: Tensor | None = None) -> None:
        """Compute the statistics of finite rows ``(M, n, dim)``.

        Args:
            rows: The rows of the data, or a sample of them.
            extremes: If they are a sample: further rows, for the ranges alone.
        """
        self._move_to(rows.device)
        self.statistics = self._inexact(len(rows))
        self._index_columns()
        some = rows[:, _sample_of(rows.shape[1], rows.device)]
        if self.exact:
            self.statistics["levels"] = find_levels(rows, self.layout.plain)
            self._index_columns()
            if self.layout.reward not in self._level_columns:
                self.statistics["terminal"] = find_shift(*self.layout.outcomes(rows))
            self.statistics |= self._atom_statistics(self._plain_values(some))
            self._index_columns()
            if extremes is None:  # else the rows are a sample, which may lack rare categories
                self.statistics["present"] = self.layout.categories.present(len(rows), self._blocks(rows))

        seen, digits_seen = self._ranges(*((rows,) if extremes is None else (rows, extremes)))
        sample = self._plain_values(some)
        plausible = plausible_range(sample)
        standardisation = Standardisation.of(sample, plausible, seen)
        if not self.normalise_rewards:
            standardisation = self._with_raw_rewards(standardisation)
        s = self.statistics = self.statistics | vars(standardisation)
        for side, name, reaches in ((0, "low", torch.le), (1, "high", torch.ge)):
            clip = self._clip(side, plausible[side], seen[side])
            pile = reaches(sample, clip).float().mean(1, keepdim=True) >= _PILE_SHARE
            if self.find_limits:
                limit = (sample == seen[side]).sum(1, keepdim=True) >= max(_LIMIT_ROWS, _LIMIT_SHARE * sample.shape[1])
                limit &= ~(self.layout.is_action | self.layout.ordinal)  # actions have bounds, integers repeat anyway
                clip, pile = torch.where(limit, seen[side], clip), pile | limit
            s[f"clip_{name}"], s[f"push_{name}"] = clip, torch.where(pile, _PILE_DISTANCE * s["scale"], 0.0)
        self._index_columns()
        same = torch.cat((seen[0] == seen[1], digits_seen[0] == digits_seen[1]), dim=-1)
        s["constant"] = torch.where(same, torch.cat((self._standardised(seen[0]), digits_seen[0]), dim=-1), torch.nan)

    @property
    def reward_levels(self) -> Tensor | None:
        """Levels of the reward, ``(M, MAX_LEVELS)``, padded with NaN; None if rewards have many values."""
        return self.statistics["levels"][..., self.layout.reward] if self.layout.reward in self._level_columns else None

    @property
    def continuous(self) -> Tensor:
        """Which columns of rows have no levels, atoms, limits or constants, bool ``(dim,)``."""
        s, plain = self.statistics, self.layout.plain
        special = s["levels"][:, :1].isfinite() | s["atoms"][:, :1].isfinite() | self.layout.ordinal
        special = special | (s["push_low"] > 0) | (s["push_high"] > 0) | ~s["constant"][..., : len(plain)].isnan()
        is_free = torch.zeros(self.spec.dim, dtype=torch.bool, device=plain.device)
        is_free[plain] = ~special.any(0).flatten()
        return is_free

    @property
    def continuous_observations(self) -> Tensor:
        """Numbers of the observation values whose columns are `continuous`, now and next, ``(c,)``."""
        is_free = self.continuous
        return (is_free[self.spec.observations] & is_free[self.spec.next_observations]).nonzero().flatten()

    @property
    def observations_with_atoms(self) -> Tensor:
        """Columns of rows with atoms among observations and next observations, ``(a,)``."""
        columns, spec = self.layout.plain[self._opened], self.spec
        inside = [
            (columns >= part.start) & (columns < part.stop) for part in (spec.observations, spec.next_observations)
        ]
        return columns[inside[0] | inside[1]]

    def widths_of_gaps(self, columns: Tensor) -> Tensor:
        """Widths of the gaps of columns ``(a,)`` of rows, ``(M, a)``."""
        return self.statistics["gap"][:, 0, self.layout.plain_codes(columns)]

    @property
    def is_discrete(self) -> bool:
        """Whether `exact` is set and no column of the data is continuous."""
        return self.exact and not bool(self.statistics["levels"][:, 0].isnan().any())

    def encode(self, rows: Tensor, order: Tensor | None = None) -> Tensor:
        """Encode rows ``(M, n, dim)`` as codes ``(M, n, code_dim)``; row numbers ``(M, n)`` give another order."""
        codes = rows.new_empty((*rows.shape[:2], self.code_dim))
        for block, out in zip(self._blocks(rows, order), self._blocks(codes), strict=True):
            self._encode_into(out, block)
        return codes

    def decode(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Decode codes ``(M, n, code_dim)`` to rows ``(M, n, dim)`` and a mask of finite rows, bool ``(M, n)``."""
        rows, finite = self.decode_open(codes)
        return self.close_gaps(rows), finite

    def decode_open(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """`decode`, but leave the gaps at atoms open for `close_gaps`."""
        s = self.statistics
        constant = s["constant"]
        codes = torch.where(constant.isnan(), codes, constant)
        finite = torch.isfinite(codes).all(-1)
        plain_end, digits_end = len(self.layout.plain), self.code_dim - 1
        rows = codes.new_empty((*codes.shape[:-1], self.spec.dim))
        plain = Standardisation.from_statistics(s).to_values(codes[..., :plain_end])
        plain = torch.where(self.layout.ordinal, plain.round(), plain)
        plain = plain.clamp(s["clip_low"], s["clip_high"])
        finite &= torch.isfinite(plain).all(-1)
        plain = self.layout.squash(plain)
        for column in self._level_columns:
            levels = s["levels"][..., column]
            plain[..., column] = levels.gather(1, nearest_level(plain[..., column], levels))
        rows[..., self.layout.plain] = plain
        if len(self.layout.categories.columns):
            present = s["present"] if self.exact else None
            values = self.layout.categories.decode(codes[..., plain_end:digits_end], present)
            rows[..., self.layout.categories.columns] = values
        rows[..., self.spec.terminated] = (codes[..., digits_end:] > 0.5).float()
        return rows, finite

    def close_gaps(self, rows: Tensor) -> Tensor:
        """Close the gaps at atoms in rows ``(M, n, dim)``, in place, and return them."""
        if len(self._opened):
            columns = self.layout.plain[self._opened]
            rows[..., columns] = close_gaps(rows[..., columns], *self._gaps()).clamp(*self._limits)
        return rows

    def open_gaps(self, rows: Tensor) -> Tensor:
        """Inverse of `close_gaps`."""
        if len(self._opened):
            columns = self.layout.plain[self._opened]
            rows[..., columns] = open_gaps(rows[..., columns], *self._gaps())
        return rows

    def restore_terminal_rewards(self, rows: Tensor) -> None:
        """Undo the shift of rewards in terminated rows ``(M, n, dim)``, in place."""
        rows[..., self.spec.rewards.start] = restored(*self.layout.outcomes(rows), self.statistics["terminal"])

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the statistics."""
        return {name: tensor.clone() for name, tensor in self.statistics.items()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore a `state_dict`; a mismatch raises `CheckpointError` and changes nothing."""
        names = (*_STATISTICS, *_EXACT_STATISTICS)
        if state:  # files of earlier versions lack those of `exact`
            state = self._inexact(len(state["mean"])) | state
        if state and set(state) != set(names):
            raise CheckpointError(f"state: expected the statistics {names}, got {tuple(state)}")
        shapes = {
            "constant": (1, self.code_dim),
            "levels": (MAX_LEVELS, len(self.layout.plain)),
            "atoms": (MAX_ATOMS, len(self.layout.plain)),
            "terminal": (1, 4),
            "present": (len(self.layout.categories.columns), self.layout.categories.remembered),
        }
        for name, tensor in state.items():
            expected = shapes.get(name, (1, len(self.layout.plain)))
            if tensor.ndim != 3 or tensor.shape[1:] != expected:
                raise CheckpointError(f"state: {name}: got shape {tuple(tensor.shape)}, expected (stack, *{expected})")
        self.statistics = {name: tensor.to(device, copy=True) for name, tensor in state.items()}
        self._move_to(device)
        if state:
            self._index_columns()

    def _inexact(self, stack: int) -> dict[str, Tensor]:
        """Statistics of columns without levels and atoms, and of rewards that terminated rows do not shift."""
        columns = len(self.layout.plain)
        kind: dict[str, Any] = {"dtype": torch.float32, "device": self.layout.plain.device}
        return {
            "levels": torch.full((stack, MAX_LEVELS, columns), torch.nan, **kind),
            "terminal": no_shift(stack, self.layout.plain.device),
            "atoms": torch.full((stack, MAX_ATOMS, columns), torch.inf, **kind),
            "gap": torch.zeros(stack, 1, columns, **kind),
            "present": self.layout.categories.all_present(stack),
        }

    def _index_columns(self) -> None:
        """Find the columns that need more than standardisation: levels, atoms, outliers, or a pile at a bound."""
        s = self.statistics
        self._opened = s["atoms"][:, 0].isfinite().any(0).nonzero().flatten()
        self._level_columns = (~s["levels"][:, 1].isnan()).any(0).nonzero().flatten().tolist()  # not constant ones
        if "clip_low" in s:
            beyond = (s["clip_low"] < s["low"] * s["scale"] + s["mean"]) | (
                s["clip_high"] > s["high"] * s["scale"] + s["mean"]
            )
            piled = (s["push_low"] > 0) | (s["push_high"] > 0)
            beyond |= self.layout.is_action  # their bounds are no limits of the data
            self._outlying, self._pushed = (mask.any(0).flatten().nonzero().flatten() for mask in (beyond, piled))
            self._limits = self._limits_of_opened()

    def _blocks(self, rows: Tensor, order: Tensor | None = None) -> Iterator[Tensor]:
        """Blocks ``(M, b, ...)`` of rows, views unless they are taken in another order."""
        size = max(1, _BLOCK // rows.shape[0])
        if order is None:
            return iter(rows.split(size, dim=1))
        return (take_rows(rows, part) for part in order.split(size, dim=1))

    def _plain_values(self, rows: Tensor) -> Tensor:
        """Values of the plain columns before standardisation, ``(M, n, columns)``, a copy."""
        plain = self.layout.unsquashed(rows[..., self.layout.plain])
        plain[..., self.layout.reward] = shifted(*self.layout.outcomes(rows), self.statistics["terminal"])
        return self._with_gaps(plain)

    def _gaps(self) -> tuple[Tensor, Tensor]:
        """Atoms and widths of the gaps of the columns that have some."""
        return self.statistics["atoms"][..., self._opened], self.statistics["gap"][..., self._opened]

    def _limits_of_opened(self) -> Tensor:
        """Bounds that no value of a column with gaps exceeds, ``(2, M, 1, columns)``; infinite where the data do.

        A value at a bound, moved by the width of a gap and back, may be rounded beyond it.
        """
        found, low, high = [], self.layout.low, self.layout.high
        for name, bound, nothing in (("clip_low", low, -torch.inf), ("clip_high", high, torch.inf)):
            clip = self.statistics[name][..., self._opened]
            opened = self._with_gaps(bound.expand(len(clip), 1, -1).clone())[..., self._opened]
            found.append(torch.where(clip == opened, bound[self._opened], nothing))
        return torch.stack(found)

    def _with_gaps(self, plain: Tensor) -> Tensor:
        """Open the gaps at the atoms of plain values, in place."""
        if len(self._opened):
            plain[..., self._opened] = open_gaps(plain[..., self._opened], *self._gaps())
        return plain

    def _atom_statistics(self, sample: Tensor) -> dict[str, Tensor]:
        """Atoms of observations and rewards that have no levels, and the widths of their gaps."""
        atoms = find_atoms(sample)
        few = self.statistics["levels"][:, :1].isfinite()
        atoms = torch.where(few | self.layout.is_action | self.layout.ordinal, torch.inf, atoms)
        return {"atoms": atoms, "gap": gap_widths(sample, atoms)}

    def _standardised(self, plain: Tensor) -> Tensor:
        """Codes of plain values, which are changed."""
        s = self.statistics
        if len(self._pushed):
            columns = self._pushed
            high, low = (
                (plain[..., columns] >= s["clip_high"][..., columns]),
                (plain[..., columns] <= s["clip_low"][..., columns]),
            )
            plain[..., columns] += high * s["push_high"][..., columns] - low * s["push_low"][..., columns]
        return Standardisation.from_statistics(s).to_codes(plain, self._outlying)

    def _encode_into(self, codes: Tensor, rows: Tensor) -> None:
        plain_end = len(self.layout.plain)
        codes[..., :plain_end] = self._standardised(self._plain_values(rows))
        codes[..., plain_end:] = self.layout.digits(rows)

    def _ranges(self, *parts: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Smallest and largest value of plain columns, and of the other codes, ``(M, 1, columns)`` each."""
        ends = [self._ends(block) for rows in parts for block in self._blocks(rows)]
        plain, digits = (torch.cat(part, 1).aminmax(dim=1, keepdim=True) for part in zip(*ends, strict=True))
        return plain, digits

    def _ends(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest plain values of a block, and other codes, ``(M, 2, columns)`` each.

        A plain value grows with that of the row, so only the ends of each column are mapped. The shift of a reward
        depends on the rest of its row: rewards are shifted first, and then count as those of rows that go on.
        """
        rewards = shifted(*self.layout.outcomes(rows), self.statistics["terminal"])[..., None]
        digits = self.layout.digits(rows)
        values, rewards, digits = (
            torch.cat((part.amin(1, True), part.amax(1, True)), 1) for part in (rows, rewards, digits)
        )
        values[..., self.spec.rewards], values[..., self.spec.terminated] = rewards, 0.0
        return self._plain_values(values), digits

    def _clip(self, side: int, plausible: Tensor, seen: Tensor) -> Tensor:
        """Limit of decoded values on one side.

        Simulators may exceed the bounds of their observation space, so observed values extend the bound; actions may
        not exceed theirs. Without a bound, values are clipped to the observed or plausible range.
        """
        outermost = (torch.minimum, torch.maximum)[side]
        bound = self.layout.unsquashed((self.layout.low, self.layout.high)[side]).expand_as(seen).clone()
        bound = self._with_gaps(bound)
        bound = torch.where(self.layout.is_action, bound, outermost(bound, seen))
        return torch.where(bound.isfinite(), bound, outermost(seen, torch.where(plausible.isfinite(), plausible, seen)))

    def _with_raw_rewards(self, standardisation: Standardisation) -> Standardisation:
        """Undo the standardisation of the reward, unless rewards are too large for the model."""
        reward = self.layout.reward
        mean, scale, low, high = (part.clone() for part in vars(standardisation).values())
        deviation = float(scale[..., reward].max())
        if deviation > _LARGEST_RAW_REWARD:
            warnings.warn(
                f"normalise_rewards=False: rewards have a standard deviation of {deviation:.3g}, but the model handles "
                f"up to {_LARGEST_RAW_REWARD:g}; they are normalised",
                RuntimeWarning,
                stacklevel=2,
            )
            return standardisation
        for limit in (low, high):
            limit[..., reward] = limit[..., reward] * scale[..., reward] + mean[..., reward]
        mean[..., reward], scale[..., reward] = 0.0, 1.0
        return Standardisation(mean, scale, low, high)

    def _move_to(self, device: torch.device) -> None:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        self.layout.move_to(device)


def _sample_of(rows: int, device: torch.device) -> slice | Tensor:
    """Rows that determine the statistics: all, or random ones, which hardly change the statistics of a large buffer.

    Not every k-th row, because parallel environments write in turn.
    """
    if rows <= _BLOCK:
        return slice(None)
    rng = torch.Generator().manual_seed(0)
    return torch.randint(rows, (_BLOCK,), generator=rng, device="cpu").to(device)
