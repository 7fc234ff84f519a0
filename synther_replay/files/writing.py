"""Writing transitions to files of any format."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from synther_replay.data.transitions import Transitions
from synther_replay.files.formats import located
from synther_replay.files.table import SPEC, Blocks, block_rows


def write(path: str | os.PathLike[str], transitions: Transitions, *, about: Mapping[str, Any] | None = None) -> None:
    """Write transitions to a file, atomically; the suffix chooses the format.

    >>> import gymnasium as gym, numpy as np, tempfile, torch
    >>> from synther_replay import TransitionSpec
    >>> spec = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (1,)))
    >>> rows = Transitions(spec, torch.zeros(10, spec.dim))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/rows.npz", rows)
    ...     sorted(np.load(f"{folder}/rows.npz"))
    ['actions', 'next_observations', 'observations', 'rewards', 'terminals']

    Args:
        path: ``.hdf5`` or ``.h5`` (for `d4rl.qlearning_dataset`), ``.npz``, ``.parquet``, or a folder for Minari.
        transitions: The rows, at least one.
        about: Origin of the rows as JSON values, kept in the file.

    Raises:
        ValueError: The format is unknown, or there are no rows.
        OSError: The file cannot be written. The old file is unchanged.
    """
    if not len(transitions):
        raise ValueError("transitions: expected at least one row, got none")
    size = block_rows(transitions.spec.dim)

    def blocks() -> Iterator[Transitions]:
        return (transitions[start : start + size] for start in range(0, len(transitions), size))

    write_blocks(path, len(transitions), blocks, {**(about or {}), SPEC: transitions.spec.to_json()})


def write_blocks(path: str | os.PathLike[str], count: int, blocks: Blocks, about: Mapping[str, Any]) -> None:
    """Write `count` rows that are given in blocks; memory is bounded by the size of a block."""
    place, chosen = located(path, exists=False)
    chosen.write(place, count, blocks, about)
