"""Score scales: tasks of the benchmarks, their reference returns, and normalised scores."""

from __future__ import annotations

import numpy as np

# Gymnasium tasks in which D4RL's locomotion data sets are regenerated; D4RL's own versions need mujoco-py.
LOCOMOTION = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "walker2d": "Walker2d-v5"}

TASK_COLUMNS = {
    "halfcheetah": (17, 6),
    "hopper": (11, 3),
    "walker2d": (17, 6),
    "maze2d": (4, 2),
    "antmaze": (29, 8),
}
"""Length of an observation and of an action, by prefix of a data set's name."""

D4RL_RETURNS = {
    "halfcheetah": (-280.178953, 12135.0),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
    "maze2d-umaze": (23.85, 161.86),
    "maze2d-medium": (13.13, 277.39),
    "maze2d-large": (6.7, 273.99),
    "antmaze": (0.0, 1.0),
    "kitchen": (0.0, 4.0),
}
"""D4RL's returns for the scores 0 (random policy) and 100 (expert), by prefix of a data set's name."""

DMC_TASKS = ("cheetah-run", "quadruped-walk", "reacher-hard")
GYM_TASKS = ("HalfCheetah-v5", "Walker2d-v5", "Hopper-v5")
TASKS = (*DMC_TASKS, *GYM_TASKS)
SUITE_DMC = (*DMC_TASKS, "finger-turn_hard", "hopper-hop")
# Version 4 of Ant and Humanoid is what others publish on; version 5 adds contact forces to the observation.
SUITE_GYM = (*GYM_TASKS, "Ant-v4", "Ant-v5", "Humanoid-v4", "Humanoid-v5")
SUITE = (*SUITE_DMC, *SUITE_GYM)
"""The six tasks of the paper and six more."""

RANDOM_RETURNS = {"Ant-v4": -40.3, "Ant-v5": -41.4, "Humanoid-v4": 120.5, "Humanoid-v5": 112.1}
"""Mean returns of a random policy, measured by `online.random_returns`: `results/online/random-returns.json`."""
# Of TD3 on version 4, by which others normalise (DAVIAN-Robotics/SimbaV2, scale_rl/envs/mujoco.py).
TD3_RETURNS = {"Ant": 3942.0, "Humanoid": 5165.0}

# Returns for the normalised scores 0 and 1. A DMC episode has 1000 rewards of at most 1. Ant and Humanoid: a random
# policy and TD3. The others are D4RL's random and expert returns; they were measured on earlier versions of the tasks,
# so 1 is a scale and not a target.
SCORE_RANGE = {
    **dict.fromkeys(SUITE_DMC, (0.0, 1000.0)),
    **{task: D4RL_RETURNS[name] for name, task in LOCOMOTION.items()},
    **{task: (low, TD3_RETURNS[task.partition("-")[0]]) for task, low in RANDOM_RETURNS.items()},
}


def normalise(task: str, returns: np.ndarray) -> np.ndarray:
    """Scores ``(seeds,)`` on the scale of `SCORE_RANGE`.

    A failed seed (NaN) scores 0, like a random policy. Excluding it would favour algorithms that crash.
    """
    if task not in SCORE_RANGE:
        raise ValueError(f"task: expected one of {', '.join(SCORE_RANGE)}, got {task!r}")
    low, high = SCORE_RANGE[task]
    return np.nan_to_num((np.asarray(returns, dtype=float) - low) / (high - low), nan=0.0)
