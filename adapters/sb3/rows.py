"""The arrays of a Stable-Baselines3 buffer as rows of transitions, mirrored on the learner's device."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.common.seeding import derive_seed
from synther_replay.data.transitions import ROUNDING_OF_ACTIONS, Transitions, TransitionSpec
from synther_replay.errors import is_out_of_memory
from synther_replay.replay.indices import IndexStream


class RealRows:
    """The real transitions of an SB3 buffer: read from its arrays on a CPU, from a mirror of them on a GPU.

    The row of environment e at position p of the ring has the number ``p * n_envs + e`` in either case, so a run goes
    on with the same rows wherever it is continued. Where the memory of the GPU does not hold a mirror, rows are read
    from the arrays and copied over.

    Args:
        buffer: SB3's `ReplayBuffer` or `DictReplayBuffer`, with a count `added` of the positions ever filled.
        spec: Layout of the rows.
        seed: Of the sampling order.
        device: Where sampled rows are wanted.
    """

    def __init__(self, buffer: Any, spec: TransitionSpec, seed: int, device: torch.device) -> None:
        """Mirror nothing yet."""
        self.buffer, self.spec = buffer, spec
        self._seen = 0  # of the positions ever filled, those that the mirror has
        self._mirror: Tensor | None = torch.empty(0, spec.dim, device=device)  # None: it does not fit
        self._indices = IndexStream(derive_seed(seed, 10), device)

    @property
    def device(self) -> torch.device:
        """Where sampled rows are."""
        return self._indices.device

    def __len__(self) -> int:
        """Number of transitions held."""
        return int(self.buffer.size() * self.buffer.n_envs)

    def sample(self, n: int, times: int = 1) -> Tensor:
        """`n` rows drawn uniformly with repetition, ``(n, dim)``; those of several draws one after another."""
        size = len(self)
        index = self._indices.draw(n, size)
        if times > 1:
            index = torch.cat([index, *(self._indices.draw(n, size) for _ in range(times - 1))])
        mirror = self._on_device()
        if mirror is None:
            return torch.from_numpy(self._gather(index.cpu().numpy())).to(self.device)
        return mirror.index_select(0, index)

    def transitions(self) -> Transitions:
        """All rows, in the order of the ring."""
        mirror = self._on_device()
        if mirror is None:
            rows = torch.from_numpy(self._gather(np.arange(len(self)))).to(self.device)
        else:
            rows = mirror[: len(self)].clone()
        actions = rows[:, self.spec.actions]
        if bool(self.spec.outside_action_space(actions, ROUNDING_OF_ACTIONS).any()):
            raise ValueError(
                f"action: the buffer holds actions from {float(actions.min())} to {float(actions.max())}, outside of "
                "their space. SB3's algorithms store them scaled to [-1, 1]; a loop that stores them in the units of "
                "the environment has to set scaled_actions=False"
            )
        return Transitions(self.spec, rows)

    def to(self, device: torch.device) -> None:
        """Continue on another device."""
        self._indices.to(device)
        self.forget()

    def forget(self) -> None:
        """Mirror everything anew."""
        self._mirror = torch.empty(0, self.spec.dim, device=self.device)

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and deepcopy take along: SB3's arrays say all that the mirror says."""
        return {**vars(self), "_mirror": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild; the mirror is filled when it is next read."""
        vars(self).update(state)
        self.forget()

    def _gather(self, index: np.ndarray) -> np.ndarray:
        """Rows by number from SB3's arrays, ``(n, dim)``."""
        buffer, start = self.buffer, 0
        rows = np.empty((len(index), self.spec.dim), np.float32)
        observations, following = (
            tuple(held.values()) if isinstance(held, dict) else (held,)
            for held in (buffer.observations, buffer.next_observations)
        )
        for array in (*observations, buffer.actions, buffer.rewards, *following):
            columns = array.reshape(buffer.buffer_size * buffer.n_envs, -1)
            rows[:, start : start + columns.shape[1]] = columns.take(index, 0)
            start += columns.shape[1]
        ended, by_time = (array.reshape(-1).take(index) for array in (buffer.dones, buffer.timeouts))
        rows[:, start] = ended * (1 - by_time)
        return rows

    def _mirrors(self) -> bool:
        """Whether the arrays are elsewhere than the learner."""
        return self.device.type != "cpu"

    def _on_device(self) -> Tensor | None:
        """The mirror with all rows; None where they are read from the arrays."""
        if self._mirror is None or not self._mirrors():
            return None
        try:
            return self._mirrored()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._mirror = None
            warnings.warn(
                f"{len(self)} real rows do not fit into the memory of {self.device}: from now on, batches are copied "
                f"from the host ({error})",
                RuntimeWarning,
                stacklevel=4,
            )
            return None

    @torch.inference_mode(mode=False)  # else it could not be written to outside of it
    def _mirrored(self) -> Tensor:
        """The mirror, brought up to date; it grows by doubling."""
        buffer = self.buffer
        if self._mirror is None or len(self._mirror) < len(self):
            size = min(buffer.buffer_size * buffer.n_envs, max(1024, 1 << (len(self) - 1).bit_length()))
            self._mirror = None  # before there is a new one: two would take half as much memory again
            self._mirror = torch.empty(size, self.spec.dim, device=self.device)
            self._seen = buffer.added - buffer.size()
        behind = min(buffer.added - self._seen, buffer.size())
        first, size = (buffer.pos - behind) % buffer.buffer_size, buffer.buffer_size
        for positions in (range(first, min(first + behind, size)), range(first + behind - size)):  # around the end
            if positions:
                rows = slice(positions.start * buffer.n_envs, positions.stop * buffer.n_envs)
                fresh = torch.from_numpy(self._gather(np.arange(rows.start, rows.stop)))
                self._mirror[rows].copy_(fresh, non_blocking=True)  # without waiting for what the GPU has to do
        self._seen = buffer.added
        return self._mirror
