"""SyntheticStore: the generated transitions, resident on the device that samples them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from synther_replay.common.checks import device_or_cpu, whole_number
from synther_replay.common.seeding import derive_seed
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import CheckpointError
from synther_replay.replay.indices import IndexStream

# The store only changes as a whole, so rows for several batches can be gathered at once without being stale.
_BATCHES_AHEAD = 32  # while batches keep their size
_FIRST_BATCHES_AHEAD = 2  # after a change of it: there may be another one soon
_MOST_BYTES_AHEAD = 2**25


class _Held:
    """What a replacement replaces: one assignment, so that an interrupt finds the old or the new, never a mixture."""

    __slots__ = ("ahead", "batch_size", "rows", "size")

    def __init__(self, rows: Tensor, ahead: list[Tensor] | None = None, batch_size: int = 0) -> None:
        self.rows = rows
        self.size = len(rows)
        self.ahead = ahead or []  # batches gathered ahead, the next one last
        self.batch_size = batch_size  # of the last ones gathered


class SyntheticStore:
    """Bounded set of generated transitions, replaced as a whole and sampled uniformly.

    Args:
        spec: Layout of the rows.
        capacity: Most rows it may hold.
        device: Where the rows live.
        seed: Of the sampling order.
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
        """All rows, ``(n, dim)``; replaced, never changed."""
        return self._held.rows

    def replace(self, transitions: Transitions) -> None:
        """Throw away what is held and hold these instead; their rows belong to the store from now on."""
        rows = transitions.rows
        if transitions.spec != self.spec:
            raise ValueError(f"transitions: their spec differs from the store's, {transitions.spec.to_json()}")
        if rows.ndim != 2 or len(rows) > self.capacity:
            raise ValueError(f"transitions: expected at most {self.capacity} rows, got shape {tuple(rows.shape)}")
        self._held = _Held(rows.detach().to(self.device))

    def sample(self, n: int) -> Tensor:
        """`n` rows drawn uniformly with replacement, ``(n, dim)``; the caller may keep and change them.

        They are part of a block of several batches: who keeps one for long should keep a clone.
        """
        held = self._held
        if not held.size:
            raise ValueError("store: it is empty")
        if not held.ahead or held.batch_size != n:
            self._gather_ahead(held, n)
        return held.ahead.pop()

    @torch.inference_mode(mode=False)  # else batches gathered while an actor runs could never be written to
    def _gather_ahead(self, held: _Held, n: int) -> None:
        ahead = _BATCHES_AHEAD if held.batch_size == n else _FIRST_BATCHES_AHEAD
        batches = max(1, min(ahead, _MOST_BYTES_AHEAD // (4 * n * self.spec.dim)))
        index = self._indices.draw(batches * n, held.size)
        block = held.rows.index_select(0, index).view(batches, n, -1)
        # .data: autograd must not take a change of one batch for a change of all
        held.ahead = [batch.data for batch in block.unbind()]
        held.batch_size = n

    def clear(self) -> None:
        """Hold nothing."""
        self._held = _Held(self.rows[:0].clone())

    def to(self, device: torch.device) -> None:
        """Move to another device."""
        self.device = device
        ahead = [batch.to(device) for batch in self._held.ahead]
        self._held = _Held(self.rows.to(device), ahead, self._held.batch_size)
        self._indices.to(device)

    def state_dict(self) -> dict[str, Any]:
        """A copy of rows and random state."""
        return {
            "rows": self.rows.clone(),
            "ahead": [batch.clone() for batch in self._held.ahead],
            "batch_size": self._held.batch_size,
            "indices": self._indices.state_dict(),
        }

    @torch.inference_mode(mode=False)  # else batches loaded while an actor runs could never be written to
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; rows that do not fit are refused and change nothing."""
        rows: Tensor = state["rows"]
        fits = rows.ndim == 2 and rows.shape[1] == self.spec.dim and rows.dtype == torch.float32
        if not fits or len(rows) > self.capacity:
            raise CheckpointError(
                f"state: {rows.dtype} rows of shape {tuple(rows.shape)} do not fit a store of "
                f"{self.capacity} rows of {self.spec.dim} columns"
            )
        ahead = [batch.to(self.device, copy=True) for batch in state["ahead"]]
        batch_size = whole_number("batch_size", state["batch_size"], least=0)
        self._indices.load_state_dict(state["indices"])
        self._held = _Held(rows.to(self.device, copy=True), ahead, batch_size)

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and deepcopy take along: rows on the host, so that any machine can read them."""
        state = self.state_dict()
        state["rows"], state["ahead"] = state["rows"].cpu(), [batch.cpu() for batch in state["ahead"]]
        return {"spec": self.spec, "capacity": self.capacity, "device": self.device, "state": state}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """Rebuild, on the CPU where the device is missing."""
        self.__init__(pickled["spec"], pickled["capacity"], device_or_cpu(pickled["device"]))  # type: ignore[misc]
        self.load_state_dict(pickled["state"])
