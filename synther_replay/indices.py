"""Random indices for sampling rows, drawn on the host in blocks and used on any device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_BLOCK = 65_536
# Far above any number of rows, so that the remainder is even to many digits.
_RANGE = 2**62


class IndexStream:
    """Uniform indices: the same numbers on a CPU and a GPU, from a state of three integers.

    A block of large random integers is made on the host and copied to the device once; a draw is a slice of it modulo
    the number of rows. That is as fast as drawing on the device, and a run continues exactly on another one.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        """Start the stream of a seed."""
        self.seed = seed
        self.device = device
        self._number = -1  # of the current block
        self._cursor = 0
        self._block = torch.empty(0, dtype=torch.long, device=device)

    def draw(self, count: int, high: int) -> Tensor:
        """`count` indices from 0 to `high` - 1, with repetition."""
        if self._cursor + count > len(self._block):
            self._open_block(self._number + 1, max(_BLOCK, count))
        part = self._block[self._cursor : self._cursor + count]
        self._cursor += count
        return part % high

    def to(self, device: torch.device) -> None:
        """Continue on another device."""
        self.device = device
        self._block = self._block.to(device)

    def state_dict(self) -> dict[str, Any]:
        """Seed and position."""
        return {"seed": self.seed, "number": self._number, "cursor": self._cursor, "size": len(self._block)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        self.seed = state["seed"]
        self._open_block(state["number"], state["size"])
        self._cursor = state["cursor"]

    def _open_block(self, number: int, size: int) -> None:
        rng = np.random.default_rng([self.seed, max(number, 0)])
        self._block = torch.from_numpy(rng.integers(_RANGE, size=size)).to(self.device)
        self._number, self._cursor = number, 0
