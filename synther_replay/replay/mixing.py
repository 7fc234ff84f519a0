"""Real and synthetic rows in a batch: how many of each."""

from __future__ import annotations

from numbers import Real

from synther_replay.common.checks import whole_number


def split_batch(batch_size: int, real_ratio: float, *, synthetic_available: bool) -> tuple[int, int]:
    """Split a batch into exactly ``round(real_ratio * batch_size)`` real rows and the rest synthetic.

    The whole batch is real while no synthetic rows exist.

    >>> split_batch(256, 0.5, synthetic_available=True)
    (128, 128)
    >>> split_batch(256, 0.5, synthetic_available=False)
    (256, 0)
    """
    batch_size = whole_number("batch_size", batch_size)
    check_real_ratio(real_ratio)
    real = round(real_ratio * batch_size) if synthetic_available else batch_size
    return real, batch_size - real


def check_real_ratio(real_ratio: float) -> float:
    """Return the ratio as a float; raise ValueError unless it is in [0, 1] (NaN is rejected)."""
    if not isinstance(real_ratio, float | Real) or isinstance(real_ratio, bool) or not 0.0 <= real_ratio <= 1.0:
        raise ValueError(f"real_ratio: expected a number from 0 to 1, got {real_ratio!r}")
    return float(real_ratio)
