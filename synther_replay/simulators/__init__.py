"""Simulators of Gymnasium's tasks that step from a given observation, to compare transitions with the true dynamics."""

from __future__ import annotations

from synther_replay.simulators.protocol import Simulator, step_each

__all__ = ["TASKS", "Simulator", "make_simulator", "step_each"]

_CLASSIC = ("Acrobot", "CartPole", "MountainCar", "MountainCarContinuous", "Pendulum")
_MUJOCO = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "InvertedPendulum", "Swimmer", "Walker2d")
TASKS = (*_CLASSIC, *_MUJOCO)  # without their versions


def make_simulator(env: str) -> Simulator:
    """Build the simulator of one of `TASKS`.

    Args:
        env: Gymnasium's name, with the version, such as ``HalfCheetah-v5``.

    Raises:
        ValueError: There is no simulator for it: its observation does not determine the state.
        ImportError: It needs MuJoCo, which is not installed.
    """
    task = env.partition("-v")[0]
    if task in _CLASSIC:
        from synther_replay.simulators.classic import ClassicSimulator

        return ClassicSimulator(env)
    if task in _MUJOCO:
        try:
            from synther_replay.simulators.locomotion import LocomotionSimulator
        except ImportError as error:
            raise ImportError(f"{env} needs MuJoCo: pip install 'gymnasium[mujoco]'") from error
        return LocomotionSimulator(env)
    raise ValueError(f"env: expected a version of {', '.join(TASKS)}, got {env!r}")
