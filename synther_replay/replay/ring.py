"""RingBuffer: a uniform replay buffer of real transitions, stored in one tensor."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from synther_replay.common.checks import device_or_cpu, resolve_device, whole_number
from synther_replay.common.locking import Lock
from synther_replay.common.seeding import Stream, derive_seed
from synther_replay.data.mismatch import mismatch
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import CheckpointError, is_out_of_memory
from synther_replay.replay.indices import IndexStream


class RingBuffer:
    """Holds the last `capacity` transitions and samples them uniformly.

    Use it as the real buffer if your framework has none. Memory is allocated as the buffer fills, 4 bytes per column of
    a row: 200 MB for a million rows of 50 columns. Several threads may add and sample.

    >>> import gymnasium as gym
    >>> spec = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(3))
    >>> ring = RingBuffer(spec, capacity=2)
    >>> for reward in (1.0, 2.0, 3.0):
    ...     ring.add(Transitions.from_arrays(spec, [0, 0], 1, reward, [0, 1], False))
    >>> len(ring), ring.transitions().rewards.tolist()
    (2, [2.0, 3.0])

    Args:
        spec: Layout of the rows.
        capacity: Maximum number of transitions.
        device: A torch device, or "auto": the GPU if there is one, where `DiffusionGenerator` is, too, else the CPU. If
            the rows do not fit into the memory of a GPU, they are kept on the host and batches are copied.
        seed: Seed of the sampling order.
    """

    gives_copies = True

    def __init__(
        self, spec: TransitionSpec, capacity: int, *, device: torch.device | str = "auto", seed: int = 0
    ) -> None:
        """Make an empty buffer."""
        if not isinstance(spec, TransitionSpec):
            raise TypeError(f"spec: expected a TransitionSpec, for example of TransitionSpec.from_spaces, got {spec!r}")
        self.spec = spec
        self.capacity = whole_number("capacity", capacity)
        self.device = resolve_device(device)
        self._on_host = self.device.type == "cpu"  # where the rows are
        self._lock = Lock()
        self._rows = torch.empty(0, spec.dim, dtype=torch.float32, device=self.device)
        self._size = 0
        self._next = 0  # write position once the ring is full
        seed = whole_number("seed", seed, least=0)
        self._indices = IndexStream(derive_seed(seed, Stream.REAL), self.device)

    def __len__(self) -> int:
        """Number of transitions held."""
        return self._size

    def __repr__(self) -> str:
        """Size and place."""
        return f"RingBuffer({self._size} of {self.capacity} transitions, device={str(self.device)!r})"

    def add(self, transitions: Transitions) -> None:
        """Append transitions; a full buffer overwrites the oldest."""
        if not isinstance(transitions, Transitions):
            raise TypeError(f"transitions: expected Transitions, got {type(transitions).__name__}")
        if transitions.spec != self.spec:
            raise ValueError(f"transitions: {mismatch(transitions.spec, self.spec)}")
        rows = transitions.rows.detach().reshape(-1, self.spec.dim)[-self.capacity :]
        with self._lock:
            start = self._size if self._size < self.capacity else self._next
            end = start + len(rows)
            self._reserve(min(end, self.capacity))
            if end <= self.capacity:
                self._rows[start:end] = rows
            else:
                head = self.capacity - start
                self._rows[start:] = rows[:head]
                self._rows[: end - self.capacity] = rows[head:]
            self._next = end % self.capacity
            self._size = min(self.capacity, max(self._size, end))

    def sample(self, n: int) -> Transitions:
        """Draw `n` transitions uniformly with replacement."""
        n = whole_number("n", n)
        with self._lock:
            if self._size == 0:
                raise ValueError("buffer is empty: add transitions before sampling")
            return Transitions(self.spec, self._gather(self._indices.draw(n, self._size)))

    def reseed(self, seed: int) -> None:
        """Draw in another order from now on."""
        with self._lock:
            self._indices = IndexStream(derive_seed(seed, Stream.REAL), self._indices.device)

    def rows_at(self, positions: Tensor) -> Tensor:
        """Return a copy of the rows at these positions, ``(n, dim)``, for custom sampling rules.

        Rows are stored at positions 0, 1, ... in the order of `add`, and wrap around when the buffer is full.
        """
        with self._lock:
            return self._gather(positions, self._rows[: self._size])

    def transitions(self) -> Transitions:
        """Return all transitions, oldest first."""
        with self._lock:
            held = self._rows[: self._size]
            in_order = held.clone() if self._size < self.capacity else held.roll(-self._next, 0)
            return Transitions(self.spec, in_order)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of rows, positions and random state."""
        with self._lock:  # a thread may add
            return {
                "spec": self.spec.to_json(),
                "capacity": self.capacity,
                "rows": self._rows[: self._size].clone(),
                "next": self._next,
                "indices": self._indices.state_dict(),
            }

    @torch.inference_mode(mode=False)  # an inference tensor could not be written to later
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; a different spec or capacity raises `CheckpointError` and changes nothing."""
        if state["spec"] != self.spec.to_json():
            raise CheckpointError(f"state: {mismatch(state['spec'], self.spec)}")
        if state["capacity"] != self.capacity:
            raise CheckpointError(f"state: got capacity {state['capacity']}, expected {self.capacity}")
        rows: Tensor = state["rows"]
        if rows.ndim != 2 or rows.shape[1] != self.spec.dim or len(rows) > self.capacity or rows.dtype != torch.float32:
            raise CheckpointError(
                f"state: got {rows.dtype} rows of shape {tuple(rows.shape)}, "
                f"expected float32 of shape (at most {self.capacity}, {self.spec.dim})"
            )
        start = whole_number("next", state["next"], least=0)
        if start >= self.capacity or (len(rows) < self.capacity and start != len(rows)):
            raise CheckpointError(f"state: next: got {start} with {len(rows)} of {self.capacity} rows")
        with self._lock:
            held = self._allocate(len(rows)).copy_(rows)
            indices = self._indices.restored(state["indices"])
            # In one step: an interrupt leaves the old or the new contents.
            vars(self).update(_rows=held, _size=len(rows), _next=start, _indices=indices)

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy; rows are on the CPU, so any machine can load them."""
        with self._lock:
            return {**vars(self), "_rows": self._rows[: self._size].cpu()}

    @torch.inference_mode(mode=False)  # an inference tensor could not be written to later
    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore; on the CPU if the device does not exist here."""
        vars(self).update({"_lock": Lock(), "_on_host": False, **state, "device": device_or_cpu(state["device"])})
        self._on_host |= self.device.type == "cpu"
        self._rows = self._allocate(len(state["_rows"])).copy_(state["_rows"])

    @torch.inference_mode(mode=False)  # an inference tensor could not be written to later
    def _reserve(self, rows: int) -> None:
        """Grow by doubling: unused capacity takes no memory."""
        if rows > len(self._rows):
            grown = self._allocate(min(self.capacity, max(1024, 1 << (rows - 1).bit_length())))
            grown[: self._size] = self._rows[: self._size]
            self._rows = grown

    def _allocate(self, rows: int) -> Tensor:
        """Return memory for rows, on the host if the device has too little."""
        if not self._on_host:
            try:
                return torch.empty(rows, self.spec.dim, dtype=torch.float32, device=self.device)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._on_host = True
                self._indices.to(torch.device("cpu"))
                warnings.warn(
                    f"{rows} rows do not fit into the memory of {self.device}; they are kept on the host from now on, "
                    f"which is slower ({error})",
                    RuntimeWarning,
                    stacklevel=4,
                )
        return torch.empty(rows, self.spec.dim, dtype=torch.float32, device="cpu")

    def _gather(self, index: Tensor, held: Tensor | None = None) -> Tensor:
        """Copy rows to the device."""
        held = self._rows if held is None else held
        if held.device == self.device:
            return held.index_select(0, index)
        return held.index_select(0, index.to(held.device)).to(self.device)
