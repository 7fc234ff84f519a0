"""Table: what every format of data files gives, named arrays of equal length that are read in blocks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from synther_replay.data.transitions import Transitions

Arrays = dict[str, np.ndarray]
Blocks = Callable[[], Iterator[Transitions]]
"""Gives the rows to write. Formats that store one field after the other call it several times."""

SPEC = "spec"  # key of `Table.about` with the spec as JSON
ROWS = "/rows"  # name of an array of row numbers, which no field can have
_MOST_ROWS = 65_536  # rows of a block, ...
_MOST_VALUES = 2**23  # ... and its values: rows may be long


@dataclass(frozen=True)
class Column:
    """One array of a file.

    Attributes:
        shape: Shape of one row.
        dtype: Type of the numbers.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Table(Protocol):
    """A file whose header was read."""

    @property
    def rows(self) -> int:
        """Number of rows. In a raw file of D4RL not every row is a transition."""

    @property
    def columns(self) -> Mapping[str, Column]:
        """Arrays by name; entries of a Dict or Tuple are named ``observations/key``."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What the file says about itself, as JSON values; `SPEC` holds the layout of the transitions."""

    @property
    def unknown(self) -> Sequence[str]:
        """Names of arrays that belong to no field, as they are in the file."""

    def blocks(self, keys: Sequence[str], size: int) -> Generator[Arrays, None, None]:
        """Yield `size` rows of some arrays at a time; the last block may be shorter."""


class Format(Protocol):
    """One format: a module with these functions."""

    NAME: str

    def check_installed(self) -> None:
        """Raise ImportError if a library that the format needs is missing."""

    def open_table(self, path: Any, /) -> Table:
        """Read the header of a file. Libraries raise different errors for damaged files."""

    def write(self, path: Any, count: int, blocks: Blocks, about: Mapping[str, Any], /) -> None:
        """Write `count` rows atomically; equal rows give equal bytes.

        Raises:
            OSError: The file cannot be written, for example because the disk is full. The old file is unchanged.
            GenerationError: The blocks have fewer or more rows.
        """


def numbered(blocks: Iterable[Arrays]) -> Iterator[Arrays]:
    """Add the numbers of the rows in the file to blocks that follow one another."""
    start = 0
    for block in blocks:
        count = len(next(iter(block.values())))
        yield {**block, ROWS: np.arange(start, start + count)}
        start += count


def block_rows(values: int) -> int:
    """Return the number of rows of a block, for rows of so many values; it bounds the memory.

    >>> block_rows(42), block_rows(4_096)
    (65536, 2048)
    """
    return max(1, min(_MOST_ROWS, _MOST_VALUES // max(1, values)))
