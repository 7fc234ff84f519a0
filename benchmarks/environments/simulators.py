"""Simulators that step from a given observation, to compare a transition with the true dynamics.

An observation of these tasks determines the state, except for the position along the track, which does not affect the
dynamics, and for velocities that Hopper and Walker2d clip.
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

Outcome = tuple[np.ndarray, float]  # next observation and reward

_LOCOMOTION = {name: task.partition("-")[0] for name, task in LOCOMOTION.items()}  # without the version
# v4 has the models of D4RL's data sets; v5 changed the friction of a foot of Walker2d.
_VERSIONS = {"official": "v4", "regenerated": "v5"}
_MAX_VELOCITY = {"HalfCheetah": np.inf, "Hopper": 10.0, "Walker2d": 10.0}
# Where a real velocity was clipped to the bound, a noisy or generated one is close to the bound.
_MARGIN = 0.5
# After any of these warnings MuJoCo resets to the initial pose, which must not be taken for a result.
_DIVERGED = [int(kind) for kind in (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL)]
_DIVERGED += [int(mujoco.mjtWarning.mjWARN_BADQACC)]

SIMULATORS = (
    *(f"{task}-{version}" for task in _LOCOMOTION.values() for version in _VERSIONS.values()),
    *(f"maze2d-{size}" for size in MAZES),
)


class Simulator(Protocol):
    """A simulator as `synther_replay.metrics.dynamics_error` calls it."""

    name: str
    observation_dim: int
    action_dim: int

    def restorable(self, observations: np.ndarray) -> np.ndarray:
        """Whether each observation ``(n, observation_dim)`` determines the state, bool ``(n,)``."""

    def __call__(self, observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Next observations ``(n, observation_dim)`` and rewards ``(n,)``; NaN where the simulation diverged."""


def make_simulator(name: str) -> Simulator:
    """Build one of `SIMULATORS`."""
    if name not in SIMULATORS:
        raise ValueError(f"simulator: expected one of {', '.join(SIMULATORS)}, got {name!r}")
    return MazeSimulator(name.removeprefix("maze2d-")) if name.startswith("maze2d-") else LocomotionSimulator(name)


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
        if word == "maze2d" and following in MAZES:
            return f"maze2d-{following}"
    return None


class LocomotionSimulator:
    """HalfCheetah, Hopper or Walker2d; an observation is ``qpos[1:]`` followed by ``qvel``.

    Args:
        name: Gymnasium's name, with the version.
    """

    def __init__(self, name: str) -> None:
        """Build the simulation."""
        self.name = name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # v4 is outdated, but D4RL's data come from it
            self._env = cast(Any, gym.make(name, disable_env_checker=True).unwrapped)
        self._positions, velocities = int(self._env.model.nq), int(self._env.model.nv)
        self.observation_dim = self._positions - 1 + velocities
        self.action_dim = int(self._env.model.nu)
        self._bound = _MAX_VELOCITY[name.partition("-")[0]]

    def restorable(self, observations: np.ndarray) -> np.ndarray:
        """False where a velocity is near the bound to which it is clipped."""
        inside: np.ndarray = (np.abs(observations[:, self._positions - 1 :]) < self._bound - _MARGIN).all(axis=1)
        return inside

    def __call__(self, observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step from each observation."""
        return _step_each(self._step, observations, actions)

    def _step(self, observation: np.ndarray, action: np.ndarray) -> Outcome:
        env = self._env
        mujoco.mj_resetData(env.model, env.data)  # clears the state of the previous row
        position, velocity = np.split(observation, [self._positions - 1])
        env.set_state(np.concatenate([[0.0], position]), velocity)
        after, reward, *_ = env.step(action)
        if env.data.warning.number[_DIVERGED].any():
            return np.full(self.observation_dim, np.nan), np.nan
        return after, float(reward)


class MazeSimulator:
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
        """True for every observation."""
        return np.ones(len(observations), bool)

    def __call__(self, observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step from each observation."""
        return _step_each(self._step, observations, actions)

    def _step(self, observation: np.ndarray, action: np.ndarray) -> Outcome:
        self._env.set_state(observation)
        after, *_ = self._env.step(action)
        # In D4RL's data the reward depends on the observation; in the environment, on the next observation.
        return after, float(at_goal(self._env.maze, observation))


def _step_each(
    step: Callable[[np.ndarray, np.ndarray], Outcome], observations: np.ndarray, actions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Step row by row."""
    next_observations, rewards = np.empty(observations.shape), np.empty(len(observations))
    for k, (observation, action) in enumerate(zip(observations.astype(np.float64), actions, strict=True)):
        next_observations[k], rewards[k] = step(observation, action)
    return next_observations, rewards
