"""Windows: a stream of transitions as random samples that fit in memory.

The rows of a stream are dealt out at random to windows of about equal size. Each window is therefore a uniform sample
of the whole stream, in whatever order the stream has its rows, and together they are the whole stream. To read a window
is to read the stream once. The first one determines the statistics; ranges are those of all rows, by the rows with the
smallest and the largest value of every column.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from threading import Event

import numpy as np
import torch
from torch import Tensor

from synther_replay.common.seeding import Stream, derive_seed
from synther_replay.data.stream import RowStream
from synther_replay.data.transitions import Transitions

WINDOW_VALUES = 2**27  # of a window by default: 512 MiB, of which a fit needs about four times
# Draws of each row of a window before the next one takes its place: reading is then a small part of the fit, and a
# model that sees a row so few times does not memorise it.
_DRAWS_PER_ROW = 8


class Windows:
    """The windows of a stream.

    Args:
        stream: The transitions.
        size: Rows of a window; a few more or less by chance. None: so many that they have 2^27 values.
        seed: Seed of the deal.

    Attributes:
        count: Number of rows of the stream.
        number: Number of windows.
    """

    def __init__(self, stream: RowStream, size: int | None, seed: int) -> None:
        """Count the rows."""
        self._stream, self._seed = stream, seed
        self.count = stream.count()
        self.number = max(1, math.ceil(self.count / (size or max(1, WINDOW_VALUES // stream.spec.dim))))

    def first(self) -> tuple[Transitions, Tensor | None]:
        """Read the first window, and, if there are more, the rows with the extreme values of all; all rows are checked.

        Raises:
            ValueError: The stream changed, or a value is not valid.
        """
        extremes = _Extremes()
        rows = self.read(0, extremes.see)
        return Transitions(self._stream.spec, rows), extremes.rows() if self.number > 1 else None

    def read(self, number: int, see: Callable[[Transitions], None]) -> Tensor:
        """Read the window of a number, ``(n, dim)``; `see` is called with each block and may raise to stop.

        Raises:
            ValueError: The stream changed.
        """
        rng = np.random.default_rng(derive_seed(self._seed, Stream.WINDOWS))  # deals the same windows every time
        parts, seen = [], 0
        for block in self._stream.blocks():
            if not len(block):
                continue
            see(block)
            mine = torch.from_numpy(rng.integers(self.number, size=len(block)) == number)
            parts.append(block.rows if self.number == 1 else block.rows[mine])
            seen += len(block)
        if seen != self.count:
            raise ValueError(f"transitions: the stream had {self.count} rows at first, now it has {seen}")
        return torch.cat(parts) if parts else torch.empty(0, self._stream.spec.dim, dtype=torch.float32, device="cpu")


class _Extremes:
    """The rows of a stream with the smallest and the largest value of each column."""

    def __init__(self) -> None:
        self._low: Tensor | None = None
        self._high: Tensor | None = None

    def see(self, block: Transitions) -> None:
        """Check a block and keep its extreme rows; row k has the extreme of column k."""
        block.check()
        rows = block.rows
        low, high = rows[rows.argmin(0)], rows[rows.argmax(0)]
        if self._low is None or self._high is None:
            self._low, self._high = low, high
            return
        lower, higher = low.diagonal() < self._low.diagonal(), high.diagonal() > self._high.diagonal()
        self._low = torch.where(lower[:, None], low, self._low)
        self._high = torch.where(higher[:, None], high, self._high)

    def rows(self) -> Tensor:
        """Return the rows, ``(2 * dim, dim)``; none if there were none."""
        found = [part for part in (self._low, self._high) if part is not None]
        return torch.cat(found) if found else torch.empty(0, 0, dtype=torch.float32, device="cpu")


class WindowSupply:
    """The later windows of a stream, each at its share of the training; the next one is read meanwhile.

    Args:
        windows: The windows; the first one has been read.
        draws: Rows that the training draws.
        encode: Makes training data of rows.
    """

    def __init__(self, windows: Windows, draws: int, encode: Callable[[Tensor], Tensor]) -> None:
        """Choose the number of windows to use."""
        self._windows, self._encode = windows, encode
        rows = windows.count / windows.number
        self._parts = max(1, min(windows.number, round(draws / (_DRAWS_PER_ROW * rows))))
        self._used = 1
        self._is_over = Event()
        self._reader: ThreadPoolExecutor | None = None
        self._next: Future[Tensor] | None = None

    def __enter__(self) -> WindowSupply:
        """Begin to read the next window."""
        if self._parts > 1:
            self._reader = ThreadPoolExecutor(1, "synther-windows")
            self._ask()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop reading."""
        self._is_over.set()
        if self._reader is not None:
            self._reader.shutdown(wait=True, cancel_futures=True)

    def due(self, share: float) -> Tensor | None:
        """Return the next window, encoded, if its share of the training has come; waits until it is read."""
        if self._next is None or share < self._used / self._parts:
            return None
        rows = self._next.result()
        self._used += 1
        self._ask()
        return self._encode(rows)

    def _ask(self) -> None:
        self._next = None
        if self._reader is not None and self._used < self._parts:
            self._next = self._reader.submit(self._windows.read, self._used, self._go_on)

    def _go_on(self, block: Transitions) -> None:
        if self._is_over.is_set():
            raise CancelledError
