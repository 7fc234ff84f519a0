"""SyntheticStore: the generated transitions, kept on the device that samples them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from synther_replay.common.checks import device_or_cpu, whole_number
from synther_replay.common.seeding import Stream, derive_seed
from synther_replay.common.trees import on_cpu
from synther_replay.data.mismatch import mismatch
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import CheckpointError
from synther_replay.replay.indices import IndexStream

# The store is only replaced as a whole, so batches gathered in advance are never stale.
_BATCHES_AHEAD = 32  # of a batch size that was drawn before
_FIRST_BATCHES_AHEAD = 2  # of a new batch size, which may not come again
_SIZES_AHEAD = 4  # batch sizes whose batches are kept, so that several may alternate
_MOST_BYTES_AHEAD = 2**25


class _Held:
    """Contents of a store. One assignment replaces them, so an interrupt leaves the old or the new contents."""

    __slots__ = ("ahead", "rows", "size")

    def __init__(self, rows: Tensor, ahead: dict[int, list[Tensor]] | None = None) -> None:
        self.rows = rows
        self.size = len(rows)
        # Batches gathered in advance, by batch size: the size gathered last is last, the next batch is last.
        self.ahead = ahead or {}


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
        self._indices = IndexStream(derive_seed(seed, Stream.SYNTHETIC), device)
        self._held = _Held(torch.empty(0, spec.dim, dtype=torch.float32, device=device))

    def __len__(self) -> int:
        """Number of rows held."""
        return self._held.size

    @property
    def rows(self) -> Tensor:
        """All rows, ``(n, dim)``. They are replaced as a whole, never modified in place."""
        return self._held.rows

    def replace(self, transitions: Transitions) -> _Held:
        """Replace all rows; return the previous contents for `put_back`.

        The store takes ownership of the given rows and does not copy them.
        """
        rows = transitions.rows
        if transitions.spec != self.spec:
            raise ValueError(f"transitions: {mismatch(transitions.spec, self.spec)}")
        if rows.ndim != 2 or len(rows) > self.capacity:
            raise ValueError(f"transitions: expected at most {self.capacity} rows, got shape {tuple(rows.shape)}")
        if rows.is_cuda:  # a refit in the background made them on a stream of its own
            rows.record_stream(torch.cuda.current_stream(rows.device))
        previous, self._held = self._held, _Held(rows.detach().to(self.device))
        return previous

    def put_back(self, previous: _Held) -> None:
        """Undo a `replace`."""
        self._held = previous

    def reseed(self, seed: int) -> None:
        """Draw in another order from now on; batches gathered in advance are dropped."""
        self._indices = IndexStream(derive_seed(seed, Stream.SYNTHETIC), self.device)
        self._held = _Held(self.rows)

    def sample(self, n: int) -> Tensor:
        """Draw `n` rows uniformly with replacement, ``(n, dim)``; the caller may modify them.

        The rows share one memory block with other batches. Clone a batch that you keep for long.
        """
        held = self._held
        if not held.size:
            raise ValueError("store is empty: refit before sampling")
        return (held.ahead.get(n) or self._gather_ahead(held, n)).pop()

    @torch.inference_mode(mode=False)  # an inference tensor could not be written to later
    def _gather_ahead(self, held: _Held, n: int) -> list[Tensor]:
        most = _FIRST_BATCHES_AHEAD if held.ahead.pop(n, None) is None else _BATCHES_AHEAD
        if len(held.ahead) == _SIZES_AHEAD:
            del held.ahead[next(iter(held.ahead))]
        batches = max(1, min(most, _MOST_BYTES_AHEAD // (4 * n * self.spec.dim)))
        index = self._indices.draw(batches * n, held.size)
        block = held.rows.index_select(0, index).view(batches, n, -1)
        # .data: separate version counters, so that modifying one batch does not invalidate the others for autograd
        held.ahead[n] = [batch.data for batch in block.unbind()]
        return held.ahead[n]

    def clear(self) -> None:
        """Remove all rows."""
        self._held = _Held(self.rows[:0].clone())

    def to(self, device: torch.device) -> None:
        """Move to another device."""
        self.device = device
        ahead = {n: [batch.to(device) for batch in batches] for n, batches in self._held.ahead.items()}
        self._held = _Held(self.rows.to(device), ahead)
        self._indices.to(device)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of rows and random state."""
        return {
            "rows": self.rows.clone(),
            "ahead": [batch.clone() for batches in self._held.ahead.values() for batch in batches],
            "batch_sizes": list(self._held.ahead),
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
        sizes = state["batch_sizes"] if "batch_sizes" in state else [state["batch_size"]]  # 0.2.0 had one
        for batch in state["ahead"]:
            if batch.ndim != 2 or batch.shape[1] != self.spec.dim or batch.dtype != torch.float32:
                raise CheckpointError(f"state: got a batch of {batch.dtype} and shape {tuple(batch.shape)}")
        batches = [batch.to(self.device, copy=True) for batch in state["ahead"]]
        ahead = {
            n: [batch for batch in batches if len(batch) == n]
            for n in (whole_number("batch_sizes", size, least=0) for size in sizes)
            if n
        }
        held, indices = _Held(rows.to(self.device, copy=True), ahead), self._indices.restored(state["indices"])
        vars(self).update(_held=held, _indices=indices)  # in one step: an interrupt leaves the old or the new contents

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy; rows are on the CPU, so any machine can load them."""
        state = on_cpu(self.state_dict())
        return {"spec": self.spec, "capacity": self.capacity, "device": self.device, "state": state}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """Restore; on the CPU if the device does not exist here."""
        self.__init__(pickled["spec"], pickled["capacity"], device_or_cpu(pickled["device"]))  # type: ignore[misc]
        self.load_state_dict(pickled["state"])
