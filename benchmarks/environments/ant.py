"""The physics of D4RL's ant, between walls or in the open plane, without goals and episodes.

The body is that of Gymnasium. As in D4RL's model, a step takes 0.1 s and motors are five times weaker, so the ant walks
and does not jump.

A state, which is also the observation of D4RL's ant mazes, has 29 numbers: position x, y, z of the torso, its
orientation as a quaternion, 8 joint angles; linear velocity, angular velocity, 8 joint velocities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import gymnasium
import mujoco
import numpy as np

STATE_DIM, ACTION_DIM = 29, 8
STEP_SECONDS = 0.1
_SUBSTEPS = 5
_POSITIONS = 15  # the first numbers of a state; the others are velocities
_START_NOISE = 0.1  # of all positions (largest) and velocities (standard deviation) at the start of an episode
_MODEL = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "ant.xml"

Box = tuple[float, float, float, float]
"""Centre x, y and half-sizes in x and y of a wall."""


class Ant:
    """An ant in a world of walls.

    Args:
        walls: The walls.
        height: Height of the walls.
    """

    def __init__(self, walls: Sequence[Box] = (), height: float = 2.0) -> None:
        """Build the simulation."""
        self._model = _model(walls, height)
        self._data = mujoco.MjData(self._model)
        self._rest = self._data.qpos.copy()

    @property
    def state(self) -> np.ndarray:
        """A copy of the state, ``(29,)``."""
        return np.concatenate((self._data.qpos, self._data.qvel))

    def place(self, state: np.ndarray) -> np.ndarray:
        """Set the state ``(29,)`` and return it; nothing of the earlier state remains."""
        mujoco.mj_resetData(self._model, self._data)
        self._data.qpos[:], self._data.qvel[:] = state[:_POSITIONS], state[_POSITIONS:]
        mujoco.mj_normalizeQuat(self._model, self._data.qpos)
        return self.state

    def stand(self, x: float, y: float, rng: np.random.Generator) -> np.ndarray:
        """Place the ant almost at rest, with D4RL's noise on all but x and y, and return its state."""
        positions = self._rest + rng.uniform(-_START_NOISE, _START_NOISE, _POSITIONS)
        positions[:2] = x, y
        return self.place(np.concatenate((positions, rng.normal(0, _START_NOISE, STATE_DIM - _POSITIONS))))

    def step(self, action: np.ndarray) -> np.ndarray:
        """Simulate one step with motor commands ``(8,)``, which MuJoCo clips to [-1, 1], and return the state."""
        self._data.ctrl[:] = action
        mujoco.mj_step(self._model, self._data, _SUBSTEPS)
        return self.state


def _model(walls: Sequence[Box], height: float) -> mujoco.MjModel:
    """Gymnasium's ant with D4RL's time step, motors and contacts, and walls."""
    root = ElementTree.parse(_MODEL).getroot()
    _only(root, "option").set("timestep", str(STEP_SECONDS / _SUBSTEPS))
    _only(root, "default/geom").set("solimp", ".8 .8 .01")
    for motor in root.iter("motor"):
        motor.set("gear", "30")
    world = _only(root, "worldbody")
    for x, y, half_x, half_y in walls:
        size, position = f"{half_x} {half_y} {height / 2}", f"{x} {y} {height / 2}"
        world.append(ElementTree.Element("geom", type="box", size=size, pos=position, conaffinity="1"))
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(root, "unicode"))


def _only(root: ElementTree.Element, path: str) -> ElementTree.Element:
    found = root.find(path)
    assert found is not None, f"{_MODEL} has no {path}"
    return found


def upright(state: np.ndarray) -> float:
    """Cosine of the angle between the torso's axis and the vertical; negative for an ant on its back."""
    _, x, y, _ = state[3:7].tolist()
    return 1 - 2 * (x * x + y * y)


def seen_from_ant(state: np.ndarray, target: np.ndarray) -> np.ndarray:
    """What a goal-reaching policy sees, ``(28,)`` float32: the state without position and yaw, and where to go.

    Height, vertical in the torso's frame (3), joint angles (8), velocity (3, turned by the yaw), angular velocity (3),
    joint velocities (8), and the direction to `target` ``(2,)``, turned by the yaw. Its distance is not seen, as D4RL
    gives its policy waypoints at a constant distance.
    """
    w, x, y, z = state[3:7].tolist()
    yaw = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    along, across = target - state[:2]
    ahead, left = _turned(along, across, yaw)
    distance = max(math.hypot(ahead, left), 1e-6)
    vertical = 2 * (x * z - w * y), 2 * (y * z + w * x), upright(state)
    velocity = *_turned(state[15], state[16], yaw), state[17]
    parts = (state[2:3], vertical, state[7:15], velocity, state[18:], (ahead / distance, left / distance))
    return np.concatenate(parts, dtype=np.float32)


SEEN_DIM = 28
"""Length of `seen_from_ant`."""


def _turned(x: float, y: float, yaw: float) -> tuple[float, float]:
    """A vector of the world in the frame of an ant with this yaw."""
    cosine, sine = math.cos(yaw), math.sin(yaw)
    return cosine * x + sine * y, cosine * y - sine * x
