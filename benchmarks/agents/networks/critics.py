"""Critics of all agents: interface, inputs, TD-error gradient, and the PyTorch implementation of an update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.backend import has_kernels
from synther_replay.benchmarks.agents.networks.mlp import Layers, MlpShape, operands, padded
from synther_replay.benchmarks.agents.networks.torch_networks import Network, TorchNetwork, passes_of
from synther_replay.benchmarks.agents.value_range import no_bounds
from synther_replay.common.acceleration import fused


class Critics(Protocol):
    """Critics of all agents with their targets.

    Attributes:
        first: The first critic of each agent.
        caution: What is taken from the minimum over target critics, as a share of the difference between the largest
            and the smallest of them, ``(M,)``; 0 at first, may be changed in place.
        bounds: Least and largest Bellman target, ``(2, M)``; infinite at first, may be changed in place.
    """

    first: Network
    caution: Tensor
    bounds: Tensor

    def update(
        self, inputs: Tensor, bellman: Tensor, excluded: Tensor, rates: Tensor, *, update_targets: bool = True
    ) -> Tensor:
        """Make one update: forward, backward, Adam, targets.

        Args:
            inputs: Inputs of the critics, then of their targets, ``(2, M, B, columns)``: in most algorithms states
                with actions, then next states with next actions.
            bellman: Factor and offset of the Bellman target, ``(2, M, B)``; the factor multiplies the minimum over
                the target critics.
            excluded: Infinity for target critics that are not used, else 0; ``(M, N)``.
            rates: Factors of Adam, ``(2,)``; see `Adam.rates`.
            update_targets: Whether the targets are updated.

        Returns:
            Values of the target critics before the update, ``(M, N, B)``; valid until the next update.
        """

    def refresh(self) -> None:
        """Update internal copies after the parameters were changed from outside."""


def make_critics(
    values: Tensor, adam: Adam, shape: MlpShape, *, critics: int, batch_size: int, target_speed: float
) -> Critics:
    """Build critics with the fastest available implementation; see `TorchCritics` for the arguments."""
    if has_kernels(values.device, shape, batch_size):
        from synther_replay.benchmarks.agents.networks.triton_networks import TritonCritics

        return TritonCritics(values, adam, shape, critics=critics, batch_size=batch_size, target_speed=target_speed)
    return TorchCritics(values, adam, shape, critics=critics, target_speed=target_speed)


def values_of(parameters: Tensor, shape: MlpShape, inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Values ``(S, B, 1)`` in fp32, and the function from gradients by them to gradients by the inputs."""
    passes, layers = passes_of(shape), Layers.of(parameters, shape)
    values, kept = passes.forward(layers, inputs)
    return values, lambda d_values: passes.backward_to_inputs(layers, kept, d_values)


@fused
def repeated_inputs(observations: Tensor, actions: Tensor, critics: int, columns: int) -> Tensor:
    """Inputs of one batch, repeated for each critic of an agent, ``(M * N, B, columns)``."""
    inputs = padded(observations, actions, columns=columns)
    return inputs.unsqueeze(1).expand(-1, critics, -1, -1).flatten(0, 1).contiguous()


@fused
def critic_inputs(rows: Tensor, next_actions: Tensor, observation_dim: int, columns: int) -> Tensor:
    """Inputs of critics and of their targets for all updates, ``(K, 2, M, B, columns)``."""
    used = observation_dim + next_actions.shape[-1]
    now = padded(rows[..., :used], columns=columns)
    then = padded(rows[..., used + 1 : -1], next_actions, columns=columns)
    return torch.stack((now, then)).permute(2, 0, 1, 3, 4).contiguous()


def repeat_for_critics(inputs: Tensor, critics: int) -> Tensor:
    """Repeat inputs ``(2, M, B, columns)`` of critics and targets for each critic, ``(2 * M * N, B, columns)``."""
    return inputs.unsqueeze(2).expand(-1, -1, critics, -1, -1).flatten(0, 2)


@fused
def error_gradient(
    q: Tensor,
    next_q: Tensor,
    bellman: Tensor,
    excluded: Tensor,
    caution: Tensor | None = None,
    bounds: Tensor | None = None,
) -> Tensor:
    """Gradient of the mean squared TD error by the values ``(M, N, B)``."""
    next_value = (next_q + excluded.unsqueeze(-1)).amin(1)
    if caution is not None:
        largest = (next_q - excluded.unsqueeze(-1)).amax(1)
        next_value = next_value - caution.unsqueeze(1) * (largest - next_value)
    target = bellman[0] * next_value + bellman[1]
    if bounds is not None:
        target = target.clamp(bounds[0].unsqueeze(1), bounds[1].unsqueeze(1))
    return (q - target.unsqueeze(1)) * (2 / q.shape[2])


class TorchCritics:
    """Critics of all agents with their targets, as PyTorch operations.

    Args:
        values: Parameters of S critics, then of their targets, ``(2S, P)``; critics of one agent are adjacent.
        adam: Optimiser of the first S rows.
        shape: Shape of one critic.
        critics: N, the number of critics per agent.
        target_speed: Step size of the targets towards the critics.

    Attributes:
        first: The first critic of each agent.
        caution: See `Critics`.
        bounds: See `Critics`.
    """

    def __init__(self, values: Tensor, adam: Adam, shape: MlpShape, *, critics: int, target_speed: float) -> None:
        """Create views of the gradient by layer."""
        self.adam, self.critics, self.target_speed = adam, critics, target_speed
        self.stack = len(values) // 2
        self.values, self.target = values, values[self.stack :]
        self.caution = torch.zeros(self.stack // critics, device=values.device)
        self.bounds = no_bounds(self.stack // critics, values.device)
        self._shape, self._gradient, self._passes = shape, Layers.of(adam.gradient, shape), passes_of(shape)
        self.first: Network = TorchNetwork(values[: self.stack : critics], replace(shape, alternating=False))

    def refresh(self) -> None:
        """Nothing to do: there are no internal copies."""

    def update(
        self, inputs: Tensor, bellman: Tensor, excluded: Tensor, rates: Tensor, *, update_targets: bool = True
    ) -> Tensor:
        """See `Critics`."""
        _, agents, batch, _ = inputs.shape
        both = operands(self.values, self._shape)
        q, kept = self._passes.forward(both, repeat_for_critics(inputs, self.critics))
        value, next_value = q.view(2, agents, self.critics, batch)
        d_q = error_gradient(value, next_value, bellman, excluded, self.caution, self.bounds)
        d_q = d_q.view(self.stack, batch, 1)
        self._passes.backward(both.first(self.stack), kept.cut(slice(self.stack)), d_q, self._gradient)
        if update_targets:
            self.adam.step_with_target(rates, self.target, self.target_speed)
        else:
            self.adam.step(rates)
        return next_value
