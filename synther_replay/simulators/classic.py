"""Classic control tasks: the observation is the state, or has sine and cosine of its angles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import gymnasium as gym
import numpy as np

from synther_replay.simulators.protocol import Outcome, step_each


def _angles(observation: np.ndarray) -> np.ndarray:
    """Angles of pairs of cosine and sine, then the velocities."""
    pairs = len(observation) // 3
    turns = observation[: 2 * pairs].reshape(pairs, 2)
    return np.concatenate([np.arctan2(turns[:, 1], turns[:, 0]), observation[2 * pairs :]])


_STATES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"Pendulum": _angles, "Acrobot": _angles}


class ClassicSimulator:
    """A classic control task.

    Args:
        name: Gymnasium's name, with the version.
    """

    def __init__(self, name: str) -> None:
        """Build the simulation."""
        self.name = name
        self._env = cast(Any, gym.make(name, disable_env_checker=True).unwrapped)
        self._env.reset(seed=0)  # some tasks make parts of themselves here
        self._state = _STATES.get(name.partition("-")[0], np.asarray)
        self._is_discrete = isinstance(self._env.action_space, gym.spaces.Discrete)
        self.observation_dim = int(np.prod(self._env.observation_space.shape))
        self.action_dim = 1

    def restorable(self, observations: np.ndarray) -> np.ndarray:
        """True for every observation."""
        return np.ones(len(observations), bool)

    def __call__(self, observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step from each observation."""
        return step_each(self._step, observations, actions)

    def _step(self, observation: np.ndarray, action: np.ndarray) -> Outcome:
        env = self._env
        env.state, env.steps_beyond_terminated = self._state(observation), None
        after, reward, *_ = env.step(round(float(action[0])) if self._is_discrete else action)
        return np.asarray(after), float(np.asarray(reward).reshape(()))
