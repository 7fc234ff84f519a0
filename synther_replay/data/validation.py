"""Validation of the values of transitions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from synther_replay.data.spaces import MAX_EXACT_INTEGER, Leaf


def check_leaf(part: Tensor, leaf: Leaf, where: str) -> None:
    """Raise ValueError for integers outside their range and floats that overflow the leaf's dtype.

    Args:
        part: Values of the leaf, ``(..., size)``, of any dtype.
        leaf: The leaf.
        where: Name of the values in the error message.
    """
    if leaf.kind != "real":
        _check_integers(part, leaf, where)
    elif leaf.dtype == torch.float16:  # the only supported type narrower than float32
        check_finite(part.to(leaf.dtype), where)


def check_flags(part: Tensor) -> None:
    """Raise ValueError for termination flags other than 0 and 1."""
    if part.dtype == torch.bool:
        return
    wrong = (part != 0) & (part != 1)
    if bool(wrong.any()):
        raise ValueError(f"terminated: expected True or False (or 1 and 0), got {part[wrong].flatten()[0].item()}")


def check_finite(part: Tensor, where: str) -> None:
    """Raise ValueError for NaN and infinity."""
    wrong = ~torch.isfinite(part)
    if bool(wrong.any()):
        count, bad = int(wrong.any(-1).sum()), part[wrong].flatten()[0].item()
        kind = str(part.dtype).removeprefix("torch.")
        raise ValueError(f"{where}: {count} of {wrong[..., 0].numel()} rows are non-finite in {kind} (found {bad})")


def _check_integers(part: Tensor, leaf: Leaf, where: str) -> None:
    values = part.to(torch.float64)
    low, high = (torch.as_tensor(limit, device=part.device) for limit in _limits(leaf))
    wrong = (values != values.round()) | (values < low) | (values > high)
    if bool(wrong.any()):
        bad = part[wrong].flatten()[0].item()
        raise ValueError(f"{where}: expected integers from {int(low.min())} to {int(high.max())}, got {bad}")


def _limits(leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest accepted integer per column.

    Categories must be in their space. Ordinals only have to fit their dtype, because environments often exceed the
    bounds of an integer Box.
    """
    low, high = leaf.low, leaf.high
    if leaf.kind == "ordinal":
        is_bool = leaf.dtype == torch.bool
        limits = (0, 1) if is_bool else (torch.iinfo(leaf.dtype).min, torch.iinfo(leaf.dtype).max)
        low, high = (np.array([limit], dtype=np.float64) for limit in limits)
    return low.clip(-MAX_EXACT_INTEGER), high.clip(max=MAX_EXACT_INTEGER)
