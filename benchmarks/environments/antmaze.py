"""D4RL's antmaze-v2 environments: an ant walks through a maze; the reward is 1 at the goal, which ends the episode.

An observation is the state of the ant, see `ant`; it does not show the goal.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from synther_replay.benchmarks.environments.ant import ACTION_DIM, STATE_DIM, Ant
from synther_replay.benchmarks.environments.ant_maps import SCALE, AntMap, at_goal, centre, draw_goal, draw_start
from synther_replay.benchmarks.environments.checks import numbers
from synther_replay.benchmarks.environments.mazes import Maze


def ant_in(maze: Maze) -> Ant:
    """An ant in a maze."""
    half = SCALE / 2
    return Ant([(*centre(cell), half, half) for cell in maze.where("#")], height=half)


class AntMaze(gym.Env[np.ndarray, np.ndarray]):
    """An ant maze as a Gymnasium environment: reward 1 for the step that reaches the goal and terminates the episode.

    Each episode has a goal of its own near the goal cell, as in D4RL since version 2.

    Args:
        size: "umaze", "medium" or "large".

    >>> env = AntMaze("umaze")
    >>> observation, _ = env.reset(seed=0)
    >>> observation.shape
    (29,)
    """

    def __init__(self, size: str) -> None:
        """Build the simulation."""
        self.map = AntMap.named(size)
        self.goal = self.map.reward_goal
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (STATE_DIM,), np.float64)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)
        self._ant = ant_in(self.map.maze)
        self._steps: int | None = None  # steps of the current episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode in the start cell."""
        super().reset(seed=seed)
        self.goal = draw_goal(self.map.goal, self.np_random)
        self._steps = 0
        return self._ant.stand(*draw_start(self.np_random), self.np_random), {}

    def set_state(self, state: np.ndarray, goal: np.ndarray | None = None) -> np.ndarray:
        """Start an episode at the observation `state` ``(29,)``, with this or the last goal ``(2,)``; returns it."""
        state = self._ant.place(numbers("state", state, STATE_DIM))
        self.goal = self.goal if goal is None else numbers("goal", goal, 2)
        self._steps = 0
        return state

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Apply an action ``(8,)``, clipped to [-1, 1]."""
        if self._steps is None:
            raise gym.error.ResetNeeded("step() was called before reset()")
        after = self._ant.step(numbers("action", action, ACTION_DIM))
        self._steps += 1
        arrived = bool(at_goal(self.goal, after))
        return after, float(arrived), arrived, self._steps >= self.map.limit, {}
