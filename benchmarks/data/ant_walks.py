"""D4RL's recipe for antmaze: a goal-reaching policy is led along shortest paths, with a waypoint in each cell."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from synther_replay.benchmarks.agents.policy import Policy
from synther_replay.benchmarks.data.hdf5 import Rows
from synther_replay.benchmarks.environments.ant import ACTION_DIM, STATE_DIM, Ant, seen_from_ant
from synther_replay.benchmarks.environments.ant_maps import AntMap, at_goal, centre, draw_goal, draw_waypoint
from synther_replay.benchmarks.environments.antmaze import ant_in
from synther_replay.benchmarks.environments.mazes import Cell, Routes
from synther_replay.common.seeding import derive_seed

ACTION_NOISE = 0.2
"""Standard deviation of the noise on sampled actions, as in D4RL's sets."""


class Guide:
    """Leads an ant to a goal by waypoints.

    Args:
        maze: The maze.

    >>> guide = Guide(AntMap.named("umaze"))
    >>> guide.cell(np.array([5.9, 1.0]))
    (1, 2)
    """

    def __init__(self, maze: AntMap) -> None:
        """Plan the paths between all open cells."""
        self._routes = Routes(maze.maze)
        self._cells = maze.maze.open_cells
        self._centres = np.array([centre(cell) for cell in self._cells])

    def cell(self, position: np.ndarray) -> Cell:
        """The open cell that contains a position ``(2,)``, or the nearest one.

        D4RL looks cells up by their corner with the smallest coordinates, half a cell off, which leads ants into walls.
        """
        return self._cells[int(np.abs(self._centres - position).max(1).argmin())]

    def waypoint(self, position: np.ndarray, goal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Where to walk next, ``(2,)``: a random point in the next cell, drawn anew at each step, or the goal."""
        last = self.cell(goal)
        following = self._routes.following(self.cell(position), last)
        return goal if following == last else draw_waypoint(following, rng)


@dataclass(frozen=True)
class AntWalks:
    """Episodes of an ant in a maze, each with a goal that the ant is led to.

    Args:
        size: Size of the maze.
        policy: Goal-reaching policy, trained on the task ``ant-goal``.
    """

    size: str
    policy: Policy

    @property
    def length(self) -> int:
        """Rows of an episode: one more than its steps, because readers drop the row with the timeout."""
        return AntMap.named(self.size).limit + 1

    def rollout(self, seed: int) -> Rows:
        """One episode, with ``infos/goal`` as in D4RL's files.

        As in D4RL's files, no episode ends at its goal, and rewards and terminals do not tell when the ant has reached
        its own goal but when it is near `AntMap.reward_goal`.
        """
        maze, ant, guide = _world(self.size)
        rng = np.random.default_rng(derive_seed(seed, 0))
        states = np.empty((self.length + 1, STATE_DIM), np.float32)
        actions = rng.standard_normal((self.length, ACTION_DIM), np.float32)
        extra = rng.normal(0, ACTION_NOISE, actions.shape).astype(np.float32)
        goal = draw_goal(maze.goals[rng.integers(len(maze.goals))], rng)
        state = ant.stand(*maze.draw_start(rng), rng)
        for step in range(self.length):
            states[step] = state
            seen = seen_from_ant(state, guide.waypoint(state[:2], goal, rng))
            actions[step] = (self.policy.sampled_action(seen, actions[step]) + extra[step]).clip(-1, 1)
            state = ant.step(actions[step])
        states[-1] = state
        timeouts = np.arange(self.length) == self.length - 1
        arrived = at_goal(maze.reward_goal, states[1:])
        return {
            "observations": states[:-1].copy(),
            "actions": actions,
            "rewards": arrived.astype(np.float32),
            "next_observations": states[1:].copy(),
            "terminals": arrived & ~timeouts,
            "timeouts": timeouts,
            "infos/goal": np.tile(goal.astype(np.float32), (self.length, 1)),
        }


@cache
def _world(size: str) -> tuple[AntMap, Ant, Guide]:
    """Maze, ant and guide of this process, built once."""
    maze = AntMap.named(size)
    return maze, ant_in(maze.maze), Guide(maze)


def successes(rows: Rows) -> np.ndarray:
    """Whether each complete episode is rewarded at some step, 0 or 1, ``(episodes,)``."""
    stops = np.flatnonzero(rows["timeouts"]) + 1
    if not len(stops):
        return np.empty(0)
    starts = np.append(0, stops[:-1])
    return np.maximum.reduceat(rows["rewards"][: stops[-1]], starts).astype(float)
