"""Simulator: what a simulator has, and how it answers many rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

Outcome = tuple[np.ndarray, float]  # next observation and reward


class Simulator(Protocol):
    """A simulator as `synther_replay.metrics.dynamics_error` calls it."""

    name: str
    observation_dim: int
    action_dim: int

    def restorable(self, observations: np.ndarray) -> np.ndarray:
        """Whether each observation ``(n, observation_dim)`` determines the state, bool ``(n,)``."""

    def __call__(self, observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Next observations ``(n, observation_dim)`` and rewards ``(n,)``; NaN where the simulation diverged."""


def step_each(
    step: Callable[[np.ndarray, np.ndarray], Outcome], observations: np.ndarray, actions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Step row by row."""
    next_observations, rewards = np.empty(observations.shape), np.empty(len(observations))
    for k, (observation, action) in enumerate(zip(observations.astype(np.float64), actions, strict=True)):
        next_observations[k], rewards[k] = step(observation, action)
    return next_observations, rewards
