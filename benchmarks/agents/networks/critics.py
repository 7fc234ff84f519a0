"""Critics of all agents and their updates, as PyTorch operations everywhere and as few kernels on a GPU."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.backend import has_kernels
from synther_replay.benchmarks.agents.networks.mlp import Layers, MlpShape, backward, forward, operands, padded
from synther_replay.benchmarks.agents.networks.torch_networks import Network, TorchNetwork
from synther_replay.common.acceleration import fused


class Critics(Protocol):
    """What updates the critics.

    Attributes:
        first: The first critic of each agent, as they are now.
    """

    first: Network

    def update(
        self, inputs: Tensor, bellman: Tensor, left_out: Tensor, rates: Tensor, *, follow: bool = True
    ) -> Tensor:
        """Make one update: forward, backward, Adam, targets.

        Args:
            inputs: What critics are asked about, then what their targets are; ``(2, M, B, columns)``. In most
                algorithms states with actions, then next states with next actions.
            bellman: What the smallest value of the targets is multiplied with, and what is added, ``(2, M, B)``.
            left_out: Infinite for the target critics that are not asked, else 0; ``(M, N)``.
            rates: Of Adam, ``(2,)``.
            follow: Whether the targets move towards the critics.

        Returns:
            What the targets said before that, ``(M, N, B)``, valid until the next update.
        """

    def refresh(self) -> None:
        """Follow parameters that were changed from outside."""


def make_critics(
    values: Tensor, adam: Adam, shape: MlpShape, *, critics: int, batch_size: int, target_speed: float
) -> Critics:
    """Whichever is faster here."""
    if has_kernels(values.device, shape, batch_size):
        from synther_replay.benchmarks.agents.networks.triton_networks import TritonCritics

        return TritonCritics(values, adam, shape, critics=critics, batch_size=batch_size, target_speed=target_speed)
    return TorchCritics(values, adam, shape, critics=critics, target_speed=target_speed)


@fused
def inputs_of_each(observations: Tensor, actions: Tensor, critics: int, columns: int) -> Tensor:
    """The same inputs for each critic of an agent, ``(M * N, B, columns)``."""
    inputs = padded(observations, actions, columns=columns)
    return inputs.unsqueeze(1).expand(-1, critics, -1, -1).flatten(0, 1).contiguous()


@fused
def critic_inputs(rows: Tensor, next_actions: Tensor, observation_dim: int, columns: int) -> Tensor:
    """Inputs of critics and of their targets for all updates, ``(K, 2, M, B, columns)``."""
    used = observation_dim + next_actions.shape[-1]
    now = padded(rows[..., :used], columns=columns)
    then = padded(rows[..., used + 1 : -1], next_actions, columns=columns)
    return torch.stack((now, then)).permute(2, 0, 1, 3, 4).contiguous()


def for_each(inputs: Tensor, critics: int) -> Tensor:
    """Inputs ``(2, M, B, columns)`` of critics and targets for each of an agent, ``(2 * M * N, B, columns)``."""
    return inputs.unsqueeze(2).expand(-1, -1, critics, -1, -1).flatten(0, 2)


@fused
def error_gradient(q: Tensor, next_q: Tensor, bellman: Tensor, left_out: Tensor) -> Tensor:
    """Of the mean squared distance of values ``(M, N, B)`` from their targets, by each of them."""
    target = bellman[0] * (next_q + left_out.unsqueeze(-1)).amin(1) + bellman[1]
    return (q - target.unsqueeze(1)) * (2 / q.shape[2])


class TorchCritics:
    """Critics of all agents with their targets.

    Args:
        values: Parameters of S critics, then of their targets, ``(2S, P)``; those of one agent lie side by side.
        adam: Adam of the first S rows.
        shape: Of one critic.
        critics: N, per agent.
        target_speed: How far the targets move towards the critics in an update.

    Attributes:
        first: The first critic of each agent.
    """

    def __init__(self, values: Tensor, adam: Adam, shape: MlpShape, *, critics: int, target_speed: float) -> None:
        """Cut the gradient into layers."""
        self.adam, self.critics, self.target_speed = adam, critics, target_speed
        self.stack = len(values) // 2
        self.values, self.target = values, values[self.stack :]
        self._shape, self._gradient = shape, Layers.of(adam.gradient, shape)
        self.first: Network = TorchNetwork(values[: self.stack : critics], shape)

    def refresh(self) -> None:
        """There is no copy to bring up to date."""

    def update(
        self, inputs: Tensor, bellman: Tensor, left_out: Tensor, rates: Tensor, *, follow: bool = True
    ) -> Tensor:
        """See `Critics`."""
        _, agents, batch, _ = inputs.shape
        both = operands(self.values, self._shape)
        q, kept = forward(both, for_each(inputs, self.critics))
        value, next_value = q.view(2, agents, self.critics, batch)
        d_q = error_gradient(value, next_value, bellman, left_out).view(self.stack, batch, 1)
        backward(both.first(self.stack), kept.first(self.stack), d_q, self._gradient)
        if follow:
            self.adam.step_and_follow(rates, self.target, self.target_speed)
        else:
            self.adam.step(rates)
        return next_value
