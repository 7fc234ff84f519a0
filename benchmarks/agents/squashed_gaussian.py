"""Policies whose actions are tanh of a normal variable: what they draw, and the way back through it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from synther_replay.common.acceleration import fused

Bounds = tuple[float, float]  # of the logarithm of the standard deviation
LOG_STD: Bounds = (-20.0, 2.0)  # SAC's


@fused
def squash(out: Tensor, noise: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Actions ``(..., A)`` of a policy that puts out ``(..., 2A)``, and their log-probabilities ``(...)``."""
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
    """The gradient of what the policy puts out, given that of its actions by each critic ``(M, N, B, A)``."""
    log_std = out.chunk(2, -1)[1]
    inside = (log_std >= bounds[0]) & (log_std <= bounds[1])
    d_log_prob = alpha.unsqueeze(1) / batch_size
    d_u = d_actions.sum(1) * (1 - actions.square()) + d_log_prob * 2 * actions
    d_log_std = d_u * log_std.clamp(*bounds).exp() * noise - d_log_prob
    return torch.cat((d_u, torch.where(inside, d_log_std, 0.0)), -1)


@fused
def alpha_gradient(log_prob: Tensor, target_entropy: float, out: Tensor) -> None:
    """Of the temperature's logarithm, for policies of too much or too little entropy."""
    out.copy_(-(log_prob + target_entropy).mean(1, keepdim=True))


@fused
def bellman(rewards: Tensor, terminated: Tensor, log_prob: Tensor, alpha: Tensor, gamma: float) -> Tensor:
    """What the value of the next state is multiplied with and added to, ``(2, ...)``."""
    discount = gamma * (1 - terminated)
    return torch.stack((discount, rewards - discount * alpha * log_prob))
