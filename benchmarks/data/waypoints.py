"""D4RL's waypoint controller for maze2d: walks to random cells along shortest paths, with a waypoint in each cell."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from synther_replay.benchmarks.environments.maze2d import WALL_SHIFT, Ball, State, at_goal, clip, start
from synther_replay.benchmarks.environments.mazes import Cell, Maze, Routes

_REACHED = 0.1  # a waypoint is reached within this distance
_SPREAD = 0.2  # largest offset of a waypoint from its cell centre in x and in y, towards the free space of the cell
_P_GAIN, _D_GAIN = 10.0, -1.0


class WaypointController:
    """Steers a ball to one cell after another, each time along the shortest path.

    Args:
        maze: The maze.
        rng: Draws the waypoints.

    >>> maze = Maze.named("umaze")
    >>> controller = WaypointController(maze, np.random.default_rng(0))
    >>> controller.aim(State(1.0, 1.0, 0.0, 0.0), (1, 2))
    >>> controller.act(State(1.0, 1.0, 0.0, 0.0))
    (0.0, 1.0, False)
    """

    def __init__(self, maze: Maze, rng: np.random.Generator) -> None:
        """Plan the paths between all open cells."""
        self._rng = rng
        self._routes = Routes(maze)
        self._waypoints: list[tuple[float, float]] = []
        self._next = 0

    def aim(self, state: State, goal: Cell) -> None:
        """Plan a path from the position of the ball to a cell."""
        if goal not in self._routes:
            raise ValueError(f"goal: expected an open cell of the maze, got {goal!r}")
        # The cell that contains the ball. D4RL uses the nearest cell centre, which may be behind a wall; where paths
        # start, next to a cell that was just reached, both are the same.
        here = (round(state.x - WALL_SHIFT), round(state.y - WALL_SHIFT))
        if here not in self._routes:
            raise ValueError(f"state: expected a position in an open cell of the maze, got {state}")
        *between, last = self._routes.path(here, goal)
        draws = self._rng.uniform(0, _SPREAD, (len(between), 2)).tolist()
        self._waypoints = [(i - dx, j - dy) for (i, j), (dx, dy) in zip(between, draws, strict=True)] + [last]
        self._next = 0

    def act(self, state: State) -> tuple[float, float, bool]:
        """The action along x and along y, and whether the ball has reached the goal cell."""
        x, y, vx, vy = state
        goal_x, goal_y = self._waypoints[-1]
        # D4RL also requires a movement of less than 0.1 in the last step, which always holds.
        arrived = math.hypot(goal_x - x, goal_y - y) < _REACHED
        if arrived:
            self._next = len(self._waypoints) - 1
        to_x, to_y = self._waypoints[self._next]
        if not arrived and math.hypot(to_x - x, to_y - y) < _REACHED:
            self._next += 1  # from the next action on
        along_x, along_y = _P_GAIN * (to_x - x) + _D_GAIN * vx, _P_GAIN * (to_y - y) + _D_GAIN * vy
        return clip(along_x, 1.0), clip(along_y, 1.0), arrived


def collect(size: str, steps: int, seed: int, *, noise: float = 0.5) -> dict[str, np.ndarray]:
    """Record one long walk to random cells, with the keys of D4RL's files and `next_observations`.

    As in D4RL's files:

    - No row is terminal.
    - `timeouts` marks the last row of the path to a cell: the cell is reached, or the steps of an episode are used up.
    - The reward depends on the observation of a row, not on its next observation.

    Unlike in D4RL's files, consecutive paths are recorded without a gap. D4RL's script repeats the last observation of
    a path in place of the first one of the next path.

    Args:
        size: "umaze", "medium" or "large".
        steps: Number of rows; D4RL has 1, 2 and 4 million.
        seed: Random seed. More steps with the same seed continue the same walk.
        noise: Standard deviation of the noise on actions. It is optional in D4RL's script; the actions and wall
            contacts in D4RL's files show that it was on.
    """
    maze = Maze.named(size)
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise: expected a finite standard deviation of at least 0, got {noise}")
    rng = np.random.default_rng(seed)
    ball, controller, cells = Ball(maze), WaypointController(maze, rng), maze.open_cells
    states, actions = np.empty((steps + 1, 4), np.float32), np.empty((steps, 2), np.float32)
    timeouts = np.zeros(steps, bool)
    state, started = start(maze, rng), 0
    ball.place(state)
    controller.aim(state, cells[rng.integers(len(cells))])
    for row, (noise_x, noise_y) in zip(range(steps), _pairs(rng, noise), strict=False):
        along_x, along_y, arrived = controller.act(state)
        action = clip(along_x + noise_x, 1.0), clip(along_y + noise_y, 1.0)
        states[row], actions[row] = state, action
        state = ball.push(*action)
        if arrived or row + 1 - started == maze.limit:
            timeouts[row], started = True, row + 1
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
    while True:  # in batches, because one draw takes about as long as one step of the simulation
        yield from rng.normal(0, deviation, (1024, 2)).tolist()
