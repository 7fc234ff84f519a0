"""TransitionCodec: transitions <-> the flat, normalised codes that the generator models.

Per column of a row:

* Continuous and ordinal columns are standardised with statistics of the data, see `standardisation`. Rewards are
  optional.
* Bounded continuous actions are optionally mapped through atanh (`unsquash_actions`). Most policies end in a tanh,
  which crowds actions near their bounds; the inverse spreads them out.
* Values that lie exactly on a bound in many rows (saturated actions, a speed limit) are moved outwards by half a
  standard deviation, and clipping restores them. A continuous model would otherwise smear such a point mass. With
  `find_limits`, the smallest and largest value of observations and rewards also count as bounds if they are frequent.
* A discrete value among n is encoded by its ceil(log2 n) binary digits as -1 and +1 ("analog bits", Chen et al. 2022).
  If n is not a power of two, digit patterns beyond the highest value decode to the highest value.
* ``terminated`` (never `truncated`) stays 0 or 1 and is thresholded at 0.5 when decoding.

Columns that are constant in the data decode to exactly that constant. Statistics are per model of a stack.
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

# A bound has a point mass if at least this share of the rows lies on it ...
_PILE_SHARE = 0.01
_PILE_DISTANCE = 0.5  # ... which is moved outwards by this many standard deviations.
# `find_limits`: an extreme value is a limit if at least this many rows, and this share, have exactly that value.
# Unclipped floating-point values hardly ever repeat.
_LIMIT_ROWS = 10
_LIMIT_SHARE = 0.001
# An action at or beyond this fraction of the way from the centre to its bound counts as on the bound.
_SQUASHED = 1 - 1e-6
# atanh of it in float32, minus one unit in the last place for differences in rounding between devices.
_UNSQUASHED_END = float(np.nextafter(np.float32(np.arctanh(_SQUASHED)), np.float32(0)))
_WIDEST = 1e4  # wider action ranges are not treated as the output of a tanh
_STATISTICS = (*STANDARDISATION, "clip_low", "clip_high", "push_low", "push_high", "constant")


class TransitionCodec:
    """Encodes rows for a stack of M models and decodes generated codes.

    Args:
        spec: Layout of the rows.
        normalise_rewards: Whether to standardise the reward column (the paper does for Gym, not for DMC).
        unsquash_actions: Whether to map bounded continuous actions through atanh.
        find_limits: Whether frequent extreme values of observations and rewards are treated as clipping limits that
            the space does not declare.
    """

    def __init__(
        self,
        spec: TransitionSpec,
        *,
        normalise_rewards: bool = True,
        unsquash_actions: bool = False,
        find_limits: bool = False,
    ) -> None:
        """Lay out the codes; `fit` computes the statistics."""
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
        self._feature_columns = torch.tensor([c for c in range(self.code_dim - 1) if c != of_reward], device="cpu")
        self.statistics: dict[str, Tensor] = {}

    def fit(self, rows: Tensor) -> None:
        """Compute the statistics of finite rows ``(M, n, dim)``."""
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
            # Simulators may exceed the bounds of their observation space, so observed values extend the bound; actions
            # may not exceed theirs. Without a bound, values are clipped to the observed or plausible range.
            bound = self._unsquashed(declared)
            bound = torch.where(self._is_action, bound, outermost(bound, seen))
            clip = torch.where(
                bound.isfinite(), bound, outermost(seen, torch.where(plausible.isfinite(), plausible, seen))
            )
            pile = reaches(x, clip).float().mean(1, keepdim=True) >= _PILE_SHARE
            if self.find_limits:
                limit = (x == seen).sum(1, keepdim=True) >= max(_LIMIT_ROWS, _LIMIT_SHARE * x.shape[1])
                limit &= ~(self._is_action | self._ordinal)  # actions have bounds, integers repeat anyway
                clip = torch.where(limit, seen, clip)
                pile |= limit
            s[f"clip_{side}"] = clip
            s[f"push_{side}"] = torch.where(pile, _PILE_DISTANCE * s["scale"], 0.0)
        self.statistics = s
        codes = self.encode(rows)
        least, most = codes.amin(1, keepdim=True), codes.amax(1, keepdim=True)
        s["constant"] = torch.where(least == most, least, torch.nan)

    def encode(self, rows: Tensor) -> Tensor:
        """Encode rows ``(M, n, dim)`` as codes ``(M, n, code_dim)``."""
        s = self.statistics
        plain = self._unsquashed(rows[..., self._plain])
        outwards = (plain >= s["clip_high"]) * s["push_high"] - (plain <= s["clip_low"]) * s["push_low"]
        plain = Standardisation.from_statistics(s).to_codes(plain + outwards)
        values = (rows[..., self._category_columns] - self._category_low)[..., self._digit_owner]
        digits = torch.floor(values / self._digit_value) % 2 * 2 - 1
        return torch.cat((plain, digits, rows[..., self.spec.terminated]), dim=-1)

    def features(self, codes: Tensor) -> Tensor:
        """Return the codes of observation, action and next observation, ``(M, n, code_dim - 2)``."""
        return codes[..., self._feature_columns]

    def decode(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Decode codes ``(M, n, code_dim)`` to rows ``(M, n, dim)`` and a mask of finite rows, bool ``(M, n)``."""
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
        """Return copies of the statistics."""
        return {name: tensor.clone() for name, tensor in self.statistics.items()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore a `state_dict`; a mismatch raises `CheckpointError` and changes nothing."""
        if state and set(state) != set(_STATISTICS):
            raise CheckpointError(f"state: expected the statistics {_STATISTICS}, got {tuple(state)}")
        for name, tensor in state.items():
            width = self.code_dim if name == "constant" else len(self._plain)
            if tensor.ndim != 3 or tensor.shape[1:] != (1, width):
                raise CheckpointError(f"state: {name}: got shape {tuple(tensor.shape)}, expected (stack, 1, {width})")
        self.statistics = {name: tensor.to(device, copy=True) for name, tensor in state.items()}
        self._move_to(device)

    def _unsquashed(self, plain: Tensor) -> Tensor:
        """Map the `_squashed` columns of values ``(..., columns)`` through atanh."""
        if not len(self._squashed):
            return plain
        plain, low, high = plain.clone(), *self._bounds_of_squashed()
        share = (2 * plain[..., self._squashed].double() - (low + high)) / (high - low)
        plain[..., self._squashed] = share.clamp(-_SQUASHED, _SQUASHED).atanh().float()
        return plain

    def _squash(self, plain: Tensor) -> Tensor:
        """Inverse of `_unsquashed`, in place; values that count as on a bound become exactly the bound."""
        if not len(self._squashed):
            return plain
        low, high = self._bounds_of_squashed()
        before = plain[..., self._squashed]
        share = torch.where(before.abs() >= _UNSQUASHED_END, before.sign(), before.double().tanh())
        plain[..., self._squashed] = ((low + high + share * (high - low)) / 2).clamp(low, high).float()
        return plain

    def _bounds_of_squashed(self) -> tuple[Tensor, Tensor]:
        """Bounds in float64: actions may be small compared to their bounds."""
        return self._low[self._squashed].double(), self._high[self._squashed].double()

    def _move_to(self, device: torch.device) -> None:
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))


def _column_bounds(spec: TransitionSpec) -> tuple[Tensor, Tensor]:
    """Bounds of each column in float32, rounded inwards so that they never exceed the bounds of the space."""
    low, high = np.full(spec.dim, -np.inf), np.full(spec.dim, np.inf)
    for name, leaves in spec.fields().items():
        columns = getattr(spec, name)
        low[columns] = np.concatenate([leaf.low for leaf in leaves])
        high[columns] = np.concatenate([leaf.high for leaf in leaves])
    with np.errstate(over="ignore"):  # float64 bounds beyond float32 become infinite, then the largest float32
        low32, high32 = low.astype(np.float32), high.astype(np.float32)
    low32 = np.where(low32 < low, np.nextafter(low32, np.float32(np.inf)), low32)
    high32 = np.where(high32 > high, np.nextafter(high32, np.float32(-np.inf)), high32)
    return torch.from_numpy(low32), torch.from_numpy(high32)
