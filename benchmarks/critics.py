"""Updates of the critics of all agents: as PyTorch operations everywhere, as three kernels on a GPU."""

from __future__ import annotations

from typing import Protocol

import torch
from stacked import Adam, Layers, MlpShape, backward, forward
from torch import Tensor

from synther_replay.acceleration import fused, has_triton


class Critics(Protocol):
    """What updates the critics."""

    def update(self, inputs: Tensor, bellman: Tensor, left_out: Tensor, rates: Tensor) -> None:
        """Make one update: forward, backward, Adam, targets.

        Args:
            inputs: States with actions, then next states with next actions, ``(2, M, B, columns)``.
            bellman: What the value of the next state is multiplied with, and what is added, ``(2, M, B)``.
            left_out: Infinite for the target critics that are not asked, else 0; ``(M, N)``.
            rates: Of Adam, ``(2,)``.
        """

    def refresh(self) -> None:
        """Follow parameters that were changed from outside."""


def make_critics(
    values: Tensor, adam: Adam, shape: MlpShape, *, critics: int, batch_size: int, target_speed: float
) -> Critics:
    """Whichever is faster here."""
    if has_kernels(values.device, shape, batch_size):
        from kernels import TritonCritics

        return TritonCritics(values, adam, shape, critics=critics, batch_size=batch_size, target_speed=target_speed)
    return TorchCritics(values, adam, shape, critics=critics, target_speed=target_speed)


def has_kernels(device: torch.device, shape: MlpShape, batch_size: int) -> bool:
    """Whether `kernels` can be used; a CPU build of PyTorch has no Triton to import it with."""
    if device.type != "cuda" or not has_triton():
        return False
    from kernels import fits

    return fits(shape, batch_size, device)


@fused
def _error(q: Tensor, next_q: Tensor, bellman: Tensor, left_out: Tensor) -> Tensor:
    """Distance of values ``(M, N, B)`` from their targets."""
    target = bellman[0] * (next_q + left_out.unsqueeze(-1)).amin(1) + bellman[1]
    return q - target.unsqueeze(1)


class TorchCritics:
    """Critics of all agents with their targets.

    Args:
        values: Parameters of S critics, then of their targets, ``(2S, P)``; those of one agent lie side by side.
        adam: Adam of the first S rows.
        shape: Of one critic.
        critics: N, per agent.
        target_speed: How far the targets move towards the critics in an update.
    """

    def __init__(self, values: Tensor, adam: Adam, shape: MlpShape, *, critics: int, target_speed: float) -> None:
        """Cut the parameters into layers."""
        self.adam, self.critics, self.target_speed = adam, critics, target_speed
        self.stack = len(values) // 2
        self.target = values[self.stack :]
        self._both, self._learning, self._gradient = (
            Layers.of(part, shape) for part in (values, values[: self.stack], adam.gradient)
        )

    def refresh(self) -> None:
        """There is no copy to bring up to date."""

    def update(self, inputs: Tensor, bellman: Tensor, left_out: Tensor, rates: Tensor) -> None:
        """See `Critics`."""
        _, agents, batch, columns = inputs.shape
        each = inputs.unsqueeze(2).expand(-1, -1, self.critics, -1, -1).reshape(-1, batch, columns)
        q, kept = forward(self._both, each)
        value, next_value = q.view(2, agents, self.critics, batch)
        error = _error(value, next_value, bellman, left_out)
        d_q = error.view(self.stack, batch, 1) * (2 / batch)
        backward(self._learning, kept.first(self.stack), d_q, self._gradient)
        self.adam.step_and_follow(rates, self.target, self.target_speed)
