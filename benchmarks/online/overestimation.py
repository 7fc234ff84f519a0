"""Overestimation: what values promise beyond the returns that followed on the agent's own latest rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from synther_replay.benchmarks.agents.critic_values import CriticValues
from synther_replay.benchmarks.agents.sac import StackedSAC

_BATCHES = 4  # of the latest rows, 1,024 by default


@torch.no_grad()
def values_and_excess(learner: StackedSAC) -> tuple[Tensor, Tensor]:
    """Values of the latest rows, ``(M, n)``, and how much of their mean did not follow, ``(M,)``; see `excess`."""
    replay, spec, settings = learner.replay, learner.replay.spec, learner.settings
    rows = replay.real[:, max(0, replay.count - _BATCHES * settings.batch_size) : replay.count]
    rewards, terminated = rows[..., spec.rewards.start], rows[..., spec.terminated.start]
    goes_on = (rows[:, :-1, spec.next_observations] == rows[:, 1:, spec.observations]).all(-1)
    values = CriticValues(learner).mean(rows[..., spec.observations], rows[..., spec.actions])
    estimates = learner.value_estimates(rows[:, -settings.batch_size :])
    parts = (values, rewards, terminated, goes_on, estimates["temperature"] * estimates["entropy"])
    found = excess(*(part.double().cpu().numpy() for part in parts), settings.gamma)
    return values, torch.from_numpy(found).to(values)


def excess(
    values: np.ndarray,
    rewards: np.ndarray,
    terminated: np.ndarray,
    goes_on: np.ndarray,
    bonus: np.ndarray,
    gamma: float,
) -> np.ndarray:
    """How much of the mean value did not follow, ``(M,)``; negative where more followed.

    Where an episode was cut or is not over, the value of its last row takes the place of what would have followed, and
    the result is corrected for it.

    Args:
        values: Values of consecutive rows, ``(M, n)``.
        rewards: Their rewards, ``(M, n)``.
        terminated: Whether the episode terminated, ``(M, n)``.
        goes_on: Whether the next row is of the same episode, ``(M, n - 1)``.
        bonus: Temperature times entropy, which soft values include, ``(M,)``.
        gamma: Discount.
    """
    returns, seen = values.copy(), np.zeros_like(values)  # seen: share of a return that is not a value
    for t in reversed(range(values.shape[1])):
        ends = terminated[:, t] > 0
        returns[ends, t], seen[ends, t] = rewards[ends, t], 1.0
        if t + 1 < values.shape[1]:
            on = ~ends & (goes_on[:, t] > 0)
            returns[on, t] = rewards[on, t] + gamma * (bonus[on] + returns[on, t + 1])
            seen[on, t] = 1 - gamma * (1 - seen[on, t + 1])
    found: np.ndarray = (values - returns).sum(1) / np.maximum(seen.sum(1), 1e-9)
    return found
