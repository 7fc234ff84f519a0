"""Implicit Q-learning (Kostrikov et al., 2021) for many seeds at once.

State values are trained as an upper expectile of the target critics' values of the actions in the data, critics are
trained on these state values, and the policy by advantage-weighted imitation. No actions outside the data are
evaluated. All three are updated at every step, with the parameters before the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.backend import make_network
from synther_replay.benchmarks.agents.networks.mlp import MlpShape, padded
from synther_replay.benchmarks.agents.offline_base import OfflineLearner, OfflineSettings
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.benchmarks.agents.squashed_gaussian import LOG_STD
from synther_replay.common.acceleration import fused

_MAX_WEIGHT = 100.0


@dataclass(frozen=True)
class IQLSettings(OfflineSettings):
    """Hyper-parameters of CORL for locomotion and mazes."""

    expectile: float = 0.7
    beta: float = 3.0  # inverse temperature of the advantage weights
    deterministic: bool = False  # deterministic policy with squared error instead of log-likelihood
    steps: int = 1_000_000  # length of the policy's cosine learning-rate schedule


@fused
def _value_inputs(observations: Tensor, next_observations: Tensor, columns: int) -> Tensor:
    """Inputs of the value network: states, then next states, ``(K, M, 2B, columns)``; the policy uses the states."""
    return padded(torch.cat((observations, next_observations), -2), columns=columns)


@fused
def _critic_inputs(observations: Tensor, actions: Tensor, columns: int) -> Tensor:
    """Inputs of the critics, and the same for their targets, ``(K, 2, M, B, columns)``."""
    inputs = padded(observations, actions, columns=columns)
    return torch.stack((inputs, inputs), 1)


@fused
def _annealed(rates: Tensor, done: Tensor, steps: int) -> Tensor:
    """Adam's rates ``(K, 2)`` with the first annealed by a cosine over `steps` updates, of which `done` are made."""
    progress = (done + torch.arange(len(rates), device=rates.device)) / steps
    factor = 0.5 * (1 + torch.cos(math.pi * progress))
    return torch.stack((rates[:, 0] * factor.to(rates.dtype), rates[:, 1]), 1)


@fused
def _targets(rewards: Tensor, terminated: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """Factor and offset of the TD target, ``(2, M, B)``: zero times the target critics, plus reward and next value."""
    return torch.stack((torch.zeros_like(rewards), rewards + gamma * (1 - terminated) * next_value))


@fused
def _advantage(target_q: Tensor, value: Tensor, expectile: float) -> tuple[Tensor, Tensor]:
    """Advantages ``(M, B)`` of the actions in the data, and the gradient of the expectile loss by the value."""
    advantage = target_q.amin(1) - value
    weight = torch.where(advantage < 0, 1 - expectile, expectile)
    return advantage, -2 * weight * advantage / advantage.shape[1]


@fused
def _policy_gradient(
    out: Tensor, actions: Tensor, advantage: Tensor, log_std: Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """Gradients of the imitation loss by the policy's outputs ``(M, B, A)`` and by its log-std ``(M, A)``."""
    weight = (beta * advantage).exp().clamp(max=_MAX_WEIGHT).unsqueeze(-1) / advantage.shape[1]
    mean = out.tanh()
    inside = (log_std >= LOG_STD[0]) & (log_std <= LOG_STD[1])
    distance = (actions - mean) / log_std.clamp(*LOG_STD).exp().unsqueeze(1)
    d_mean = -weight * distance / log_std.clamp(*LOG_STD).exp().unsqueeze(1)
    d_log_std = torch.where(inside, (weight * (1 - distance.square())).sum(1), 0.0)
    return d_mean * (1 - mean.square()), d_log_std


@fused
def _deterministic_policy_gradient(out: Tensor, actions: Tensor, advantage: Tensor, beta: float) -> Tensor:
    weight = (beta * advantage).exp().clamp(max=_MAX_WEIGHT).unsqueeze(-1) / advantage.shape[1]
    mean = out.tanh()
    return 2 * weight * (mean - actions) * (1 - mean.square())


class StackedIQL(OfflineLearner):
    """See `OfflineLearner`."""

    def __init__(self, rows: SharedRows, agents: int, settings: IQLSettings | None = None, *, seed: int = 0) -> None:
        """Draw the initial networks."""
        self.settings = settings or IQLSettings()
        super().__init__(rows, agents, self.settings, seed=seed)
        rate = self.settings.learning_rate
        self.value_shape = MlpShape(rows.spec.observation_dim, 1, self.settings.hidden, self.settings.hidden_layers)
        self.value = Adam(self._drawn(self.value_shape, agents), rate)
        self.state_values = make_network(
            self.value.parameters, self.value, self.value_shape, batch_size=self.settings.batch_size
        )
        self.log_std = Adam(torch.zeros(agents, rows.spec.action_dim, device=self.device), rate)
        self.parts |= {"value": self.value, "log_std": self.log_std}

    @torch.no_grad()
    def update(self, rows: Tensor) -> None:
        """K updates of critics, values and policy; all that does not depend on the networks is computed at once.

        Args:
            rows: Transitions, ``(K, M, B, dim)``.
        """
        spec = self.rows.spec
        observations, actions = rows[..., spec.observations], rows[..., spec.actions]
        states = _value_inputs(observations, rows[..., spec.next_observations], self.value_shape.padded_inputs)
        inputs = _critic_inputs(observations, actions, self.critic_shape.padded_inputs)
        rates = self.critic.rates(self.updates, len(rows))
        policy_rates = _annealed(rates, self.updates, self.settings.steps)
        for k, batch in enumerate(rows):
            self._update(batch, states[k], inputs[k], rates[k], policy_rates[k])
        self.updates += len(rows)

    def _update(self, rows: Tensor, states: Tensor, inputs: Tensor, rates: Tensor, policy_rates: Tensor) -> None:
        spec, settings, batch = self.rows.spec, self.settings, rows.shape[1]
        now, then = self.state_values.forward(states).squeeze(-1).split(batch, 1)
        bellman = _targets(rows[..., spec.rewards.start], rows[..., spec.terminated.start], then, settings.gamma)
        # CORL halves the loss; Adam is invariant to that, except for its epsilon.
        target_q = self.critics.update(inputs, bellman, self.none_excluded, rates)
        advantage, d_value = _advantage(target_q, now, settings.expectile)
        self.state_values.learn(d_value.unsqueeze(-1), rates)
        self._imitate(states[:, :batch], rows[..., spec.actions], advantage, policy_rates)

    def _imitate(self, states: Tensor, actions: Tensor, advantage: Tensor, rates: Tensor) -> None:
        settings = self.settings
        out = self.policies.forward(states)
        if settings.deterministic:
            d_out = _deterministic_policy_gradient(out, actions, advantage, settings.beta)
        else:
            d_out, d_log_std = _policy_gradient(out, actions, advantage, self.log_std.parameters, settings.beta)
            self.log_std.gradient.copy_(d_log_std)
            self.log_std.step(rates)
        self.policies.learn(d_out, rates)

    def _after_load(self) -> None:
        super()._after_load()
        self.state_values.refresh()

    def _draw_and_update(self) -> None:
        self.update(self.rows.draw(self.settings.updates_per_call, self.agents, self.settings.batch_size, rng=self.rng))
