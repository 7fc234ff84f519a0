"""CQL (Kumar et al., 2020) for many seeds at once.

SAC with a regulariser that lowers the values of actions outside the data. For each state, the log-sum-exp of the values
of random actions and of policy actions (for the state and for the next state) is minimised, and the value of the action
in the data is maximised.
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

_FIRST_LOG_STD = -1.0  # initial log-std of the policy; CORL trains this offset and a factor, here the bias is trained
_LAST_GAIN = 1e-2  # initial gain of the last layers


@dataclass(frozen=True)
class CQLSettings(OfflineSettings):
    """Hyper-parameters of CORL for locomotion."""

    hidden_layers: int = 3
    policy_learning_rate: float = 3e-5  # of the policy and the temperature
    asked: int = 10  # sampled actions of each of the three kinds in the regulariser
    weight: float = 10.0  # of the regulariser


@fused
def _gradient(q: Tensor, log_density: Tensor, td_target: Tensor, weight: float) -> Tensor:
    """Gradient of TD loss plus regulariser by the values ``(M, N, B, 1 + K)``; the first is of the action in the data.

    Args:
        q: The values.
        log_density: Log-density of the sampled actions, ``(M, 1, B, K)``.
        td_target: TD target of the first value, ``(M, 1, B)``.
        weight: Weight of the regulariser.
    """
    batch = q.shape[2]
    down = torch.softmax(q[..., 1:] - log_density, -1) * (weight / batch)
    first = 2 * (q[..., 0] - td_target) / batch - weight / batch
    return torch.cat((first.unsqueeze(-1), down), -1)


class StackedCQL(OfflineLearner):
    """See `OfflineLearner`."""

    def __init__(self, rows: SharedRows, agents: int, settings: CQLSettings | None = None, *, seed: int = 0) -> None:
        """Draw the initial networks."""
        self.settings = settings = settings or CQLSettings()
        super().__init__(rows, agents, settings, seed=seed, is_stochastic=True)
        self.stack = 2 * agents
        _begin_orthogonal(self.values[: self.stack], self.critic_shape, self._draws)
        self.values[self.stack :] = self.values[: self.stack]
        policy = Layers.of(self.policy.parameters, self.policy_shape)
        last, outputs = policy.last, self.policy_shape.outputs
        bound = _LAST_GAIN * math.sqrt(6 / (settings.hidden + outputs))
        policy[f"w{last}"] *= bound * math.sqrt(settings.hidden)  # rescale torch.nn.Linear's range to Xavier's
        policy[f"b{last}"].zero_()
        policy[f"b{last}"][..., outputs // 2 :] = _FIRST_LOG_STD
        self.policy.learning_rate = settings.policy_learning_rate
        self.log_alpha = Adam(torch.zeros(agents, 1, device=self.device), settings.policy_learning_rate)
        self.parts |= {"log_alpha": self.log_alpha}
        self.target_entropy = -float(rows.spec.action_dim)

    @torch.no_grad()
    def update(self, rows: Tensor, noise: Tensor, random_actions: Tensor) -> None:
        """One update of critics, policy and temperature, all with the parameters before the update.

        Args:
            rows: Transitions, ``(M, B, dim)``.
            noise: Standard normal noise ``(M, 2 + 2 * asked, B, A)``: of the policy update, of the next actions, and
                of `asked` sampled actions each for the state and for the next state.
            random_actions: Random actions, ``(M, asked, B, A)``, uniform in [-1, 1].
        """
        spec, settings = self.rows.spec, self.settings
        observations = rows[..., spec.observations]
        alpha = self.log_alpha.parameters.exp()
        out = self._policy_outputs(observations)
        next_out = outputs_for(self.policy.parameters, self.policy_shape, rows, spec.next_observations)
        td_target = self._td_targets(rows, squash(next_out, noise[:, 1], LOG_STD)[0])
        critics = operands(self.critic.parameters, self.critic_shape)
        d_q, kept_values = self._critic_gradient(critics, rows, td_target, out, next_out, noise[:, 2:], random_actions)
        backward(critics, kept_values, d_q, Layers.of(self.critic.gradient, self.critic_shape))
        _, log_prob = squash(out, noise[:, 0], LOG_STD)
        alpha_gradient(log_prob, self.target_entropy, self.log_alpha.gradient)
        # The policy uses the critics before their step; their gradient is already computed.
        rates = self.policy.rates(self.updates, 1)[0]
        self._update_policy(critics, observations, out, noise[:, 0], alpha, rates, LOG_STD)
        self.log_alpha.step(rates)
        target = self.values[self.stack :]
        self.critic.step_with_target(self.critic.rates(self.updates, 1)[0], target, settings.target_speed)
        self.updates += 1

    def _td_targets(self, rows: Tensor, next_actions: Tensor) -> Tensor:
        """TD targets of the actions in the data, ``(M, B)``, without an entropy term."""
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
        td_target: Tensor,
        out: Tensor,
        next_out: Tensor,
        noise: Tensor,
        random_actions: Tensor,
    ) -> tuple[Tensor, Activations]:
        """Gradient by the values of all actions, and the activations for the backward pass."""
        spec, asked, batch = self.rows.spec, self.settings.asked, rows.shape[1]
        state_noise, next_noise = noise.split(asked, 1)
        current_actions, log_prob = squash(out.unsqueeze(1).expand(-1, asked, -1, -1), state_noise, LOG_STD)
        next_out = next_out.unsqueeze(1).expand(-1, asked, -1, -1)
        next_actions, next_log_prob = squash(next_out, next_noise, LOG_STD)
        density = torch.full_like(log_prob, -spec.action_dim * math.log(2))  # of a uniform action
        log_density = torch.cat((density, next_log_prob, log_prob), 1)
        actions = torch.cat((rows[:, None, :, spec.actions], random_actions, next_actions, current_actions), 1)
        observations = rows[..., spec.observations]
        q, kept = forward(critics, self._inputs(observations, actions))
        values = q.view(self.agents, 2, 1 + 3 * asked, batch).transpose(2, 3)
        d_q = _gradient(values, log_density.transpose(1, 2).unsqueeze(1), td_target.unsqueeze(1), self.settings.weight)
        return d_q.transpose(2, 3).reshape(q.shape), kept

    def _inputs(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Critic inputs: each observation ``(M, B, O)`` with each of its actions ``(M, K, B, A)``, for both critics."""
        each = observations.unsqueeze(1).expand(-1, actions.shape[1], -1, -1)
        inputs = fused_padded(each, actions, columns=self.critic_shape.padded_inputs).flatten(1, 2)
        return inputs.repeat_interleave(2, 0)

    def _draw_and_update(self) -> None:
        settings, spec = self.settings, self.rows.spec
        size = settings.updates_per_call, self.agents
        rows = self.rows.draw(*size, settings.batch_size, rng=self.rng)
        actions = settings.batch_size, spec.action_dim
        for batch in rows:  # noise is drawn per update, because it is large
            noise = self._normal(self.agents, 2 + 2 * settings.asked, *actions)
            uniform = torch.rand(self.agents, settings.asked, *actions, generator=self.rng, device=self.device)
            self.update(batch, noise, 2 * uniform - 1)


def _begin_orthogonal(flat: Tensor, shape: MlpShape, rng: torch.Generator) -> None:
    """Orthogonal weights, zero biases."""
    layers = Layers.of(flat, shape)
    flat.zero_()
    for k in range(1, layers.last + 1):
        weight = layers["w1"][:, : shape.inputs] if k == 1 else layers[f"w{k}"]
        gain = math.sqrt(2) if k < layers.last else _LAST_GAIN
        for one in weight:
            drawn = torch.nn.init.orthogonal_(torch.empty(one.shape), gain, generator=rng)
            one.copy_(drawn)
