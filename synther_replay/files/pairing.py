"""D4RL's rule for raw files: the next observation of a row is the observation of the row after it.

`d4rl.qlearning_dataset` skips rows with a timeout and the last row, whose next observation is not in the file. A
terminal row is kept and gets the first observation of the next episode, which learners ignore.

Generated transitions do not follow one another. To be read by this rule, each takes two rows: the transition, then its
next observation with a timeout. The second row repeats the action and has no reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from synther_replay.files.fields import NEXT_OBSERVATIONS, OBSERVATIONS, TERMINALS, TIMEOUTS, check_flags, root_of
from synther_replay.files.table import Arrays


def paired(blocks: Iterable[Arrays], limit: int | None = None) -> Iterator[Arrays]:
    """Pair consecutive rows of raw blocks; the rows of the result are transitions.

    Args:
        blocks: Arrays under D4RL's names, without next observations.
        limit: Steps per episode, for blocks without timeouts.
    """
    last: Arrays | None = None  # the last row so far, whose successor comes with the next block
    steps = 0
    for block in blocks:
        if TIMEOUTS not in block:
            assert limit is not None
            flags, steps = time_limits(_as_flags(TERMINALS, block[TERMINALS]), limit, steps)
            block = {**block, TIMEOUTS: flags}
        rows = block if last is None else {key: np.concatenate((last[key], block[key])) for key in block}
        kept = np.flatnonzero(~_as_flags(TIMEOUTS, rows[TIMEOUTS])[:-1])
        pairs = {key: values[kept] for key, values in rows.items() if key != TIMEOUTS}
        for key in [key for key in rows if root_of(key) == OBSERVATIONS]:
            pairs[NEXT_OBSERVATIONS + key.removeprefix(OBSERVATIONS)] = rows[key][kept + 1]
        last = {key: values[-1:].copy() for key, values in rows.items()}
        if len(kept):
            yield pairs


def time_limits(terminals: np.ndarray, limit: int, steps: int = 0) -> tuple[np.ndarray, int]:
    """Return flags of every `limit`-th row since the last terminal row, and the steps since then.

    >>> time_limits(np.array([False, False, False, True, False, False]), 2)
    (array([False,  True, False,  True, False,  True]), 0)

    Args:
        terminals: Rows that end an episode, bool ``(n,)``.
        limit: Steps per episode.
        steps: Steps of the current episode before these rows.
    """
    row = np.arange(steps, steps + len(terminals))
    first = np.concatenate([[False], terminals[:-1]])
    step = (row - np.maximum.accumulate(np.where(first, row, 0))) % limit
    after = 0 if not len(step) or terminals[-1] else int(step[-1] + 1) % limit
    return np.equal(step, limit - 1), after


def unpaired(block: Arrays) -> Arrays:
    """Convert n transitions to the 2n rows that give them back by D4RL's rule; see the docstring of the module."""
    rows = {}
    for key, values in block.items():
        root = root_of(key)
        if root == OBSERVATIONS:
            rows[key] = _alternating(values, block[NEXT_OBSERVATIONS + key.removeprefix(OBSERVATIONS)])
        elif root == "actions":
            rows[key] = _alternating(values, values)
        elif root != NEXT_OBSERVATIONS:
            rows[key] = _alternating(values, np.zeros_like(values))
    terminals = block[TERMINALS]
    rows[TIMEOUTS] = _alternating(np.zeros_like(terminals), np.ones_like(terminals))
    return rows


def _alternating(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.stack((first, second), axis=1).reshape(2 * len(first), *first.shape[1:])


def _as_flags(key: str, values: np.ndarray) -> np.ndarray:
    """Return flags ``(n,)`` or ``(n, 1)`` as bool ``(n,)``."""
    check_flags(key, values)
    if values.size != len(values):
        raise ValueError(f"{key}: expected one flag per row, got shape {values.shape}")
    return values.reshape(-1).astype(bool)
