"""Range of the values that rewards and discount allow: bounds of Bellman targets, and of the watchdog."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def no_bounds(agents: int, device: torch.device) -> Tensor:
    """Least and largest value where nothing is known of them, ``(2, M)``: minus infinity and infinity."""
    return torch.tensor([[-torch.inf], [torch.inf]], device=device).repeat(1, agents)


def value_range(
    rewards: tuple[Tensor, Tensor], temperature: Tensor, entropy: Tensor, action_dim: int, gamma: float
) -> tuple[Tensor, Tensor]:
    """Least and largest soft value that a policy can have, ``(M,)``.

    Args:
        rewards: Least and largest reward so far, each ``(M,)``.
        temperature: Temperatures, ``(M,)``.
        entropy: Mean entropies of the policies, ``(M,)``; there is no lower bound of an entropy, so this is used.
        action_dim: Number of action dimensions, whose uniform distribution over [-1, 1] has the largest entropy.
        gamma: Discount.
    """
    least, most = rewards
    horizon = 1 / (1 - gamma)
    # An episode can end at once, so 0 is always in the range.
    least = least.clamp(max=0) + temperature * entropy.clamp(max=0)
    most = most.clamp(min=0) + temperature * action_dim * math.log(2)
    return least * horizon, most * horizon
