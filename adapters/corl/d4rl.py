"""D4RL's data sets: conversion from and to transitions, and the two layouts of files.

An ``.npz`` file holds the five arrays that `d4rl.qlearning_dataset` returns, one row per transition.

An HDF5 file holds what `d4rl.qlearning_dataset` reads. That function takes the observation of row i + 1 as the next
observation of row i, and skips rows with a timeout. Generated transitions do not follow one another, so each takes two
rows: the transition, then its next observation with a timeout. The function reads back exactly the transitions. The
second row repeats the action and has no reward; this costs one action, one reward and two flags per transition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.adapters.corl import files
from synther_replay.data.transitions import Transitions, TransitionSpec

KEYS = ("observations", "actions", "rewards", "next_observations", "terminals")  # in the order of the row's columns
BLOCK = 65_536  # transitions written to HDF5 at once
_NOTE = (
    "generated transitions, for d4rl.qlearning_dataset: each is followed by a row with its next observation and a "
    "timeout, which is no transition"
)


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
    """Write `count` transitions, given as rows in blocks of `BLOCK`, to a file atomically."""
    named = (_named(spec, block) for block in blocks)
    if path.suffix in files.HDF5:
        files.write(path, 2 * count, map(_as_episodes, named), _NOTE)
    else:
        files.write(path, count, named, _NOTE)


def read(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of `KEYS` that the file has, in either layout."""
    data = files.read(path, (*KEYS, "timeouts"))
    timeouts = data.pop("timeouts", None)
    return data if timeouts is None or "next_observations" in data else _from_episodes(data, timeouts)


def _widths(spec: TransitionSpec) -> list[int]:
    return [spec.observation_dim, spec.action_dim, 1, spec.observation_dim, 1]


def _named(spec: TransitionSpec, rows: Tensor) -> dict[str, np.ndarray]:
    """Convert rows to the arrays of `KEYS`."""
    fields = {key: field.numpy() for key, field in zip(KEYS, split(spec, rows.cpu()), strict=True)}
    return {**fields, "rewards": fields["rewards"][:, 0], "terminals": fields["terminals"][:, 0] > 0.5}


def _as_episodes(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert n transitions to 2n rows, see the docstring of the module."""
    rewards, terminals = data["rewards"], data["terminals"]
    return {
        "observations": _alternating(data["observations"], data["next_observations"]),
        "actions": _alternating(data["actions"], data["actions"]),
        "rewards": _alternating(rewards, np.zeros_like(rewards)),
        "terminals": _alternating(terminals, np.zeros_like(terminals)),
        "timeouts": _alternating(np.zeros_like(terminals), np.ones_like(terminals)),
    }


def _alternating(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack((first, second), axis=1).reshape(2 * len(first), *first.shape[1:])


def _from_episodes(data: dict[str, np.ndarray], timeouts: np.ndarray) -> dict[str, np.ndarray]:
    """The transitions that `d4rl.qlearning_dataset` reads; inverse of `_as_episodes`."""
    lengths = {len(array) if array.ndim else 0 for array in (*data.values(), timeouts)}
    if len(lengths) > 1 or not np.isin(timeouts, (0, 1)).all():
        raise ValueError(f"timeouts: expected 0 and 1 for each row, got {timeouts.shape} for lengths {sorted(lengths)}")
    kept = np.flatnonzero(timeouts.reshape(len(timeouts), -1)[:-1].any(1) == 0)
    transitions = {key: values[kept] for key, values in data.items()}
    if "observations" in data:
        transitions["next_observations"] = data["observations"][kept + 1]
    return transitions
