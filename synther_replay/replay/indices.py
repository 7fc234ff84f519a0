"""Random indices and shuffles, drawn on the host in blocks and used on any device.

The numbers are identical on CPU and GPU, and the state of a stream is a few integers. A saved run therefore continues
exactly, also on another device. Drawing in blocks makes the cost per number negligible.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from synther_replay.common.checks import device_or_cpu, whole_number
from synther_replay.errors import CheckpointError

_NUMBERS_PER_BLOCK = 65_536
_SHUFFLES_PER_BLOCK = 64  # of a size that was drawn before
_SHUFFLES_IN_FIRST_BLOCK = 4  # of a new size, which may not come again
_SIZES_AT_HAND = 8  # sizes whose permutations are kept, so that several batch sizes may alternate
# Maximum number of draws whose indices are scaled to the number of rows in advance.
_DRAWS_AHEAD = 32
_MOST_NUMBERS = 2**27  # in a block of a loaded state, 1 GiB; a forged state may ask for any size


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
        """Continue at a position; an impossible one raises `CheckpointError`."""

    def restored(self, state: dict[str, Any]) -> Self:
        """Return a new stream on the same device that continues at a position."""
        stream = type(self)(self.seed, self.device)
        stream.load_state_dict(state)
        return stream

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
        self._scaled = torch.empty(0, dtype=torch.long, device=device)  # the next indices for one `high`
        self._scaled_from = -1  # position of the first one in the block
        self._high = 0
        self._taken = 0  # draws made so far for this `high`
        self._ready: list[Tensor] = []  # prepared draws for one (count, high); the next one is last
        self._ready_for = (0, 0)

    def draw(self, count: int, high: int) -> Tensor:
        """Draw `count` indices from 0 to ``high - 1``."""
        if not self._ready or self._ready_for != (count, high):
            self._scale_ahead(count, high)
            self._make_ready(count, high)
        self._cursor += count
        self._taken += 1
        return self._ready.pop()

    def to(self, device: torch.device) -> None:
        """Continue on another device."""
        self.device = device
        self._block = self._block.to(device)
        self._forget_prepared()

    def state_dict(self) -> dict[str, Any]:
        """Seed and position."""
        return {"seed": self.seed, "number": self._number, "cursor": self._cursor, "size": self._size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position; an impossible one raises `CheckpointError`."""
        seed, size, cursor = (whole_number(name, state[name], least=0) for name in ("seed", "size", "cursor"))
        number = whole_number("number", state["number"], least=-1)
        if not cursor <= size <= _MOST_NUMBERS or (size and number < 0):
            raise CheckpointError(
                f"state: random indices: got position {cursor} of {size} in block {number}; expected a position of at "
                f"most the size, a size of at most {_MOST_NUMBERS} and a block of at least 0"
            )
        self.seed = seed
        self._open_block(number, size)
        self._cursor = cursor

    def _open_block(self, number: int, size: int) -> None:
        numbers = np.random.default_rng([self.seed, number]).random(size) if size else np.empty(0)
        self._block = torch.from_numpy(numbers).to(self.device)
        self._number, self._size, self._cursor = number, size, 0
        self._forget_prepared()

    def _forget_prepared(self) -> None:
        self._scaled, self._scaled_from, self._ready = self._block[:0].long(), -1, []

    def _scale_ahead(self, count: int, high: int) -> None:
        """Scale the numbers of several draws at once: of as many as the previous `high` lasted for."""
        if high == self._high and self._cursor + count <= self._scaled_from + len(self._scaled):
            return
        if self._cursor + count > self._size:
            self._open_block(self._number + 1, max(_NUMBERS_PER_BLOCK, count))
        draws = min(_DRAWS_AHEAD, max(1, self._taken), (self._size - self._cursor) // count)
        if high != self._high:
            self._high, self._taken = high, 0
        numbers = self._block[self._cursor : self._cursor + draws * count]
        self._scaled, self._scaled_from = (numbers * high).long(), self._cursor

    def _make_ready(self, count: int, high: int) -> None:
        """Cut scaled numbers into draws: all of them, or only one while the counts alternate."""
        start = self._cursor - self._scaled_from
        draws = (len(self._scaled) - start) // count if self._ready_for == (count, high) else 1
        block = self._scaled[start : start + draws * count]
        self._ready = [block] if draws == 1 else list(block.view(draws, count).unbind())[::-1]
        self._ready_for = (count, high)


class _Shuffles:
    """A block of permutations of one size. They are made at the first draw: a state may be loaded and never used."""

    __slots__ = ("left", "number", "shuffles", "unused")

    def __init__(self, number: int, shuffles: int, left: int) -> None:
        self.number, self.shuffles, self.left = number, shuffles, left
        self.unused: list[Tensor] = []  # `left` of them once they are made; the next one is last


class ShuffleStream(_Stream):
    """Random positions without replacement: prefixes of random permutations.

    >>> stream = ShuffleStream(seed=0, device=torch.device("cpu"))
    >>> sorted(stream.draw(4, 4).tolist()), len(stream.draw(4, 2))
    ([0, 1, 2, 3], 2)
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        """Start the stream of a seed."""
        super().__init__(seed, device)
        self._number = -1  # index of the last block
        # by length of the permutations and of the prefix in use; the last one opened is last
        self._blocks: dict[tuple[int, int], _Shuffles] = {}

    def draw(self, n: int, count: int) -> Tensor:
        """Draw `count` distinct numbers from 0 to ``n - 1`` in random order."""
        block = self._blocks.get((n, count))
        if block is None or not block.left:
            block = self._open_block(n, count)
        if not block.unused:
            block.unused = self._permutations(block, n, count)[: block.left]
        block.left -= 1
        return block.unused.pop()

    def to(self, device: torch.device) -> None:
        """Continue on another device."""
        self.device = device
        for block in self._blocks.values():
            block.unused = [permutation.to(device) for permutation in block.unused]

    def state_dict(self) -> dict[str, Any]:
        """Seed and position."""
        blocks = [
            {"size": list(size), "number": block.number, "shuffles": block.shuffles, "left": block.left}
            for size, block in self._blocks.items()
        ]
        return {"seed": self.seed, "number": self._number, "blocks": blocks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position; an impossible one raises `CheckpointError`."""
        seed, last = whole_number("seed", state["seed"], least=0), whole_number("number", state["number"], least=-1)
        blocks: dict[tuple[int, int], _Shuffles] = {}
        for block in state.get("blocks", [state]):  # 0.2.0 had one block
            n, count = (whole_number("size", size, least=0) for size in block["size"])
            number = whole_number("number", block["number"], least=-1)
            shuffles, left = (whole_number(name, block[name], least=0) for name in ("shuffles", "left"))
            most = max(1, min(_SHUFFLES_PER_BLOCK, _NUMBERS_PER_BLOCK // max(1, n)))
            if not (count <= n and left <= shuffles <= most and (number >= 0 or not shuffles)):
                raise CheckpointError(
                    f"state: shuffles: got {count} of {n} numbers in use, {left} of {shuffles} shuffles left in block "
                    f"{number}; expected at most all of them, at most {most} shuffles and a block of at least 0"
                )
            if shuffles:
                blocks[n, count] = _Shuffles(number, shuffles, left)
        self.seed, self._number, self._blocks = seed, last, blocks

    def _open_block(self, n: int, count: int) -> _Shuffles:
        """Open the next block, for a size whose permutations are used up or not at hand."""
        most = _SHUFFLES_IN_FIRST_BLOCK if self._blocks.pop((n, count), None) is None else _SHUFFLES_PER_BLOCK
        if len(self._blocks) == _SIZES_AT_HAND:
            del self._blocks[next(iter(self._blocks))]
        shuffles = max(1, min(most, _NUMBERS_PER_BLOCK // n))
        self._number += 1
        self._blocks[n, count] = _Shuffles(self._number, shuffles, shuffles)
        return self._blocks[n, count]

    def _permutations(self, block: _Shuffles, n: int, count: int) -> list[Tensor]:
        ordered = np.broadcast_to(np.arange(n), (block.shuffles, n))
        shuffled = np.random.default_rng([self.seed, block.number]).permuted(ordered, axis=1)[:, :count]
        return list(torch.from_numpy(np.ascontiguousarray(shuffled)).to(self.device).unbind())
