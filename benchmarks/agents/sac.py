"""SAC and REDQ for many seeds at once: one stack of networks, one captured graph per environment step.

Each environment step makes `updates` critic updates and one update of policy and temperature, as in the REDQ code base
("policy delay"). The policy is fixed during the critic updates, so the rows of all batches come from one index_select
and the next actions from one forward pass. A critic update is then three Triton kernels for all seeds together, or
about twenty PyTorch kernels.

Differences from the REDQ code base (https://github.com/watchernyu/REDQ):

- The policy loss uses the critics after the last critic update of the step, and not before it.
- In a run (`online.run`), actions are computed by the policy before the updates of the step, so that environments step
  while the GPU trains.
- Log-probabilities are exact; the original adds 1e-6 inside the logarithm.
- On a GPU, critic updates use fp16 matrix products with fp32 accumulation, and the policy update uses TF32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.base import CapturedLearner
from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.backend import outputs_for
from synther_replay.benchmarks.agents.networks.critics import critic_inputs, make_critics, repeated_inputs, values_of
from synther_replay.benchmarks.agents.networks.mlp import (
    Layers,
    MlpShape,
    backward,
    forward,
    fused_padded,
    initialise,
)
from synther_replay.benchmarks.agents.networks.residual import ResidualShape
from synther_replay.benchmarks.agents.observations import fold, measure, scaled_observations, scaled_rows
from synther_replay.benchmarks.agents.replay import StackedReplay
from synther_replay.benchmarks.agents.squashed_gaussian import LOG_STD, alpha_gradient, bellman, policy_gradient, squash
from synther_replay.benchmarks.agents.value_range import no_bounds, value_range
from synther_replay.common.checks import whole_number
from synther_replay.common.seeding import generator_for

_POSITIVE = (math.ulp(0.0), "a positive number")
_NUMBERS = {
    **dict.fromkeys(
        ("learning_rate", "gamma", "target_speed", "temperature", "temperature_rate", "reset_share"), _POSITIVE
    ),
    **dict.fromkeys(("weight_decay", "max_caution"), (0.0, "a positive number or 0")),
}  # least value, and words for a message


@dataclass(frozen=True)
class Hyperparameters:
    """Hyper-parameters; the defaults are those of the REDQ code base, which the paper used.

    Attributes:
        critics: Critics per agent.
        target_critics: How many of them the minimum of a target is over, drawn for each update; the larger, the more
            cautious are the values.
        max_caution: Share of the difference between the largest and the smallest target value that can be taken
            from the smallest; `critics.caution` is what is taken now, 0 at first, and `online.caution` sets it.
        bounded: Whether targets are kept within the values that rewards so far and discount allow.
        updates: Critic updates per environment step.
        batch_size: Rows per update.
        hidden: Width of the hidden layers.
        learning_rate: Learning rate of all networks and of the temperature.
        gamma: Discount.
        target_speed: 1 - polyak.
        layer_norm: Whether the critics' hidden layers are normalised before their relu.
        alternating: With `layer_norm`: whether only the layers of the first, third, ... critic of an agent are.
        feature_norm: Whether the features before the critics' last layer are normalised.
        blocks: Residual blocks of the critics; 0: two hidden layers without residual connections.
        weight_decay: Decoupled weight decay of the critics.
        normalise_observations: Whether networks see observations with mean 0 and variance 1 over the real rows.
        temperature: Initial temperature.
        temperature_rate: Learning rate of the temperature; None: `learning_rate`.
        reset_at: Environment steps after which the networks are reset, and again each time that there are twice as
            many; 0: never.
        reset_share: How far a reset moves the networks towards new weights; with 1 the temperature starts again too.
    """

    critics: int = 2
    target_critics: int = 2
    max_caution: float = 0.0
    bounded: bool = False
    updates: int = 20
    batch_size: int = 256
    hidden: int = 256
    learning_rate: float = 3e-4
    gamma: float = 0.99
    target_speed: float = 0.005
    layer_norm: bool = False
    alternating: bool = False
    feature_norm: bool = False
    blocks: int = 0
    weight_decay: float = 0.0
    normalise_observations: bool = False
    temperature: float = 1.0
    temperature_rate: float | None = None
    reset_at: int = 0
    reset_share: float = 1.0

    def __post_init__(self) -> None:
        """Validate all values."""
        for name in ("critics", "target_critics", "updates", "batch_size", "hidden"):
            whole_number(name, getattr(self, name))
        for name in ("blocks", "reset_at"):
            whole_number(name, getattr(self, name), least=0)
        for name, (least, words) in _NUMBERS.items():
            value = getattr(self, name)
            if value is None and name == "temperature_rate":
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < math.inf:
                raise ValueError(f"{name}: expected {words}, got {value!r}")
        for name in ("layer_norm", "alternating", "feature_norm", "normalise_observations", "bounded"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}: expected True or False, got {getattr(self, name)!r}")
        if self.reset_share > 1:
            raise ValueError(f"reset_share: expected at most 1, got {self.reset_share!r}")
        if self.reset_share < 1 and not self.reset_at:
            raise ValueError("reset_share: nothing is reset without reset_at")
        if self.gamma >= 1:
            raise ValueError(f"gamma: expected a number below 1, got {self.gamma!r}")
        if self.target_critics > max(self.critics, 2):
            raise ValueError(f"target_critics: expected at most {self.critics}, the critics; got {self.target_critics}")
        if self.max_caution and min(self.critics, self.target_critics) < 2:
            raise ValueError("max_caution: one critic cannot disagree; expected at least two in the minimum")
        if self.alternating and not (self.layer_norm and self.critics % 2 == 0):
            raise ValueError("alternating: expected layer_norm and an even number of critics")
        if self.blocks and (self.layer_norm or self.feature_norm):
            raise ValueError("blocks: residual blocks have layer norm already; leave out layer_norm and feature_norm")

    def is_reset_at(self, step: int) -> bool:
        """Whether the networks are reset after this number of environment steps."""
        times, rest = divmod(step, self.reset_at) if self.reset_at else (0, 0)
        return rest == 0 and times.bit_count() == 1

    def critic_shape(self, inputs: int) -> MlpShape:
        """Shape of a critic for this number of inputs."""
        if self.blocks:
            return ResidualShape(inputs, 1, self.hidden, blocks=self.blocks)
        return MlpShape(
            inputs,
            1,
            self.hidden,
            layer_norm=self.layer_norm,
            alternating=self.alternating,
            feature_norm=self.feature_norm,
        )


class StackedSAC(CapturedLearner):
    """M independent agents.

    Args:
        replay: Transitions of the agents.
        target_entropy: Target entropy of the policies.
        settings: Hyper-parameters.
        seed: Random seed; equal seeds and calls give equal agents on the same device.
    """

    def __init__(
        self, replay: StackedReplay, target_entropy: float, settings: Hyperparameters | None = None, *, seed: int = 0
    ) -> None:
        """Draw the initial networks."""
        super().__init__(replay.device, seed)
        self.replay, self.agents, spec = replay, replay.agents, replay.spec
        self.settings = settings = settings or Hyperparameters()
        self.target_entropy = target_entropy
        self.policy_shape = MlpShape(spec.observation_dim, 2 * spec.action_dim, settings.hidden)
        self.critic_shape = settings.critic_shape(spec.observation_dim + spec.action_dim)
        self.stack = self.agents * settings.critics  # critics of all agents; those of one agent are adjacent
        # Critics and targets in one matrix, so that one forward pass computes both.
        self.values, policy = self._initial_weights(generator_for("cpu", seed, 0))
        self.critic = Adam(self.values[: self.stack], settings.learning_rate, settings.weight_decay)
        self.target = self.values[self.stack :]
        self.critics = make_critics(
            self.values,
            self.critic,
            self.critic_shape,
            critics=settings.critics,
            batch_size=settings.batch_size,
            target_speed=settings.target_speed,
        )
        self.policy = Adam(policy, settings.learning_rate)
        self.log_alpha = Adam(self._initial_log_alpha(), settings.temperature_rate or settings.learning_rate)
        # Not part of the state: `prepare` computes them from the real rows.
        shift = torch.zeros(self.agents, spec.observation_dim, device=self.device)
        self._scaling = (shift, torch.ones_like(shift)) if settings.normalise_observations else None
        self._extreme_rewards = no_bounds(self.agents, self.device)
        self.environment_steps = torch.zeros((), dtype=torch.float64, device=self.device)  # with updates
        self.observations = torch.zeros(self.agents, spec.observation_dim, device=self.device)
        self.actions = torch.zeros(self.agents, spec.action_dim, device=self.device)
        self._is_mixed: bool | None = None  # whether batches of the captured updates have synthetic rows
        self._act = self._captured(self._choose_actions)
        self.reseed(0)

    def act(self) -> None:
        """Sample `actions` for `observations`, in place."""
        self._act()

    def learn(self) -> None:
        """Make the updates of one environment step; asynchronous on a GPU."""
        if self.replay.has_synthetic != self._is_mixed:
            self.prepare()
        super().learn()

    def prepare(self) -> None:
        """Capture the updates of `learn`, unless done; uses random numbers, so call `reseed` afterwards.

        Observations are normalised, and targets bounded, by the real rows of now, until the next call.
        """
        if self._scaling and self.replay.count:
            measure(self.replay.transitions().rows[..., self.replay.spec.observations], *self._scaling)
        if self.settings.bounded and self.replay.count:
            rewards = self.replay.real[:, : self.replay.count, self.replay.spec.rewards.start]
            torch.stack(rewards.aminmax(dim=1), out=self._extreme_rewards)
        if self.replay.has_synthetic != self._is_mixed:
            self._is_mixed, self._learn = self.replay.has_synthetic, None
        super().prepare()

    @torch.no_grad()
    def reset(self, number: int) -> None:
        """Move the networks towards new weights by `reset_share`; forget moments of the optimisers and caution.

        Everything stays in place, so that captured graphs stay valid.

        Args:
            number: Draws the new weights, with the seed.
        """
        share, log_alpha = self.settings.reset_share, self._initial_log_alpha()
        values, policy = self._initial_weights(generator_for("cpu", self.seed, 2, number))
        if share < 1:
            values, policy = self.values.lerp(values, share), self.policy.parameters.lerp(policy, share)
            log_alpha = self.log_alpha.parameters.clone()
        for tensor in self._tensors().values():
            tensor.zero_()
        self.values.copy_(values)
        self.policy.parameters.copy_(policy)
        self.log_alpha.parameters.copy_(log_alpha)
        self._after_load()

    @torch.no_grad()
    def update(self, rows: Tensor, next_noise: Tensor, excluded: Tensor, policy_noise: Tensor) -> None:
        """K critic updates and one of policy and temperature, with given random numbers.

        Args:
            rows: Transitions, ``(M, K, B, dim)``.
            next_noise: Noise of the next actions, ``(M, K, B, A)``.
            excluded: Infinity for target critics that an update does not use, else 0; ``(K, M, N)``.
            policy_noise: Noise of the actions in the policy update, ``(M, B, A)``.
        """
        spec, settings = self.replay.spec, self.settings
        _, updates, batch, _ = rows.shape
        rows = self.normalised(rows)
        alpha = self.log_alpha.parameters.exp()
        next_out = outputs_for(self.policy.parameters, self.policy_shape, rows.flatten(1, 2), spec.next_observations)
        next_actions, log_prob = squash(next_out, next_noise.flatten(1, 2), LOG_STD)
        next_actions, log_prob = (part.unflatten(1, (updates, batch)) for part in (next_actions, log_prob))
        columns = self.critic_shape.padded_inputs
        inputs = critic_inputs(rows, next_actions, spec.observation_dim, columns)
        rewards, terminated = rows[..., spec.rewards.start], rows[..., spec.terminated.start]
        parts = bellman(rewards, terminated, log_prob, alpha.unsqueeze(1), settings.gamma)
        if settings.bounded:
            extremes, entropy = self._extreme_rewards.unbind(), -log_prob.mean((1, 2))
            bounds = value_range(extremes, alpha.squeeze(1), entropy, spec.action_dim, settings.gamma)
            torch.stack(bounds, out=self.critics.bounds)
        rates = self.critic.rates(self.environment_steps * updates, updates)
        for k in range(updates):
            self.critics.update(inputs[k], parts[:, :, k], excluded[k], rates[k])
        self._update_policy(rows[:, -1, :, spec.observations], policy_noise, alpha)
        self.environment_steps += 1

    @torch.no_grad()
    def value_estimates(self, rows: Tensor) -> dict[str, Tensor]:
        """Mean reward, value, entropy and temperature on a batch of transitions ``(M, B, dim)``; each ``(M,)``.

        `lowest` and `highest` are the extreme values of all critics on the batch.

        Averaged over the states that a policy visits, a correct value is near ``(reward + temperature * entropy) /
        (1 - gamma)`` if episodes do not terminate. `B` must be the batch size, for which the kernels are compiled.
        """
        spec, critics = self.replay.spec, self.settings.critics
        rows = self.normalised(rows)
        observations, actions = rows[..., spec.observations], rows[..., spec.actions]
        # Not from the learner's random stream, so that an evaluation does not change the run.
        noise = torch.randn(actions.shape, generator=generator_for("cpu", 0)).to(self.device)
        log_prob = squash(self.policy_forward(observations)[0], noise, LOG_STD)[1]
        inputs = repeated_inputs(observations, actions, critics, self.critic_shape.padded_inputs)
        values, _ = values_of(self.critic.parameters, self.critic_shape, inputs)
        values = values.view(self.agents, -1)
        return {
            "reward": rows[..., spec.rewards.start].mean(1),
            "value": values.mean(1),
            "lowest": values.amin(1),
            "highest": values.amax(1),
            "entropy": -log_prob.mean(1),
            "temperature": self.log_alpha.parameters.exp().squeeze(1),
        }

    def normalised(self, rows: Tensor) -> Tensor:
        """Rows ``(M, ..., dim)`` as the networks see them."""
        spec = self.replay.spec
        if self._scaling is None:
            return rows
        return scaled_rows(rows, *self._scaling, spec.observations.start, spec.next_observations.start)

    def policy_forward(self, observations: Tensor) -> tuple[Tensor, Any]:
        """Outputs of the policies for `normalised` observations ``(M, n, O)``, and what `backward` needs."""
        x = fused_padded(observations, columns=self.policy_shape.padded_inputs)
        return forward(Layers.of(self.policy.parameters, self.policy_shape), x)

    def policy_weights(self) -> Layers:
        """A copy of the policies on the CPU, for observations as they are; see `policy.policies_of`."""
        layers = Layers.of(self.policy.parameters.to("cpu", copy=True), self.policy_shape)
        if self._scaling:
            fold(layers["w1"], *(part.cpu() for part in self._scaling))
        return layers

    def _tensors(self) -> dict[str, Tensor]:
        parts = {"policy": self.policy, "critic": self.critic, "log_alpha": self.log_alpha}
        moments = {f"{name}.{key}": t for name, part in parts.items() for key, t in part.tensors().items()}
        caution = {"caution": self.critics.caution} if self.settings.max_caution else {}
        return {**moments, "target": self.target, "environment_steps": self.environment_steps, **caution}

    def _after_load(self) -> None:
        self.critics.refresh()

    def _update_policy(self, observations: Tensor, noise: Tensor, alpha: Tensor) -> None:
        """One policy step on ``min E[alpha log pi - mean over critics of Q]``, and one temperature step."""
        spec, settings = self.replay.spec, self.settings
        batch = observations.shape[1]
        out, kept = self.policy_forward(observations)
        actions, log_prob = squash(out, noise, LOG_STD)
        inputs = repeated_inputs(observations, actions, settings.critics, self.critic_shape.padded_inputs)
        q, to_inputs = values_of(self.critic.parameters, self.critic_shape, inputs)
        d_q = torch.full_like(q, -1 / (settings.critics * batch))
        d_inputs = to_inputs(d_q).unflatten(0, (self.agents, settings.critics))
        d_out = policy_gradient(out, noise, actions, d_inputs[..., spec.actions], alpha, batch, LOG_STD)
        backward(Layers.of(self.policy.parameters, self.policy_shape), kept, d_out, self._policy_gradient())
        rates = self.policy.rates(self.environment_steps, 1)[0]
        self.policy.step(rates)
        alpha_gradient(log_prob, self.target_entropy, self.log_alpha.gradient)
        self.log_alpha.step(self.log_alpha.rates(self.environment_steps, 1)[0])

    def _initial_weights(self, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Weights of all critics and their targets, and of the policies."""
        critics = initialise(self.critic_shape, self.stack, rng)
        policies = initialise(self.policy_shape, self.agents, rng)
        return torch.cat((critics, critics)).to(self.device), policies.to(self.device)

    def _initial_log_alpha(self) -> Tensor:
        return torch.full((self.agents, 1), math.log(self.settings.temperature), device=self.device)

    def _policy_gradient(self) -> Layers:
        return Layers.of(self.policy.gradient, self.policy_shape)

    def _draw_and_update(self) -> None:
        settings, spec = self.settings, self.replay.spec
        size = (self.agents, settings.updates, settings.batch_size)
        rows = self.replay.draw(settings.updates, settings.batch_size, self.rng)
        next_noise = self._normal(*size, spec.action_dim)
        policy_noise = self._normal(self.agents, settings.batch_size, spec.action_dim)
        excluded = torch.zeros(settings.updates, self.agents, settings.critics, device=self.device)
        if settings.critics > settings.target_critics:
            uniform = torch.rand(excluded.shape, generator=self.rng, device=self.device)
            excluded = torch.where(uniform.argsort(-1).argsort(-1) < settings.target_critics, 0.0, torch.inf)
        self.update(rows, next_noise, excluded, policy_noise)

    @torch.no_grad()
    def _choose_actions(self) -> None:
        observations = self.observations
        if self._scaling:
            observations = scaled_observations(observations, *self._scaling)
        out, _ = self.policy_forward(observations.unsqueeze(1))
        noise = self._normal(self.agents, 1, self.actions.shape[1])
        self.actions.copy_(squash(out, noise, LOG_STD)[0].squeeze(1))
