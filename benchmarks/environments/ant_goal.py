"""An ant that walks to one random goal after another in the open plane: the task that trains it for the mazes."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np

from synther_replay.benchmarks.environments.ant import ACTION_DIM, SEEN_DIM, STEP_SECONDS, Ant, seen_from_ant, upright
from synther_replay.benchmarks.environments.checks import numbers

_LIMIT = 1_000  # steps per episode
_GOAL_STEPS = 100  # steps until a new goal, so that an ant that has arrived learns to stay, as it has to in the mazes
_FARTHEST = 10.0  # goals are drawn within this distance of the ant, as D4RL draws them around the origin


class AntGoal(gym.Env[np.ndarray, np.ndarray]):
    """The goal-reaching task: the reward is 1 plus the speed towards the goal, in metres per second.

    An observation is that of `seen_from_ant`. A new goal is drawn every 100 steps. An episode terminates when the ant
    lies on its back, from which it does not get up again, and is truncated after 1,000 steps. The 1 makes a fall cost
    something near a goal, too.

    >>> AntGoal().reset(seed=0)[0].shape
    (28,)
    """

    def __init__(self) -> None:
        """Build the simulation."""
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (SEEN_DIM,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)
        self._ant = Ant()
        self._goal = np.zeros(2)
        self._distance = 0.0
        self._steps: int | None = None  # steps of the current episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode at the origin, with a random goal."""
        super().reset(seed=seed)
        state = self._ant.stand(0.0, 0.0, self.np_random)
        self._aim(state)
        self._steps = 0
        return seen_from_ant(state, self._goal), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Apply an action ``(8,)``, clipped to [-1, 1]."""
        if self._steps is None:
            raise gym.error.ResetNeeded("step() was called before reset()")
        state = self._ant.step(numbers("action", action, ACTION_DIM))
        self._steps += 1
        distance = _distance(state, self._goal)
        reward = 1 + (self._distance - distance) / STEP_SECONDS
        self._distance = distance
        if self._steps % _GOAL_STEPS == 0:
            self._aim(state)
        return seen_from_ant(state, self._goal), reward, upright(state) < 0, self._steps >= _LIMIT, {}

    def _aim(self, state: np.ndarray) -> None:
        """Draw a goal around the ant."""
        angle, radius = self.np_random.uniform(0, 2 * math.pi), self.np_random.uniform(0, _FARTHEST)
        self._goal = state[:2] + radius * np.array([math.cos(angle), math.sin(angle)])
        self._distance = _distance(state, self._goal)


def _distance(state: np.ndarray, goal: np.ndarray) -> float:
    return math.hypot(*(goal - state[:2]))
