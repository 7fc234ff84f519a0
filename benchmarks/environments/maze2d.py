"""The mazes of D4RL's maze2d, version 1, as tasks: two motors push a ball, which is rewarded for being at the goal.

The cell in row i and column j is the place (i, j). An observation is (x, y, vx, vy), where x counts rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np

Cell = tuple[int, int]

WALL_SHIFT = -0.2  # D4RL's walls do not lie around the cells, but this much towards the origin, in x and in y
_MAX_SPEED = 5.0  # along x and along y, before a step
_START_NOISE = 0.1  # greatest distance from the cell along x and y, and deviation of the velocity
_GOAL_RADIUS = 0.5


@dataclass(frozen=True)
class Maze:
    """A maze on a grid.

    Attributes:
        rows: A letter per cell: # is a wall, G the goal that is rewarded, O another cell to walk through.
        limit: Steps of an episode.
    """

    rows: tuple[str, ...]
    limit: int

    def where(self, letters: str) -> tuple[Cell, ...]:
        """Cells that have one of these letters, row by row."""
        return tuple((i, j) for i, row in enumerate(self.rows) for j, letter in enumerate(row) if letter in letters)

    @cached_property
    def open_cells(self) -> tuple[Cell, ...]:
        """All cells but the walls."""
        return self.where("OG")

    @cached_property
    def goal(self) -> Cell:
        """The cell that is rewarded."""
        return self.where("G")[0]

    @classmethod
    def named(cls, size: str) -> Maze:
        """Look a maze up by its size."""
        if size not in MAZES:
            raise ValueError(f"size: expected one of {', '.join(MAZES)}, got {size!r}")
        return MAZES[size]


MAZES = {
    "umaze": Maze(("#####", "#GOO#", "###O#", "#OOO#", "#####"), 300),
    "medium": Maze(
        ("########", "#OO##OO#", "#OO#OOO#", "##OOO###", "#OO#OOO#", "#O#OO#O#", "#OOO#OG#", "########"), 600
    ),
    "large": Maze(
        (
            "############",
            "#OOOO#OOOOO#",
            "#O##O#O#O#O#",
            "#OOOOOO#OOO#",
            "#O####O###O#",
            "#OO#O#OOOOO#",
            "##O#O#O#O###",
            "#OO#OOO#OGO#",
            "############",
        ),
        800,
    ),
}


class State(NamedTuple):
    """Where the ball is and how fast it moves."""

    x: float
    y: float
    vx: float
    vy: float


class Ball:
    """The simulated ball, as bare as can be: no episodes, no rewards, nothing checked.

    Args:
        maze: What it rolls in.
    """

    def __init__(self, maze: Maze) -> None:
        """Build the simulation."""
        self._model = _model(maze)
        self._data = mujoco.MjData(self._model)
        self._position, self._velocity, self._motors = self._data.qpos, self._data.qvel, self._data.ctrl

    def place(self, state: State) -> None:
        """Put the ball somewhere; what follows does not depend on what was before."""
        mujoco.mj_resetData(self._model, self._data)
        self._position[:] = state[:2]
        self._velocity[:] = state[2:]

    def push(self, along_x: float, along_y: float) -> State:
        """Let the motors for x and y push for one step; beyond -1 and 1 they do not get stronger."""
        vx, vy = self._velocity.tolist()
        self._velocity[:] = clip(vx, _MAX_SPEED), clip(vy, _MAX_SPEED)
        self._motors[:] = along_x, along_y
        mujoco.mj_step(self._model, self._data)
        return State(*self._position.tolist(), *self._velocity.tolist())


def clip(number: float, bound: float) -> float:
    """Bring a number between -bound and bound."""
    return -bound if number < -bound else min(number, bound)


def _model(maze: Maze) -> mujoco.MjModel:
    shifted = [(i + WALL_SHIFT, j + WALL_SHIFT) for i, j in maze.where("#")]
    walls = "".join(f'<geom type="box" size="0.5 0.5 0.2" pos="{x} {y} 0"/>' for x, y in shifted)
    # Without a tolerance the solver goes on until nothing changes, so that all versions of MuJoCo agree. The margin is
    # the ball's only: some versions take the greater of those of two geoms, others the sum.
    model = mujoco.MjModel.from_xml_string(f"""
        <mujoco>
          <option timestep="0.01" gravity="0 0 0" integrator="Euler" iterations="20" tolerance="0"/>
          <default>
            <geom condim="1" density="1000"/>
            <joint type="slide" damping="1"/>
            <motor gear="100" ctrllimited="true" ctrlrange="-1 1"/>
          </default>
          <worldbody>
            {walls}
            <body name="ball">
              <joint name="x" axis="1 0 0"/>
              <joint name="y" axis="0 1 0"/>
              <geom type="sphere" size="0.1" margin="0.002"/>
            </body>
          </worldbody>
          <actuator><motor joint="x"/><motor joint="y"/></actuator>
        </mujoco>""")
    # How hard a wall is depends on how easily the ball moves, on average over the axes. MuJoCo 2, which D4RL ran on,
    # counted z, along which the ball cannot move at all; MuJoCo 3 does not.
    ball = model.body("ball").id
    model.body_invweight0[ball, 0] = 2 / 3 / model.body_mass[ball]
    return model


def start(maze: Maze, rng: np.random.Generator) -> State:
    """Draw the start of an episode, near a cell and almost at rest."""
    cells = maze.open_cells
    position = cells[rng.integers(len(cells))] + rng.uniform(-_START_NOISE, _START_NOISE, 2)
    return State(*position.tolist(), *rng.normal(0, _START_NOISE, 2).tolist())


class Maze2d(gym.Env[np.ndarray, np.ndarray]):
    """A maze as a task: a step that ends near the goal is rewarded with 1, and only the time limit ends an episode.

    Args:
        size: "umaze", "medium" or "large".

    >>> env = Maze2d("umaze")
    >>> observation, _ = env.reset(seed=0)
    >>> observation.shape
    (4,)
    """

    def __init__(self, size: str) -> None:
        """Build the simulation."""
        self.maze = Maze.named(size)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._ball = Ball(self.maze)
        self._steps: int | None = None  # of the running episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode near a cell that is drawn."""
        super().reset(seed=seed)
        return self.set_state(np.array(start(self.maze, self.np_random))), {}

    def set_state(self, state: np.ndarray) -> np.ndarray:
        """Begin an episode at an observation ``(4,)`` instead, which is returned."""
        state = _numbers("state", state, 4)
        self._ball.place(State(*state.tolist()))
        self._steps = 0
        return state

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Push the ball with an action ``(2,)``, which is clipped to [-1, 1]."""
        if self._steps is None:
            raise gym.error.ResetNeeded("step was called before reset")
        after = np.array(self._ball.push(*_numbers("action", action, 2).tolist()))
        self._steps += 1
        return after, float(at_goal(self.maze, after)), False, self._steps >= self.maze.limit, {}


def _numbers(name: str, values: np.ndarray, count: int) -> np.ndarray:
    found = np.array(values, np.float64)
    if found.shape != (count,) or not np.isfinite(found).all():
        raise ValueError(f"{name}: expected {count} finite numbers, got {values!r}")
    return found


def at_goal(maze: Maze, observations: np.ndarray) -> np.ndarray:
    """Which of the observations ``(..., 4)`` are near the goal, ``(...)``."""
    x, y = maze.goal
    near: np.ndarray = np.hypot(observations[..., 0] - x, observations[..., 1] - y) <= _GOAL_RADIUS
    return near
