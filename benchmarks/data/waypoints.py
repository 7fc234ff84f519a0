"""The walks that are D4RL's maze2d data: from cell to cell of a maze, past a waypoint in each cell on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from synther_replay.benchmarks.environments.maze2d import WALL_SHIFT, Ball, Cell, Maze, State, at_goal, clip, start

_REACHED = 0.1  # nearer than this is there
_SPREAD = 0.2  # a waypoint lies up to this far from its cell in x and in y, on the side where the free way is
_P_GAIN, _D_GAIN = 10.0, -1.0
_MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0))  # of two shortest ways the one whose move comes first is taken


class WaypointController:
    """Walks a ball to one cell after another, each time along the shortest way.

    Args:
        maze: What the ball rolls in.
        rng: Draws the waypoints.

    >>> maze = Maze.named("umaze")
    >>> controller = WaypointController(maze, np.random.default_rng(0))
    >>> controller.aim(State(1.0, 1.0, 0.0, 0.0), (1, 2))
    >>> controller.act(State(1.0, 1.0, 0.0, 0.0))
    (0.0, 1.0, False)
    """

    def __init__(self, maze: Maze, rng: np.random.Generator) -> None:
        """Measure all ways."""
        self._rng = rng
        self._distances = {goal: _flood(maze, goal) for goal in maze.open_cells}
        self._waypoints: list[tuple[float, float]] = []
        self._next = 0

    def aim(self, state: State, goal: Cell) -> None:
        """Choose a way to a cell from where the ball is."""
        if goal not in self._distances:
            raise ValueError(f"goal: expected an open cell of the maze, got {goal!r}")
        # The cell between whose walls the ball is. D4RL takes the nearest one, which may lie beyond a wall; next to a
        # cell that was just reached, where ways begin, the two are the same.
        here = (round(state.x - WALL_SHIFT), round(state.y - WALL_SHIFT))
        if here not in self._distances:
            raise ValueError(f"state: expected a place in an open cell of the maze, got {state}")
        *between, last = self._way(here, goal)
        draws = self._rng.uniform(0, _SPREAD, (len(between), 2)).tolist()
        self._waypoints = [(i - dx, j - dy) for (i, j), (dx, dy) in zip(between, draws, strict=True)] + [last]
        self._next = 0

    def act(self, state: State) -> tuple[float, float, bool]:
        """Give the action along x and along y, and whether the ball is at the cell it was to go to."""
        x, y, vx, vy = state
        goal_x, goal_y = self._waypoints[-1]
        # D4RL also wants the ball to have moved by less than 0.1 since the last step, which it always has.
        arrived = math.hypot(goal_x - x, goal_y - y) < _REACHED
        if arrived:
            self._next = len(self._waypoints) - 1
        to_x, to_y = self._waypoints[self._next]
        if not arrived and math.hypot(to_x - x, to_y - y) < _REACHED:
            self._next += 1  # from the next action on
        along_x, along_y = _P_GAIN * (to_x - x) + _D_GAIN * vx, _P_GAIN * (to_y - y) + _D_GAIN * vy
        return clip(along_x, 1.0), clip(along_y, 1.0), arrived

    def _way(self, here: Cell, goal: Cell) -> list[Cell]:
        """Cells after this one up to the goal, or the goal alone."""
        distances, way = self._distances[goal], [here]
        while way[-1] != goal:
            around = [cell for cell in _neighbours(way[-1]) if cell in distances]
            way.append(min(around, key=distances.__getitem__))  # the first one of equals
        return way[1:] or [goal]


def _neighbours(cell: Cell) -> list[Cell]:
    return [(cell[0] + di, cell[1] + dj) for di, dj in _MOVES]


def _flood(maze: Maze, goal: Cell) -> dict[Cell, int]:
    """Steps from each open cell to the goal.

    D4RL finds its ways by value iteration. As the goal alone is rewarded and rewards are discounted, values fall with
    these distances and lead along the same ways.
    """
    distances, reached = {goal: 0}, [goal]
    open_cells = set(maze.open_cells)
    for cell in reached:  # grows meanwhile
        for beside in _neighbours(cell):
            if beside in open_cells and beside not in distances:
                distances[beside] = distances[cell] + 1
                reached.append(beside)
    return distances


def collect(size: str, steps: int, seed: int, *, noise: float = 0.5) -> dict[str, np.ndarray]:
    """Record one long walk to cells drawn at random, with the keys of D4RL's files and `next_observations`.

    As in those files no row is terminal; `timeouts` marks the last row of the way to a cell, which is reached then or
    has taken the steps of an episode; and a row is rewarded if its own observation, not the one that follows, is near
    the goal of the maze. Unlike them the walk is recorded as it was: D4RL's script stores and acts on the last
    observation of a way once more in place of the first one of the next way.

    Args:
        size: "umaze", "medium" or "large".
        steps: Rows; D4RL has 1, 2 and 4 million.
        seed: Of everything that is drawn. More steps with the same seed continue the same walk.
        noise: Deviation of what is added to the actions. D4RL's script does so on demand; that its files were made in
            this way shows in their actions and in the walls that are touched.
    """
    maze = Maze.named(size)
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise: expected a deviation of at least 0, got {noise}")
    rng = np.random.default_rng(seed)
    ball, controller, cells = Ball(maze), WaypointController(maze, rng), maze.open_cells
    states, actions = np.empty((steps + 1, 4), np.float32), np.empty((steps, 2), np.float32)
    timeouts = np.zeros(steps, bool)
    state, begun = start(maze, rng), 0
    ball.place(state)
    controller.aim(state, cells[rng.integers(len(cells))])
    for row, (noise_x, noise_y) in zip(range(steps), _pairs(rng, noise), strict=False):
        along_x, along_y, arrived = controller.act(state)
        action = clip(along_x + noise_x, 1.0), clip(along_y + noise_y, 1.0)
        states[row], actions[row] = state, action
        state = ball.push(*action)
        if arrived or row + 1 - begun == maze.limit:
            timeouts[row], begun = True, row + 1
            controller.aim(state, cells[rng.integers(len(cells))])
    states[steps] = state
    return {
        "observations": states[:-1].copy(),
        "actions": actions,
        "rewards": at_goal(maze, states[:-1]).astype(np.float32),
        "next_observations": states[1:].copy(),
        "terminals": np.zeros(steps, bool),
        "timeouts": timeouts,
    }


def _pairs(rng: np.random.Generator, deviation: float) -> Iterator[list[float]]:
    while True:  # many at once, because a draw takes about as long as a step of the ball
        yield from rng.normal(0, deviation, (1024, 2)).tolist()
