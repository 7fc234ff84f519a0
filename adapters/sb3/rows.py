"""RealRows: the arrays of a Stable-Baselines3 buffer as rows of transitions, with a copy on the GPU."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from synther_replay.adapters.sb3.n_step import n_step_returns
from synther_replay.adapters.sb3.units import look_unscaled
from synther_replay.common.seeding import Stream, derive_seed
from synther_replay.data.spec import DISCOUNT
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import is_out_of_memory
from synther_replay.replay.indices import IndexStream


class RealRows:
    """The real transitions of an SB3 buffer; on a GPU they are read from a mirror of the arrays.

    The transition of environment e at position p has the row number ``p * n_envs + e`` on every device, so a run can
    continue on another device. If the mirror does not fit into GPU memory, rows are read from the arrays and copied.
    With ``buffer.n_steps > 1`` the rows are n-step transitions.

    The buffer owns its rows, so they refer to it weakly: a cycle would keep the memory of a dropped buffer until the
    garbage collector runs.

    Args:
        buffer: SB3's `ReplayBuffer` or `DictReplayBuffer`, with an attribute `added` that counts calls of `add`.
        spec: Layout of the rows.
        seed: Seed of the sampling order.
        device: Device of sampled rows.
    """

    gives_copies = True

    def __init__(self, buffer: Any, spec: TransitionSpec, seed: int, device: torch.device) -> None:
        """Start with an empty mirror."""
        self.buffer, self.spec = buffer, spec
        self._seen = 0  # value of `buffer.added` at the last update of the mirror
        self._units_questioned = False  # whether there was a warning about the units of actions
        self._indices = IndexStream(derive_seed(seed, Stream.REAL), device)
        self.forget()

    @property
    def buffer(self) -> Any:
        """The buffer that these rows belong to."""
        if (buffer := self._buffer()) is None:
            raise ReferenceError("real: the buffer of these rows was deleted; keep a reference to it")
        return buffer

    @buffer.setter
    def buffer(self, buffer: Any) -> None:
        self._buffer = weakref.ref(buffer)

    @property
    def device(self) -> torch.device:
        """Device of sampled rows."""
        return self._indices.device

    @property
    def capacity(self) -> int:
        """Maximum number of transitions."""
        return int(self.buffer.buffer_size * self.buffer.n_envs)

    def __len__(self) -> int:
        """Number of transitions held."""
        return int(self.buffer.size() * self.buffer.n_envs)

    def require(self) -> None:
        """Raise ValueError if there is nothing to sample."""
        if not len(self):
            raise ValueError("buffer is empty: add transitions before sampling")

    def sample(self, n: int, times: int = 1) -> Tensor:
        """Draw `n` rows uniformly with replacement, `times` times, ``(times * n, dim)``."""
        size = len(self)
        index = self._indices.draw(n, size)
        if times > 1:
            index = torch.cat([index, *(self._indices.draw(n, size) for _ in range(times - 1))])
        mirror = self._on_device()
        if mirror is None:
            return torch.from_numpy(self._gather(index.cpu().numpy())).to(self.device)
        return mirror.index_select(0, index)

    def reseed(self, seed: int) -> None:
        """Draw in another order from now on."""
        self._indices = IndexStream(derive_seed(seed, Stream.REAL), self.device)

    def transitions(self) -> Transitions:
        """Return all rows, the oldest first, so that no episode is split where the arrays end."""
        mirror, buffer = self._on_device(), self.buffer
        oldest = buffer.pos * buffer.n_envs if buffer.full else 0
        if mirror is None:
            rows = torch.from_numpy(self._gather(np.roll(np.arange(len(self)), -oldest))).to(self.device)
        else:
            rows = torch.cat((mirror[oldest : len(self)], mirror[:oldest]))
        self._question_units(rows[:, self.spec.actions])
        return Transitions(self.spec, rows)

    def to(self, device: torch.device) -> None:
        """Continue on another device."""
        self._indices.to(device)
        self.forget()

    def forget(self) -> None:
        """Discard the mirror; the next access copies all rows again."""
        # None: does not fit into memory
        self._mirror: Tensor | None = torch.empty(0, self.spec.dim, dtype=torch.float32, device=self.device)

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without the mirror."""
        state = {name: value for name, value in vars(self).items() if name not in ("_buffer", "_mirror")}
        return {**state, "buffer": self.buffer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore; the next access fills the mirror."""
        vars(self).update({"_units_questioned": False, **state})
        self.buffer = vars(self).pop("buffer")
        self.forget()

    def _question_units(self, actions: Tensor) -> None:
        """Warn once if actions look unscaled although the spec says that they are scaled."""
        space = self.buffer.action_space
        if self._units_questioned or not isinstance(space, spaces.Box) or space == self.spec.action_space:
            return
        if look_unscaled(actions[actions.isfinite().all(1)], space):
            self._units_questioned = True
            warnings.warn(
                f"scaled_actions: the stored actions look unscaled: all {len(actions):,} are within {space}, many at "
                "its bounds. SB3's algorithms store actions scaled to [-1, 1]. Set scaled_actions=False if your loop "
                "stores them in the units of the environment; otherwise generated actions leave the space",
                RuntimeWarning,
                stacklevel=7,
            )

    def _gather(self, index: np.ndarray) -> np.ndarray:
        """Read rows by number from SB3's arrays, ``(n, dim)``."""
        buffer, start = self.buffer, 0
        returns = n_step_returns(buffer, index) if buffer.n_steps > 1 else None
        last = index if returns is None else returns.last
        rows = np.empty((len(index), self.spec.dim), np.float32)
        parts = [
            *self._observations(buffer.observations, index),
            *(self._flat(array).take(index, 0) for array in (buffer.actions, buffer.rewards)),
            *self._observations(buffer.next_observations, last),
        ]
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite, and the row invalid
            for columns in parts:
                rows[:, start : start + columns.shape[1]] = columns
                start += columns.shape[1]
        ended, by_time = (array.reshape(-1).take(last) for array in (buffer.dones, buffer.timeouts))
        rows[:, start] = ended * (1 - by_time)
        if returns is not None:
            rows[:, self.spec.rewards] = returns.rewards
            rows[:, self.spec.field(DISCOUNT).columns] = returns.discounts
        return rows

    def _observations(self, held: Any, index: np.ndarray) -> list[np.ndarray]:
        """Read observations by row number from SB3's array or arrays, ``(n, columns)`` each."""
        arrays = held.values() if isinstance(held, dict) else (held,)
        return [self._flat(array).take(index, 0) for array in arrays]

    def _flat(self, array: np.ndarray) -> np.ndarray:
        """View an array of SB3 with one line per row number."""
        return array.reshape(self.capacity, -1)

    def _mirrors(self) -> bool:
        """Return whether rows are read from the mirror."""
        return self.device.type != "cpu"

    def _on_device(self) -> Tensor | None:
        """Return the updated mirror, or None if rows are read from the arrays."""
        if self._mirror is None or not self._mirrors():
            return None
        try:
            return self._mirrored()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._mirror = None
            warnings.warn(
                f"{len(self)} real rows do not fit into the memory of {self.device}; batches are copied from the host "
                f"from now on, which is slower ({error})",
                RuntimeWarning,
                stacklevel=4,
            )
            return None

    @torch.inference_mode(mode=False)  # an inference tensor could not be written to later
    def _mirrored(self) -> Tensor:
        """Update the mirror and return it; it grows by doubling."""
        buffer = self.buffer
        if self._mirror is None or len(self._mirror) < len(self):
            size = min(self.capacity, max(1024, 1 << (len(self) - 1).bit_length()))
            self._mirror = None  # free the old mirror before allocating the new one
            self._mirror = torch.empty(size, self.spec.dim, dtype=torch.float32, device=self.device)
            self._seen = buffer.added - buffer.size()
        behind = buffer.added - self._seen
        if behind:  # rows of several steps that had reached the newest one go on now
            behind = min(behind + buffer.n_steps - 1, buffer.size())
        first, size = (buffer.pos - behind) % buffer.buffer_size, buffer.buffer_size
        for positions in (range(first, min(first + behind, size)), range(first + behind - size)):  # wraps around
            if positions:
                rows = slice(positions.start * buffer.n_envs, positions.stop * buffer.n_envs)
                fresh = torch.from_numpy(self._gather(np.arange(rows.start, rows.stop)))
                self._mirror[rows].copy_(fresh, non_blocking=True)  # does not wait for the GPU
        self._seen = buffer.added
        return self._mirror
