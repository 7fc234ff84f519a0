"""CQL (Kumar et al., 2020) for many seeds at once.

SAC whose critics also learn to value actions that are not in the data less than those that are: of each state they are
asked about random actions and about actions of the policy, there and in the next state, and the soft maximum of these
values is pushed down against the value of the action in the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.backend import outputs_for
from synther_replay.benchmarks.agents.networks.mlp import (
    Activations,
    Layers,
    MlpShape,
    backward,
    forward,
    fused_padded,
    operands,
)
from synther_replay.benchmarks.agents.offline_base import OfflineLearner, OfflineSettings, smallest
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.benchmarks.agents.squashed_gaussian import LOG_STD, alpha_gradient, squash
from synther_replay.common.acceleration import fused

_FIRST_LOG_STD = -1.0  # of the policy; where CORL learns this offset and a factor as well, here the bias learns it
_LAST_GAIN = 1e-2  # how much smaller the last layers begin


@dataclass(frozen=True)
class CQLSettings(OfflineSettings):
    """Of CORL for locomotion."""

    hidden_layers: int = 3
    policy_learning_rate: float = 3e-5  # of the temperature, too
    asked: int = 10  # actions of each of the three kinds that critics are asked about
    weight: float = 10.0  # of what pushes them down


@fused
def _gradient(q: Tensor, log_density: Tensor, wanted: Tensor, weight: float) -> Tensor:
    """Gradient of both losses by the values ``(M, N, B, 1 + K)``, of which the first is of the action in the data.

    Args:
        q: The values.
        log_density: Of the other actions, ``(M, 1, B, K)``.
        wanted: What the first should be, ``(M, 1, B)``.
        weight: Of what pushes the others down against it.
    """
    batch = q.shape[2]
    down = torch.softmax(q[..., 1:] - log_density, -1) * (weight / batch)
    first = 2 * (q[..., 0] - wanted) / batch - weight / batch
    return torch.cat((first.unsqueeze(-1), down), -1)


class StackedCQL(OfflineLearner):
    """See `OfflineLearner`."""

    def __init__(self, rows: SharedRows, agents: int, settings: CQLSettings | None = None, *, seed: int = 0) -> None:
        """Draw the initial networks."""
        self.settings = settings = settings or CQLSettings()
        super().__init__(rows, agents, settings, seed=seed, has_spread=True)
        self.stack = 2 * agents
        _begin_orthogonal(self.values[: self.stack], self.critic_shape, self._draws)
        self.values[self.stack :] = self.values[: self.stack]
        policy = Layers.of(self.policy.parameters, self.policy_shape)
        last, outputs = policy.last, self.policy_shape.outputs
        bound = _LAST_GAIN * math.sqrt(6 / (settings.hidden + outputs))
        policy[f"w{last}"] *= bound * math.sqrt(settings.hidden)  # from what `torch.nn.Linear` draws to Xavier's
        policy[f"b{last}"].zero_()
        policy[f"b{last}"][..., outputs // 2 :] = _FIRST_LOG_STD
        self.policy.learning_rate = settings.policy_learning_rate
        self.log_alpha = Adam(torch.zeros(agents, 1, device=self.device), settings.policy_learning_rate)
        self.parts |= {"log_alpha": self.log_alpha}
        self.target_entropy = -float(rows.spec.action_dim)

    @torch.no_grad()
    def update(self, rows: Tensor, noise: Tensor, chance: Tensor) -> None:
        """One update of critics, policy and temperature, all from what was known before it.

        Args:
            rows: Transitions, ``(M, B, dim)``.
            noise: Standard normal: of the policy's actions and of next actions, and then of as many actions as critics
                are asked about in the state, and in the next state, ``(M, 2 + 2 * asked, B, A)``.
            chance: Random actions, ``(M, asked, B, A)``, uniform in [-1, 1].
        """
        spec, settings = self.rows.spec, self.settings
        observations = rows[..., spec.observations]
        alpha = self.log_alpha.parameters.exp()
        out = self._policy_outputs(observations)
        next_out = outputs_for(self.policy.parameters, self.policy_shape, rows, spec.next_observations)
        wanted = self._wanted(rows, squash(next_out, noise[:, 1], LOG_STD)[0])
        critics = operands(self.critic.parameters, self.critic_shape)
        d_q, kept_values = self._critic_gradient(critics, rows, wanted, out, next_out, noise[:, 2:], chance)
        backward(critics, kept_values, d_q, Layers.of(self.critic.gradient, self.critic_shape))
        _, log_prob = squash(out, noise[:, 0], LOG_STD)
        alpha_gradient(log_prob, self.target_entropy, self.log_alpha.gradient)
        # The policy by the critics of before, which have their gradient but did not take their step yet.
        rates = self.policy.rates(self.updates, 1)[0]
        self._update_policy(critics, observations, out, noise[:, 0], alpha, rates, LOG_STD)
        self.log_alpha.step(rates)
        target = self.values[self.stack :]
        self.critic.step_and_follow(self.critic.rates(self.updates, 1)[0], target, settings.target_speed)
        self.updates += 1

    def _wanted(self, rows: Tensor, next_actions: Tensor) -> Tensor:
        """What critics should say of the actions in the data, ``(M, B)``; entropy does not count."""
        spec = self.rows.spec
        inputs = self._inputs(rows[..., spec.next_observations], next_actions.unsqueeze(1))
        q, _ = forward(operands(self.values[self.stack :], self.critic_shape), inputs)
        least, _ = smallest(q.view(self.agents, 2, -1))
        discount = self.settings.gamma * (1 - rows[..., spec.terminated.start])
        return rows[..., spec.rewards.start] + discount * least

    def _critic_gradient(
        self,
        critics: Layers,
        rows: Tensor,
        wanted: Tensor,
        out: Tensor,
        next_out: Tensor,
        noise: Tensor,
        chance: Tensor,
    ) -> tuple[Tensor, Activations]:
        """Gradient of what critics say of all actions, and what the way back needs."""
        spec, asked, batch = self.rows.spec, self.settings.asked, rows.shape[1]
        here, there = noise.split(asked, 1)
        now, now_log_prob = squash(out.unsqueeze(1).expand(-1, asked, -1, -1), here, LOG_STD)
        then, then_log_prob = squash(next_out.unsqueeze(1).expand(-1, asked, -1, -1), there, LOG_STD)
        density = torch.full_like(now_log_prob, -spec.action_dim * math.log(2))  # of a uniform action
        log_density = torch.cat((density, then_log_prob, now_log_prob), 1)
        actions = torch.cat((rows[:, None, :, spec.actions], chance, then, now), 1)
        observations = rows[..., spec.observations]
        q, kept = forward(critics, self._inputs(observations, actions))
        values = q.view(self.agents, 2, 1 + 3 * asked, batch).transpose(2, 3)
        d_q = _gradient(values, log_density.transpose(1, 2).unsqueeze(1), wanted.unsqueeze(1), self.settings.weight)
        return d_q.transpose(2, 3).reshape(q.shape), kept

    def _inputs(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Each observation ``(M, B, O)`` with each of its actions ``(M, K, B, A)``, for both critics of an agent."""
        each = observations.unsqueeze(1).expand(-1, actions.shape[1], -1, -1)
        inputs = fused_padded(each, actions, columns=self.critic_shape.padded_inputs).flatten(1, 2)
        return inputs.repeat_interleave(2, 0)

    def _draw_and_update(self) -> None:
        settings, spec = self.settings, self.rows.spec
        size = settings.updates_per_call, self.agents
        rows = self.rows.draw(*size, settings.batch_size, rng=self.rng)
        actions = settings.batch_size, spec.action_dim
        for batch in rows:  # drawn one by one, because there are so many of them
            noise = self._normal(self.agents, 2 + 2 * settings.asked, *actions)
            chance = torch.rand(self.agents, settings.asked, *actions, generator=self.rng, device=self.device)
            self.update(batch, noise, 2 * chance - 1)


def _begin_orthogonal(flat: Tensor, shape: MlpShape, rng: torch.Generator) -> None:
    """Orthogonal weights and no biases."""
    layers = Layers.of(flat, shape)
    flat.zero_()
    for k in range(1, layers.last + 1):
        weight = layers["w1"][:, : shape.inputs] if k == 1 else layers[f"w{k}"]
        gain = math.sqrt(2) if k < layers.last else _LAST_GAIN
        for one in weight:
            drawn = torch.nn.init.orthogonal_(torch.empty(one.shape), gain, generator=rng)
            one.copy_(drawn)
