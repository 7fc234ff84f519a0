"""D4RL's maze2d-v1 environments: two motors push a ball through a maze; the reward is 1 near the goal.

The cell in row i and column j has its centre at (i, j). An observation is (x, y, vx, vy), where x counts rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np

from synther_replay.benchmarks.environments.checks import numbers
from synther_replay.benchmarks.environments.mazes import Maze

WALL_SHIFT = -0.2  # D4RL's walls are shifted against the cells by this much, in x and in y
_MAX_SPEED = 5.0  # velocities are clipped to this along x and along y, before a step
_START_NOISE = 0.1  # largest offset from the cell centre along x and y, and standard deviation of the velocity
_GOAL_RADIUS = 0.5


class State(NamedTuple):
    """Position and velocity of the ball."""

    x: float
    y: float
    vx: float
    vy: float


class Ball:
    """The physics of the ball, without episodes, rewards or input checks.

    Args:
        maze: The maze.
    """

    def __init__(self, maze: Maze) -> None:
        """Build the simulation."""
        self._model = _model(maze)
        self._data = mujoco.MjData(self._model)
        self._position, self._velocity, self._motors = self._data.qpos, self._data.qvel, self._data.ctrl

    def place(self, state: State) -> None:
        """Set the state of the ball; nothing of the earlier state remains."""
        mujoco.mj_resetData(self._model, self._data)
        self._position[:] = state[:2]
        self._velocity[:] = state[2:]

    def push(self, along_x: float, along_y: float) -> State:
        """Simulate one step with these motor commands, which MuJoCo clips to [-1, 1]."""
        vx, vy = self._velocity.tolist()
        self._velocity[:] = clip(vx, _MAX_SPEED), clip(vy, _MAX_SPEED)
        self._motors[:] = along_x, along_y
        mujoco.mj_step(self._model, self._data)
        return State(*self._position.tolist(), *self._velocity.tolist())


def clip(number: float, bound: float) -> float:
    """Clip a number to [-bound, bound]."""
    return -bound if number < -bound else min(number, bound)


def _model(maze: Maze) -> mujoco.MjModel:
    shifted = [(i + WALL_SHIFT, j + WALL_SHIFT) for i, j in maze.where("#")]
    walls = "".join(f'<geom type="box" size="0.5 0.5 0.2" pos="{x} {y} 0"/>' for x, y in shifted)
    # tolerance=0 iterates the solver until nothing changes, so that all versions of MuJoCo agree. Only the ball has a
    # margin: some versions use the larger margin of two geoms, others their sum.
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
    # Contact stiffness depends on the inverse weight of the ball, averaged over the axes. MuJoCo 2, which D4RL used,
    # included z, along which the ball cannot move; MuJoCo 3 does not.
    ball = model.body("ball").id
    model.body_invweight0[ball, 0] = 2 / 3 / model.body_mass[ball]
    return model


def start(maze: Maze, rng: np.random.Generator) -> State:
    """Draw the initial state of an episode: near the centre of an open cell, almost at rest."""
    cells = maze.open_cells
    position = cells[rng.integers(len(cells))] + rng.uniform(-_START_NOISE, _START_NOISE, 2)
    return State(*position.tolist(), *rng.normal(0, _START_NOISE, 2).tolist())


class Maze2d(gym.Env[np.ndarray, np.ndarray]):
    """A maze as a Gymnasium environment: reward 1 for a step that ends near the goal; episodes end by time limit only.

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
        self._steps: int | None = None  # steps of the current episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode near a random open cell."""
        super().reset(seed=seed)
        return self.set_state(np.array(start(self.maze, self.np_random))), {}

    def set_state(self, state: np.ndarray) -> np.ndarray:
        """Start an episode at the observation `state` ``(4,)`` and return it."""
        state = numbers("state", state, 4)
        self._ball.place(State(*state.tolist()))
        self._steps = 0
        return state

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Apply an action ``(2,)``, clipped to [-1, 1]."""
        if self._steps is None:
            raise gym.error.ResetNeeded("step() was called before reset()")
        after = np.array(self._ball.push(*numbers("action", action, 2).tolist()))
        self._steps += 1
        return after, float(at_goal(self.maze, after)), False, self._steps >= self.maze.limit, {}


def at_goal(maze: Maze, observations: np.ndarray) -> np.ndarray:
    """Whether each observation ``(..., 4)`` is near the goal, bool ``(...)``."""
    x, y = maze.goal
    near: np.ndarray = np.hypot(observations[..., 0] - x, observations[..., 1] - y) <= _GOAL_RADIUS
    return near
