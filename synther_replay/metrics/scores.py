"""Scores of columns and of pairs of columns: Kolmogorov-Smirnov, levels, correlations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from synther_replay.data.levels import MAX_LEVELS, ROWS_PER_LEVEL
from synther_replay.metrics.rows import Rows, clean

# Bounds on temporary memory: columns sorted at once, rows converted to float64 at once.
_COLUMNS, _ROWS = 4, 65_536
# A sum of squares of values in [0, 1] below this is rounding error of a constant column.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Levels:
    """The distinct values of a real column with few of them, ascending."""

    values: list[float]
    real: list[int]  # rows of each level
    synthetic: list[int]  # rows of each level
    rows_real: int
    rows_synthetic: int

    @property
    def out_of_support(self) -> float:
        """Share of synthetic rows with another value."""
        return 1 - sum(self.synthetic) / self.rows_synthetic

    @property
    def out_of_support_baseline(self) -> float:
        """Share of real rows whose value occurs once: Good and Turing's estimate for the share of unseen values."""
        return self.real.count(1) / self.rows_real

    @property
    def distance(self) -> float:
        """Total variation distance of the two distributions."""
        shares = [(a / self.rows_real, b / self.rows_synthetic) for a, b in zip(self.real, self.synthetic, strict=True)]
        return (sum(abs(a - b) for a, b in shares) + self.out_of_support) / 2


@dataclass(frozen=True, eq=False)
class Marginals:
    """Comparison of every column with the real one, and of real with real rows; float64 tensors ``(dim,)``."""

    scores: Tensor  # `ks_complement` of real and synthetic rows
    baseline: Tensor  # `ks_complement` of the two parts of the real rows
    levels: list[Levels | None]  # None for a column with many values


@dataclass(frozen=True, eq=False)
class Correlations:
    """Pearson correlations of columns, float64 tensors ``(dim, dim)``; NaN for constant columns."""

    real: Tensor
    first: Tensor  # of one part of the real rows
    second: Tensor  # of the other part
    synthetic: Tensor

    @property
    def similarity(self) -> float:
        """Mean of `correlation_similarity` of real and synthetic rows over pairs of columns; NaN if there is none."""
        return _mean_of_pairs(_similarity(self.real, self.synthetic))

    @property
    def baseline(self) -> float:
        """The same of the two parts of the real rows."""
        return _mean_of_pairs(_similarity(self.first, self.second))

    def worst(self, count: int) -> list[tuple[int, int]]:
        """The pairs of columns that lose most similarity against the baseline, at most `count`, worst first."""
        loss = _similarity(self.first, self.second) - _similarity(self.real, self.synthetic)
        loss = loss.masked_fill(loss.isnan() | torch.ones_like(loss).tril().bool(), -torch.inf).flatten()
        found, places = loss.topk(min(count, len(loss)))
        return [divmod(place, len(self.real)) for place in places[found > -torch.inf].tolist()]


def rank_correlation(one: Tensor, two: Tensor) -> float:
    """Spearman's correlation of two columns ``(n,)``, which outliers do not change; equal values share their rank."""
    ranks = []
    for column in (one, two):
        _, place, counts = column.unique(return_inverse=True, return_counts=True)
        ranks.append((counts.cumsum(0) - (counts - 1) / 2)[place])
    return float(torch.corrcoef(torch.stack(ranks).double())[0, 1])


def ks_complement(real: Rows, synthetic: Rows) -> Tensor:
    """Return one minus the exact two-sample Kolmogorov-Smirnov statistic of each column, float64, ``(dim,)``."""
    rows, _ = clean({"real": real, "synthetic": synthetic}, strict=True)
    return torch.cat([_ks(*map(_sorted_columns, blocks)) for blocks in _blocks(*rows)])


def correlation_similarity(real: Rows, synthetic: Rows) -> Tensor:
    """Return ``1 - |rho_real - rho_synthetic| / 2`` (Pearson) for every pair of columns, float64, ``(dim, dim)``.

    NaN if a column is constant in either set (SDMetrics raises an error). A real correlation of exactly 0 is compared
    like any other (SDMetrics returns NaN).
    """
    one, two = clean({"real": real, "synthetic": synthetic}, strict=True)[0]
    return _similarity(*map(_correlation_matrix, (one, two)))


def marginals(real: Tensor, synthetic: Tensor, parts: tuple[Tensor, Tensor]) -> Marginals:
    """Compare the columns of real ``(n, dim)`` and synthetic rows ``(m, dim)``, and those of two parts of the real."""
    scores, baseline, levels = [], [], []
    for blocks in _blocks(real, synthetic, *parts):
        x, y, first, second = map(_sorted_columns, blocks)
        scores.append(_ks(x, y))
        baseline.append(_ks(first, second))
        distinct = ((x[:, 1:] != x[:, :-1]).sum(1) + 1).tolist()
        most = min(MAX_LEVELS, max(1, len(real) // ROWS_PER_LEVEL))
        few = [count <= most for count in distinct]
        levels += [_levels(a, b) if is_few else None for a, b, is_few in zip(x, y, few, strict=True)]
    return Marginals(torch.cat(scores), torch.cat(baseline), levels)


def correlations(parts: tuple[Tensor, Tensor], synthetic: Tensor) -> Correlations:
    """Correlations of real (both parts) and synthetic rows, and of each part."""
    low = torch.minimum(*(part.amin(0) for part in parts))
    high = torch.maximum(*(part.amax(0) for part in parts))
    first, second = (_moments(part, low, high) for part in parts)
    # Moments add up, which saves another pass over the real rows.
    real = _correlation(first + second)
    return Correlations(real, _correlation(first), _correlation(second), _correlation_matrix(synthetic))


def _mean_of_pairs(similarity: Tensor) -> float:
    """Mean over the pairs of different columns; NaN if there is no pair."""
    return float(similarity[torch.ones_like(similarity).triu(diagonal=1) > 0].nanmean())


def _blocks(*sets: Tensor) -> list[list[Tensor]]:
    """The same few columns of all sets, block by block."""
    return [[rows[:, start : start + _COLUMNS] for rows in sets] for start in range(0, sets[0].shape[1], _COLUMNS)]


def _sorted_columns(rows: Tensor) -> Tensor:
    """Return the sorted columns as rows of a matrix."""
    columns = rows.t().contiguous()
    # On the CPU NumPy sorts with SIMD instructions, up to 20 times faster than torch.
    return torch.from_numpy(np.sort(columns.numpy())) if columns.device.type == "cpu" else columns.sort().values


def _ks(one: Tensor, two: Tensor) -> Tensor:
    """Return one minus the Kolmogorov-Smirnov statistic of sorted columns ``(dim, n)`` and ``(dim, m)``, ``(dim,)``."""
    few, many = sorted((one, two), key=lambda columns: columns.shape[1])  # searching from the shorter set is cheaper
    n, m = few.shape[1], many.shape[1]
    rank = torch.arange(n, device=few.device)
    # F_few - F_many is largest at a value of few, F_many - F_few just before one. Among ties, the last value gives the
    # former and the first the latter. Multiplied by n * m, everything is an integer and therefore exact.
    above = (rank + 1) * m - _places(many, few, "right") * n
    below = _places(many, few, "left") * n - rank * m
    return 1 - torch.maximum(above.amax(1), below.amax(1)).double() / (n * m)


def _places(columns: Tensor, values: Tensor, side: str) -> Tensor:
    """Where sorted values ``(dim, n)`` belong in sorted columns ``(dim, m)``, ``(dim, n)``."""
    if columns.device.type != "cpu":
        return torch.searchsorted(columns, values, side=side)
    # NumPy continues from the previous value, which is several times faster for sorted ones.
    found = [np.searchsorted(*pair, side=side) for pair in zip(columns.numpy(), values.numpy(), strict=True)]  # type: ignore[call-overload]
    return torch.from_numpy(np.stack(found))


def _levels(real: Tensor, synthetic: Tensor) -> Levels:
    """The levels of a sorted column, and how many rows of each set have them."""
    values, counts = torch.unique_consecutive(real, return_counts=True)
    found = torch.searchsorted(synthetic, values, right=True) - torch.searchsorted(synthetic, values)
    return Levels(values.tolist(), counts.tolist(), found.tolist(), len(real), len(synthetic))


def _correlation_matrix(rows: Tensor) -> Tensor:
    return _correlation(_moments(rows, rows.amin(0), rows.amax(0)))


def _moments(rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Sums of products of columns, with a column of ones appended, float64, ``(dim + 1, dim + 1)``."""
    low, high = low.double(), high.double()
    total = torch.zeros(len(low) + 1, len(low) + 1, dtype=torch.float64, device=rows.device)
    for part in torch.split(rows, _ROWS):
        # Scaling to [0, 1] makes one pass accurate: the variance is then at least 1 / 2n, so at most a factor n of
        # float64's precision is lost. A constant column becomes 0 / 0 = NaN.
        unit = torch.nn.functional.pad((part - low) / (high - low), (0, 1), value=1.0)
        total += unit.t() @ unit
    return total


def _correlation(moments: Tensor) -> Tensor:
    """Pearson correlations, float64, ``(dim, dim)``; NaN for constant columns."""
    total = moments[-1, :-1]
    product = moments[:-1, :-1] - total.outer(total) / moments[-1, -1]
    scale = product.diagonal().clone()
    scale[scale < _ROUNDING] = torch.nan  # constant in this part of the rows
    scale = scale.sqrt()
    return (product / scale.outer(scale)).clamp(-1, 1)


def _similarity(one: Tensor, two: Tensor) -> Tensor:
    return 1 - (one - two).abs() / 2
