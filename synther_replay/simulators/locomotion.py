"""Tasks of MuJoCo: an observation starts with the positions, except for those along the ground, and the velocities.

It determines the state, except for the place on the ground, which does not affect the dynamics, and for velocities that
Hopper and Walker2d clip.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import gymnasium as gym
import mujoco
import numpy as np

from synther_replay.simulators.protocol import Outcome, step_each

_HIDDEN = {"Ant": 2, "Humanoid": 2, "Swimmer": 2, "InvertedPendulum": 0}  # positions that are not observed; else 1
_MAX_VELOCITY = {"Hopper": 10.0, "Walker2d": 10.0}
# Where a real velocity was clipped to the bound, a noisy or generated one is close to the bound.
_MARGIN = 0.5
# After any of these warnings MuJoCo resets to the initial pose, which must not be taken for a result.
_DIVERGED = [int(kind) for kind in (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL)]
_DIVERGED += [int(mujoco.mjtWarning.mjWARN_BADQACC)]


class LocomotionSimulator:
    """A task of MuJoCo.

    Args:
        name: Gymnasium's name, with the version.
    """

    def __init__(self, name: str) -> None:
        """Build the simulation."""
        self.name = name
        with _silent(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # v4 is outdated, but D4RL's data come from it
            self._env = cast(Any, gym.make(name, disable_env_checker=True).unwrapped)
        task = name.partition("-")[0]
        self._hidden = np.zeros(_HIDDEN.get(task, 1))
        self._positions, self._velocities = int(self._env.model.nq) - len(self._hidden), int(self._env.model.nv)
        self.observation_dim = int(self._env.observation_space.shape[0])
        self.action_dim = int(self._env.model.nu)
        self._bound = _MAX_VELOCITY.get(task, np.inf)

    def restorable(self, observations: np.ndarray) -> np.ndarray:
        """False where a velocity is near the bound to which it is clipped."""
        velocities = observations[:, self._positions : self._positions + self._velocities]
        inside: np.ndarray = (np.abs(velocities) < self._bound - _MARGIN).all(axis=1)
        return inside

    def __call__(self, observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step from each observation."""
        with _silent():
            return step_each(self._step, observations, actions)

    def _step(self, observation: np.ndarray, action: np.ndarray) -> Outcome:
        env = self._env
        mujoco.mj_resetData(env.model, env.data)  # clears the state of the previous row
        position, velocity, _ = np.split(observation, [self._positions, self._positions + self._velocities])
        env.set_state(np.concatenate([self._hidden, position]), velocity)
        after, reward, *_ = env.step(action)
        if env.data.warning.number[_DIVERGED].any():
            return np.full(self.observation_dim, np.nan), np.nan
        return after, float(reward)


@contextmanager
def _silent() -> Iterator[None]:
    """MuJoCo's warnings go nowhere: else they are printed, and written to a file in the working folder.

    Gymnasium's models use an old attribute, and a simulation that diverges is a result here.
    """
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
