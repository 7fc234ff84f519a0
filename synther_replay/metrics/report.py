"""Fidelity: the result of a comparison, as text and as JSON values."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor

from synther_replay.metrics.distances import Memorisation

# `summary` shows at most so many levels of the reward; `reward_levels` has all of them.
_LEVELS_SHOWN = 8


@dataclass(frozen=True, eq=False)
class ColumnFidelity:
    """One column of synthetic against real rows. Shares are of synthetic values; a baseline is real against real."""

    name: str  # of the column
    marginal: float  # `ks_complement`
    marginal_baseline: float  # the same of real rows against other real rows
    out_of_range: float  # share outside the range of the real values
    out_of_bounds: float | None = None  # share that the space does not allow; None without a spec
    out_of_bounds_baseline: float | None = None  # the same of the real rows
    levels: int | None = None  # number of distinct real values; None if they are not few
    out_of_support: float | None = None  # share that equals no real value; None without levels
    out_of_support_baseline: float | None = None  # share of real rows with a value that occurs once
    level_distance: float | None = None  # total variation distance of the shares of the levels; None without levels
    severity: float = 0.0  # loss against the baseline / largest loss allowed; above 1 the column fails
    failure: str | None = None  # what is wrong; None: nothing

    @property
    def passed(self) -> bool:
        """Whether no threshold is missed."""
        return self.failure is None


@dataclass(frozen=True, eq=False)
class PairFidelity:
    """Correlations of two columns: Pearson's, and Spearman's, which outliers do not change."""

    names: tuple[str, str]  # of the columns
    real: float  # Pearson's in the real rows
    synthetic: float  # in the synthetic rows
    parts: tuple[float, float]  # Pearson's in the two parts of the real rows, for the baseline
    ranks: tuple[float, float]  # Spearman's in real and synthetic rows

    @property
    def similarity(self) -> float:
        """`correlation_similarity` of synthetic and real rows."""
        return 1 - abs(self.real - self.synthetic) / 2

    @property
    def baseline(self) -> float:
        """The same of the two parts of the real rows."""
        return 1 - abs(self.parts[0] - self.parts[1]) / 2

    @property
    def loss(self) -> float:
        """Loss of similarity that both correlations show: one outlier can change Pearson's by any amount."""
        return min(self.baseline - self.similarity, abs(self.ranks[0] - self.ranks[1]) / 2)


@dataclass(frozen=True, eq=False)
class RewardLevel:
    """One value of a reward that has few; shares are NaN without rows."""

    value: float  # the reward
    share_real: float  # share of the real rows with it
    share_synthetic: float  # share of the synthetic rows with it
    terminated_real: float  # share of terminated rows among the real rows with it
    terminated_synthetic: float  # share of terminated rows among the synthetic rows with it


@dataclass(frozen=True, eq=False)
class Fidelity:
    """Similarity of synthetic and real rows; 1.0 is perfect. A baseline is real rows against other real rows."""

    marginal: float  # mean of `ks_complement` over columns
    correlation: float  # mean of `correlation_similarity` over column pairs not constant in either set; NaN if none
    marginal_by_column: Tensor  # float64, (dim,)
    rejected_real: int  # non-finite rows, excluded
    rejected_synthetic: int  # non-finite rows, excluded
    memorisation: Memorisation | None  # only with held-out rows
    rows_real: int  # finite rows
    rows_synthetic: int  # finite rows
    marginal_baseline: float  # `marginal` of real rows against other real rows
    correlation_baseline: float  # `correlation` of real rows against other real rows
    columns: tuple[ColumnFidelity, ...]  # in the order of the row
    out_of_range: float  # share of synthetic rows with a value outside the range of the real ones
    out_of_bounds: float | None = None  # share of synthetic rows with a value that the spaces do not allow
    out_of_bounds_baseline: float | None = None  # the same of the real rows
    termination_rate_real: float | None = None  # share of terminated rows; None without a spec, like the other rates
    termination_rate_synthetic: float | None = None  # share of terminated rows among the synthetic ones
    worst_pair: PairFidelity | None = None  # the pair of columns that loses most; None if all columns are constant
    reward_levels: tuple[RewardLevel, ...] = ()  # empty without a spec, or if the rewards have many values
    failures: tuple[str, ...] = ()  # what is wrong, worst first

    @property
    def passed(self) -> bool:
        """Whether no threshold is missed."""
        return not self.failures

    @property
    def worst(self) -> ColumnFidelity:
        """The column that is worst against its threshold."""
        return max(self.columns, key=lambda column: column.severity)

    def to_json(self) -> dict[str, Any]:
        """Return all values as JSON values; NaN becomes None."""
        values: dict[str, Any] = _json(self)
        return values | {"passed": self.passed}

    def summary(self, columns: int = 5) -> str:
        """Return a few aligned lines: scores, verdict, and a table of the worst columns.

        Args:
            columns: Number of columns to show.
        """
        lines = [*self._scores(), *self._verdict()]
        if len(self.reward_levels) > 1:
            lines += ["", *self._reward_table()]
        return "\n".join([*lines, "", *self._column_table(columns)])

    def __str__(self) -> str:
        """The summary."""
        return self.summary()

    def _scores(self) -> list[str]:
        lines = [
            f"marginal      {self.marginal:.4f}  (real against real {self.marginal_baseline:.4f})",
            f"correlation   {self.correlation:.4f}  (real against real {self.correlation_baseline:.4f})",
        ]
        if self.termination_rate_real is not None:
            rates = percent(self.termination_rate_real), percent(self.termination_rate_synthetic)
            lines.append(f"terminated    {rates[0]} of the real rows, {rates[1]} of the synthetic ones")
        if self.out_of_bounds is not None:
            lines.append(f"out of bounds {percent(self.out_of_bounds)} of the synthetic rows")
        lines.append(f"out of range  {percent(self.out_of_range)} of the synthetic rows, against the real ones")
        lines.append(f"rejected      {self.rejected_real} real, {self.rejected_synthetic} synthetic")
        if (memory := self.memorisation) is not None:
            shares = f"{memory.share_closer:.4f} closer to training, distance ratio {memory.ratio:.4f}"
            lines.append(f"memorisation  {shares}")
        return lines

    def _verdict(self) -> list[str]:
        failed = sum(not column.passed for column in self.columns)
        if self.passed:
            return [f"verdict       passed: all {len(self.columns)} columns"]
        lines = [f"verdict       failed: {failed} of {len(self.columns)} columns"]
        return lines + [f"  {reason}" for reason in self.failures if reason not in {c.failure for c in self.columns}]

    def _reward_table(self) -> list[str]:
        shown = [
            [
                f"{level.value:g}",
                *map(percent, (level.share_real, level.share_synthetic)),
                *map(percent, (level.terminated_real, level.terminated_synthetic)),
            ]
            for level in self.reward_levels[:_LEVELS_SHOWN]
        ]
        header = ["reward", "real rows", "synthetic", "terminated, real", "terminated, synthetic"]
        return _table(header, shown, len(self.reward_levels))

    def _column_table(self, count: int) -> list[str]:
        ordered = sorted(self.columns, key=lambda column: -column.severity)
        shown = [
            [
                column.name,
                f"{column.marginal:.4f}",
                f"{column.marginal_baseline:.4f}",
                percent(column.out_of_range),
                "passed" if column.failure is None else f"failed: {column.failure.removeprefix(f'{column.name}: ')}",
            ]
            for column in ordered[:count]
        ]
        header = ["column", "marginal", "real against real", "out of range", "verdict"]
        return _table(header, shown, len(ordered))


def percent(share: float | None) -> str:
    """Format a share for people: 25.3 %."""
    return "-" if share is None or math.isnan(share) else f"{100 * share:.3g} %"


def _table(header: list[str], lines: list[list[str]], total: int) -> list[str]:
    """Aligned lines; a last one says how many of `total` are not shown."""
    widths = [max(len(line[place]) for line in (header, *lines)) for place in range(len(header))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (header, *lines)
    ]
    return text + ([f"({total - len(lines)} more)"] if total > len(lines) else [])


def _json(value: Any) -> Any:
    if is_dataclass(value):
        names = [field.name for field in fields(value) if not field.name.endswith("_by_row")]  # too many for a log
        return {name: _json(getattr(value, name)) for name in names}
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, tuple):
        return [_json(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
