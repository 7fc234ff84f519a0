"""TD3+BC (Fujimoto and Gu, 2021) for many seeds at once.

TD3 with a behaviour-cloning term in the policy loss. Critics are updated at every step, the policy and all targets at
every second. The target policy is fixed in between, so the next actions of both batches come from one forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.networks.backend import outputs_for
from synther_replay.benchmarks.agents.networks.critics import critic_inputs
from synther_replay.benchmarks.agents.networks.mlp import fused_padded, padded
from synther_replay.benchmarks.agents.offline_base import OfflineLearner, OfflineSettings
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.common.acceleration import fused


@dataclass(frozen=True)
class TD3BCSettings(OfflineSettings):
    """Hyper-parameters of CORL, which are the authors'."""

    policy_delay: int = 2  # critic updates per update of the policy and of all targets
    noise: float = 0.2  # standard deviation, on next actions
    noise_clip: float = 0.5
    alpha: float = 2.5  # weight of the value term against behaviour cloning

    def __post_init__(self) -> None:
        """Validate that a call of `learn` ends with a policy update."""
        if self.updates_per_call % self.policy_delay:
            expected = f"a multiple of policy_delay={self.policy_delay}"
            raise ValueError(f"updates_per_call: expected {expected}, got {self.updates_per_call}")


@fused
def _smoothed(out: Tensor, noise: Tensor, scale: float, clip: float) -> Tensor:
    """Actions of the target policy with clipped noise."""
    return (out.tanh() + (noise * scale).clamp(-clip, clip)).clamp(-1, 1)


@fused
def _bellman(rewards: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """Factor and offset of the Bellman target, ``(2, ...)``: target = factor * next value + offset."""
    return torch.stack((gamma * (1 - terminated), rewards))


@fused
def _actions_and_inputs(observations: Tensor, out: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """The policy's actions, and the critic inputs with them."""
    actions = out.tanh()
    return actions, padded(observations, actions, columns=columns)


@fused
def _value_gradient(q: Tensor, alpha: float) -> Tensor:
    """Gradient of ``-alpha * mean(q) / mean|q|`` with a constant denominator, ``(M, B, 1)``."""
    return (-alpha / q.shape[1]) / q.abs().mean(1, keepdim=True).expand_as(q)


@fused
def _policy_gradient(actions: Tensor, data_actions: Tensor, d_actions: Tensor) -> Tensor:
    """Gradient of value and behaviour-cloning loss by the policy's outputs."""
    cloning = 2 * (actions - data_actions) / (actions.shape[1] * actions.shape[2])
    return (d_actions + cloning) * (1 - actions.square())


class StackedTD3BC(OfflineLearner):
    """See `OfflineLearner`."""

    def __init__(self, rows: SharedRows, agents: int, settings: TD3BCSettings | None = None, *, seed: int = 0) -> None:
        """Draw the initial networks."""
        self.settings = settings or TD3BCSettings()
        super().__init__(rows, agents, self.settings, seed=seed, has_target_policy=True)

    @torch.no_grad()
    def update(self, rows: Tensor, noise: Tensor) -> None:
        """K times `policy_delay` critic updates and one policy update, with given random numbers.

        All that does not depend on the networks is computed at once.

        Args:
            rows: Transitions, ``(K, M, policy_delay, B, dim)``.
            noise: Standard normal noise of the next actions, ``(K, M, policy_delay, B, A)``.
        """
        spec, settings, rounds = self.rows.spec, self.settings, len(rows)
        bellman = _bellman(rows[..., spec.rewards.start], rows[..., spec.terminated.start], settings.gamma)
        rates = self.critic.rates(self.updates, rounds * settings.policy_delay).unflatten(0, (rounds, -1))
        last = rows[:, :, -1]
        states = fused_padded(last[..., spec.observations], columns=self.policy_shape.padded_inputs)
        policy_rates = self.policy.rates(self.updates / settings.policy_delay, rounds)
        for k in range(rounds):
            self._update_critics(rows[k], noise[k], bellman[:, k], rates[k])
            self._improve_policy(last[k], states[k], policy_rates[k])
        self.updates += rounds * settings.policy_delay

    def _update_critics(self, rows: Tensor, noise: Tensor, bellman: Tensor, rates: Tensor) -> None:
        spec, settings = self.rows.spec, self.settings
        _, delay, batch, _ = rows.shape
        out = outputs_for(self.target_policy, self.policy_shape, rows.flatten(1, 2), spec.next_observations)
        next_actions = _smoothed(out.unflatten(1, (delay, batch)), noise, settings.noise, settings.noise_clip)
        inputs = critic_inputs(rows, next_actions, spec.observation_dim, self.critic_shape.padded_inputs)
        for k in range(delay):
            self.critics.update(
                inputs[k], bellman[:, :, k], self.none_excluded, rates[k], update_targets=k == delay - 1
            )

    def _improve_policy(self, rows: Tensor, states: Tensor, rates: Tensor) -> None:
        spec, critic = self.rows.spec, self.critics.first
        out = self.policies.forward(states)
        actions, inputs = _actions_and_inputs(rows[..., spec.observations], out, self.critic_shape.padded_inputs)
        d_inputs = critic.backward_to_inputs(_value_gradient(critic.forward(inputs), self.settings.alpha))
        d_out = _policy_gradient(actions, rows[..., spec.actions], d_inputs[..., spec.actions])
        self.policies.learn(d_out, rates, update_targets=True)

    def _draw_and_update(self) -> None:
        settings, updates = self.settings, self.settings.updates_per_call
        rounds = updates // settings.policy_delay
        rows = self.rows.draw(rounds, self.agents, settings.policy_delay, settings.batch_size, rng=self.rng)
        self.update(rows, self._normal(*rows.shape[:-1], self.rows.spec.action_dim))
