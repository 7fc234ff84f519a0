"""EDAC (An et al., 2021) for many seeds at once.

SAC with an ensemble of critics of which the smallest value counts, and whose slopes by the action are pushed apart: so
they disagree, and the smallest is low, where the data have no actions. Log-probabilities are exact; CORL adds 1e-6 to
what it takes the logarithm of, which matters where a policy puts its actions at their bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.backend import outputs_for
from synther_replay.benchmarks.agents.networks.critics import critic_inputs, error_gradient, for_each
from synther_replay.benchmarks.agents.networks.mlp import (
    Layers,
    add_backward_of_slopes,
    backward,
    forward,
    operands,
    slopes,
)
from synther_replay.benchmarks.agents.offline_base import OfflineLearner, OfflineSettings
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.benchmarks.agents.squashed_gaussian import Bounds, alpha_gradient, bellman, squash
from synther_replay.common.acceleration import fused

_LOG_STD: Bounds = (-5.0, 2.0)
_BIAS, _LAST_OF_CRITIC, _LAST_OF_POLICY = 0.1, 3e-3, 1e-3  # initial biases, and bounds of the last layers
_LEAST_NORM = 1e-10


@dataclass(frozen=True)
class EDACSettings(OfflineSettings):
    """Of CORL, which are the authors'."""

    hidden_layers: int = 3
    critics: int = 10
    eta: float = 1.0  # how much slopes are pushed apart

    def __post_init__(self) -> None:
        """Refuse an ensemble of one, which has nothing to differ from."""
        if self.critics < 2:
            raise ValueError(f"critics: expected at least 2, got {self.critics}")


@fused
def _apart(found: Tensor, critics: int, first: int, last: int, eta: float) -> Tensor:
    """Gradient of ``eta`` times the mean alignment of slopes by the actions, given those by all inputs.

    Args:
        found: Slopes of all critics, ``(S, B, columns)``; those of an agent lie side by side.
        critics: Of an agent.
        first: Column of the first action.
        last: The one after the last.
        eta: The factor.
    """
    slope, batch = found[..., first:last].unflatten(0, (-1, critics)), found.shape[1]
    norm = slope.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-30)
    longer = norm + _LEAST_NORM
    unit = slope / longer
    d_unit = (unit.sum(1, keepdim=True) - unit) * (2 * eta / (batch * (critics - 1)))
    along = (d_unit * slope).sum(-1, keepdim=True)
    d_slope = (d_unit - slope * along / (norm * longer)) / longer
    return torch.nn.functional.pad(d_slope.flatten(0, 1), (first, found.shape[2] - last))


class StackedEDAC(OfflineLearner):
    """See `OfflineLearner`."""

    def __init__(self, rows: SharedRows, agents: int, settings: EDACSettings | None = None, *, seed: int = 0) -> None:
        """Draw the initial networks."""
        self.settings = settings = settings or EDACSettings()
        super().__init__(rows, agents, settings, seed=seed, critics=settings.critics, has_spread=True)
        for flat, shape, bound in (
            (self.values, self.critic_shape, _LAST_OF_CRITIC),
            (self.policy.parameters, self.policy_shape, _LAST_OF_POLICY),
        ):
            layers = Layers.of(flat, shape)
            layers["w1"][:, shape.inputs] = _BIAS
            for k in range(2, layers.last):
                layers[f"b{k}"].fill_(_BIAS)
            reach = shape.hidden**-0.5  # they were drawn from minus this to this
            layers[f"w{layers.last}"] *= bound / reach
            layers[f"b{layers.last}"] *= bound / reach
        # CORL draws critics' weights by the number of units that they lead to.
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
            noise: Standard normal: of the actions by which the temperature learns, of those by which the policy does,
                and of the next actions, ``(M, 3, B, A)``.
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
        both, kept = forward(values, for_each(inputs, settings.critics))
        q, next_q = both.view(2, self.agents, settings.critics, batch)
        rewards, terminated = rows[..., spec.rewards.start], rows[..., spec.terminated.start]
        d_q = error_gradient(q, next_q, bellman(rewards, terminated, log_prob, alpha, settings.gamma), self.all_asked)
        critics, kept = values.first(self.stack), kept.first(self.stack)
        backward(critics, kept, d_q.view(self.stack, batch, 1), gradient)
        found = slopes(critics, kept)
        d_slope = _apart(found[-1], settings.critics, spec.actions.start, spec.actions.stop, settings.eta)
        add_backward_of_slopes(critics, kept, found, d_slope, gradient)
        self.critic.step_and_follow(rates, self.values[self.stack :], settings.target_speed)

    def _draw_and_update(self) -> None:
        updates, spec = self.settings.updates_per_call, self.rows.spec
        rows = self.rows.draw(updates, self.agents, self.settings.batch_size, rng=self.rng)
        noise = self._normal(updates, self.agents, 3, self.settings.batch_size, spec.action_dim)
        for batch, unit in zip(rows, noise, strict=True):
            self.update(batch, unit)
