"""Reading transitions from files of any format, in blocks; every error names the file."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import is_out_of_memory
from synther_replay.files.fields import (
    NEXT_OBSERVATIONS,
    OBSERVATIONS,
    TERMINALS,
    TIMEOUTS,
    check_finite,
    leaves,
    root_of,
    to_transitions,
)
from synther_replay.files.formats import located
from synther_replay.files.inference import spec_of
from synther_replay.files.pairing import paired
from synther_replay.files.table import ROWS, Arrays, Table, block_rows, numbered


class FileError(ValueError):
    """A file cannot be read: it is damaged, lacks a field, or holds values that are no transitions."""


@dataclass(frozen=True)
class TransitionFile:
    """A file of transitions whose header was read.

    >>> import numpy as np, tempfile
    >>> rows = {"observations": np.random.rand(100, 3), "actions": np.random.rand(100, 1), "rewards": np.zeros(100)}
    >>> rows |= {"terminals": np.zeros(100, bool), "timeouts": np.arange(100) % 50 == 49}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/raw.npz", **rows)
    ...     file = open_file(f"{folder}/raw.npz")
    ...     file.rows, file.is_raw, len(file.read())
    (100, True, 98)

    Attributes:
        path: The file or folder.
        format: Name of the format.
        spec: Layout of the transitions.
        rows: Number of rows. In a raw file, rows with a timeout and the last one are no transitions.
        is_raw: Whether next observations are those of the next row.
        about: What the file says about its origin.
    """

    path: Path
    format: str
    spec: TransitionSpec
    rows: int
    is_raw: bool
    about: Mapping[str, Any]
    _table: Table
    _episode_steps: int | None

    @property
    def not_modelled(self) -> list[str]:
        """Names of arrays in the file that are no part of its transitions."""
        flags = [TIMEOUTS] if TIMEOUTS in self._table.columns and not self.is_raw else []
        return [*self._table.unknown, *flags]

    def blocks(self) -> Iterator[Transitions]:
        """Yield the transitions in blocks; memory is bounded by the size of a block.

        Raises:
            FileError: The file is damaged, or a value is no part of a transition.
        """
        keys = [key for key, _, _ in leaves(self.spec) if not (self.is_raw and root_of(key) == NEXT_OBSERVATIONS)]
        missing = [key for key in keys if key not in self._table.columns]
        if missing:
            raise FileError(f"{self.path}: {', '.join(missing)}: missing; found {', '.join(self._table.columns)}")
        try:
            with closing(self._arrays(keys)) as blocks:  # errors close the file, too
                for block in blocks:
                    yield self._transitions(block)
        except Exception as error:
            raise _named(self.path, error) from error

    def count(self) -> int:
        """Return the number of transitions; of a raw file the flags are read.

        Raises:
            FileError: The file is damaged.
        """
        if not self.is_raw:
            return self.rows
        try:
            with closing(self._arrays([TERMINALS])) as blocks:
                return sum(len(block[TERMINALS]) for block in blocks)
        except Exception as error:
            raise _named(self.path, error) from error

    def _arrays(self, keys: Sequence[str]) -> Generator[Arrays, None, None]:
        """Yield some arrays in blocks, a row per transition."""
        keys = [*keys, TIMEOUTS] if self.is_raw and TIMEOUTS in self._table.columns else keys
        with closing(self._table.blocks(keys, block_rows(self.spec.dim))) as arrays:
            blocks = numbered(arrays)
            yield from paired(blocks, self._episode_steps) if self.is_raw else blocks

    def _transitions(self, block: Arrays) -> Transitions:
        try:
            return to_transitions(self.spec, block)
        except ValueError:
            self._check_finite(block)
            raise

    def _check_finite(self, block: Arrays) -> None:
        """Raise ValueError with the place in the file of the first value that is not finite."""
        for key, values in block.items():
            rows = block[ROWS]
            if self.is_raw and root_of(key) == NEXT_OBSERVATIONS:  # they are the observations of the next row
                key, rows = OBSERVATIONS + key.removeprefix(NEXT_OBSERVATIONS), rows + 1
            check_finite(key, values, rows)

    def read(self) -> Transitions:
        """Return all transitions.

        Raises:
            FileError: The file is damaged, or a value is no part of a transition, or it has none.
        """
        rows = [block.rows for block in self.blocks()]
        if not rows:
            raise FileError(f"{self.path}: observations: no transitions in {self.rows} rows")
        return Transitions(self.spec, torch.cat(rows))


def open_file(path: str | os.PathLike[str], *, episode_steps: int | None = None) -> TransitionFile:
    """Read the header of a file.

    Args:
        path: An HDF5 file (also raw ones of D4RL), ``.npz``, ``.parquet``, or a data set of Minari by folder or name.
        episode_steps: Time limit of episodes, for raw files without timeouts.

    Raises:
        FileNotFoundError: The file does not exist.
        FileError: The format is unknown, the file is damaged, or a field is missing.
    """
    try:
        place, chosen = located(path, exists=True)
    except ValueError as error:
        raise FileError(str(error)) from error
    try:
        table = chosen.open_table(place)
        spec = spec_of(table)
        is_raw = not any(root_of(key) == NEXT_OBSERVATIONS for key in table.columns)
        if is_raw and TIMEOUTS not in table.columns and episode_steps is None:
            raise ValueError(
                f"{TIMEOUTS}: missing, as are {NEXT_OBSERVATIONS}; give the time limit of an episode in steps "
                "(--episode-steps, episode_steps=)"
            )
        return TransitionFile(place, chosen.NAME, spec, table.rows, is_raw, table.about, table, episode_steps)
    except Exception as error:
        raise _named(place, error) from error


def read(path: str | os.PathLike[str], *, episode_steps: int | None = None) -> Transitions:
    """Return all transitions of a file; see `open_file`."""
    return open_file(path, episode_steps=episode_steps).read()


def _named(path: Path, error: Exception) -> Exception:
    """Return an error that names the file; libraries raise nearly anything for damaged ones."""
    if isinstance(error, ImportError | FileError | PermissionError) or is_out_of_memory(error):
        return error
    text = " ".join(str(error).split()) or type(error).__name__
    return FileError(f"{path}: {text}")
