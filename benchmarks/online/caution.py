"""Caution of the critics' targets: taken where values promise more than the best of the agent's own episodes gave.

Between episodes that an agent has seen and values that its critics give there can be any distance: an error of the
critics makes actions look good that no row contradicts, above all synthetic rows, which come from the same states. The
values then run away within a few thousand steps. While they stay below the best returns so far, optimism is left alone:
it is what finds better actions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.benchmarks.agents.sac import StackedSAC
from synther_replay.benchmarks.online.critic_values import CriticValues
from synther_replay.benchmarks.online.watchdog import value_range

_BATCHES = 4  # of the latest rows in which values and returns are compared
_TOLERANCE = 0.1  # of the range of values that the rewards allow
_KNOWN = 0.9  # share of a return that must be rewards, and not the value at its end, to count as seen
# Per check, of the largest caution. Values run away within a few thousand steps, so caution comes fast and goes slowly.
_MORE, _LESS = 0.25, 0.05


class Caution:
    """Sets the caution of each agent's targets from its latest rows; call `adjust` at regular steps.

    Args:
        learner: The agents; the `caution` of their settings is the largest.
    """

    def __init__(self, learner: StackedSAC) -> None:
        """Start without caution; no return is known."""
        self._learner, self._values = learner, CriticValues(learner)
        self.best = torch.full((learner.agents,), -torch.inf, dtype=torch.float64)

    @torch.no_grad()
    def adjust(self) -> None:
        """Compare the values of the latest rows with the best returns so far."""
        learner, spec, settings = self._learner, self._learner.replay.spec, self._learner.settings
        count = learner.replay.count
        rows = learner.replay.real[:, max(0, count - _BATCHES * settings.batch_size) : count]
        values = self._values.mean(rows[..., spec.observations], rows[..., spec.actions])
        found = learner.value_estimates(rows[:, -settings.batch_size :])
        temperature, entropy = found["temperature"], found["entropy"]
        goes_on = (rows[:, :-1, spec.next_observations] == rows[:, 1:, spec.observations]).all(-1)
        rewards, terminated = rows[..., spec.rewards.start], rows[..., spec.terminated.start]
        parts = (values, rewards, terminated, goes_on)
        returns, known = returns_of(*(part.double().cpu().numpy() for part in parts), settings.gamma)
        seen = torch.from_numpy(np.where(known >= _KNOWN, returns, -np.inf).max(1))
        self.best = torch.maximum(self.best, seen)
        so_far = learner.replay.real[:, :count, spec.rewards.start]
        least, most = value_range(so_far, temperature, entropy, spec.action_dim, settings.gamma)
        bonus = (temperature * entropy).clamp(min=0) / (1 - settings.gamma)  # values are soft, returns are not
        allowed = self.best.to(most) + bonus + _TOLERANCE * (most - least)
        too_high = values.mean(1) > allowed  # never where values or rewards are not finite
        caution = learner.critics.caution
        change = torch.where(too_high, _MORE, -_LESS) * settings.caution
        caution.copy_((caution + change).clamp(0, settings.caution))

    def report(self) -> dict[str, Tensor]:
        """Caution of now and the best returns so far, each ``(M,)``."""
        return {"caution": self._learner.critics.caution, "best_return": self.best}

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, besides that of the learner."""
        return {"best": self.best.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""
        self.best = state["best"].clone()


def returns_of(
    values: np.ndarray, rewards: np.ndarray, terminated: np.ndarray, goes_on: np.ndarray, gamma: float
) -> tuple[np.ndarray, np.ndarray]:
    """Discounted returns of consecutive rows, and the share of each that is not a value, ``(M, n)``.

    Where an episode was cut or is not over, the value of its last row takes the place of the rest.

    Args:
        values: Values of the rows, ``(M, n)``.
        rewards: Their rewards, ``(M, n)``.
        terminated: Whether the episode terminated, ``(M, n)``.
        goes_on: Whether the next row is of the same episode, ``(M, n - 1)``.
        gamma: Discount.
    """
    returns, known = values.copy(), np.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        left = gamma * (1 - terminated[:, t])
        if t + 1 < values.shape[1]:
            follows = goes_on[:, t] > 0
            after = np.where(follows, returns[:, t + 1], 0.0), np.where(follows, known[:, t + 1], 0.0)
        else:
            follows, after = np.zeros(len(values), bool), (0.0, 0.0)
        ends = terminated[:, t] > 0
        returns[:, t] = np.where(follows | ends, rewards[:, t] + left * after[0], values[:, t])
        known[:, t] = np.where(follows | ends, 1 - left * (1 - after[1]), 0.0)
    return returns, known
