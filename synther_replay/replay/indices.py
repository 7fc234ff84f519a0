"""Random indices and shuffles, drawn on the host in blocks and used on any device.

The numbers are the same on a CPU and a GPU, and a stream's state is a few integers: a saved run continues exactly, on
another device, too. Drawing block-wise makes one number nearly free on either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.common.checks import device_or_cpu

_NUMBERS_PER_BLOCK = 65_536
_SHUFFLES_PER_BLOCK = 64  # while their sizes stay the same
_SHUFFLES_IN_FIRST_BLOCK = 4  # after a change of them: there may be another one soon
# Indices are scaled to the number of rows for at most so many draws at once.
_DRAWS_AHEAD = 32


class _Stream(ABC):
    """What both streams share: pickle and deepcopy take along device, seed and position alone."""

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
        """Rebuild, on the CPU where the device is missing."""
        self.__init__(pickled["state"]["seed"], device_or_cpu(pickled["device"]))  # type: ignore[misc]
        self.load_state_dict(pickled["state"])


class IndexStream(_Stream):
    """Uniform random indices with repetition.

    >>> stream = IndexStream(seed=0, device=torch.device("cpu"))
    >>> stream.draw(3, high=10).shape
    torch.Size([3])
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        """Start the stream of a seed."""
        super().__init__(seed, device)
        self._number = -1  # of the current block
        self._size = 0
        self._cursor = 0  # numbers of it that are used up
        self._block = torch.empty(0, dtype=torch.float64, device=device)
        self._ready: list[Tensor] = []  # the next draws of one count and range, the first one last
        self._ready_for = (0, 0)
        self._taken = 0  # draws of that count and range so far

    def draw(self, count: int, high: int) -> Tensor:
        """`count` indices from 0 to `high` - 1."""
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
        """Scale as many draws as the last range was good for: a buffer grows after each, or after twenty, or never."""
        if self._cursor + count > self._size:
            self._open_block(self._number + 1, max(_NUMBERS_PER_BLOCK, count))
        draws = min(_DRAWS_AHEAD, max(1, self._taken), (self._size - self._cursor) // count)
        if self._ready_for != (count, high):
            self._ready_for, self._taken = (count, high), 0
        numbers = self._block[self._cursor : self._cursor + draws * count]
        scaled = (numbers * high).long()
        self._ready = [scaled] if draws == 1 else list(scaled.view(draws, count).unbind())[::-1]


class ShuffleStream(_Stream):
    """Random places without repetition: the beginnings of permutations.

    >>> stream = ShuffleStream(seed=0, device=torch.device("cpu"))
    >>> sorted(stream.draw(4, 4).tolist()), len(stream.draw(4, 2))
    ([0, 1, 2, 3], 2)
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        """Start the stream of a seed."""
        super().__init__(seed, device)
        self._number = -1  # of the current block
        self._size = (0, 0)  # of its permutations, and of what is used of them
        self._shuffles = 0  # that it began with
        self._block: list[Tensor] = []  # those not used yet, the next one last

    def draw(self, n: int, count: int) -> Tensor:
        """`count` different numbers from 0 to `n` - 1, in random order."""
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
