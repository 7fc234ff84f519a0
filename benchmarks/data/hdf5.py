"""D4RL's HDF5 format: files read with all that can be wrong with them, rows paired into transitions, files written."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from synther_replay.persistence.atomic import replacing

Rows = dict[str, np.ndarray]
"""Arrays of one length: vectors ``(n, columns)`` in float32, rewards ``(n,)`` in float32, flags ``(n,)`` in bool."""

REQUIRED = ("observations", "actions", "rewards", "terminals")
_KEYS = (*REQUIRED, "next_observations", "timeouts")
_VECTORS = ("observations", "actions", "next_observations")
_FLAGS = ("terminals", "timeouts")
_CHUNK = 4_096  # rows under one checksum


def read(path: Path) -> tuple[Rows, dict[str, Any]]:
    """The rows of a file and the attributes of its root, decoded where `write` made them.

    Raises:
        ValueError: It is no HDF5 file, or a damaged one, or its arrays are no data set.
    """
    h5py = _h5py()
    try:
        with h5py.File(path, "r") as file:
            arrays = {key: file[key][()] for key in _KEYS if isinstance(file.get(key), h5py.Dataset)}
            attributes = {key: _decoded(value) for key, value in file.attrs.items()}
    except Exception as error:  # a damaged file makes h5py raise errors of nearly every kind
        raise ValueError(f"{path}: cannot be read as HDF5: {error}") from error
    return checked(arrays, path), attributes


def checked(arrays: Mapping[str, Any], where: object) -> Rows:
    """Arrays under D4RL's keys as rows, after everything that can be wrong with them.

    Args:
        arrays: Those of `REQUIRED`, with or without ``next_observations`` and ``timeouts``; others are left out.
        where: They come from, for the messages.

    Raises:
        ValueError: One is missing, not of numbers, of another shape or length, not finite, a flag neither 0 nor 1.
    """
    missing = [key for key in REQUIRED if key not in arrays]
    if missing:
        raise ValueError(f"{where}: there are no {', '.join(missing)}")
    rows = {key: _field(key, np.asarray(arrays[key]), where) for key in _KEYS if key in arrays}
    if len({len(values) for values in rows.values()}) > 1:
        lengths = ", ".join(f"{key} {len(values)}" for key, values in rows.items())
        raise ValueError(f"{where}: the arrays have different lengths: {lengths}")
    shape, following = rows["observations"].shape, rows.get("next_observations", rows["observations"]).shape
    if following != shape:
        raise ValueError(f"{where}: next_observations: expected shape {shape} as observations have, got {following}")
    _refuse_unfinite(rows, where)
    return rows


def paired(rows: Rows, *, limit: int, where: object) -> tuple[Rows, np.ndarray]:
    """The transitions that D4RL's `qlearning_dataset` keeps, and the returns of all whole episodes ``(episodes,)``.

    What follows an observation is in the next row, where the file does not say it, so the row at a timeout and the
    last of the file are no transitions. D4RL leaves them out of every file, also those that say it, and so does this.
    A terminal row without its own next observation gets the first of the next episode, which no learner looks at, but
    which a generator learns. D4RL does so also where the file says what followed; here, what the file says is taken.

    Of transitions, ``timeouts`` marks the last one before a gap: the one after it is not its continuation.

    Args:
        rows: In the order in which they were collected.
        limit: Steps of an episode, for rows without ``timeouts``.
        where: They come from, for the messages.

    Raises:
        ValueError: There is no transition.
    """
    terminals = rows["terminals"]
    timeouts = rows.get("timeouts")
    if timeouts is None:
        warnings.warn(f"{where}: has no timeouts, an episode is taken to end after {limit} steps", stacklevel=3)
        timeouts = _timeouts(terminals, limit)
    kept = ~timeouts
    kept[-1:] = False
    index = np.flatnonzero(kept)
    if not len(index):
        raise ValueError(f"{where}: there are no transitions in it")
    transitions = {key: rows[key][index] for key in REQUIRED}
    own = rows.get("next_observations")
    transitions["next_observations"] = rows["observations"][index + 1] if own is None else own[index]
    transitions["timeouts"] = ~kept[index + 1] & ~terminals[index]
    return transitions, _returns(rows["rewards"], terminals | timeouts)


def write(path: Path, arrays: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    """Write a data set in one step: on a full disk, or when killed, `path` is as before. Equal sets give equal files.

    Args:
        path: Of the file; its folder is made.
        arrays: Under D4RL's keys, in the order in which they were collected; others, such as ``infos/qpos``, are
            written as they are.
        attributes: How the set was made, as JSON values: a regenerated one has at least ``command`` and ``recipe``.

    Raises:
        ValueError: The arrays are no data set, `read` would refuse them.
        OSError: There is no room.
    """
    rows = checked(arrays, path)
    # HDF5 crashes the interpreter when it cannot write to a disk, so it writes to memory.
    image = io.BytesIO()
    with _h5py().File(image, "w") as file:
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
    """One array in the shape and type of `Rows`."""
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{where}: {key}: expected numbers, got {values.dtype}")
    if key not in _VECTORS and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != (2 if key in _VECTORS else 1) or not values.size:
        expected = "(n, columns)" if key in _VECTORS else "(n,)"
        raise ValueError(f"{where}: {key}: expected values of shape {expected}, got shape {values.shape}")
    if key in _FLAGS:
        known = np.isin(values, (0, 1))
        if not known.all():
            raise ValueError(f"{where}: {key}: expected 0 and 1, got {values[~known][0]}")
        return values.astype(bool)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is counted as such
        return values.astype(np.float32, copy=False)


def _refuse_unfinite(rows: Rows, where: object) -> None:
    unfinite = {}
    for key in rows.keys() - set(_FLAGS):
        finite = np.isfinite(rows[key])
        unfinite[key] = ~(finite.all(1) if finite.ndim > 1 else finite)
    count = int(np.logical_or.reduce([*unfinite.values()]).sum())
    if count:
        which = ", ".join(f"{key} {unfinite[key].sum()}" for key in _KEYS if key in unfinite and unfinite[key].any())
        raise ValueError(f"{where}: {count} of {len(rows['rewards'])} rows are not finite in float32: {which}")


def _timeouts(terminals: np.ndarray, limit: int) -> np.ndarray:
    """The last row of every `limit` since the latest terminal one."""
    row = np.arange(len(terminals))
    begins = np.concatenate([[True], terminals[:-1]])
    step = row - np.maximum.accumulate(np.where(begins, row, 0))
    return np.equal(step % limit, limit - 1)


def _returns(rewards: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Sums up to each end; rows after the last one are no whole episode."""
    return np.diff(np.cumsum(rewards, dtype=np.float64)[ends], prepend=0.0)


def _decoded(value: Any) -> Any:
    """An attribute that `write` made, or one of another file as it is."""
    try:
        return json.loads(value)
    except (TypeError, ValueError):
        return value


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 files need h5py: pip install 'synther-replay[benchmarks]'") from error
    return h5py
