"""Transitions <-> the flat, normalised codes that the generator models.

Per column of a row:

* continuous and ordinal columns are standardised with statistics of the data (rewards optionally not), see
  `standardisation`;
* bounded continuous actions may be taken for what they were before a tanh (`unsquash_actions`): most policies make
  them so, and what is crowded before a bound is spread out there;
* values that pile up exactly on a bound (a saturated action, a speed limit) are moved outwards, and clipping brings
  them back: a continuous model would otherwise smear the pile over its neighbourhood. With `find_limits` the least and
  the largest value that was seen in observations and rewards are bounds, too, where enough rows have exactly them;
* a discrete value among n becomes ceil(log2 n) codes of -1 and +1, its binary digits ("analog bits", Chen et al.
  2022): values without an order stay apart, and few codes are needed for many values. Where n is no power of two, a
  pattern of digits that stands for no value becomes the highest one;
* ``terminated`` (never `truncated`) stays 0 or 1 and is thresholded at 0.5 on the way back.

Codes that are the same in all rows are written back exactly as they were. Statistics are per model of a stack.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.data.spaces import Leaf
from synther_replay.data.standardisation import STATISTICS as STANDARDISATION
from synther_replay.data.standardisation import Standardisation
from synther_replay.data.transitions import TransitionSpec
from synther_replay.errors import CheckpointError

# A column has a pile on a bound when this share of its rows lies there; it is moved by so many standard deviations.
_PILE_SHARE = 0.01
_PILE_DISTANCE = 0.5
# The least or largest value seen is a limit when so many rows have exactly it, and this share: numbers that nothing
# clips are hardly ever the same.
_LIMIT_ROWS = 10
_LIMIT_SHARE = 0.001
# An action that has come this share of the way from the middle to its bound counts as on it.
_SQUASHED = 1 - 1e-6
# What it was before tanh, as a float32, less a last digit that devices may round in another way.
_UNSQUASHED_END = float(np.nextafter(np.float32(np.arctanh(_SQUASHED)), np.float32(0)))
_WIDEST = 1e4  # bounds further apart than this are not those of a tanh
_STATISTICS = (*STANDARDISATION, "clip_low", "clip_high", "push_low", "push_high", "constant")


class TransitionCodec:
    """Encodes rows for a stack of M models and decodes what they generate.

    Args:
        spec: Layout of the rows.
        normalise_rewards: Whether to standardise the reward column (the paper does for Gym, not for DMC).
        unsquash_actions: Whether bounded continuous actions are taken for what they were before a tanh.
        find_limits: Whether many rows with the least or largest reward, or number in observations, mean that it is
            clipped there, by a limit that its space does not tell.
    """

    def __init__(
        self,
        spec: TransitionSpec,
        *,
        normalise_rewards: bool = True,
        unsquash_actions: bool = False,
        find_limits: bool = False,
    ) -> None:
        """Lay out the codes; `fit` finds the statistics."""
        self.spec = spec
        self.normalise_rewards = normalise_rewards
        self.find_limits = find_limits
        plain: list[int] = []
        ordinal: list[bool] = []
        categories: list[tuple[int, float, float]] = []  # column, lowest value, highest value
        column = 0
        reward = Leaf((), (1,), torch.float32, "real", np.array([-np.inf]), np.array([np.inf]))
        for leaf in (*spec.observation_leaves, *spec.action_leaves, reward, *spec.observation_leaves):
            for low, high in zip(leaf.low, leaf.high, strict=True):
                if leaf.kind == "category":
                    categories.append((column, low, high))
                else:
                    plain.append(column)
                    ordinal.append(leaf.kind == "ordinal")
                column += 1
        self._plain = torch.tensor(plain, dtype=torch.long, device="cpu")
        self._ordinal = torch.tensor(ordinal, dtype=torch.bool, device="cpu")
        self._low, self._high = (bound[self._plain] for bound in _column_bounds(spec))
        self._is_action = (self._plain >= spec.actions.start) & (self._plain < spec.actions.stop)
        width = self._high.double() - self._low.double()
        squashed = self._is_action & (width > 0) & (width <= _WIDEST) & ~self._ordinal & unsquash_actions
        self._squashed = squashed.nonzero().flatten()
        self._category_columns = torch.tensor([c for c, _, _ in categories], dtype=torch.long, device="cpu")
        self._category_low = torch.tensor([low for _, low, _ in categories], dtype=torch.float32, device="cpu")
        self._category_high = torch.tensor([high for _, _, high in categories], dtype=torch.float32, device="cpu")
        digits = [(int(high - low)).bit_length() for _, low, high in categories]
        self._digit_owner = torch.tensor(
            [k for k, n in enumerate(digits) for _ in range(n)], dtype=torch.long, device="cpu"
        )
        self._digit_value = torch.tensor([2.0**j for n in digits for j in range(n)], dtype=torch.float32, device="cpu")
        self.code_dim = len(plain) + len(self._digit_value) + 1
        of_reward = plain.index(spec.rewards.start)
        self._what_happened = torch.tensor([c for c in range(self.code_dim - 1) if c != of_reward], device="cpu")
        self.statistics: dict[str, Tensor] = {}

    def fit(self, rows: Tensor) -> None:
        """Find the statistics of rows ``(M, n, dim)``; all of them must be finite."""
        self._move_to(rows.device)
        x = self._unsquashed(rows[..., self._plain])
        reward = self._plain == self.spec.rewards.start
        standardisation = Standardisation.of(x, untouched=None if self.normalise_rewards else reward)
        low, high = standardisation.plausible
        s = dict(vars(standardisation))
        for side, declared, plausible, seen, outermost, reaches in (
            ("low", self._low, low, x.amin(1, keepdim=True), torch.minimum, torch.le),
            ("high", self._high, high, x.amax(1, keepdim=True), torch.maximum, torch.ge),
        ):
            # Simulators do leave the bounds that their observation space declares, so what was seen is allowed; actions
            # may not. Without a bound, nothing is generated beyond what was seen or is at least plausible.
            bound = self._unsquashed(declared)
            bound = torch.where(self._is_action, bound, outermost(bound, seen))
            clip = torch.where(
                bound.isfinite(), bound, outermost(seen, torch.where(plausible.isfinite(), plausible, seen))
            )
            pile = reaches(x, clip).float().mean(1, keepdim=True) >= _PILE_SHARE
            if self.find_limits:
                limit = (x == seen).sum(1, keepdim=True) >= max(_LIMIT_ROWS, _LIMIT_SHARE * x.shape[1])
                limit &= ~(self._is_action | self._ordinal)  # which have bounds, or values that are often the same
                clip = torch.where(limit, seen, clip)
                pile |= limit
            s[f"clip_{side}"] = clip
            s[f"push_{side}"] = torch.where(pile, _PILE_DISTANCE * s["scale"], 0.0)
        self.statistics = s
        codes = self.encode(rows)
        least, most = codes.amin(1, keepdim=True), codes.amax(1, keepdim=True)
        s["constant"] = torch.where(least == most, least, torch.nan)

    def encode(self, rows: Tensor) -> Tensor:
        """Rows ``(M, n, dim)`` to codes ``(M, n, code_dim)``."""
        s = self.statistics
        plain = self._unsquashed(rows[..., self._plain])
        outwards = (plain >= s["clip_high"]) * s["push_high"] - (plain <= s["clip_low"]) * s["push_low"]
        plain = Standardisation.from_statistics(s).to_codes(plain + outwards)
        values = (rows[..., self._category_columns] - self._category_low)[..., self._digit_owner]
        digits = torch.floor(values / self._digit_value) % 2 * 2 - 1
        return torch.cat((plain, digits, rows[..., self.spec.terminated]), dim=-1)

    def features(self, codes: Tensor) -> Tensor:
        """The codes of observation, action and next observation, ``(M, n, code_dim - 2)``."""
        return codes[..., self._what_happened]

    def decode(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Codes ``(M, n, code_dim)`` to rows ``(M, n, dim)``, and which of them are finite, bool ``(M, n)``."""
        s = self.statistics
        constant = s["constant"]
        codes = torch.where(constant.isnan(), codes, constant)
        finite = torch.isfinite(codes).all(-1)
        plain_end, digits_end = len(self._plain), self.code_dim - 1
        rows = codes.new_empty((*codes.shape[:-1], self.spec.dim))
        plain = Standardisation.from_statistics(s).to_values(codes[..., :plain_end])
        plain = torch.where(self._ordinal, plain.round(), plain)
        plain = plain.clamp(s["clip_low"], s["clip_high"])
        finite &= torch.isfinite(plain).all(-1)
        rows[..., self._plain] = self._squash(plain)
        if len(self._category_columns):
            digits = (codes[..., plain_end:digits_end] > 0).float() * self._digit_value
            values = self._category_low.expand(*codes.shape[:-1], -1).clone()
            values.index_add_(-1, self._digit_owner, digits)
            rows[..., self._category_columns] = values.minimum(self._category_high)
        rows[..., self.spec.terminated] = (codes[..., digits_end:] > 0.5).float()
        return rows, finite

    def state_dict(self) -> dict[str, Any]:
        """Copies of the statistics."""
        return {name: tensor.clone() for name, tensor in self.statistics.items()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Take over the statistics of `state_dict`; others are refused and change nothing."""
        if state and set(state) != set(_STATISTICS):
            raise CheckpointError(f"state: expected the statistics {_STATISTICS}, got {tuple(state)}")
        for name, tensor in state.items():
            width = self.code_dim if name == "constant" else len(self._plain)
            if tensor.ndim != 3 or tensor.shape[1:] != (1, width):
                raise CheckpointError(f"state: {name} of shape {tuple(tensor.shape)} is no statistic of this codec")
        self.statistics = {name: tensor.to(device, copy=True) for name, tensor in state.items()}
        self._move_to(device)

    def _unsquashed(self, plain: Tensor) -> Tensor:
        """Values of the plain columns ``(..., columns)``, those of `_squashed` as they were before a tanh."""
        if not len(self._squashed):
            return plain
        plain, low, high = plain.clone(), *self._bounds_of_squashed()
        share = (2 * plain[..., self._squashed].double() - (low + high)) / (high - low)
        plain[..., self._squashed] = share.clamp(-_SQUASHED, _SQUASHED).atanh().float()
        return plain

    def _squash(self, plain: Tensor) -> Tensor:
        """The inverse of `_unsquashed`, in place; what counts as on a bound is put there exactly."""
        if not len(self._squashed):
            return plain
        low, high = self._bounds_of_squashed()
        before = plain[..., self._squashed]
        share = torch.where(before.abs() >= _UNSQUASHED_END, before.sign(), before.double().tanh())
        plain[..., self._squashed] = ((low + high + share * (high - low)) / 2).clamp(low, high).float()
        return plain

    def _bounds_of_squashed(self) -> tuple[Tensor, Tensor]:
        """In float64: actions may be small beside their bounds."""
        return self._low[self._squashed].double(), self._high[self._squashed].double()

    def _move_to(self, device: torch.device) -> None:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))


def _column_bounds(spec: TransitionSpec) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each column, in float32, never wider than the space's own bounds."""
    low, high = np.full(spec.dim, -np.inf), np.full(spec.dim, np.inf)
    for name, leaves in spec.fields().items():
        columns = getattr(spec, name)
        low[columns] = np.concatenate([leaf.low for leaf in leaves])
        high[columns] = np.concatenate([leaf.high for leaf in leaves])
    with np.errstate(over="ignore"):  # bounds that float32 cannot hold become infinite, then its largest number
        low32, high32 = low.astype(np.float32), high.astype(np.float32)
    low32 = np.where(low32 < low, np.nextafter(low32, np.float32(np.inf)), low32)
    high32 = np.where(high32 > high, np.nextafter(high32, np.float32(-np.inf)), high32)
    return torch.from_numpy(low32), torch.from_numpy(high32)
