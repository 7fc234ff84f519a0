"""Conditions that rows are generated for, and weights that rows are fitted with: validation and standardisation."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from synther_replay.data.validation import as_tensor
from synther_replay.errors import CheckpointError

MOST_VALUES = 64  # of a condition: a description of a row, not another row
_LARGEST_CODE = 10.0  # outliers of a condition must not drown the features of the noise level


class ConditionCodec(NamedTuple):
    """Statistics of the conditions of M models, ``(M, 1, C)`` each; immutable."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, conditions: Tensor) -> ConditionCodec:
        """Compute the statistics of conditions ``(M, n, C)``."""
        scale, mean = torch.std_mean(conditions.double(), dim=1, keepdim=True, correction=0)
        return cls(mean.float(), torch.where(scale > 0, scale, 1.0).float())

    def encode(self, conditions: Tensor) -> Tensor:
        """Standardise conditions ``(M, n, C)``."""
        return ((conditions - self.mean) / self.scale).clamp(-_LARGEST_CODE, _LARGEST_CODE)

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of both tensors."""
        return {name: tensor.clone() for name, tensor in self._asdict().items()}

    @classmethod
    def from_state(cls, state: dict[str, Any], stack: int, device: torch.device) -> ConditionCodec:
        """Inverse of `state_dict`; raises `CheckpointError` if names or shapes differ or values are not finite."""
        if not isinstance(state, dict) or state.keys() != set(cls._fields):
            raise CheckpointError(f"state: conditions: got {state and sorted(state)}, expected {list(cls._fields)}")
        for name, tensor in state.items():
            if tensor.ndim != 3 or tensor.shape[:2] != (stack, 1) or tensor.shape != state["mean"].shape:
                raise CheckpointError(
                    f"state: conditions: {name}: got shape {tuple(tensor.shape)}, expected ({stack}, 1, C)"
                )
            if not 0 < tensor.shape[2] <= MOST_VALUES:
                raise CheckpointError(f"state: conditions: got {tensor.shape[2]} values, expected 1 to {MOST_VALUES}")
            if not bool(tensor.isfinite().all()) or (name == "scale" and not bool((tensor > 0).all())):
                raise CheckpointError(f"state: conditions: {name} is not finite and positive")
        return cls(**{name: tensor.to(device, torch.float32, copy=True) for name, tensor in state.items()})


def checked_condition(value: Any, lead: tuple[int, int], columns: int | None, device: torch.device) -> Tensor:
    """Return conditions as float32 ``(M, n, C)``.

    Args:
        value: ``(n,)`` or ``(n, C)``, with a leading axis M for a stack, or one number for all rows if C is 1.
        lead: M and n.
        columns: C, or None for any.
        device: Device of the result.

    Raises:
        TypeError: They are not numbers.
        ValueError: Wrong shape, NaN or infinity.
    """
    given = as_tensor(value, "condition", device).to(device, torch.float32)
    shape, (stack, n) = tuple(given.shape), lead
    if given.ndim == 0:
        given = given.expand(n)
    for own in ((stack, n), (n,)) if stack == 1 else ((stack, n),):
        if tuple(given.shape) == own:
            given = given[..., None]
    if given.ndim == 2 and stack == 1:
        given = given[None]
    is_wide = given.ndim == 3 and not 0 < given.shape[2] <= MOST_VALUES
    if given.ndim != 3 or given.shape[:2] != lead or columns not in (None, given.shape[2]) or is_wide:
        values = columns or f"1 to {MOST_VALUES}"
        expected = (*lead, values) if stack > 1 else (n, values)
        raise ValueError(f"condition: expected shape ({', '.join(map(str, expected))}), got {shape}")
    if not bool(given.isfinite().all()):
        raise ValueError(f"condition: {int((~given.isfinite()).any(-1).sum())} of {n * stack} rows are non-finite")
    return given


def checked_weights(value: Any, lead: tuple[int, int], device: torch.device) -> Tensor:
    """Return row weights as float64 ``(M, n)``, given as ``(n,)`` or ``(M, n)``.

    Raises:
        TypeError: They are not numbers.
        ValueError: Wrong shape, NaN, infinity, negative, or all zero for a model.
    """
    given = as_tensor(value, "weights", device).to(device, torch.float64)
    weights = given[None] if given.ndim == 1 and lead[0] == 1 else given
    if tuple(weights.shape) != lead:
        raise ValueError(f"weights: expected shape {lead if lead[0] > 1 else lead[1:]}, got {tuple(given.shape)}")
    if not bool(weights.sum(1).isfinite().all()) or bool((weights < 0).any()):
        raise ValueError("weights: expected finite numbers of at least 0, and a finite sum")
    if not bool((weights.sum(1) > 0).all()):
        raise ValueError("weights: expected at least one above 0")
    return weights


def drawn_by_weight(weights: Tensor, rng: torch.Generator) -> Tensor:
    """Draw as many row numbers as there are weights ``(M, n)``, in proportion to them, ``(M, n)`` in ascending order.

    Stratified resampling: one draw from each n-th part of the total weight. It varies less than independent draws, and
    unlike systematic resampling it has no period that rows of parallel environments could share.
    """
    ends = weights.cpu().cumsum(1).to(weights.device)  # on a GPU, sums of floats do not repeat
    n = weights.shape[1]
    offset = torch.rand(weights.shape, device=weights.device, generator=rng, dtype=torch.float64)
    places = (torch.arange(n, device=weights.device) + offset) * (ends[:, -1:] / n)
    # The clamp guards against rounding; the last row with a weight comes before rows without one.
    last = (weights > 0).long().cumsum(1).argmax(1, keepdim=True)
    return torch.searchsorted(ends, places, right=True).minimum(last)
