"""Tasks of DeepMind Control with frames of 84 x 84, rendered by software, and action repeat 2.

Rendering needs OSMesa (Debian: ``libosmesa6``). It is done in worker processes only, because dm_control chooses its
renderer when it is imported.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from synther_replay.benchmarks.environments.tasks import Repeated, Step, make_environment
from synther_replay.common.checks import whole_number

SIZE = 84
ACTION_REPEAT = 2
_CAMERA = 0  # follows the body from the side


@dataclass(frozen=True)
class RenderSettings:
    """Quality of the frames.

    With dm_control's own values, 2048 and 4, a frame takes several times as long.

    Attributes:
        shadows: Side of the shadow map in pixels; from 256 on, few pixels differ.
        samples: Samples per pixel; 0 leaves edges jagged.
    """

    shadows: int = 256
    samples: int = 0

    def __post_init__(self) -> None:
        """Validate all values."""
        whole_number("shadows", self.shadows)
        whole_number("samples", self.samples, least=0)


def missing_renderer() -> str | None:
    """Why nothing can be rendered on this machine; None if it can."""
    if ctypes.util.find_library("OSMesa") is None:
        return "OSMesa is not installed (Debian: apt-get install libosmesa6)"
    for package in ("OpenGL", "dm_control"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    return None


def choose_renderer() -> None:
    """Let processes that this one starts render by OSMesa.

    Raises:
        ValueError: Nothing can be rendered on this machine.
    """
    if reason := missing_renderer():
        raise ValueError(reason)
    os.environ["MUJOCO_GL"] = "osmesa"  # read when dm_control is imported


class PixelTask:
    """A task whose state can be rendered.

    Args:
        name: Task of DeepMind Control, for example "walker-walk".
        settings: Quality of the frames.
    """

    def __init__(self, name: str, settings: RenderSettings) -> None:
        """Load the task; nothing is rendered yet."""
        single: Any = make_environment(name)
        if not hasattr(single, "physics"):
            raise ValueError(f"task: expected a task of DeepMind Control, got {name!r}")
        self.action_dim: int = single.action_dim
        self._environment, self._physics = Repeated(single, ACTION_REPEAT), single.physics
        visual = self._physics.model.vis
        visual.quality.shadowsize, visual.quality.offsamples = settings.shadows, settings.samples
        visual.global_.offwidth = visual.global_.offheight = SIZE  # the buffer is cleared as a whole

    def reset(self, seed: int) -> np.ndarray:
        """Start an episode that depends on the seed only; returns its first state."""
        return self._environment.reset(seed)

    def step(self, action: np.ndarray) -> Step:
        """Take an action in [-1, 1] twice; the observation is the state."""
        return self._environment.step(action)

    def frame(self) -> np.ndarray:
        """The current frame, ``(84, 84, 3)``, uint8."""
        frame: np.ndarray = self._physics.render(SIZE, SIZE, camera_id=_CAMERA)
        return frame


@cache
def pixel_task(name: str, settings: RenderSettings) -> PixelTask:
    """The task of this process, built once."""
    return PixelTask(name, settings)
