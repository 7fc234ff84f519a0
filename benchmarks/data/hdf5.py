"""D4RL's data sets: their HDF5 files read whole and validated, their rows as transitions, and written, compressed."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from synther_replay.files import hdf5
from synther_replay.files.checks import needs
from synther_replay.files.fields import KNOWN, REQUIRED
from synther_replay.files.pairing import time_limits
from synther_replay.persistence.atomic import replacing

Rows = dict[str, np.ndarray]
"""Arrays of equal length: vectors ``(n, columns)`` in float32, rewards ``(n,)`` in float32, flags ``(n,)`` in bool."""

_VECTORS = ("observations", "actions", "next_observations")
_FLAGS = ("terminals", "timeouts")
_CHUNK = 4_096  # rows per HDF5 chunk, which has one checksum


def read(path: Path) -> tuple[Rows, dict[str, Any]]:
    """Read the rows of a file and what it tells of its origin.

    Raises:
        ImportError: h5py is not installed.
        ValueError: The file is not HDF5, is damaged, or its arrays are not a valid data set.
    """
    hdf5.check_installed()
    try:
        table = hdf5.open_table(path)
        columns = {key: table.columns[key] for key in KNOWN if key in table.columns}
        nothing = {key: np.empty((0, *column.shape), column.dtype) for key, column in columns.items()}
        with closing(table.blocks([*columns], max(1, table.rows))) as blocks:
            arrays = next(blocks, nothing)
    except Exception as error:  # a damaged file makes h5py raise errors of nearly every kind
        raise ValueError(f"{path}: cannot read the file as HDF5: {error}") from error
    return validated(arrays, path), table.about


def validated(arrays: Mapping[str, Any], where: object) -> Rows:
    """Validate arrays under D4RL's keys and convert them to `Rows`.

    Args:
        arrays: Those of `REQUIRED`, optionally ``next_observations`` and ``timeouts``; other keys are ignored.
        where: Source of the arrays, for error messages.

    Raises:
        ValueError: An array is missing, not numeric, non-finite, has a wrong shape or length, or a flag is not 0 or 1.
    """
    missing = [key for key in REQUIRED if key not in arrays]
    if missing:
        raise ValueError(f"{where}: missing {', '.join(missing)}; expected {', '.join(REQUIRED)}")
    rows = {key: _field(key, np.asarray(arrays[key]), where) for key in KNOWN if key in arrays}
    if len({len(values) for values in rows.values()}) > 1:
        lengths = ", ".join(f"{key} {len(values)}" for key, values in rows.items())
        raise ValueError(f"{where}: expected arrays of equal length, got {lengths}")
    shape, next_shape = rows["observations"].shape, rows.get("next_observations", rows["observations"]).shape
    if next_shape != shape:
        raise ValueError(f"{where}: next_observations: expected shape {shape}, as observations, got {next_shape}")
    _refuse_non_finite(rows, where)
    return rows


def to_transitions(rows: Rows, *, limit: int, where: object) -> tuple[Rows, np.ndarray]:
    """The transitions that D4RL's `qlearning_dataset` keeps, and the returns of all complete episodes ``(episodes,)``.

    In files without ``next_observations``, the next observation is that of the next row, so rows with a timeout and
    the last row are not transitions. D4RL drops them from all files, and so does this function. A terminal row gets
    the first observation of the next episode, which learners ignore but a generator learns. Unlike D4RL, this function
    uses ``next_observations`` of the file if there are any.

    In the result, ``timeouts`` marks transitions whose successor does not continue them.

    Args:
        rows: Rows in the order in which they were collected.
        limit: Steps per episode, for rows without ``timeouts``.
        where: Source of the rows, for error messages.

    Raises:
        ValueError: There are no transitions.
    """
    terminals = rows["terminals"]
    timeouts = rows.get("timeouts")
    if timeouts is None:
        warnings.warn(f"{where}: no timeouts; assuming that episodes end after {limit} steps", stacklevel=3)
        timeouts, _ = time_limits(terminals, limit)
    kept = ~timeouts
    kept[-1:] = False
    index = np.flatnonzero(kept)
    if not len(index):
        raise ValueError(f"{where}: no transitions in {len(terminals)} rows")
    transitions = {key: rows[key][index] for key in REQUIRED}
    own = rows.get("next_observations")
    transitions["next_observations"] = rows["observations"][index + 1] if own is None else own[index]
    transitions["timeouts"] = ~kept[index + 1] & ~terminals[index]
    return transitions, _returns(rows["rewards"], terminals | timeouts)


def write(path: Path, arrays: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    """Write a data set atomically; equal data sets give equal files.

    Args:
        path: Path of the file; its folder is created.
        arrays: Arrays under D4RL's keys, in the order in which rows were collected; other keys, such as
            ``infos/qpos``, are written unchanged.
        attributes: How the data set was made, as JSON values; a regenerated one has at least ``command`` and
            ``recipe``.

    Raises:
        ValueError: The arrays are not a valid data set.
        OSError: The file cannot be written, for example because the disk is full; `path` is unchanged.
    """
    rows = validated(arrays, path)
    # HDF5 crashes the interpreter when the disk is full, so the file is built in memory.
    image = io.BytesIO()
    with needs("h5py", "files").File(image, "w") as file:
        for key, values in {**arrays, **rows}.items():
            values = np.asarray(values)
            chunks = (min(_CHUNK, len(values)), *values.shape[1:])
            file.create_dataset(
                key, data=values, chunks=chunks, compression="gzip", compression_opts=1, shuffle=True, fletcher32=True
            )
        for key, value in attributes.items():
            file.attrs[key] = json.dumps(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(image.getbuffer())


def _field(key: str, values: np.ndarray, where: object) -> np.ndarray:
    """Convert one array to the shape and type of `Rows`."""
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{where}: {key}: expected numbers, got {values.dtype}")
    if key not in _VECTORS and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != (2 if key in _VECTORS else 1) or not values.size:
        expected = "(n, columns)" if key in _VECTORS else "(n,)"
        raise ValueError(f"{where}: {key}: expected shape {expected} and at least one row, got shape {values.shape}")
    if key in _FLAGS:
        known = np.isin(values, (0, 1))
        if not known.all():
            raise ValueError(f"{where}: {key}: expected 0 and 1, got {values[~known][0]}")
        return values.astype(bool)
    with np.errstate(over="ignore"):  # overflow to infinity is reported as non-finite
        return values.astype(np.float32, copy=False)


def _refuse_non_finite(rows: Rows, where: object) -> None:
    bad = {}
    for key in rows.keys() - set(_FLAGS):
        finite = np.isfinite(rows[key])
        bad[key] = ~(finite.all(1) if finite.ndim > 1 else finite)
    count = int(np.logical_or.reduce([*bad.values()]).sum())
    if count:
        which = ", ".join(f"{key} {bad[key].sum()}" for key in KNOWN if key in bad and bad[key].any())
        raise ValueError(f"{where}: {count} of {len(rows['rewards'])} rows are non-finite in float32: {which}")


def _returns(rewards: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Sum of rewards of each episode; rows after the last end are ignored."""
    return np.diff(np.cumsum(rewards, dtype=np.float64)[ends], prepend=0.0)
