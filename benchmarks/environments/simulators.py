"""Simulators of the data sets: those of the library for locomotion, and D4RL's mazes."""

from __future__ import annotations

import re

import numpy as np

from synther_replay import simulators
from synther_replay.benchmarks.environments.antmaze import AntMaze
from synther_replay.benchmarks.environments.maze2d import Maze2d, at_goal
from synther_replay.benchmarks.environments.mazes import MAZES
from synther_replay.benchmarks.environments.scores import LOCOMOTION, TASK_COLUMNS
from synther_replay.simulators.protocol import Outcome, Simulator, step_each

_LOCOMOTION = {name: task.partition("-")[0] for name, task in LOCOMOTION.items()}  # without the version
# v4 has the models of D4RL's data sets; v5 changed the friction of a foot of Walker2d.
_VERSIONS = {"official": "v4", "regenerated": "v5"}
_MAZES = {"maze2d": Maze2d, "antmaze": AntMaze}

SIMULATORS = (
    *(f"{task}-{version}" for task in (*_LOCOMOTION.values(), "Ant", "Humanoid") for version in _VERSIONS.values()),
    *(f"{task}-{size}" for task in _MAZES for size in MAZES),
)


def make_simulator(name: str) -> Simulator:
    """Build one of `SIMULATORS`."""
    if name not in SIMULATORS:
        raise ValueError(f"simulator: expected one of {', '.join(SIMULATORS)}, got {name!r}")
    task, _, size = name.partition("-")
    if task in _MAZES:
        return MazeSimulator(task, size)
    return simulators.make_simulator(name)


def simulator_of(dataset: str, *, official: bool = False) -> str | None:
    """Name of the simulator of a data set, or None if there is none.

    Args:
        dataset: Name of the data set, such as ``hopper-medium-replay-regen`` or ``mujoco/hopper/medium-v0``.
        official: Whether it is D4RL's own.

    >>> simulator_of("walker2d-medium-v2", official=True), simulator_of("walker2d-medium-regen")
    ('Walker2d-v4', 'Walker2d-v5')
    """
    words = re.split("[-/_]", dataset.lower())
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in _LOCOMOTION:
            return f"{_LOCOMOTION[word]}-{_VERSIONS['official' if official else 'regenerated']}"
        if word in _MAZES and following in MAZES:
            return f"{word}-{following}"
    return None


class MazeSimulator:
    """A maze of D4RL, for the ball or the ant.

    Args:
        task: "maze2d" or "antmaze".
        size: "umaze", "medium" or "large".
    """

    def __init__(self, task: str, size: str) -> None:
        """Build the simulation."""
        self.name = f"{task}-{size}"
        self._env: Maze2d | AntMaze = _MAZES[task](size)
        self.observation_dim, self.action_dim = TASK_COLUMNS[task]

    def restorable(self, observations: np.ndarray) -> np.ndarray:
        """True for every observation."""
        return np.ones(len(observations), bool)

    def __call__(self, observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step from each observation."""
        return step_each(self._step, observations, actions)

    def _step(self, observation: np.ndarray, action: np.ndarray) -> Outcome:
        env = self._env
        env.set_state(observation)
        after, reward, *_ = env.step(action)
        if isinstance(env, Maze2d):
            # In D4RL's data the reward depends on the observation; in the environment, on the next observation.
            reward = float(at_goal(env.maze, observation))
        return after, reward
