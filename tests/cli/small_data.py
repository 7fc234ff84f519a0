"""A small data set, a small generator, and the command as a process, for the tests of the command line."""

from __future__ import annotations

import os
import sys

import numpy as np

TINY = ("width=16", "depth=1", "embedding=8", "steps=20", "batch_size=32", "sampling_steps=2", "exact=False")
SETTINGS = tuple(part for change in TINY for part in ("--set", change))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "synther_replay", *map(str, arguments)]


def arrays(n: int = 200, seed: int = 0) -> dict[str, np.ndarray]:
    """The arrays of `d4rl.qlearning_dataset`."""
    rng = np.random.default_rng(seed)
    observations, following = (rng.normal(size=(n, 3)).astype(np.float32) for _ in range(2))
    actions = np.tanh(rng.normal(size=(n, 2))).astype(np.float32)
    return {
        "observations": observations,
        "actions": actions,
        "rewards": observations[:, 0] + actions[:, 0],
        "next_observations": following,
        "terminals": rng.random(n) < 0.1,
    }


def raw(n: int = 200, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows as D4RL's files have them: episodes of 50 steps without next observations."""
    rows = arrays(n, seed)
    del rows["next_observations"]
    return rows | {"timeouts": (np.arange(n) % 50 == 49) & ~rows["terminals"]}
