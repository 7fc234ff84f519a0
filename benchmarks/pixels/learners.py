"""BC and DrQ+BC, on images or on latents.

DrQ+BC is DrQ-v2 with n-step returns and the policy loss of TD3+BC. The encoder learns from the critic's loss only; in
BC it learns from the policy's.
"""

from __future__ import annotations

import copy
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from synther_replay import TransitionSpec
from synther_replay.benchmarks.agents.base import CapturedLearner
from synther_replay.benchmarks.pixels.networks import Agent
from synther_replay.benchmarks.pixels.settings import LearnerSettings
from synther_replay.common.seeding import derive_seed

_EDGE = 1e-6  # actions stay so far within [-1, 1]


class View(Protocol):
    """What an agent sees of the observations of a batch."""

    def __call__(self, observations: Tensor, rng: torch.Generator) -> Tensor:
        """Images or latents for columns of rows ``(B, k)``."""


def latents_as_they_are(observations: Tensor, rng: torch.Generator) -> Tensor:
    """The view of an agent of latents."""
    return observations


class Learner(CapturedLearner):
    """One agent and the rows that it learns from.

    Args:
        rows: Rows of `spec`, ``(n, dim)``, on the device of the learner.
        spec: Layout of the rows; rewards are sums over `n_step` steps, and next observations as many steps later.
        view: What the agent sees of their observations.
        settings: Hyper-parameters.
        of_images: Whether the agent sees images; else latents.

    Attributes:
        agent: The networks.
        updates: Updates so far, a tensor on the device.
        losses: Last losses, "critic" and "policy", tensors on the device.
    """

    def __init__(
        self, rows: Tensor, spec: TransitionSpec, view: View, settings: LearnerSettings, *, of_images: bool
    ) -> None:
        """Draw the initial networks."""
        super().__init__(rows.device, settings.seed)
        self.rows, self.spec, self.view, self.settings = rows, spec, view, settings
        kind = {"has_critic": settings.algo == "drqbc", "of_images": of_images, "seed": derive_seed(settings.seed, 0)}
        self.agent = Agent(spec.action_dim, settings.hidden, **kind).to(rows.device)
        self.updates = torch.zeros((), device=rows.device)
        self.losses = {name: torch.zeros((), device=rows.device) for name in ("critic", "policy")}
        policy = [*self.agent.trunk.parameters(), *self.agent.head.parameters()]
        encoder = [*self.agent.encoder.parameters()]
        if self.agent.critic is None:
            self.target, self._optimisers = None, {"policy": self._optimiser(encoder + policy)}
        else:
            self.target = copy.deepcopy(self.agent.critic).requires_grad_(False)
            critic = self._optimiser([*encoder, *self.agent.critic.parameters()])
            self._optimisers = {"critic": critic, "policy": self._optimiser(policy)}

    def noisy(self, actions: Tensor) -> Tensor:
        """Actions with the clipped noise of now; gradients pass the limits."""
        settings = self.settings
        first, last = settings.noise
        share = (self.updates / (settings.noise_share * settings.updates)).clamp(max=1)
        noise = self._normal(*actions.shape) * (first + (last - first) * share)
        noisy = actions + noise.clamp(-settings.noise_clip, settings.noise_clip)
        return noisy + (noisy.clamp(_EDGE - 1, 1 - _EDGE) - noisy).detach()

    def _draw_and_update(self) -> None:
        spec, agent = self.spec, self.agent
        picked = torch.randint(len(self.rows), (self.settings.batch_size,), generator=self.rng, device=self.device)
        batch = self.rows[picked]
        actions = batch[:, spec.actions]
        encoded = agent.encode(self.view(batch[:, spec.observations], self.rng))
        if agent.critic is None:
            cloning = F.mse_loss(self.noisy(agent.actions(encoded)), actions)
            self._step("policy", cloning)
        else:
            self._update_critic(encoded, batch)
            self._update_policy(encoded.detach(), actions)
        self.updates += 1

    def _update_critic(self, encoded: Tensor, batch: Tensor) -> None:
        spec, agent, settings = self.spec, self.agent, self.settings
        assert agent.critic is not None and self.target is not None
        with torch.no_grad():
            after = agent.encode(self.view(batch[:, spec.next_observations], self.rng))
            value = self.target(after, self.noisy(agent.actions(after))).amin(0)
            goes_on = 1 - batch[:, spec.terminated.start]
            goal = batch[:, spec.rewards.start] + settings.gamma**settings.n_step * goes_on * value
        values = agent.critic(encoded, batch[:, spec.actions])
        self._step("critic", (values - goal).square().mean(1).sum())
        with torch.no_grad():
            torch._foreach_lerp_([*self.target.parameters()], [*agent.critic.parameters()], settings.target_speed)

    def _update_policy(self, encoded: Tensor, data_actions: Tensor) -> None:
        assert self.agent.critic is not None
        actions = self.noisy(self.agent.actions(encoded))
        value = self.agent.critic(encoded, actions).amin(0)
        scale = self.settings.alpha / value.detach().abs().mean()
        self._step("policy", F.mse_loss(actions, data_actions) - scale * value.mean())

    def _step(self, name: str, loss: Tensor) -> None:
        """One step of an optimiser; gradients stay where they are, so that a captured step finds them."""
        optimiser = self._optimisers[name]
        parameters = optimiser.param_groups[0]["params"]
        gradients = torch.autograd.grad(loss, parameters)
        torch._foreach_copy_([parameter.grad for parameter in parameters], gradients)
        optimiser.step()
        self.losses[name].copy_(loss.detach())

    def _optimiser(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Adam:
        """Adam with its state, which is else made at the first step and could then not be loaded before."""
        on_gpu = self.device.type == "cuda"
        optimiser = torch.optim.Adam(parameters, self.settings.learning_rate, capturable=on_gpu, fused=on_gpu or None)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()  # changes no weight, because gradients are 0
        for state in optimiser.state.values():
            state["step"].zero_()
        return optimiser

    def _tensors(self) -> dict[str, Tensor]:
        found = {f"agent.{name}": tensor for name, tensor in self.agent.state_dict().items()}
        if self.target is not None:
            found |= {f"target.{name}": tensor for name, tensor in self.target.state_dict().items()}
        for name, optimiser in self._optimisers.items():
            for number, state in enumerate(optimiser.state.values()):
                found |= {f"{name}.{number}.{key}": tensor for key, tensor in state.items()}
        return {**found, "updates": self.updates}
