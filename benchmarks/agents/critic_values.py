"""The learner's critics and policy as functions of observations, for relevances that ask them."""

from __future__ import annotations

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.networks.critics import repeated_inputs, values_of
from synther_replay.benchmarks.agents.sac import StackedSAC


class CriticValues:
    """Values of M agents for observations ``(M, n, O)``; without the axis M for one agent.

    Rows go through the networks in batches of the learner's size, for which its kernels are compiled.

    Args:
        learner: The agents.
    """

    def __init__(self, learner: StackedSAC) -> None:
        """Keep the learner; its networks are read at every call."""
        self.learner, self.gamma = learner, learner.settings.gamma

    def q(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The lowest value that the critics of each agent give to actions, ``(M, n)``."""
        return self._in_batches(observations, actions).amin(-2)

    def mean(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The mean value that the critics of each agent give to actions, ``(M, n)``; what the policy maximises."""
        return self._in_batches(observations, actions).mean(-2)

    def value(self, observations: Tensor) -> Tensor:
        """The lowest value that the critics of each agent give to the policy's mean action, ``(M, n)``."""
        return self._in_batches(observations, None).amin(-2)

    @torch.no_grad()
    def _in_batches(self, observations: Tensor, actions: Tensor | None) -> Tensor:
        spec, size = self.learner.replay.spec, self.learner.settings.batch_size
        lead, agents = observations.shape[:-1], self.learner.agents
        n = lead[-1]
        rows = observations.new_zeros(agents, -(-n // size) * size, spec.dim)
        rows[:, :n, spec.observations] = observations
        if actions is not None:
            rows[:, :n, spec.actions] = actions
        found = [self._batch(batch, actions is None) for batch in rows.split(size, 1)]
        return torch.cat(found, dim=-1)[..., :n].reshape(*lead[:-1], -1, n)

    def _batch(self, rows: Tensor, is_policy: bool) -> Tensor:
        learner, spec = self.learner, self.learner.replay.spec
        critics, shape = learner.settings.critics, learner.critic_shape
        rows = learner.normalised(rows)
        observations, actions = rows[..., spec.observations], rows[..., spec.actions]
        if is_policy:
            actions = learner.policy_forward(observations)[0].chunk(2, -1)[0].tanh()
        inputs = repeated_inputs(observations, actions, critics, shape.padded_inputs)
        values, _ = values_of(learner.critic.parameters, shape, inputs)
        return values.view(learner.agents, critics, -1)
