"""SyntheticStore: the generated transitions, resident on the device that samples them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from synther_replay.errors import CheckpointError
from synther_replay.indices import IndexStream
from synther_replay.transitions import Transitions, TransitionSpec

# The store only changes as a whole, so rows for several batches can be gathered at once without being stale.
_BATCHES_AHEAD = 32
_MOST_ROWS_AHEAD = 65_536


class SyntheticStore:
    """Bounded set of generated transitions, replaced as a whole and sampled uniformly.

    `rows` keeps its place in memory as long as replacements are no larger, so that a captured CUDA graph may read it.

    Args:
        spec: Layout of the rows.
        capacity: Most rows it may hold.
        device: Where the rows live.
        seed: Of the sampling order.
    """

    def __init__(self, spec: TransitionSpec, capacity: int, device: torch.device, *, seed: int = 0) -> None:
        """Make an empty store."""
        if capacity < 1:
            raise ValueError(f"capacity: expected at least 1, got {capacity}")
        self.spec = spec
        self.capacity = capacity
        self.device = device
        self.rows = torch.empty(0, spec.dim, device=device)
        self._size = 0
        self._indices = IndexStream(seed, device)
        self._ahead = torch.empty(0, 0, spec.dim, device=device)
        self._cursor = 0

    def __len__(self) -> int:
        """Number of rows held."""
        return self._size

    def replace(self, transitions: Transitions) -> None:
        """Throw away what is held and hold these instead."""
        if transitions.spec != self.spec:
            raise ValueError(f"transitions: their spec differs from the store's, {transitions.spec.to_json()}")
        rows = transitions.rows
        if rows.ndim != 2 or len(rows) > self.capacity:
            raise ValueError(f"transitions: expected at most {self.capacity} rows, got shape {tuple(rows.shape)}")
        if len(rows) > len(self.rows):
            self.rows = torch.empty_like(rows, device=self.device)
        self.rows[: len(rows)] = rows
        self._size = len(rows)
        self._forget_ahead()

    def sample(self, n: int) -> Tensor:
        """`n` rows drawn uniformly with replacement, ``(n, dim)``; the caller may keep and change them."""
        if self._size == 0:
            raise ValueError("store: it is empty")
        if self._cursor >= len(self._ahead) or self._ahead.shape[1] != n:
            batches = max(1, min(_BATCHES_AHEAD, _MOST_ROWS_AHEAD // n))
            index = self._indices.draw(batches * n, self._size)
            self._ahead = self.rows.index_select(0, index).view(batches, n, -1)
            self._cursor = 0
        self._cursor += 1
        return self._ahead[self._cursor - 1]

    def clear(self) -> None:
        """Hold nothing."""
        self._size = 0
        self._forget_ahead()

    def to(self, device: torch.device) -> None:
        """Move to another device."""
        self.device = device
        self.rows, self._ahead = self.rows.to(device), self._ahead.to(device)
        self._indices.to(device)

    def state_dict(self) -> dict[str, Any]:
        """A copy of rows and random state."""
        return {
            "dim": self.spec.dim,
            "rows": self.rows[: self._size].clone(),
            "ahead": self._ahead[self._cursor :].clone(),
            "indices": self._indices.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; rows that do not fit are refused and change nothing."""
        rows: Tensor = state["rows"]
        if state["dim"] != self.spec.dim or len(rows) > self.capacity:
            raise CheckpointError(
                f"state: {len(rows)} rows of {state['dim']} columns do not fit a store of "
                f"{self.capacity} rows of {self.spec.dim} columns"
            )
        self._indices.load_state_dict(state["indices"])
        self.replace(Transitions(self.spec, rows.to(self.device)))
        self._ahead = state["ahead"].to(self.device, copy=True)

    def _forget_ahead(self) -> None:
        self._ahead = torch.empty(0, 0, self.spec.dim, device=self.device)
        self._cursor = 0
