"""Robust standardisation of columns to mean 0 and standard deviation 1.

Outliers are clamped in the statistics, so one extreme value does not compress all others. Their codes grow with the
logarithm of their distance, so rare large values (a sparse reward) are preserved.
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
    def of(cls, x: Tensor, *, untouched: Tensor | None = None) -> Standardisation:
        """Compute the statistics of values ``(M, n, columns)``; the columns in the mask `untouched` are not scaled."""
        low, high = _plausible_range(x)
        mean, scale = _mean_and_scale(x, low, high)
        if untouched is not None:
            mean[..., untouched], scale[..., untouched] = 0.0, 1.0
        return cls(mean, scale, (low - mean) / scale, (high - mean) / scale)

    def to_codes(self, x: Tensor) -> Tensor:
        """Convert values to codes."""
        z = ((x - self.mean) / self.scale).clamp(-_LARGEST, _LARGEST)
        low, high = self.low, self.high
        return z.clamp(low, high) + (z - high).clamp(min=0).log1p() - (low - z).clamp(min=0).log1p()

    def to_values(self, codes: Tensor) -> Tensor:
        """Inverse of `to_codes`."""
        low, high, most = self.low, self.high, math.log(_LARGEST / 3)
        z = codes.clamp(low, high)
        z = z + (codes - high).clamp(0, most).expm1() - (low - codes).clamp(0, most).expm1()
        return z * self.scale + self.mean

    @property
    def plausible(self) -> tuple[Tensor, Tensor]:
        """Range of values that are not outliers; infinite for columns that are almost constant."""
        return self.low * self.scale + self.mean, self.high * self.scale + self.mean


def _plausible_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper outlier threshold of each column, ``(M, 1, columns)`` each."""
    columns = x.transpose(1, 2).contiguous()
    rows = x.shape[1]
    extreme = max(int(rows * _CENTRAL), min(_FEW_OUTLIERS, rows // 50)) + 1
    low, high = (
        columns.topk(extreme, dim=2, largest=largest, sorted=True).values[..., -1].double()[:, None]
        for largest in (False, True)
    )
    span = (high - low) * _OUTLIER_SPANS
    # The span of an almost constant column (a sparse reward) is 0; its rare values carry the information.
    span = torch.where(span > 0, span, torch.inf)
    return (low - span).float(), (high + span).float()


def _mean_and_scale(x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per column, ``(M, 1, columns)``; the value itself and 1 for constant columns."""
    clamped = x.clamp(low, high).double()
    scale, mean = torch.std_mean(clamped, dim=1, keepdim=True, correction=0)
    constant = x.amin(1, keepdim=True) == x.amax(1, keepdim=True)
    mean = torch.where(constant, x[:, :1].double(), mean)
    # The minimum avoids an overflow when a column of denormal numbers is divided by its scale.
    scale = torch.where(constant, 1.0, scale).clamp(min=1e-30)
    return mean.float(), scale.float()
