"""Random indices and shuffles, drawn on the host in blocks and used on any device.

The numbers are the same on a CPU and a GPU, and a stream's state is a few integers: a saved run continues exactly, on
another device, too. Drawing block-wise makes one number nearly free on either.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_NUMBERS_PER_BLOCK = 65_536
_SHUFFLES_PER_BLOCK = 64
# Indices are scaled to the number of rows for so many draws at once: that number changes less often than we draw.
_DRAWS_AHEAD = 8


class IndexStream:
    """Uniform random indices with repetition.

    >>> stream = IndexStream(seed=0, device=torch.device("cpu"))
    >>> stream.draw(3, high=10).shape
    torch.Size([3])
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        """Start the stream of a seed."""
        self.seed = seed
        self.device = device
        self._number = -1  # of the current block
        self._size = 0
        self._cursor = 0  # numbers of it that are used up
        self._block = torch.empty(0, dtype=torch.float64, device=device)
        self._scaled = torch.empty(0, dtype=torch.long, device=device)
        self._scaled_from = self._scaled_to = 0  # the part of the block that it covers
        self._high = 0  # what it is scaled to

    def draw(self, count: int, high: int) -> Tensor:
        """`count` indices from 0 to `high` - 1."""
        if self._cursor + count > self._size:
            self._open_block(self._number + 1, max(_NUMBERS_PER_BLOCK, count))
        start, end = self._cursor, self._cursor + count
        if high != self._high or end > self._scaled_to:
            self._high, self._scaled_from = high, start
            self._scaled_to = min(start + count * _DRAWS_AHEAD, self._size)
            self._scaled = (self._block[start : self._scaled_to] * high).long()
        self._cursor = end
        return self._scaled[start - self._scaled_from : end - self._scaled_from]

    def to(self, device: torch.device) -> None:
        """Continue on another device."""
        self.device = device
        self._block = self._block.to(device)
        self._forget_scaled()

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
        self._forget_scaled()

    def _forget_scaled(self) -> None:
        self._high = 0


class ShuffleStream:
    """Random permutations.

    >>> stream = ShuffleStream(seed=0, device=torch.device("cpu"))
    >>> sorted(stream.draw(4).tolist())
    [0, 1, 2, 3]
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        """Start the stream of a seed."""
        self.seed = seed
        self.device = device
        self._number = -1  # of the current block
        self._size = 0  # of its permutations
        self._block: list[Tensor] = []  # those not used yet, the next one last

    def draw(self, n: int) -> Tensor:
        """A permutation of the numbers from 0 to `n` - 1."""
        if not self._block or self._size != n:
            self._open_block(self._number + 1, n)
        return self._block.pop()

    def to(self, device: torch.device) -> None:
        """Continue on another device."""
        self.device = device
        self._block = [permutation.to(device) for permutation in self._block]

    def state_dict(self) -> dict[str, Any]:
        """Seed and position."""
        return {"seed": self.seed, "number": self._number, "size": self._size, "left": len(self._block)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        self.seed = state["seed"]
        if state["left"]:
            self._open_block(state["number"], state["size"])
        self._number, self._size = state["number"], state["size"]
        self._block = self._block[: state["left"]]

    def _open_block(self, number: int, n: int) -> None:
        count = max(1, min(_SHUFFLES_PER_BLOCK, _NUMBERS_PER_BLOCK // n))
        ordered = np.broadcast_to(np.arange(n), (count, n))
        shuffled = np.random.default_rng([self.seed, number]).permuted(ordered, axis=1)
        self._block = list(torch.from_numpy(shuffled).to(self.device).unbind())
        self._number, self._size = number, n
