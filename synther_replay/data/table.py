"""RowTable: the distribution of rows that are discrete in every column.

Between discrete values there is nothing to interpolate: a model of continuous codes returns transitions that cannot
happen. The table holds the rows of the data and draws them as often as they occur.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from synther_replay.common.stacks import add_rows, take_rows
from synther_replay.errors import CheckpointError

_CANDIDATES = 32  # real rows among which the one with the nearest condition is drawn


class RowTable(NamedTuple):
    """Distinct rows of M models, how often they occur, and their mean conditions; immutable."""

    rows: Tensor  # (M, U, dim), padded with rows that occur 0 times
    counts: Tensor  # (M, U)
    conditions: Tensor  # (M, U, C), encoded; C is 0 without conditions

    @classmethod
    def of(cls, rows: Tensor, conditions: Tensor | None = None) -> RowTable:
        """Count the distinct rows of ``(M, n, dim)``, whose encoded conditions are ``(M, n, C)``."""
        found = [torch.unique(model, dim=0, return_inverse=True, return_counts=True) for model in rows]
        size = max(len(counts) for _, _, counts in found)
        table, total = rows.new_zeros(len(rows), size, rows.shape[2]), rows.new_zeros(len(rows), size, dtype=torch.long)
        given = rows.new_zeros(*rows.shape[:2], 0) if conditions is None else conditions
        means = given.new_zeros(len(rows), size, given.shape[2])
        for model, (distinct, number, counts) in enumerate(found):
            table[model, : len(distinct)], total[model, : len(counts)] = distinct, counts
            add_rows(means[model], number, given[model])
        return cls(table, total, means / total.clamp(min=1)[..., None])

    def draw(self, n: int, rng: torch.Generator, condition: Tensor | None = None) -> Tensor:
        """Draw `n` rows per model, ``(M, n, dim)``.

        With encoded conditions ``(M, n, C)``, each row is the one of several candidates whose condition is nearest.
        """
        candidates = 1 if condition is None else _CANDIDATES
        ends = self.counts.cumsum(1).double()
        size = len(ends), n * candidates
        chance = torch.rand(size, device=ends.device, generator=rng, dtype=torch.float64) * ends[:, -1:]
        place = torch.searchsorted(ends, chance, right=True).clamp(max=ends.shape[1] - 1)
        if condition is not None:
            place = place.view(len(ends), n, candidates)
            offered = torch.stack([own[index] for own, index in zip(self.conditions, place, strict=True)])
            nearest = (offered - condition[:, :, None]).square().sum(-1).argmin(-1, keepdim=True)
            place = place.gather(2, nearest)[..., 0]
        return take_rows(self.rows, place)

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all tensors."""
        return {name: tensor.clone() for name, tensor in self._asdict().items()}

    @classmethod
    def from_state(cls, state: dict[str, Any], stack: int, dim: int, condition: int, device: torch.device) -> RowTable:
        """Inverse of `state_dict`; raises `CheckpointError` if shapes differ or a model has no finite rows."""
        rows, counts = state["rows"], state["counts"]
        conditions = state.get("conditions", rows.new_zeros(*rows.shape[:2], 0))  # files before version 4 have none
        if rows.ndim != 3 or (len(rows), rows.shape[2]) != (stack, dim) or counts.shape != rows.shape[:2]:
            raise CheckpointError(
                f"state: table: got rows {tuple(rows.shape)} and counts {tuple(counts.shape)}, "
                f"expected ({stack}, U, {dim}) and ({stack}, U)"
            )
        if tuple(conditions.shape) != (*rows.shape[:2], condition):
            raise CheckpointError(
                f"state: table: got conditions {tuple(conditions.shape)}, expected {condition} values"
            )
        is_finite = all(bool(tensor.isfinite().all()) for tensor in (rows, conditions))
        if not is_finite or bool((counts < 0).any()) or not bool((counts.sum(1) > 0).all()):
            raise CheckpointError("state: table: rows are not finite, or counts are negative or all zero")
        floats = (tensor.to(device, torch.float32, copy=True) for tensor in (rows, conditions))
        return cls(next(floats), counts.to(device, torch.long, copy=True), next(floats))
