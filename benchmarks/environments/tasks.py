"""Continuous control tasks by name, from DeepMind Control, Gymnasium and D4RL, behind one interface.

Observations are flat float32 vectors and actions lie in [-1, 1]. An episode depends on its seed and its actions only,
so a run can be resumed by repeating actions. A name with the suffix ``-repeat2`` takes every action for two steps.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from synther_replay.benchmarks.environments.scores import TASKS
from synther_replay.common.seeding import derive_seed

os.environ.setdefault("MUJOCO_GL", "disable")  # nothing is rendered, and a server has no display

_REPEATED = re.compile(r"(.+)-repeat([1-9]\d*)")
# Target entropies of MBPO, as in the REDQ code base; for any other task, minus the number of action dimensions.
_MBPO_TARGET_ENTROPY = {"Hopper": -1.0, "HalfCheetah": -3.0, "Walker2d": -3.0, "Ant": -4.0, "Humanoid": -2.0}


@dataclass(frozen=True)
class Task:
    """Properties of a task that a learner needs.

    Attributes:
        name: Name, as on the command line.
        suite: "dmc" or "gym".
        observation_dim: Length of an observation.
        action_dim: Length of an action.
        target_entropy: Target entropy of the policy in SAC.
    """

    name: str
    suite: str
    observation_dim: int
    action_dim: int
    target_entropy: float

    @classmethod
    def named(cls, name: str) -> Task:
        """Look up a task by name; raises `ValueError` with similar names if it is unknown."""
        environment, suite = make_environment(name), suite_of(name)
        entropy = _MBPO_TARGET_ENTROPY.get(name.rpartition("-v")[0]) if suite == "gym" else None
        if entropy is None:
            entropy = -float(environment.action_dim)
        return cls(name, suite, environment.observation_dim, environment.action_dim, entropy)


class Step(NamedTuple):
    """Result of one environment step; a time limit truncates an episode and does not terminate it."""

    observation: np.ndarray
    reward: float
    terminated: bool
    truncated: bool


class Environment(Protocol):
    """An environment of a task."""

    observation_dim: int
    action_dim: int

    def reset(self, seed: int) -> np.ndarray:
        """Start an episode that depends on the seed only; returns its first observation."""

    def step(self, action: np.ndarray) -> Step:
        """Take an action in [-1, 1]."""


def suite_of(name: str) -> str:
    """Suite of a task: "gym" if it is registered in Gymnasium or one of our own, else "dmc"."""
    if repeated := _REPEATED.fullmatch(name):
        name = repeated[1]
    return "gym" if name in gym.registry or _own(name) else "dmc"


def make_environment(name: str) -> Environment:
    """Build a task by its name.

    Tasks are those of DeepMind Control (``domain-task``) and Gymnasium, D4RL's mazes (``maze2d-size``,
    ``antmaze-size``), and ``ant-goal``, which trains the ant for its mazes. With ``-repeatN`` behind the name, every
    action is taken N times.
    """
    if repeated := _REPEATED.fullmatch(name):
        return Repeated(make_environment(repeated[1]), int(repeated[2]))
    if name in gym.registry:
        return _Gymnasium(name, lambda: gym.make(name))
    if own := _own(name):
        return _Gymnasium(name, own)
    known = list(gym.registry)
    try:
        from dm_control import suite
        from dm_control.rl.control import PhysicsError
    except ImportError as error:
        missing = f"; tasks of DeepMind Control need dm_control, which is not installed ({error})"
    else:
        tasks = {f"{domain}-{task}": (domain, task) for domain, task in suite.ALL_TASKS}
        if name in tasks:
            return _ControlSuite(name, suite.load(*tasks[name]), PhysicsError)
        known += tasks
        missing = ""
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"examples: {', '.join(TASKS)}"
    raise ValueError(f"env: unknown task {name!r}; {hint}{missing}")


def _own(name: str) -> Callable[[], gym.Env[Any, Any]] | None:
    """What builds a task of ours; None: the task is none."""
    task, _, size = name.partition("-")
    if task in _OWN_MAZES:
        return lambda: _OWN_MAZES[task](size)
    return _ant_goal if name == "ant-goal" else None


# The imports are lazy because they need MuJoCo.
def _maze(size: str) -> gym.Env[Any, Any]:
    from synther_replay.benchmarks.environments.maze2d import Maze2d

    return Maze2d(size)


def _ant_maze(size: str) -> gym.Env[Any, Any]:
    from synther_replay.benchmarks.environments.antmaze import AntMaze

    return AntMaze(size)


def _ant_goal() -> gym.Env[Any, Any]:
    from synther_replay.benchmarks.environments.ant_goal import AntGoal

    return AntGoal()


_OWN_MAZES: dict[str, Callable[[str], gym.Env[Any, Any]]] = {"maze2d": _maze, "antmaze": _ant_maze}


class Repeated:
    """An environment in which every action is taken several times; the rewards are summed.

    Args:
        environment: The environment of single steps.
        times: Steps per action. An episode that ends earlier ends.
    """

    def __init__(self, environment: Environment, times: int) -> None:
        """Keep both."""
        self.observation_dim, self.action_dim = environment.observation_dim, environment.action_dim
        self._environment, self._times = environment, times

    def reset(self, seed: int) -> np.ndarray:
        """See `Environment`."""
        return self._environment.reset(seed)

    def step(self, action: np.ndarray) -> Step:
        """See `Environment`."""
        total = 0.0
        for _ in range(self._times):
            step = self._environment.step(action)
            total += step.reward
            if step.terminated or step.truncated:
                break
        return step._replace(reward=total)


class _Gymnasium:
    def __init__(self, name: str, make: Callable[[], gym.Env[Any, Any]]) -> None:
        try:
            self._env = make()
        except (gym.error.DependencyNotInstalled, ImportError) as error:
            raise ValueError(f"env: {name} requires a package that is not installed: {error}") from error
        observations, actions = self._env.observation_space, self._env.action_space
        boxes = isinstance(observations, gym.spaces.Box) and isinstance(actions, gym.spaces.Box)
        if not boxes or not np.isfinite([actions.low, actions.high]).all():
            raise ValueError(
                f"env: expected Box observations and bounded Box actions, got {observations} and {actions} from {name}"
            )
        self.observation_dim, self.action_dim = int(np.prod(observations.shape)), int(np.prod(actions.shape))
        self._shape, self._low, self._high = actions.shape, actions.low, actions.high

    def reset(self, seed: int) -> np.ndarray:
        return self._flat(self._env.reset(seed=seed)[0])

    def step(self, action: np.ndarray) -> Step:
        scaled = self._low + (action.reshape(self._shape) + 1) * 0.5 * (self._high - self._low)
        observation, reward, terminated, truncated, _ = self._env.step(scaled)
        return Step(self._flat(observation), float(reward), bool(terminated), bool(truncated))

    def _flat(self, observation: np.ndarray) -> np.ndarray:
        return np.asarray(observation, np.float32).reshape(-1)


class _ControlSuite:
    def __init__(self, name: str, env: Any, physics_error: type[Exception]) -> None:
        self._env, self._physics_error = env, physics_error
        if not np.isfinite(env._step_limit):
            raise ValueError(f"env: {name} has no time limit, so its evaluation might never finish")
        actions = env.action_spec()
        self._low, self._high = actions.minimum, actions.maximum
        self.action_dim = int(np.prod(actions.shape))
        self.observation_dim = sum(int(np.prod(spec.shape)) for spec in env.observation_spec().values())

    @property
    def physics(self) -> Any:
        """What renders the state."""
        return self._env.physics

    def reset(self, seed: int) -> np.ndarray:
        # A task uses this random state only, and only at the start of an episode.
        self._env.task._random = np.random.RandomState(seed % 2**32)
        return self._flat(self._env.reset())

    def step(self, action: np.ndarray) -> Step:
        try:
            after = self._env.step(self._low + (action.astype(np.float64) + 1) * 0.5 * (self._high - self._low))
        except self._physics_error:  # the simulation diverged; return NaN, as Gymnasium does
            return Step(np.full(self.observation_dim, np.nan, np.float32), math.nan, False, False)
        terminated = bool(after.last() and after.discount == 0)
        return Step(self._flat(after), float(after.reward), terminated, bool(after.last() and not terminated))

    def _flat(self, step: Any) -> np.ndarray:
        return np.concatenate([np.ravel(part) for part in step.observation.values()]).astype(np.float32)


def agent_seed(seed: int) -> int:
    """Seed from which an agent's episodes are derived; consecutive seeds give unrelated episodes."""
    return derive_seed(seed, 5)


def environment_seed(seed: int, *keys: int) -> int:
    """`derive_seed` with 31 bits, which every environment takes."""
    return derive_seed(seed, *keys) % 2**31
