"""QuantileMap: moves generated values to where real ones lie, column by column, by a limited distance."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from synther_replay.errors import CheckpointError

QUANTILES = 128
# Columns whose distribution functions differ by more than this are mapped. Chance alone makes 0.02 of 4,096 values.
_TOLERANCE = 0.03


class QuantileMap(NamedTuple):
    """Quantiles of c columns of M models; immutable."""

    columns: Tensor  # (c,)
    generated: Tensor  # quantiles (M, c, QUANTILES), ascending
    real: Tensor  # quantiles (M, c, QUANTILES)
    farthest: Tensor  # largest distance (M, c, 1); 0 where a model needs no map

    @classmethod
    def of(
        cls, real: Tensor, generated: Tensor, columns: Tensor, differ: Tensor, farthest: Tensor
    ) -> QuantileMap | None:
        """Map generated to real values, both ``(M, n, c)``.

        Args:
            real: Real values.
            generated: Generated values.
            columns: Numbers of their columns, ``(c,)``.
            differ: Which columns of which models are mapped, bool ``(M, c)``.
            farthest: Largest distance, ``(M, c)``.

        Returns:
            The map of the columns that differ in some model; None if there are none.
        """
        chosen = differ.any(0).nonzero().flatten()
        if not len(chosen):
            return None
        distance = torch.where(differ, farthest, 0.0)[:, chosen, None]
        return cls(columns[chosen], _quantiles(generated[..., chosen]), _quantiles(real[..., chosen]), distance)

    def moved(self, values: Tensor) -> Tensor:
        """Return where values ``(M, n, c)`` of the mapped columns belong, or as close to it as they may be moved."""
        values = values.mT.contiguous()
        left, right = (torch.searchsorted(self.generated, values, right=right) for right in (False, True))
        # The neighbours of a value among the quantiles, or the first and last of those that are equal to it.
        first, last = left.minimum(right - 1).clamp(min=0), left.maximum(right - 1).clamp(max=QUANTILES - 1)
        (x0, x1), (y0, y1) = (
            (table.gather(-1, first), table.gather(-1, last)) for table in (self.generated, self.real)
        )
        between = torch.lerp(y0, y1, ((values - x0) / (x1 - x0)).clamp(0, 1))
        # Equal values can only move together. They go to the nearest place where some of them belong: if there are too
        # many at an atom, they stay there.
        target = torch.where(x0 < x1, between, values.clamp(y0, y1))
        return target.clamp(values - self.farthest, values + self.farthest).mT

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all tensors."""
        return {name: tensor.clone() for name, tensor in self._asdict().items()}

    @classmethod
    def from_state(cls, state: dict[str, Any], stack: int, allowed: Tensor, device: torch.device) -> QuantileMap:
        """Inverse of `state_dict`.

        Raises:
            CheckpointError: Shapes or values are impossible, or a column is not among the `allowed` ones.
        """
        columns = state["columns"]
        shapes = {name: tuple(state[name].shape) for name in cls._fields[1:]}
        expected = {name: (stack, len(columns), QUANTILES) for name in ("generated", "real")}
        expected["farthest"] = (stack, len(columns), 1)
        if columns.ndim != 1 or shapes != expected:
            raise CheckpointError(f"state: calibration: got shapes {shapes}, expected {expected}")
        if columns.dtype != torch.long or not bool(torch.isin(columns.cpu(), allowed.cpu()).all()):
            raise CheckpointError(f"state: calibration: got columns {columns.tolist()}, expected some of {allowed}")
        if not all(bool(state[name].isfinite().all()) for name in shapes) or bool((state["farthest"] < 0).any()):
            raise CheckpointError("state: calibration: values are not finite, or distances negative")
        values = (state[name].to(device, torch.float32, copy=True) for name in shapes)
        return cls(columns.to(device, copy=True), *values)


def are_different(real: Tensor, generated: Tensor) -> Tensor:
    """Whether the distributions of values ``(M, n, c)`` differ by more than chance, bool ``(M, c)``."""
    real, generated = (part.mT.contiguous().sort(-1).values for part in (real, generated))
    at = real[..., _places(real)[1:-1]].contiguous()
    distance = torch.zeros(real.shape[:2], dtype=torch.float32, device=real.device)
    for right in (False, True):  # below a value, and with it: where many values are equal, both count
        reached = [torch.searchsorted(part, at, right=right) / part.shape[-1] for part in (real, generated)]
        distance = distance.maximum((reached[0] - reached[1]).abs().amax(-1))
    return distance > _TOLERANCE


def _quantiles(values: Tensor) -> Tensor:
    """Quantiles of values ``(M, n, c)``, without interpolation, ``(M, c, QUANTILES)``."""
    ascending = values.mT.contiguous().sort(-1).values
    return ascending[..., _places(ascending)].contiguous()


def _places(ascending: Tensor) -> Tensor:
    """Places of the quantiles among sorted values ``(..., n)``."""
    share = torch.linspace(0, 1, QUANTILES, dtype=torch.float32, device=ascending.device)
    return (share * (ascending.shape[-1] - 1)).round().long()
