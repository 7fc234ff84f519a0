"""Validation of the values of transitions: which are wrong, and errors that name them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.data.spaces import Leaf, integer_limits


def wrong_values(part: Tensor, leaf: Leaf) -> Tensor | None:
    """Return which finite values of a leaf are wrong, a mask like `part`; None if any finite value is right.

    Wrong are integers outside their range, fractions of integers, flags other than 0 and 1, and floats that overflow
    the leaf's dtype.

    Args:
        part: Values of the leaf, ``(..., size)``, of any dtype.
        leaf: The leaf.
    """
    if leaf.kind == "flag":
        return None if part.dtype == torch.bool else (part != 0) & (part != 1)
    if leaf.kind != "real":
        values = part.to(torch.float64)
        low, high = (torch.as_tensor(limit, device=part.device) for limit in _limits(leaf))
        return (values != values.round()) | (values < low) | (values > high)
    if leaf.dtype == torch.float16:  # the only supported type narrower than float32
        return ~torch.isfinite(part.to(leaf.dtype))
    return None


def check_leaf(part: Tensor, leaf: Leaf, where: str) -> None:
    """Raise ValueError for the first of the `wrong_values`.

    Args:
        part: Values of the leaf, ``(..., size)``, of any dtype.
        leaf: The leaf.
        where: Name of the values in the error message.
    """
    wrong = wrong_values(part, leaf)
    if wrong is None or not bool(wrong.any()):
        return
    if leaf.kind == "real":
        check_finite(part.to(leaf.dtype), where)
    bad = part[wrong].flatten()[0].item()
    if leaf.kind == "flag":
        raise ValueError(f"{where}: expected True or False (or 1 and 0), got {bad}")
    low, high = _limits(leaf)
    raise ValueError(f"{where}: expected integers from {int(low.min())} to {int(high.max())}, got {bad}")


def as_tensor(value: Any, where: str, device: torch.device | str | None) -> Tensor:
    """Convert an array-like of numbers to a tensor; anything else raises TypeError."""
    if isinstance(value, Tensor):
        tensor = value.detach() if device is None else value.detach().to(device)
    else:
        try:
            # Via NumPy: torch is slow on lists of arrays and cannot read every NumPy scalar type. It also rejects
            # arrays with negative strides, read-only arrays and foreign byte order; those are copied.
            array = np.asarray(value)
            tensor = torch.as_tensor(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]), device=device)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{where}: expected numbers, got {type(value).__name__}") from error
    if tensor.is_complex():
        raise TypeError(f"{where}: expected real numbers, got {tensor.dtype}")
    return tensor


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite."""
    # A sum is several times as fast as the test of each value; one that only overflows is tested again.
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def check_finite(part: Tensor, where: str) -> None:
    """Raise ValueError for NaN and infinity."""
    wrong = ~torch.isfinite(part)
    if bool(wrong.any()):
        count, bad = int(wrong.any(-1).sum()), part[wrong].flatten()[0].item()
        kind = str(part.dtype).removeprefix("torch.")
        *row, column = wrong.nonzero()[0].tolist()
        first = f"first in {f'row {row[-1]}, ' if row else ''}column {column}"
        raise ValueError(
            f"{where}: {count} of {wrong[..., 0].numel()} rows are non-finite in {kind} (found {bad}, {first})"
        )


def _limits(leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest accepted integer per column.

    Categories must be in their space. Ordinals only have to fit their dtype, because environments often exceed the
    bounds of an integer Box.
    """
    if leaf.kind == "category":
        return leaf.low, leaf.high
    least, most = integer_limits(leaf.dtype)
    return np.array([least]), np.array([most])
