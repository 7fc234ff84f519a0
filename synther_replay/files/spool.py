"""Spool: rows on disk in blocks with checksums. What a killed process left is kept up to its last whole block."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.files.table import block_rows

_CHECKSUM = 4  # bytes after each block


class Spool:
    """A file of `count` rows, written block by block and read as often as needed.

    >>> import gymnasium as gym, tempfile
    >>> spec = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (1,)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     spool = Spool(Path(folder) / "rows", spec, 70_000)
    ...     spool.append(Transitions(spec, torch.zeros(spool.next_size, spec.dim)))
    ...     again = Spool(Path(folder) / "rows", spec, 70_000)
    ...     again.number, again.rows, again.next_size
    (1, 65536, 4464)

    Args:
        path: The file; one that exists is continued.
        spec: Layout of the rows.
        count: Number of rows in the end.
    """

    def __init__(self, path: Path, spec: TransitionSpec, count: int) -> None:
        """Find the whole blocks of the file and cut off what follows them."""
        self._path, self._spec, self._count = path, spec, count
        self._size = block_rows(spec.dim)
        self.number = sum(1 for _ in self._read()) if path.exists() else 0  # of the next block
        with path.open("ab") as file:
            file.truncate(self.rows * spec.dim * 4 + self.number * _CHECKSUM)

    @property
    def rows(self) -> int:
        """Number of rows that are there."""
        return min(self._count, self.number * self._size)

    @property
    def next_size(self) -> int:
        """Number of rows of the next block; 0 if the spool is complete."""
        return min(self._size, self._count - self.rows)

    def append(self, transitions: Transitions) -> None:
        """Write the next block, to the disk.

        Raises:
            OSError: The disk is full. The message names the file.
            ValueError: The block has another number of rows.
        """
        if len(transitions) != self.next_size:
            raise ValueError(f"transitions: expected {self.next_size} rows, got {len(transitions)}")
        data = np.ascontiguousarray(transitions.rows.cpu().numpy(), "<f4").data.cast("B")
        try:
            with self._path.open("ab") as file:
                file.write(data)
                file.write(zlib.crc32(data).to_bytes(_CHECKSUM, "little"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise
        self.number += 1

    def blocks(self) -> Iterator[Transitions]:
        """Yield the blocks in order."""
        return self._read()

    def _read(self) -> Iterator[Transitions]:
        with self._path.open("rb") as file:
            for start in range(0, self._count, self._size):
                rows = min(self._size, self._count - start)
                data = bytearray(rows * self._spec.dim * 4)
                if file.readinto(data) != len(data):
                    return
                if file.read(_CHECKSUM) != zlib.crc32(data).to_bytes(_CHECKSUM, "little"):
                    return
                values = np.frombuffer(data, "<f4").reshape(rows, self._spec.dim)
                yield Transitions(self._spec, torch.from_numpy(values))
