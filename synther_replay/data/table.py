"""RowTable: the distribution of rows that are discrete in every column.

Between discrete values there is nothing to interpolate: a model of continuous codes returns transitions that cannot
happen. The table holds the rows of the data and draws them as often as they occur.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from synther_replay.errors import CheckpointError


class RowTable(NamedTuple):
    """Distinct rows of M models and how often they occur; immutable."""

    rows: Tensor  # (M, U, dim), padded with rows that occur 0 times
    counts: Tensor  # (M, U)

    @classmethod
    def of(cls, rows: Tensor) -> RowTable:
        """Count the distinct rows of ``(M, n, dim)``."""
        found = [torch.unique(model, dim=0, return_counts=True) for model in rows]
        size = max(len(counts) for _, counts in found)
        table, total = rows.new_zeros(len(rows), size, rows.shape[2]), rows.new_zeros(len(rows), size, dtype=torch.long)
        for model, (distinct, counts) in enumerate(found):
            table[model, : len(distinct)], total[model, : len(counts)] = distinct, counts
        return cls(table, total)

    def draw(self, n: int, rng: torch.Generator) -> Tensor:
        """Draw `n` rows per model, ``(M, n, dim)``."""
        ends = self.counts.double().cumsum(1)
        chance = torch.rand(len(ends), n, device=ends.device, generator=rng, dtype=torch.float64) * ends[:, -1:]
        place = torch.searchsorted(ends, chance, right=True).clamp(max=ends.shape[1] - 1)
        return torch.stack([rows.index_select(0, own) for rows, own in zip(self.rows, place, strict=True)])

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of both tensors."""
        return {name: tensor.clone() for name, tensor in self._asdict().items()}

    @classmethod
    def from_state(cls, state: dict[str, Any], stack: int, dim: int, device: torch.device) -> RowTable:
        """Inverse of `state_dict`; raises `CheckpointError` if shapes differ or a model has no finite rows."""
        rows, counts = state["rows"], state["counts"]
        if rows.ndim != 3 or (len(rows), rows.shape[2]) != (stack, dim) or counts.shape != rows.shape[:2]:
            raise CheckpointError(
                f"state: table: got rows {tuple(rows.shape)} and counts {tuple(counts.shape)}, "
                f"expected ({stack}, U, {dim}) and ({stack}, U)"
            )
        if not bool(rows.isfinite().all()) or bool((counts < 0).any()) or not bool((counts.sum(1) > 0).all()):
            raise CheckpointError("state: table: rows are not finite, or counts are negative or all zero")
        return cls(rows.to(device, torch.float32, copy=True), counts.to(device, torch.long, copy=True))
