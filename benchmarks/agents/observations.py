"""Normalisation of observations by the mean and variance over the real rows of each agent."""

from __future__ import annotations

import torch
from torch import Tensor

from synther_replay.common.acceleration import fused

_FLOOR = 1e-4  # of the variance: a column that is almost constant must not become large when it changes


def measure(observations: Tensor, shift: Tensor, scale: Tensor) -> None:
    """Write means and reciprocal standard deviations of observations ``(M, n, O)`` or ``(n, O)`` to ``(M, O)``."""
    variance, mean = torch.var_mean(observations, -2, correction=0)
    shift.copy_(mean.expand_as(shift))
    scale.copy_((variance + _FLOOR).rsqrt().expand_as(scale))


def scaled_observations(observations: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Normalised observations ``(M, O)``."""
    return (observations - shift) * scale


@fused
def scaled_rows(rows: Tensor, shift: Tensor, scale: Tensor, *starts: int) -> Tensor:
    """Copy of transitions ``(M, ..., dim)`` with normalised observations, whose first columns are `starts`."""
    lead = (len(shift), *(1 for _ in rows.shape[1:-1]), -1)
    width, shift, scale = shift.shape[1], shift.view(lead), scale.view(lead)
    rows = rows.clone()
    for start in starts:
        columns = slice(start, start + width)
        rows[..., columns] = (rows[..., columns] - shift) * scale
    return rows


def fold(w1: Tensor, shift: Tensor, scale: Tensor) -> None:
    """Change first layers ``(M, inputs + 1 or more, hidden)``, bias last, to take observations as they are."""
    inputs = shift.shape[1]
    w1[:, :inputs] *= scale.unsqueeze(-1)
    w1[:, inputs] -= (shift.unsqueeze(1) @ w1[:, :inputs]).squeeze(1)
