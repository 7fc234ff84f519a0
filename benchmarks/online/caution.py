"""Caution of the critics' targets: taken where values promise more than the agent's own latest episodes gave.

An error of the critics can make actions look good that no row contradicts, above all synthetic rows: they come from the
states that the agent has seen. Values then run away within a few thousand steps. What followed on the latest rows says
so at once, and the disagreement of the critics says where values are least certain.
"""

from __future__ import annotations

import numpy as np
import torch

from synther_replay.benchmarks.agents.sac import StackedSAC
from synther_replay.benchmarks.online.critic_values import CriticValues

_BATCHES = 4  # of the latest rows in which values and returns are compared
_TOLERANCE = 0.2  # of the values: those of a policy that improves are ahead of the returns of its last episodes
# Per check, of the largest caution. Values run away fast, so caution comes fast and goes slowly.
_MORE, _LESS = 0.25, 0.05


@torch.no_grad()
def adjust_caution(learner: StackedSAC) -> None:
    """Change the caution of each agent's targets by what followed on its latest rows; call it at regular steps."""
    replay, spec, settings = learner.replay, learner.replay.spec, learner.settings
    rows = replay.real[:, max(0, replay.count - _BATCHES * settings.batch_size) : replay.count]
    rewards, terminated = rows[..., spec.rewards.start], rows[..., spec.terminated.start]
    goes_on = (rows[:, :-1, spec.next_observations] == rows[:, 1:, spec.observations]).all(-1)
    values = CriticValues(learner).mean(rows[..., spec.observations], rows[..., spec.actions])
    found = learner.value_estimates(rows[:, -settings.batch_size :])
    parts = (values, rewards, terminated, goes_on, found["temperature"] * found["entropy"])
    share = overestimation(*(part.double().cpu().numpy() for part in parts), settings.gamma)
    caution = learner.critics.caution
    too_high = torch.from_numpy(share > _TOLERANCE).to(caution.device)  # never where values are not finite
    caution.add_(torch.where(too_high, _MORE, -_LESS) * settings.caution).clamp_(0, settings.caution)


def overestimation(
    values: np.ndarray,
    rewards: np.ndarray,
    terminated: np.ndarray,
    goes_on: np.ndarray,
    bonus: np.ndarray,
    gamma: float,
) -> np.ndarray:
    """Share of the values that did not follow, ``(M,)``; negative where more followed.

    Where an episode was cut or is not over, the value of its last row takes the place of what would have followed, and
    the share is corrected for it.

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
    error = (values - returns).sum(1) / np.maximum(seen.sum(1), 1e-9)
    share: np.ndarray = error / np.maximum(np.abs(values).mean(1), 1e-9)
    return share
