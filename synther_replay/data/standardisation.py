"""Columns to mean 0 and deviation 1, such that one absurd value does not spoil the rest.

Outliers do not count in the statistics, and their codes grow as the logarithm of their distance: one absurd value must
not squeeze all others into nothing, but a rare large reward must survive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# A value is an outlier of its column when it lies further outside the central 99.8 % than so many times their span.
_OUTLIER_SPANS = 3.0
_CENTRAL = 0.001
_FEW_OUTLIERS = 5  # so many at either end are left out even where they are more than that share
_LARGEST = 3e38  # float32 ends a little above

STATISTICS = ("mean", "scale", "low", "high")


@dataclass(frozen=True)
class Standardisation:
    """Statistics per column and model of a stack, tensors ``(M, 1, columns)``.

    Attributes:
        mean: Becomes the code 0.
        scale: Distance from there that becomes the code 1.
        low: Code below which distances are logarithmic.
        high: Code above which they are.
    """

    mean: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def from_statistics(cls, statistics: Mapping[str, Tensor]) -> Standardisation:
        """Of those among others."""
        return cls(**{name: statistics[name] for name in STATISTICS})

    @classmethod
    def of(cls, x: Tensor, *, untouched: Tensor | None = None) -> Standardisation:
        """Of values ``(M, n, columns)``; `untouched` columns, bool ``(columns,)``, keep mean and scale."""
        low, high = _plausible_range(x)
        mean, scale = _mean_and_scale(x, low, high)
        if untouched is not None:
            mean[..., untouched], scale[..., untouched] = 0.0, 1.0
        return cls(mean, scale, (low - mean) / scale, (high - mean) / scale)

    def to_codes(self, x: Tensor) -> Tensor:
        """Values to codes."""
        z = ((x - self.mean) / self.scale).clamp(-_LARGEST, _LARGEST)
        low, high = self.low, self.high
        return z.clamp(low, high) + (z - high).clamp(min=0).log1p() - (low - z).clamp(min=0).log1p()

    def to_values(self, codes: Tensor) -> Tensor:
        """The inverse of `to_codes`."""
        low, high, most = self.low, self.high, math.log(_LARGEST / 3)
        z = codes.clamp(low, high)
        z = z + (codes - high).clamp(0, most).expm1() - (low - codes).clamp(0, most).expm1()
        return z * self.scale + self.mean

    @property
    def plausible(self) -> tuple[Tensor, Tensor]:
        """Values between which nothing is an outlier; infinite where every value may be the point of the column."""
        return self.low * self.scale + self.mean, self.high * self.scale + self.mean


def _plausible_range(x: Tensor) -> tuple[Tensor, Tensor]:
    """Range beyond which a value counts as an outlier of its column, ``(M, 1, columns)`` each."""
    columns = x.transpose(1, 2).contiguous()
    rows = x.shape[1]
    extreme = max(int(rows * _CENTRAL), min(_FEW_OUTLIERS, rows // 50)) + 1
    low, high = (
        columns.topk(extreme, dim=2, largest=largest, sorted=True).values[..., -1].double()[:, None]
        for largest in (False, True)
    )
    span = (high - low) * _OUTLIER_SPANS
    # A column that is almost always the same (a sparse reward) has no span; its rare values are the point of it.
    span = torch.where(span > 0, span, torch.inf)
    return (low - span).float(), (high + span).float()


def _mean_and_scale(x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per column, ``(M, 1, columns)``; exact value and 1 for constant columns."""
    clamped = x.clamp(low, high).double()
    scale, mean = torch.std_mean(clamped, dim=1, keepdim=True, correction=0)
    constant = x.amin(1, keepdim=True) == x.amax(1, keepdim=True)
    mean = torch.where(constant, x[:, :1].double(), mean)
    # The floor keeps a column of denormal numbers from overflowing when it is divided by its scale.
    scale = torch.where(constant, 1.0, scale).clamp(min=1e-30)
    return mean.float(), scale.float()
