"""Adam for the parameters of many networks at once, optionally with target networks."""

from __future__ import annotations

import torch
from torch import Tensor

from synther_replay.common.acceleration import fused

BETAS, EPS = (0.9, 0.999), 1e-8


class Adam:
    """Adam for a matrix of parameters, updated in place.

    Args:
        parameters: Parameters, ``(S, P)``.
        learning_rate: Learning rate.
        weight_decay: Decoupled weight decay: each step takes ``learning_rate * weight_decay`` of a parameter away.

    Attributes:
        parameters: Parameters, ``(S, P)``.
        gradient: Gradient that the next step uses; written by the backward pass.
        mean: First moments.
        square: Second moments.
    """

    def __init__(self, parameters: Tensor, learning_rate: float, weight_decay: float = 0.0) -> None:
        """Start with zero moments."""
        self.parameters = parameters
        self.learning_rate = learning_rate
        self.decay = learning_rate * weight_decay
        self.gradient, self.mean, self.square = (torch.zeros_like(parameters) for _ in range(3))

    def rates(self, done: Tensor, count: int) -> Tensor:
        """Bias-corrected factors ``(count, 2)`` of the next `count` steps.

        Args:
            done: Number of steps so far, a tensor on the device.
            count: Number of steps.
        """
        return _rates(done, count, self.learning_rate, self.parameters.dtype)

    def step(self, rates: Tensor) -> None:
        """Take one step."""
        _adam(self.parameters, self.gradient, self.mean, self.square, rates, self.decay)

    def step_with_target(self, rates: Tensor, target: Tensor, speed: float) -> None:
        """Take one step and move target parameters towards the result by `speed`, in one pass over memory."""
        _adam_with_target(self.parameters, self.gradient, self.mean, self.square, rates, self.decay, target, speed)

    def tensors(self) -> dict[str, Tensor]:
        """State to resume from, by name."""
        return {"parameters": self.parameters, "mean": self.mean, "square": self.square}


@fused
def _rates(done: Tensor, count: int, learning_rate: float, dtype: torch.dtype) -> Tensor:
    steps = done + torch.arange(1, count + 1, device=done.device)
    return torch.stack((learning_rate / (1 - BETAS[0] ** steps), (1 - BETAS[1] ** steps).rsqrt()), 1).to(dtype)


def _adam_step(parameters: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, rates: Tensor, decay: float) -> None:
    if decay:
        parameters.mul_(1 - decay)
    mean.lerp_(gradient, 1 - BETAS[0])
    square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    parameters.sub_(mean * rates[0] / (square.sqrt() * rates[1] + EPS))


_adam = fused(_adam_step)


@fused
def _adam_with_target(
    parameters: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    rates: Tensor,
    decay: float,
    target: Tensor,
    speed: float,
) -> None:
    _adam_step(parameters, gradient, mean, square, rates, decay)
    target.lerp_(parameters, speed)
