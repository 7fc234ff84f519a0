"""SyntheticStore: the generated transitions, kept on the device that samples them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from synther_replay.common.checks import device_or_cpu, whole_number
from synther_replay.common.seeding import derive_seed
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import CheckpointError
from synther_replay.replay.indices import IndexStream

# The store is only replaced as a whole, so batches gathered in advance are never stale.
_BATCHES_AHEAD = 32  # while the batch size stays the same
_FIRST_BATCHES_AHEAD = 2  # after the batch size changed: it may change again soon
_MOST_BYTES_AHEAD = 2**25


class _Held:
    """Contents of a store. One assignment replaces them, so an interrupt leaves the old or the new contents."""

    __slots__ = ("ahead", "batch_size", "rows", "size")

    def __init__(self, rows: Tensor, ahead: list[Tensor] | None = None, batch_size: int = 0) -> None:
        self.rows = rows
        self.size = len(rows)
        self.ahead = ahead or []  # batches gathered in advance; the next one is last
        self.batch_size = batch_size  # of the batches in `ahead`


class SyntheticStore:
    """Bounded set of generated transitions, replaced as a whole and sampled uniformly.

    Args:
        spec: Layout of the rows.
        capacity: Maximum number of rows.
        device: Device of the rows.
        seed: Seed of the sampling order.
    """

    def __init__(self, spec: TransitionSpec, capacity: int, device: torch.device, *, seed: int = 0) -> None:
        """Make an empty store."""
        self.spec = spec
        self.capacity = whole_number("capacity", capacity)
        self.device = device
        self._indices = IndexStream(derive_seed(seed, 11), device)
        self._held = _Held(torch.empty(0, spec.dim, dtype=torch.float32, device=device))

    def __len__(self) -> int:
        """Number of rows held."""
        return self._held.size

    @property
    def rows(self) -> Tensor:
        """All rows, ``(n, dim)``. They are replaced as a whole, never modified in place."""
        return self._held.rows

    def replace(self, transitions: Transitions) -> None:
        """Replace all rows. The store takes ownership of the given rows and does not copy them."""
        rows = transitions.rows
        if transitions.spec != self.spec:
            raise ValueError(f"transitions: got spec {transitions.spec.to_json()}, expected {self.spec.to_json()}")
        if rows.ndim != 2 or len(rows) > self.capacity:
            raise ValueError(f"transitions: expected at most {self.capacity} rows, got shape {tuple(rows.shape)}")
        self._held = _Held(rows.detach().to(self.device))

    def sample(self, n: int) -> Tensor:
        """Draw `n` rows uniformly with replacement, ``(n, dim)``; the caller may modify them.

        The rows share one memory block with other batches. Clone a batch that you keep for long.
        """
        held = self._held
        if not held.size:
            raise ValueError("store is empty: refit before sampling")
        if not held.ahead or held.batch_size != n:
            self._gather_ahead(held, n)
        return held.ahead.pop()

    @torch.inference_mode(mode=False)  # an inference tensor could not be written to later
    def _gather_ahead(self, held: _Held, n: int) -> None:
        ahead = _BATCHES_AHEAD if held.batch_size == n else _FIRST_BATCHES_AHEAD
        batches = max(1, min(ahead, _MOST_BYTES_AHEAD // (4 * n * self.spec.dim)))
        index = self._indices.draw(batches * n, held.size)
        block = held.rows.index_select(0, index).view(batches, n, -1)
        # .data: separate version counters, so that modifying one batch does not invalidate the others for autograd
        held.ahead = [batch.data for batch in block.unbind()]
        held.batch_size = n

    def clear(self) -> None:
        """Remove all rows."""
        self._held = _Held(self.rows[:0].clone())

    def to(self, device: torch.device) -> None:
        """Move to another device."""
        self.device = device
        ahead = [batch.to(device) for batch in self._held.ahead]
        self._held = _Held(self.rows.to(device), ahead, self._held.batch_size)
        self._indices.to(device)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of rows and random state."""
        return {
            "rows": self.rows.clone(),
            "ahead": [batch.clone() for batch in self._held.ahead],
            "batch_size": self._held.batch_size,
            "indices": self._indices.state_dict(),
        }

    @torch.inference_mode(mode=False)  # an inference tensor could not be written to later
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; rows of a wrong shape raise `CheckpointError` and change nothing."""
        rows: Tensor = state["rows"]
        fits = rows.ndim == 2 and rows.shape[1] == self.spec.dim and rows.dtype == torch.float32
        if not fits or len(rows) > self.capacity:
            raise CheckpointError(
                f"state: got {rows.dtype} rows of shape {tuple(rows.shape)}, "
                f"expected float32 of shape (at most {self.capacity}, {self.spec.dim})"
            )
        ahead = [batch.to(self.device, copy=True) for batch in state["ahead"]]
        batch_size = whole_number("batch_size", state["batch_size"], least=0)
        self._indices.load_state_dict(state["indices"])
        self._held = _Held(rows.to(self.device, copy=True), ahead, batch_size)

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy; rows are on the CPU, so any machine can load them."""
        state = self.state_dict()
        state["rows"], state["ahead"] = state["rows"].cpu(), [batch.cpu() for batch in state["ahead"]]
        return {"spec": self.spec, "capacity": self.capacity, "device": self.device, "state": state}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """Restore; on the CPU if the device does not exist here."""
        self.__init__(pickled["spec"], pickled["capacity"], device_or_cpu(pickled["device"]))  # type: ignore[misc]
        self.load_state_dict(pickled["state"])
