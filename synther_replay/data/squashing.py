"""Squashing: actions as they were before the tanh of a policy, and back.

A tanh crowds actions near their bounds; its inverse spreads them out.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# An action at or beyond this fraction of the way from the centre to its bound counts as on the bound.
_SQUASHED = 1 - 1e-6
# atanh of it in float32, minus one unit in the last place for differences in rounding between devices.
_UNSQUASHED_END = float(np.nextafter(np.float32(np.arctanh(_SQUASHED)), np.float32(0)))


def unsquashed(values: Tensor, columns: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Map some columns of values ``(..., c)`` with bounds ``(c,)`` through atanh; a copy if there are any."""
    if not len(columns):
        return values
    # In float64: actions may be small compared to their bounds.
    values, low, high = values.clone(), low[columns].double(), high[columns].double()
    share = (2 * values[..., columns].double() - (low + high)) / (high - low)
    values[..., columns] = share.clamp(-_SQUASHED, _SQUASHED).atanh().float()
    return values


def squash(values: Tensor, columns: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Inverse of `unsquashed`, in place; values that count as on a bound become exactly the bound."""
    if not len(columns):
        return values
    low, high = low[columns].double(), high[columns].double()
    before = values[..., columns]
    share = torch.where(before.abs() >= _UNSQUASHED_END, before.sign(), before.double().tanh())
    values[..., columns] = ((low + high + share * (high - low)) / 2).clamp(low, high).float()
    return values
