"""EDAC (An et al., 2021) for many seeds at once.

SAC with an ensemble of critics whose minimum is used, and a diversity loss on the gradients of the critics by the
action. The critics then disagree outside the data, where their minimum is low. Log-probabilities are exact; CORL adds
1e-6 inside the logarithm, which matters for actions at their bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.backend import outputs_for
from synther_replay.benchmarks.agents.networks.critics import critic_inputs, error_gradient, repeat_for_critics
from synther_replay.benchmarks.agents.networks.mlp import (
    Layers,
    add_double_backward,
    backward,
    forward,
    layer_gradients,
    operands,
)
from synther_replay.benchmarks.agents.offline_base import OfflineLearner, OfflineSettings
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.benchmarks.agents.squashed_gaussian import Bounds, alpha_gradient, bellman, squash
from synther_replay.common.acceleration import fused

_LOG_STD: Bounds = (-5.0, 2.0)
_BIAS, _LAST_OF_CRITIC, _LAST_OF_POLICY = 0.1, 3e-3, 1e-3  # initial biases, and initial bounds of the last layers
_MIN_NORM = 1e-10


@dataclass(frozen=True)
class EDACSettings(OfflineSettings):
    """Hyper-parameters of CORL, which are the authors'."""

    hidden_layers: int = 3
    critics: int = 10
    eta: float = 1.0  # weight of the diversity loss

    def __post_init__(self) -> None:
        """Validate the number of critics: the diversity loss compares pairs."""
        if self.critics < 2:
            raise ValueError(f"critics: expected at least 2, got {self.critics}")


@fused
def _diversity_gradient(found: Tensor, critics: int, first: int, last: int, eta: float) -> Tensor:
    """Gradient of the diversity loss (`eta` times the mean cosine similarity of action gradients) by these gradients.

    Args:
        found: Gradients of all critics by their inputs, ``(S, B, columns)``; critics of an agent are adjacent.
        critics: Number of critics per agent.
        first: First column of the action.
        last: Column after the action.
        eta: Weight of the loss.
    """
    slope, batch = found[..., first:last].unflatten(0, (-1, critics)), found.shape[1]
    norm = slope.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-30)
    longer = norm + _MIN_NORM
    unit = slope / longer
    d_unit = (unit.sum(1, keepdim=True) - unit) * (2 * eta / (batch * (critics - 1)))
    along = (d_unit * slope).sum(-1, keepdim=True)
    d_input_gradient = (d_unit - slope * along / (norm * longer)) / longer
    return torch.nn.functional.pad(d_input_gradient.flatten(0, 1), (first, found.shape[2] - last))


class StackedEDAC(OfflineLearner):
    """See `OfflineLearner`."""

    def __init__(self, rows: SharedRows, agents: int, settings: EDACSettings | None = None, *, seed: int = 0) -> None:
        """Draw the initial networks."""
        self.settings = settings = settings or EDACSettings()
        super().__init__(rows, agents, settings, seed=seed, critics=settings.critics, is_stochastic=True)
        for flat, shape, bound in (
            (self.values, self.critic_shape, _LAST_OF_CRITIC),
            (self.policy.parameters, self.policy_shape, _LAST_OF_POLICY),
        ):
            layers = Layers.of(flat, shape)
            layers["w1"][:, shape.inputs] = _BIAS
            for k in range(2, layers.last):
                layers[f"b{k}"].fill_(_BIAS)
            drawn_bound = shape.hidden**-0.5  # bound of the uniform initialisation so far
            layers[f"w{layers.last}"] *= bound / drawn_bound
            layers[f"b{layers.last}"] *= bound / drawn_bound
        # CORL initialises critics by fan-out instead of fan-in.
        inputs = self.critic_shape.inputs
        Layers.of(self.values, self.critic_shape)["w1"][:, :inputs] *= math.sqrt(inputs / settings.hidden)
        self.log_alpha = Adam(torch.zeros(agents, 1, device=self.device), settings.learning_rate)
        self.parts |= {"log_alpha": self.log_alpha}
        self.target_entropy = -float(rows.spec.action_dim)
        self.stack = agents * settings.critics

    @torch.no_grad()
    def update(self, rows: Tensor, noise: Tensor) -> None:
        """One update of temperature, policy and critics, in this order.

        Args:
            rows: Transitions, ``(M, B, dim)``.
            noise: Standard normal noise ``(M, 3, B, A)``: of the actions in the temperature update, in the policy
                update, and of the next actions.
        """
        observations = rows[..., self.rows.spec.observations]
        rates = self.critic.rates(self.updates, 1)[0]
        out = self._policy_outputs(observations)
        _, log_prob = squash(out, noise[:, 0], _LOG_STD)
        alpha_gradient(log_prob, self.target_entropy, self.log_alpha.gradient)
        self.log_alpha.step(rates)
        alpha = self.log_alpha.parameters.exp()
        values = operands(self.values, self.critic_shape)
        self._update_policy(values.first(self.stack), observations, out, noise[:, 1], alpha, rates, _LOG_STD)
        self._update_critics(values, rows, noise[:, 2], alpha, rates)
        self.updates += 1

    def _update_critics(self, values: Layers, rows: Tensor, noise: Tensor, alpha: Tensor, rates: Tensor) -> None:
        settings, spec, shape = self.settings, self.rows.spec, self.critic_shape
        batch, gradient = rows.shape[1], Layers.of(self.critic.gradient, shape)
        out = outputs_for(self.policy.parameters, self.policy_shape, rows, spec.next_observations)
        next_actions, log_prob = squash(out, noise, _LOG_STD)
        of_one_update = rows.unsqueeze(1), next_actions.unsqueeze(1)
        (inputs,) = critic_inputs(*of_one_update, spec.observation_dim, shape.padded_inputs)
        both, kept = forward(values, repeat_for_critics(inputs, settings.critics))
        q, next_q = both.view(2, self.agents, settings.critics, batch)
        rewards, terminated = rows[..., spec.rewards.start], rows[..., spec.terminated.start]
        target = bellman(rewards, terminated, log_prob, alpha, settings.gamma)
        d_q = error_gradient(q, next_q, target, self.none_excluded)
        critics, kept = values.first(self.stack), kept.cut(slice(self.stack))
        found = layer_gradients(critics, kept)
        backward(critics, kept, d_q.view(self.stack, batch, 1), gradient, found=found)
        action = spec.actions.start, spec.actions.stop
        d_input_gradient = _diversity_gradient(found[-1], settings.critics, *action, settings.eta)
        add_double_backward(critics, kept, found, d_input_gradient, gradient)
        self.critic.step_with_target(rates, self.values[self.stack :], settings.target_speed)

    def _draw_and_update(self) -> None:
        updates, spec = self.settings.updates_per_call, self.rows.spec
        rows = self.rows.draw(updates, self.agents, self.settings.batch_size, rng=self.rng)
        noise = self._normal(updates, self.agents, 3, self.settings.batch_size, spec.action_dim)
        for batch, unit in zip(rows, noise, strict=True):
            self.update(batch, unit)
