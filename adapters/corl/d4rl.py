"""D4RL's data sets: conversion from and to transitions, and files of generated rows.

An ``.npz`` file holds the five arrays that `d4rl.qlearning_dataset` returns, one row per transition. An HDF5 file holds
what that function reads; see `synther_replay.files.pairing`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.files import hdf5, npz
from synther_replay.files.fields import NEXT_OBSERVATIONS, TIMEOUTS
from synther_replay.files.pairing import paired

KEYS = ("observations", "actions", "rewards", "next_observations", "terminals")  # in the order of the row's columns
BLOCK = 65_536  # transitions written to HDF5 at once
HDF5 = hdf5.SUFFIXES


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return the path if its suffix is supported, else raise ValueError."""
    path = Path(path)
    if path.suffix not in (".npz", *HDF5):
        raise ValueError(f"path: expected the suffix .npz, .hdf5 or .h5, got {path}")
    return path


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
    """Write `count` transitions, given as rows in blocks of `BLOCK`, to a file atomically.

    HDF5 is written block by block; for ``.npz``, all rows are held in memory.
    """
    if path.suffix in HDF5:
        hdf5.write(path, count, lambda: (Transitions(spec, block) for block in blocks), {})
    else:
        held = [Transitions(spec, block.cpu()) for block in blocks]
        npz.write(path, count, lambda: iter(held), {})


def read(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of `KEYS` that the file has, in either layout.

    Raises:
        FileNotFoundError: The file does not exist.
        Exception: The file is damaged. NumPy, zip and HDF5 raise different errors.
    """
    table = (hdf5 if path.suffix in HDF5 else npz).open_table(path)
    keys = [key for key in (*KEYS, TIMEOUTS) if key in table.columns]
    blocks = table.blocks(keys, BLOCK)
    is_raw = TIMEOUTS in keys and NEXT_OBSERVATIONS not in keys
    parts = list(paired(blocks) if is_raw else blocks)
    if not parts:
        parts = [{key: np.empty((0, *table.columns[key].shape), table.columns[key].dtype) for key in keys}]
    return {key: np.concatenate([part[key] for part in parts]) for key in KEYS if key in parts[0]}


def _widths(spec: TransitionSpec) -> list[int]:
    return [spec.observation_dim, spec.action_dim, 1, spec.observation_dim, 1]
