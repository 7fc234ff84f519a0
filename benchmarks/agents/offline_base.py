"""Base class of the offline algorithms: critics with targets, a tanh policy, state, and graph capture."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.base import CapturedLearner
from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.backend import make_network, outputs_for
from synther_replay.benchmarks.agents.networks.critics import make_critics, repeated_inputs
from synther_replay.benchmarks.agents.networks.mlp import (
    Layers,
    MlpShape,
    backward_to_inputs,
    forward,
    fused_padded,
    initialise_like_torch,
    operands,
)
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.benchmarks.agents.squashed_gaussian import Bounds, policy_gradient, squash
from synther_replay.common.acceleration import fused
from synther_replay.common.seeding import generator_for


@dataclass(frozen=True)
class OfflineSettings:
    """Hyper-parameters that all offline algorithms have, with CORL's values."""

    batch_size: int = 256
    hidden: int = 256
    hidden_layers: int = 2
    learning_rate: float = 3e-4
    gamma: float = 0.99
    target_speed: float = 0.005
    updates_per_call: int = 100  # updates per call of `learn`


@fused
def smallest(q: Tensor) -> tuple[Tensor, Tensor]:
    """Minimum over the critics' values ``(M, N, B)``, and the gradient of minus its batch mean by each value."""
    value, which = q.min(1)
    critic = torch.arange(q.shape[1], device=q.device)[None, :, None]
    return value, torch.where(which.unsqueeze(1) == critic, -1.0 / q.shape[2], 0.0).to(q.dtype)


class OfflineLearner(CapturedLearner):
    """M independent agents that train on the same rows.

    Args:
        rows: Rows to train on.
        agents: M, the number of agents.
        settings: Hyper-parameters.
        seed: Random seed; equal seeds and calls give equal agents on the same device.
        critics: N, the number of critics per agent.
        is_stochastic: Whether the policy outputs a log-std for each mean.
        has_target_policy: Whether there is a target policy.

    Attributes:
        updates: Critic updates so far, a tensor on the device.
        parts: Optimisers, by name.
        values: Parameters of all critics, then of their targets.
        target_policy: Parameters of the target policies; empty if there are none.
    """

    def __init__(
        self,
        rows: SharedRows,
        agents: int,
        settings: OfflineSettings,
        *,
        seed: int,
        critics: int = 2,
        is_stochastic: bool = False,
        has_target_policy: bool = False,
    ) -> None:
        """Draw the initial critics and policies."""
        super().__init__(rows.device, seed)
        self.rows, self.agents, self.hyper, self.is_stochastic = rows, agents, settings, is_stochastic
        self._draws = generator_for("cpu", seed, 0)
        spec = rows.spec
        inner = settings.hidden, settings.hidden_layers
        self.critic_shape = MlpShape(spec.observation_dim + spec.action_dim, 1, *inner)
        self.policy_shape = MlpShape(spec.observation_dim, spec.action_dim * (1 + is_stochastic), *inner)
        values = self._drawn(self.critic_shape, agents * critics)
        self.values = torch.cat((values, values))
        self.critic = Adam(self.values[: len(values)], settings.learning_rate)
        self.critics = make_critics(
            self.values,
            self.critic,
            self.critic_shape,
            critics=critics,
            batch_size=settings.batch_size,
            target_speed=settings.target_speed,
        )
        policies = self._drawn(self.policy_shape, agents).repeat(1 + has_target_policy, 1)
        self.policy, self.target_policy = Adam(policies[:agents], settings.learning_rate), policies[agents:]
        self.policies = make_network(
            policies,
            self.policy,
            self.policy_shape,
            batch_size=settings.batch_size,
            target_speed=settings.target_speed,
        )
        self.parts = {"critic": self.critic, "policy": self.policy}
        self.updates = torch.zeros((), dtype=torch.float64, device=self.device)
        self.none_excluded = torch.zeros(agents, critics, device=self.device)  # all target critics are used

    @torch.no_grad()
    def value_estimates(self) -> dict[str, Tensor]:
        """Mean value estimates on a batch spread evenly over the rows, each ``(M,)``.

        `value` is the minimum over the critics for the actions of the rows, `value_of_own` that for the policy's
        actions in the same states. They tell overestimation (values far above any sum of rewards) from slow learning.
        With mixed rows, the batch has real and synthetic ones in proportion to their numbers.
        """
        spec, batch = self.rows.spec, self.hyper.batch_size
        indices = torch.linspace(0, len(self.rows) - 1, batch, dtype=torch.float64).round().long()
        rows = self.rows.rows[indices.to(self.device)].expand(self.agents, -1, -1).contiguous()
        out = outputs_for(self.policy.parameters, self.policy_shape, rows, spec.observations)
        own = out[..., : spec.action_dim].tanh()
        critics = operands(self.critic.parameters, self.critic_shape)

        def value(actions: Tensor) -> Tensor:
            of_each = len(self.critic.parameters) // self.agents, self.critic_shape.padded_inputs
            q, _ = forward(critics, repeated_inputs(rows[..., spec.observations], actions, *of_each))
            return q.view(self.agents, -1, batch).amin(1).mean(1)

        return {"value": value(rows[..., spec.actions]), "value_of_own": value(own)}

    def policy_weights(self) -> Layers:
        """A copy of the policies on the CPU, for raw observations; see `policy.policies_of`."""
        weights = Layers.of(self.policy.parameters.to("cpu", copy=True), self.policy_shape)
        if not self.is_stochastic:  # add outputs for the log-std, which `Policy` expects
            for name in (f"w{weights.last}", f"b{weights.last}"):
                weights[name] = torch.cat((weights[name], torch.zeros_like(weights[name])), -1)
        return self.rows.for_raw_observations(weights)

    def _drawn(self, shape: MlpShape, count: int) -> Tensor:
        return initialise_like_torch(shape, count, self._draws).to(self.device)

    def _policy_outputs(self, observations: Tensor) -> Tensor:
        """Outputs of the policies before tanh; `policies.learn` can be called with their gradient."""
        return self.policies.forward(fused_padded(observations, columns=self.policy_shape.padded_inputs))

    def _update_policy(
        self,
        values: Layers,
        observations: Tensor,
        out: Tensor,
        noise: Tensor,
        alpha: Tensor,
        rates: Tensor,
        bounds: Bounds,
    ) -> None:
        """One step of stochastic policies on ``min E[alpha log pi - min Q]`` with the critics `values`."""
        batch = observations.shape[1]
        critics = len(self.critic.parameters) // self.agents
        actions, _ = squash(out, noise, bounds)
        inputs = repeated_inputs(observations, actions, critics, self.critic_shape.padded_inputs)
        q, kept_values = forward(values, inputs)
        _, d_q = smallest(q.view(self.agents, critics, batch))
        d_inputs = backward_to_inputs(values, kept_values, d_q.view(-1, batch, 1))
        d_actions = d_inputs[..., self.rows.spec.actions].unflatten(0, (self.agents, critics))
        d_out = policy_gradient(out, noise, actions, d_actions, alpha, batch, bounds)
        self.policies.learn(d_out, rates)

    def _tensors(self) -> dict[str, Tensor]:
        moments = {f"{name}.{key}": t for name, part in self.parts.items() for key, t in part.tensors().items()}
        targets = {"target": self.values[len(self.values) // 2 :], "target_policy": self.target_policy}
        return {**moments, **{name: t for name, t in targets.items() if len(t)}, "updates": self.updates}

    def _after_load(self) -> None:
        self.critics.refresh()
        self.policies.refresh()
