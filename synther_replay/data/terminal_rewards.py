"""Rewards of terminated rows, shifted and scaled to the distribution of the others.

A bonus or penalty at the end of an episode is far from all other rewards, and rare. Modelled as it is, it would go with
rows that do not end. Shifted, it says nothing about the end; the shift is undone once `terminated` is known.
"""

from __future__ import annotations

import torch
from torch import Tensor

from synther_replay.data.standardisation import plausible_range

_LEAST_ROWS = 10  # with fewer terminated rows the mean of their rewards is mostly noise
_LARGEST = 1e37  # gain and offset, and the inverse of the smallest gain: beyond, float32 cannot hold them


def no_shift(stack: int, device: torch.device) -> Tensor:
    """Gain, shift and range that leave rewards as they are, ``(M, 1, 4)``."""
    neutral = torch.tensor([1.0, 0.0, -torch.inf, torch.inf], dtype=torch.float32, device=device)
    return neutral.repeat(stack, 1, 1)


def find_shift(rewards: Tensor, terminated: Tensor) -> Tensor:
    """Gain, shift and range of the rewards of terminated rows, ``(M, 1, 4)``.

    Args:
        rewards: All rewards, ``(M, n)``.
        terminated: Which rows terminate, bool ``(M, n)``.
    """
    rewards, found = rewards.double(), no_shift(len(rewards), rewards.device)
    for model in range(len(rewards)):
        ended, others = rewards[model, terminated[model]], rewards[model, ~terminated[model]]
        if min(len(ended), len(others)) >= _LEAST_ROWS:
            (centre, spread), (other_centre, other_spread) = map(_centre_and_spread, (ended, others))
            gain = other_spread / spread if min(spread, other_spread) > 0 else torch.ones_like(spread)
            offset = other_centre - centre * gain
            if 1 / _LARGEST < gain < _LARGEST and abs(offset) < _LARGEST:
                found[model, 0] = torch.stack((gain, offset, ended.min(), ended.max()))
    return found


def shifted(rewards: Tensor, terminated: Tensor, shift: Tensor) -> Tensor:
    """Shift the rewards ``(M, n)`` of terminated rows; `shift` is the result of `find_shift`."""
    gain, offset, *_ = shift.unbind(-1)
    return torch.where(terminated, rewards * gain + offset, rewards)


def restored(rewards: Tensor, terminated: Tensor, shift: Tensor) -> Tensor:
    """Inverse of `shifted`; results stay in the range of the data."""
    gain, offset, low, high = shift.unbind(-1)
    return torch.where(terminated, ((rewards - offset) / gain).clamp(low, high), rewards)


def _centre_and_spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of values ``(n,)`` without outliers; a spread of rounding errors counts as 0."""
    low, high = plausible_range(x[None, :, None])
    inner = x.clamp(low.flatten(), high.flatten())
    spread, centre = torch.std_mean(inner, correction=0)
    return centre, torch.where(spread > 1e-5 * inner.abs().max(), spread, 0.0)
