"""Random indices and shuffles, drawn on the host in blocks and used on any device.

The numbers are identical on CPU and GPU, and the state of a stream is a few integers. A saved run therefore continues
exactly, also on another device. Drawing in blocks makes the cost per number negligible.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.common.checks import device_or_cpu

_NUMBERS_PER_BLOCK = 65_536
_SHUFFLES_PER_BLOCK = 64  # while the sizes stay the same
_SHUFFLES_IN_FIRST_BLOCK = 4  # after the sizes changed: they may change again soon
# Maximum number of draws whose indices are scaled to the number of rows in advance.
_DRAWS_AHEAD = 32


class _Stream(ABC):
    """Base of both streams; pickle and deepcopy keep only device, seed and position."""

    def __init__(self, seed: int, device: torch.device) -> None:
        """Start the stream of a seed."""
        self.seed = seed
        self.device = device

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Seed and position."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position."""

    def __getstate__(self) -> dict[str, Any]:
        return {"device": self.device, "state": self.state_dict()}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """Restore; on the CPU if the device does not exist here."""
        self.__init__(pickled["state"]["seed"], device_or_cpu(pickled["device"]))  # type: ignore[misc]
        self.load_state_dict(pickled["state"])


class IndexStream(_Stream):
    """Uniform random indices with replacement.

    >>> stream = IndexStream(seed=0, device=torch.device("cpu"))
    >>> stream.draw(3, high=10).shape
    torch.Size([3])
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        """Start the stream of a seed."""
        super().__init__(seed, device)
        self._number = -1  # index of the current block
        self._size = 0
        self._cursor = 0  # numbers of the block already used
        self._block = torch.empty(0, dtype=torch.float64, device=device)
        self._ready: list[Tensor] = []  # prepared draws for one (count, high); the next one is last
        self._ready_for = (0, 0)
        self._taken = 0  # draws made so far for this (count, high)

    def draw(self, count: int, high: int) -> Tensor:
        """Draw `count` indices from 0 to ``high - 1``."""
        if not self._ready or self._ready_for != (count, high):
            self._make_ready(count, high)
        self._cursor += count
        self._taken += 1
        return self._ready.pop()

    def to(self, device: torch.device) -> None:
        """Continue on another device."""
        self.device = device
        self._block = self._block.to(device)
        self._ready = []

    def state_dict(self) -> dict[str, Any]:
        """Seed and position."""
        return {"seed": self.seed, "number": self._number, "cursor": self._cursor, "size": self._size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        self.seed = state["seed"]
        self._open_block(state["number"], state["size"])
        self._cursor = state["cursor"]

    def _open_block(self, number: int, size: int) -> None:
        numbers = np.random.default_rng([self.seed, number]).random(size) if size else np.empty(0)
        self._block = torch.from_numpy(numbers).to(self.device)
        self._number, self._size, self._cursor = number, size, 0
        self._ready = []

    def _make_ready(self, count: int, high: int) -> None:
        """Prepare several draws at once: as many as the previous `high` was used for before the buffer grew."""
        if self._cursor + count > self._size:
            self._open_block(self._number + 1, max(_NUMBERS_PER_BLOCK, count))
        draws = min(_DRAWS_AHEAD, max(1, self._taken), (self._size - self._cursor) // count)
        if self._ready_for != (count, high):
            self._ready_for, self._taken = (count, high), 0
        numbers = self._block[self._cursor : self._cursor + draws * count]
        scaled = (numbers * high).long()
        self._ready = [scaled] if draws == 1 else list(scaled.view(draws, count).unbind())[::-1]


class ShuffleStream(_Stream):
    """Random positions without replacement: prefixes of random permutations.

    >>> stream = ShuffleStream(seed=0, device=torch.device("cpu"))
    >>> sorted(stream.draw(4, 4).tolist()), len(stream.draw(4, 2))
    ([0, 1, 2, 3], 2)
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        """Start the stream of a seed."""
        super().__init__(seed, device)
        self._number = -1  # index of the current block
        self._size = (0, 0)  # length of the permutations and of the prefix in use
        self._shuffles = 0  # permutations in a full block
        self._block: list[Tensor] = []  # unused permutations; the next one is last

    def draw(self, n: int, count: int) -> Tensor:
        """Draw `count` distinct numbers from 0 to ``n - 1`` in random order."""
        if not self._block or self._size != (n, count):
            most = _SHUFFLES_PER_BLOCK if self._size == (n, count) else _SHUFFLES_IN_FIRST_BLOCK
            self._open_block(self._number + 1, n, count, max(1, min(most, _NUMBERS_PER_BLOCK // n)))
        return self._block.pop()

    def to(self, device: torch.device) -> None:
        """Continue on another device."""
        self.device = device
        self._block = [permutation.to(device) for permutation in self._block]

    def state_dict(self) -> dict[str, Any]:
        """Seed and position."""
        return {
            "seed": self.seed,
            "number": self._number,
            "size": list(self._size),
            "shuffles": self._shuffles,
            "left": len(self._block),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        self.seed = state["seed"]
        n, count = state["size"]
        if state["left"]:
            self._open_block(state["number"], n, count, state["shuffles"])
        self._number, self._size, self._shuffles = state["number"], (n, count), state["shuffles"]
        self._block = self._block[: state["left"]]

    def _open_block(self, number: int, n: int, count: int, shuffles: int) -> None:
        ordered = np.broadcast_to(np.arange(n), (shuffles, n))
        shuffled = np.random.default_rng([self.seed, number]).permuted(ordered, axis=1)[:, :count]
        self._block = list(torch.from_numpy(np.ascontiguousarray(shuffled)).to(self.device).unbind())
        self._number, self._size, self._shuffles = number, (n, count), shuffles
