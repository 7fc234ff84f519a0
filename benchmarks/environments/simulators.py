"""Simulators that are put into a state and asked what follows, so that a transition can be held against the truth.

An observation of these tasks tells the whole state, but for the place along the track, on which nothing depends, and
for velocities that Hopper and Walker2d clip.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, Protocol, cast

import gymnasium as gym
import mujoco
import numpy as np

from synther_replay.benchmarks.environments.maze2d import MAZES, Maze2d, at_goal
from synther_replay.benchmarks.environments.scores import LOCOMOTION

Answer = tuple[np.ndarray, float]

_LOCOMOTION = {name: task.partition("-")[0] for name, task in LOCOMOTION.items()}  # without a version
# The models that D4RL's sets were made with, and those of today: a foot of Walker2d has another friction since v5.
_VERSIONS = {"official": "v4", "today": "v5"}
_MAX_VELOCITY = {"HalfCheetah": np.inf, "Hopper": 10.0, "Walker2d": 10.0}
# A row with noise, or one of a generator, has velocities about the bound where the real one had them on it.
_MARGIN = 0.5
# MuJoCo starts over from its first pose after any of these, which would pass for an answer.
_DIVERGED = [int(kind) for kind in (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL)]
_DIVERGED += [int(mujoco.mjtWarning.mjWARN_BADQACC)]

SIMULATORS = (
    *(f"{task}-{version}" for task in _LOCOMOTION.values() for version in _VERSIONS.values()),
    *(f"maze2d-{size}" for size in MAZES),
)


class Simulator(Protocol):
    """What `synther_replay.metrics.dynamics_error` asks."""

    name: str
    observation_dim: int
    action_dim: int

    def restorable(self, observations: np.ndarray) -> np.ndarray:
        """Which of the observations ``(n, observation_dim)`` tell the whole state, bool ``(n,)``."""

    def __call__(self, observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Next observations ``(n, observation_dim)`` and rewards ``(n,)``; NaN where the simulation diverged."""


def make_simulator(name: str) -> Simulator:
    """Build one of `SIMULATORS`; another name is refused."""
    if name not in SIMULATORS:
        raise ValueError(f"simulator: expected one of {', '.join(SIMULATORS)}, got {name!r}")
    return Maze(name.removeprefix("maze2d-")) if name.startswith("maze2d-") else Locomotion(name)


def simulator_of(dataset: str, *, official: bool = False) -> str | None:
    """Name of the simulator behind a data set, by the set's name; None where there is none.

    Args:
        dataset: Its name, such as ``hopper-medium-replay-regen`` or ``mujoco/hopper/medium-v0``.
        official: Whether it is D4RL's own.

    >>> simulator_of("walker2d-medium-v2", official=True), simulator_of("walker2d-medium-regen")
    ('Walker2d-v4', 'Walker2d-v5')
    """
    words = re.split("[-/_]", dataset.lower())
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in _LOCOMOTION:
            return f"{_LOCOMOTION[word]}-{_VERSIONS['official' if official else 'today']}"
        if word == "maze2d" and following in MAZES:
            return f"maze2d-{following}"
    return None


class Locomotion:
    """HalfCheetah, Hopper or Walker2d, whose observation is ``qpos[1:]`` and then ``qvel``.

    Args:
        name: As Gymnasium registers it.
    """

    def __init__(self, name: str) -> None:
        """Build the simulation."""
        self.name = name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # v4 is out of date, and so are the sets it made
            self._env = cast(Any, gym.make(name, disable_env_checker=True).unwrapped)
        self._positions, velocities = int(self._env.model.nq), int(self._env.model.nv)
        self.observation_dim = self._positions - 1 + velocities
        self.action_dim = int(self._env.model.nu)
        self._bound = _MAX_VELOCITY[name.partition("-")[0]]

    def restorable(self, observations: np.ndarray) -> np.ndarray:
        """All but those with a velocity near the bound to which it was clipped."""
        inside: np.ndarray = (np.abs(observations[:, self._positions - 1 :]) < self._bound - _MARGIN).all(axis=1)
        return inside

    def __call__(self, observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step from each observation."""
        return _answers(self._step, observations, actions)

    def _step(self, observation: np.ndarray, action: np.ndarray) -> Answer:
        env = self._env
        mujoco.mj_resetData(env.model, env.data)  # so that nothing depends on the row before
        place, velocity = np.split(observation, [self._positions - 1])
        env.set_state(np.concatenate([[0.0], place]), velocity)
        after, reward, *_ = env.step(action)
        if env.data.warning.number[_DIVERGED].any():
            return np.full(self.observation_dim, np.nan), np.nan
        return after, float(reward)


class Maze:
    """A maze of D4RL.

    Args:
        size: "umaze", "medium" or "large".
    """

    observation_dim, action_dim = 4, 2

    def __init__(self, size: str) -> None:
        """Build the simulation."""
        self.name = f"maze2d-{size}"
        self._env = Maze2d(size)

    def restorable(self, observations: np.ndarray) -> np.ndarray:
        """All of them."""
        return np.ones(len(observations), bool)

    def __call__(self, observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step from each observation."""
        return _answers(self._step, observations, actions)

    def _step(self, observation: np.ndarray, action: np.ndarray) -> Answer:
        self._env.set_state(observation)
        after, *_ = self._env.step(action)
        # D4RL's script rewards the observation of a row, where the task itself rewards the next one.
        return after, float(at_goal(self._env.maze, observation))


def _answers(
    step: Callable[[np.ndarray, np.ndarray], Answer], observations: np.ndarray, actions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ask about row after row."""
    following, rewards = np.empty(observations.shape), np.empty(len(observations))
    for k, (observation, action) in enumerate(zip(observations.astype(np.float64), actions, strict=True)):
        following[k], rewards[k] = step(observation, action)
    return following, rewards
