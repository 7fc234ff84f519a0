"""D4RL's format: conversion to transitions, file reading and writing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from io import BufferedRandom
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.persistence.atomic import replacing

KEYS = ("observations", "actions", "rewards", "next_observations", "terminals")  # in the order of the row's columns
HDF5 = (".hdf5", ".h5")
BLOCK = 65_536  # rows written to HDF5 at once
_CHUNK = 4_096  # rows per HDF5 chunk, which has one checksum
_NOTE = "generated transitions in random order; every row ends an episode: timeouts = not terminals"


def pack(spec: TransitionSpec, data: Mapping[str, Any]) -> Transitions:
    """Convert a data set to transitions and validate it.

    Args:
        spec: Layout; observations and actions are vectors.
        data: An array for each of `KEYS`: states and actions ``(n, dim)``, the others ``(n,)`` or ``(n, 1)``.

    Raises:
        ValueError: A key is missing, a shape is wrong, a value is non-finite, or a terminal is neither 0 nor 1.
    """
    missing = [key for key in KEYS if key not in data]
    if missing:
        hint = "; d4rl.qlearning_dataset(env) returns all keys" if "next_observations" in missing else ""
        raise ValueError(f"data: missing {', '.join(missing)}, got keys {sorted(map(str, data))}{hint}")
    arrays = {key: np.asarray(data[key]) for key in KEYS}
    n = (*arrays["observations"].shape, 0)[0]
    for key, columns in zip(KEYS, _widths(spec), strict=True):
        expected: tuple[int, ...] = n, columns
        if key in ("rewards", "terminals"):
            expected = (n,)
            arrays[key] = arrays[key][:, 0] if arrays[key].shape == (n, 1) else arrays[key]
        if arrays[key].shape != expected:
            raise ValueError(f"{key}: expected shape {expected}, got {arrays[key].shape}")
    if not n:
        raise ValueError("data: expected at least one transition, got none")
    known = np.isin(arrays["terminals"], (0, 1))
    if not known.all():
        raise ValueError(f"terminals: expected 0 and 1, got {arrays['terminals'][~known][0]}")
    return Transitions.from_arrays(spec, *arrays.values())


def split(spec: TransitionSpec, rows: Tensor) -> tuple[Tensor, ...]:
    """Split rows into the fields in the order of `KEYS`, each ``(n, dim)``."""
    return torch.split(rows, _widths(spec), dim=1)


def write(path: Path, spec: TransitionSpec, count: int, blocks: Iterable[Tensor]) -> None:
    """Write `count` rows, given in blocks of `BLOCK`, to a file atomically."""
    with replacing(path) as temporary:
        named = (_named(spec, block) for block in blocks)
        if path.suffix in HDF5:
            _write_hdf5(temporary, count, named)
        else:
            _write_npz(temporary, named)


def read(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of `KEYS` that the file has; pickled objects are not loaded."""
    if path.suffix in HDF5:
        h5py = _h5py()
        with h5py.File(path, "r") as file:
            return {key: file[key][()] for key in KEYS if key in file}
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in KEYS if key in file}


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return the path if its suffix is supported, else raise ValueError."""
    path = Path(path)
    if path.suffix not in (".npz", *HDF5):
        raise ValueError(f"path: expected the suffix .npz, .hdf5 or .h5, got {path}")
    return path


def _widths(spec: TransitionSpec) -> list[int]:
    return [spec.observation_dim, spec.action_dim, 1, spec.observation_dim, 1]


def _named(spec: TransitionSpec, rows: Tensor) -> dict[str, np.ndarray]:
    """Convert rows to D4RL's arrays.

    Many readers take row i + 1 as the successor of row i unless an episode ended at i. Generated rows have no order, so
    every row that is not terminal is marked as a timeout.
    """
    fields = {key: field.numpy() for key, field in zip(KEYS, split(spec, rows.cpu()), strict=True)}
    ended = fields["terminals"][:, 0] > 0.5
    return {**fields, "rewards": fields["rewards"][:, 0], "terminals": ended, "timeouts": ~ended}


def _write_npz(path: Path, blocks: Iterable[dict[str, np.ndarray]]) -> None:
    parts = list(blocks)
    arrays: dict[str, Any] = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _write_hdf5(path: Path, count: int, blocks: Iterable[dict[str, np.ndarray]]) -> None:
    h5py = _h5py()
    start = 0
    with path.open("w+b") as plain:
        disk = _Disk(plain)
        with h5py.File(disk, "w") as file:
            file.attrs["note"] = _NOTE
            for block in blocks:
                for key, values in block.items():
                    if not start:
                        columns = values.shape[1:]
                        chunks = (min(_CHUNK, count), *columns)
                        file.create_dataset(key, (count, *columns), values.dtype, chunks=chunks, fletcher32=True)
                    file[key][start : start + len(values)] = values
                start += len(block["rewards"])
                if disk.failure:
                    break
        if disk.failure:
            raise disk.failure


class _Disk:
    """A file object for HDF5 that stores write errors in `failure`.

    HDF5 crashes the interpreter if a write raises, so errors are hidden from it.
    """

    def __init__(self, file: BufferedRandom) -> None:
        self.failure: OSError | None = None
        self.read, self.readinto, self.seek, self.tell = file.read, file.readinto, file.seek, file.tell
        self._file = file

    def write(self, data: Any) -> int:
        self._attempt(lambda: self._file.write(data))
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        self._attempt(lambda: self._file.truncate(size))
        return self._file.tell() if size is None else size

    def flush(self) -> None:
        self._attempt(self._file.flush)

    def _attempt(self, act: Callable[[], Any]) -> None:
        if self.failure is None:
            try:
                act()
            except OSError as error:
                self.failure = error


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 files need h5py: pip install 'synther-replay[corl]'") from error
    return h5py
