"""Tanh-squashed Gaussian policies: sampling, log-probabilities, gradients, and the soft Bellman target."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from synther_replay.common.acceleration import fused

Bounds = tuple[float, float]  # of the log-std
LOG_STD: Bounds = (-20.0, 2.0)  # SAC's


@fused
def squash(out: Tensor, noise: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Actions ``(..., A)`` and their log-probabilities ``(...)``, from policy outputs ``(..., 2A)``."""
    mean, log_std = out.chunk(2, -1)
    log_std = log_std.clamp(*bounds)
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    # log(1 - tanh(u)^2), in a form that stays exact for large u
    log_slope = 2 * (math.log(2) - u - torch.nn.functional.softplus(-2 * u))
    return u.tanh(), (log_normal - log_slope).sum(-1)


@fused
def policy_gradient(
    out: Tensor, noise: Tensor, actions: Tensor, d_actions: Tensor, alpha: Tensor, batch_size: int, bounds: Bounds
) -> Tensor:
    """Gradient by the policy's outputs, given the gradient by its actions of each critic ``(M, N, B, A)``."""
    log_std = out.chunk(2, -1)[1]
    inside = (log_std >= bounds[0]) & (log_std <= bounds[1])
    d_log_prob = alpha.unsqueeze(1) / batch_size
    d_u = d_actions.sum(1) * (1 - actions.square()) + d_log_prob * 2 * actions
    d_log_std = d_u * log_std.clamp(*bounds).exp() * noise - d_log_prob
    return torch.cat((d_u, torch.where(inside, d_log_std, 0.0)), -1)


@fused
def alpha_gradient(log_prob: Tensor, target_entropy: float, out: Tensor) -> None:
    """Write the gradient of the temperature loss by the log-temperature to `out`."""
    out.copy_(-(log_prob + target_entropy).mean(1, keepdim=True))


@fused
def bellman(rewards: Tensor, terminated: Tensor, log_prob: Tensor, alpha: Tensor, gamma: float) -> Tensor:
    """Factor and offset of the Bellman target, ``(2, ...)``: target = factor * next value + offset."""
    discount = gamma * (1 - terminated)
    return torch.stack((discount, rewards - discount * alpha * log_prob))
