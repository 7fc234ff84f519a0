"""Checks of the arguments of our own environments."""

from __future__ import annotations

import numpy as np


def numbers(name: str, values: np.ndarray, count: int) -> np.ndarray:
    """A copy of `values` in float64; raises `ValueError` unless these are `count` finite numbers."""
    found = np.array(values, np.float64)
    if found.shape != (count,) or not np.isfinite(found).all():
        raise ValueError(f"{name}: expected {count} finite numbers, got {values!r}")
    return found
