"""Calibration: moves generated observations to where those of the data lie, by a little.

Where many values crowd together, such as joints at their limits or a body that lies still, a model in the middle of its
training spreads them. `Calibration.of` compares generated with real values, column by column, and keeps for those that
differ how the one distribution maps to the other. `apply` moves an observation by at most a fraction of the standard
deviation, since a larger distance is an error that a shift would only hide. The next observation moves by the same
distance: the change from one to the other, and with it the dynamics, stays as the model generated it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from synther_replay.errors import CheckpointError

GENERATED_ROWS, REAL_ROWS = 4_096, 16_384  # rows that are compared, per model
_QUANTILES = 128
LEAST_ROWS = 8 * _QUANTILES  # with fewer real rows, quantiles would be the values of single rows
_COMPARED = 64  # rows in which two columns are equal if one is a copy of the other
# Columns whose distribution functions differ by more than this are calibrated. Chance alone makes 0.02 of so many rows.
_TOLERANCE = 0.03
_FARTHEST = 0.2  # standard deviations


class Calibration(NamedTuple):
    """Quantiles of c observation columns of M models; immutable."""

    columns: Tensor  # (c,), among the observations
    generated: Tensor  # quantiles (M, c, _QUANTILES), ascending
    real: Tensor  # quantiles (M, c, _QUANTILES)
    farthest: Tensor  # largest distance (M, c, 1); 0 where a model needs no calibration

    @classmethod
    def of(cls, real: Tensor, generated: Tensor, columns: Tensor) -> Calibration | None:
        """Compare real and generated observations, both ``(M, n, c)``, of columns ``(c,)``.

        Returns:
            The calibration of the columns that differ; None if there are none.
        """
        real, generated = (part.mT.contiguous().sort(-1).values for part in (real, generated))
        share = torch.linspace(0, 1, _QUANTILES, device=real.device)
        of_real, of_generated = (_quantiles(part, share) for part in (real, generated))
        inner = of_real[..., 1:-1].contiguous()
        reached = [torch.searchsorted(part, inner) / part.shape[-1] for part in (real, generated)]
        is_wrong = (reached[0] - reached[1]).abs().amax(-1, keepdim=True) > _TOLERANCE
        farthest = torch.where(is_wrong, _FARTHEST * real.std(-1, correction=0, keepdim=True), 0.0)
        chosen = is_wrong.any(0).flatten().nonzero().flatten()
        if not len(chosen):
            return None
        return cls(columns[chosen], *(part[:, chosen].contiguous() for part in (of_generated, of_real, farthest)))

    def apply(self, rows: Tensor, observations: slice, next_observations: slice) -> None:
        """Move observations and next observations of rows ``(M, n, dim)``, in place."""
        here, there = (self.columns + part.start for part in (observations, next_observations))
        values = rows[..., here].mT.contiguous()
        # The middle of equal quantiles: a pile of generated values stays in the middle of where it belongs.
        upper = torch.searchsorted(self.generated, values) + torch.searchsorted(self.generated, values, right=True)
        upper = (upper // 2).clamp(1, _QUANTILES - 1)
        (x0, x1), (y0, y1) = (
            (table.gather(-1, upper - 1), table.gather(-1, upper)) for table in (self.generated, self.real)
        )
        part = ((values - x0) / (x1 - x0)).nan_to_num(0.0).clamp(0, 1)
        shift = (torch.lerp(y0, y1, part) - values).clamp(-self.farthest, self.farthest)
        rows[..., here] = (values + shift).mT
        following = rows[..., there].mT
        # Not beyond the real range of the column, unless it lay there before.
        low, high = following.minimum(self.real[..., :1]), following.maximum(self.real[..., -1:])
        rows[..., there] = (following + shift).clamp(low, high).mT

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all tensors."""
        return {name: tensor.clone() for name, tensor in self._asdict().items()}

    @classmethod
    def from_state(cls, state: dict[str, Any], stack: int, observations: int, device: torch.device) -> Calibration:
        """Inverse of `state_dict`; raises `CheckpointError` if shapes or values are impossible."""
        columns = state["columns"]
        shapes = {name: tuple(state[name].shape) for name in cls._fields[1:]}
        expected = {name: (stack, len(columns), _QUANTILES) for name in ("generated", "real")}
        expected["farthest"] = (stack, len(columns), 1)
        if columns.ndim != 1 or shapes != expected:
            raise CheckpointError(f"state: calibration: got shapes {shapes}, expected {expected}")
        if columns.dtype != torch.long or not bool(((columns >= 0) & (columns < observations)).all()):
            raise CheckpointError(f"state: calibration: columns are not among the {observations} observations")
        if not all(bool(state[name].isfinite().all()) for name in shapes) or bool((state["farthest"] < 0).any()):
            raise CheckpointError("state: calibration: values are not finite, or distances negative")
        values = (state[name].to(device, torch.float32, copy=True) for name in shapes)
        return cls(columns.to(device, copy=True), *values)


def without_copies(columns: Tensor, observations: Tensor, next_observations: Tensor) -> Tensor:
    """Return those of the columns ``(c,)`` that are no copies of others, given real rows ``(M, n, O)``.

    In stacked frames, or with a goal that repeats a part of the state, one shift for each column would part the copies.
    """
    some = torch.cat((observations[:, :_COMPARED], next_observations[:, :_COMPARED]), -1).flatten(0, 1).T
    _, number, counts = torch.unique(some, dim=0, return_inverse=True, return_counts=True)
    is_copied = (counts[number] > 1).view(2, -1).any(0)
    return columns[~is_copied[columns]]


def _quantiles(ascending: Tensor, share: Tensor) -> Tensor:
    """Quantiles of sorted values ``(..., n)``, without interpolation."""
    return ascending[..., (share * (ascending.shape[-1] - 1)).round().long()]
