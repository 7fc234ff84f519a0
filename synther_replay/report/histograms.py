"""Histograms: counts of the values of several sets in the same bins, or at the same levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BINS = 40
# Bins span these quantiles of the first set and a margin, in shares of the span. A single far value would otherwise
# put all others into one bin.
_QUANTILES = (0.001, 0.999)
MARGIN = 0.15


@dataclass(frozen=True)
class Histogram:
    """Counts of one column.

    Attributes:
        start: Lower edge of the first bin; 0 with levels.
        width: Width of a bin; 0 with levels.
        levels: Values that are counted one by one, ascending; empty with bins.
        counts: Rows of each set, ``(sets, BINS)``. The outermost bins also count all values beyond them. With levels,
            ``(sets, len(levels) + 1)``: the last number counts all other values.
    """

    start: float
    width: float
    levels: tuple[float, ...]
    counts: tuple[tuple[int, ...], ...]


def histogram(
    sets: Sequence[Tensor], like: Tensor, *, levels: bool = False, margin: float = MARGIN, least: float | None = None
) -> Histogram:
    """Count the values ``(n,)`` of each set in bins, or at levels.

    Args:
        sets: Values of each set.
        like: Values ``(k,)`` that determine the bins or levels.
        levels: Whether to count at each distinct value of `like`.
        margin: How far the bins go beyond nearly all values of `like`, in shares of their span.
        least: Lower edge of the first bin; None: by the values of `like`.

    >>> one = torch.tensor([0.0, 1.0, 1.0])
    >>> histogram([one, torch.tensor([1.0, 0.5])], one, levels=True).counts
    ((1, 2, 0), (0, 1, 1))
    """
    arrays = [values.detach().cpu().double().numpy() for values in (*sets, like)]
    *arrays, guide = arrays
    if levels:
        known = np.unique(guide)
        return Histogram(0.0, 0.0, tuple(known.tolist()), tuple(_at_levels(values, known) for values in arrays))
    start, stop = _span(guide, margin)
    start = start if least is None else least
    width = (stop - start) / BINS
    return Histogram(start, width, (), tuple(_in_bins(values, start, width) for values in arrays))


def column_histograms(parts: tuple[Tensor, Tensor], synthetic: Tensor, levels: Sequence[bool]) -> list[Histogram]:
    """Histograms of the columns of two parts of the real rows and of the synthetic rows, ``(n, dim)`` each.

    Args:
        parts: Parts of the real rows; together they determine the bins.
        synthetic: Synthetic rows.
        levels: Which columns are counted at levels.
    """
    # Contiguous columns: a strided pass over all rows for each column is several times slower.
    columns = [rows.t().contiguous() for rows in (*parts, synthetic)]
    return [
        histogram([first, second, other], torch.cat((first, second)), levels=few)
        for first, second, other, few in zip(*columns, levels, strict=True)
    ]


def _span(values: np.ndarray, margin: float) -> tuple[float, float]:
    low, high = np.quantile(values, _QUANTILES).tolist()
    if low == high:  # nearly all values are equal
        low, high = float(values.min()), float(values.max())
    more = margin * (high - low)
    if low == high:
        more = max(1e-3 * abs(high), 0.5)
    return low - more, high + more


def _in_bins(values: np.ndarray, start: float, width: float) -> tuple[int, ...]:
    # clipped before the conversion: a huge number has no integer
    place = np.clip((values - start) / width, 0, BINS - 1).astype(np.int64)
    return tuple(np.bincount(place, minlength=BINS).tolist())


def _at_levels(values: np.ndarray, levels: np.ndarray) -> tuple[int, ...]:
    place = np.searchsorted(levels, values).clip(max=len(levels) - 1)
    found = np.bincount(place[levels[place] == values], minlength=len(levels)).tolist()
    return (*found, len(values) - sum(found))
