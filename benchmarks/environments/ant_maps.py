"""Maps of D4RL's antmaze: where ants start, what they walk to, and where they are rewarded; without physics.

The mazes are those of the ball, with cells of 4 x 4. The start cell has its centre at the origin, x counts columns and
y counts rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from synther_replay.benchmarks.environments.mazes import MAZES, Cell, Maze

SCALE = 4.0
_START: Cell = (1, 1)
_START_NOISE = 0.1  # largest offset along x and y from the start, where there is only one
_SPREAD = 1.0  # largest offset along x and y from the centre of one of several start cells, and of a waypoint
_GOAL_SPREAD = 0.5  # by which goals are spread further
_GOAL_RADIUS = 0.5


@dataclass(frozen=True)
class AntMap:
    """A maze at the ant's scale.

    Attributes:
        maze: The maze on its grid.
        limit: Steps per episode.
        goal: Goal cell of the task.
        goals: Goal cells of the episodes in a data set.
        many_starts: Whether the episodes in a data set start in any open cell but their goal cells; else, as those of
            the task, in the start cell.
    """

    maze: Maze
    limit: int
    goal: Cell
    goals: tuple[Cell, ...]
    many_starts: bool

    @cached_property
    def reward_goal(self) -> np.ndarray:
        """Goal ``(2,)`` by which all episodes of a data set are rewarded: the mean of the task's goals.

        D4RL drew one of the task's goals for it.
        """
        return centre(self.goal) + (_SPREAD + _GOAL_SPREAD) / 2

    @cached_property
    def start_cells(self) -> tuple[Cell, ...]:
        """Start cells of the episodes in a data set."""
        return tuple(cell for cell in self.maze.open_cells if cell not in self.goals) if self.many_starts else (_START,)

    def draw_start(self, rng: np.random.Generator) -> np.ndarray:
        """Start ``(2,)`` of an episode in a data set."""
        if not self.many_starts:
            return draw_start(rng)
        return centre(self.start_cells[rng.integers(len(self.start_cells))]) + rng.uniform(0, _SPREAD, 2)

    @classmethod
    def named(cls, size: str) -> AntMap:
        """Look a maze up by its size."""
        if size not in ANT_MAPS:
            raise ValueError(f"size: expected one of {', '.join(ANT_MAPS)}, got {size!r}")
        return ANT_MAPS[size]


ANT_MAPS = {
    "umaze": AntMap(MAZES["umaze"], 700, (3, 1), ((3, 1),), many_starts=False),
    "medium": AntMap(MAZES["medium"], 1_000, (6, 6), ((2, 6), (5, 1), (6, 5)), many_starts=True),
    "large": AntMap(
        MAZES["large"],
        1_000,
        (7, 9),
        ((1, 6), (3, 5), (3, 10), (5, 2), (7, 4), (7, 6), (7, 9)),
        many_starts=True,
    ),
}
"""By size. The goal cells of data sets are those of D4RL's "play" sets."""


def centre(cell: Cell) -> np.ndarray:
    """Centre ``(2,)`` of a cell."""
    row, column = cell
    return SCALE * np.array([column - _START[1], row - _START[0]], float)


def draw_start(rng: np.random.Generator) -> np.ndarray:
    """Start ``(2,)`` of an episode of the task."""
    return centre(_START) + rng.uniform(-_START_NOISE, _START_NOISE, 2)


def draw_waypoint(cell: Cell, rng: np.random.Generator) -> np.ndarray:
    """A point ``(2,)`` in a cell to walk to."""
    return centre(cell) + rng.uniform(0, _SPREAD, 2)


def draw_goal(cell: Cell, rng: np.random.Generator) -> np.ndarray:
    """A goal ``(2,)`` in a goal cell."""
    return draw_waypoint(cell, rng) + rng.uniform(0, _GOAL_SPREAD, 2)


def at_goal(goal: np.ndarray, observations: np.ndarray) -> np.ndarray:
    """Whether each observation ``(..., 29)`` is near the goal ``(2,)``, bool ``(...)``."""
    near: np.ndarray = np.hypot(observations[..., 0] - goal[0], observations[..., 1] - goal[1]) <= _GOAL_RADIUS
    return near
