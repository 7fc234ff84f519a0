"""Robust standardisation of columns to mean 0 and standard deviation 1.

Outliers are clamped in the statistics, so one extreme value does not compress all others. Their codes grow with the
logarithm of their distance, so rare large values are preserved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# An outlier lies outside the central 99.8 % of its column by more than this many times their span.
_OUTLIER_SPANS = 3.0
_CENTRAL = 0.001
_FEW_OUTLIERS = 5  # this many values at either end are excluded even if they are a larger share
_LARGEST = 3e38  # slightly below the largest float32

STATISTICS = ("mean", "scale", "low", "high")


@dataclass(frozen=True)
class Standardisation:
    """Statistics per column and model of a stack, tensors ``(M, 1, columns)``.

    Attributes:
        mean: Value with code 0.
        scale: Distance from the mean with code 1.
        low: Code below which codes are logarithmic.
        high: Code above which codes are logarithmic.
    """

    mean: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def from_statistics(cls, statistics: Mapping[str, Tensor]) -> Standardisation:
        """Select the statistics of this class from a larger mapping."""
        return cls(**{name: statistics[name] for name in STATISTICS})

    @classmethod
    def of(cls, x: Tensor, plausible: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor]) -> Standardisation:
        """Compute the statistics of values ``(M, n, columns)``.

        Args:
            x: The values, or a sample of them.
            plausible: Outlier thresholds, see `plausible_range`.
            seen: Smallest and largest of all values, ``(M, 1, columns)`` each.
        """
        low, high = plausible
        deviation, mean = torch.std_mean(x.clamp(low, high).double(), dim=1, keepdim=True, correction=0)
        # A column that is constant in the sample but not in the data has no scale of its own.
        constant = (seen[0] == seen[1]) | (deviation == 0)
        mean = torch.where(seen[0] == seen[1], seen[0].double(), mean).float()
        # The minimum avoids an overflow when a column of denormal numbers is divided by its scale.
        scale = torch.where(constant, 1.0, deviation).clamp(min=1e-30).float()
        return cls(mean, scale, (low - mean) / scale, (high - mean) / scale)

    def to_codes(self, x: Tensor, outlying: Tensor) -> Tensor:
        """Convert values to codes; only the columns `outlying` can hold outliers."""
        z = ((x - self.mean) / self.scale).clamp_(-_LARGEST, _LARGEST)
        if len(outlying):
            low, high, some = self.low[..., outlying], self.high[..., outlying], z[..., outlying]
            beyond = (some - high).clamp_(min=0).log1p_() - (low - some).clamp_(min=0).log1p_()
            z[..., outlying] = some.clamp(low, high) + beyond
        return z

    def to_values(self, codes: Tensor) -> Tensor:
        """Inverse of `to_codes`."""
        low, high, most = self.low, self.high, math.log(_LARGEST / 3)
        z = codes.clamp(low, high)
        z = z + (codes - high).clamp(0, most).expm1() - (low - codes).clamp(0, most).expm1()
        return z * self.scale + self.mean


def plausible_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper outlier threshold of each column, ``(M, n, columns)`` to ``(M, 1, columns)`` each.

    Infinite for columns that are almost constant: the rare values of a sparse reward carry the information.
    """
    columns, rows = x.transpose(1, 2).contiguous(), x.shape[1]
    extreme = max(int(rows * _CENTRAL), min(_FEW_OUTLIERS, rows // 50)) + 1
    low, high = (
        columns.topk(extreme, dim=2, largest=largest, sorted=True).values[..., -1].double()[:, None]
        for largest in (False, True)
    )
    span = (high - low) * _OUTLIER_SPANS
    span = torch.where(span > 0, span, torch.inf)
    return (low - span).float(), (high + span).float()
