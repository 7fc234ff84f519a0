"""Adam with per-model gradient clipping and an EMA of the weights, on one parameter matrix ``(M, P)``."""

from __future__ import annotations

import torch
from torch import Tensor

from synther_replay.common.acceleration import by_kernel

EPS = 1e-8


@by_kernel
def _adam(
    parameters: Tensor,
    working: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    norm: Tensor,
    rates: Tensor,
    clip: float,
    beta1: float,
    beta2: float,
) -> None:
    g = gradient.float() * (clip / (norm + 1e-6)).clamp(max=1.0)
    mean.lerp_(g, 1 - beta1)
    square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    parameters.sub_(mean * rates[0] / (square.sqrt() * rates[1] + EPS))
    working.copy_(parameters)


class StackAdam:
    """State and update rule of Adam for M independent models.

    Attributes:
        parameters: Weights in float32, ``(M, P)``.
        working: Copy of the weights in the compute dtype of the network.
        gradient: Input of `step`, in the compute dtype.
        mean: First moments.
        square: Second moments.
        average: EMA of the weights, used for sampling.
    """

    def __init__(self, parameters: Tensor, dtype: torch.dtype, *, betas: tuple[float, float], clip: float) -> None:
        """Start from `parameters` with zero moments."""
        self.parameters = parameters
        self.working = parameters.to(dtype, copy=True)
        self.gradient = torch.zeros_like(self.working)
        self.mean = torch.zeros_like(parameters)
        self.square = torch.zeros_like(parameters)
        self.average = parameters.clone()
        self.betas = betas
        self.clip = clip

    def step(self, rates: Tensor) -> None:
        """Clip each model's gradient to norm `clip`, then take one Adam step.

        Args:
            rates: ``(lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t))``, shape ``(2,)``; a tensor, so that a CUDA graph reads
                the current values.
        """
        norm = torch.linalg.vector_norm(self.gradient, dim=1, keepdim=True, dtype=torch.float32)
        state = (self.parameters, self.working, self.gradient, self.mean, self.square)
        _adam(*state, norm, rates, self.clip, *self.betas)

    def bias_corrected(self, learning_rate: Tensor, steps: Tensor) -> Tensor:
        """Return the `rates` of several steps, ``(K, 2)``, for step numbers ``(K,)`` counted from 1."""
        beta1, beta2 = self.betas
        return torch.stack((learning_rate / (1 - beta1**steps), (1 - beta2**steps).rsqrt()), dim=1).float()

    def update_average(self, weight: Tensor) -> None:
        """Update the EMA: move it towards the weights by `weight`, a scalar tensor."""
        self.average.lerp_(self.parameters, weight)

    def reset(self, parameters: Tensor) -> None:
        """Set new weights and zero the moments, in place; CUDA graphs stay valid."""
        self.parameters.copy_(parameters)
        self.average.copy_(parameters)
        self.mean.zero_()
        self.square.zero_()
        self.refresh_working()

    def refresh_working(self) -> None:
        """Copy the weights to the working copy; needed after `parameters` was modified."""
        self.working.copy_(self.parameters)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint; the working copy is derived from them."""
        return {"parameters": self.parameters, "mean": self.mean, "square": self.square, "average": self.average}
