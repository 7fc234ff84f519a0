"""The verdict on synthetic rows: each measure against its baseline, a threshold and the noise of finite samples.

A column fails if it is worse than its baseline, real rows against other real rows, by more than the larger of

* the threshold: a difference that matters to a learner;
* the noise: a difference that two samples of one distribution exceed with a probability of `Thresholds.false_alarm`.

So few rows never fail by chance, and many rows do not fail for a difference that is certain but harmless.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from synther_replay.metrics.report import ColumnFidelity, Fidelity, percent


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Largest losses against real rows that `fidelity` accepts.

    Attributes:
        column: Loss of one column's marginal, and distance of the shares of its levels. On HalfCheetah the worst column
            of `fast()`, which is good enough to learn from, loses 0.03; that of CTGAN loses 0.10.
        marginal: Loss of the mean marginal. `fast()` loses 0.01, CTGAN 0.06.
        correlation: Loss of the mean correlation. `fast()` loses 0.001, TVAE 0.03.
        pair: Loss of the correlation of one pair of columns. The mean hardly falls where only the reward or a next
            observation belongs to another row, of which nothing can be learnt. Two columns that were equal and are
            independent lose 0.5.
        termination: Difference of the termination rates, relative to the real rate. Terminations end bootstrapping:
            an error in their rate is an error in every value.
        termination_by_reward: Difference of the shares of terminated rows among those with equal reward.
        out_of_support: Share of values that equal no real one, in a column with few values. A batch of 256 rows has
            one in four times at 0.001.
        out_of_bounds: Share of values that the space does not allow, and of rows that are not finite.
        memorisation: Excess of `share_closer` over 0.5. `offline()` has 0.02, copies with noise 0.5.
        false_alarm: Probability that rows of equal distribution miss a threshold by chance, at most.
    """

    column: float = 0.05
    marginal: float = 0.02
    correlation: float = 0.02
    pair: float = 0.1
    termination: float = 0.1
    termination_by_reward: float = 0.02
    out_of_support: float = 0.001
    out_of_bounds: float = 0.001
    memorisation: float = 0.1
    false_alarm: float = 1e-4

    def __post_init__(self) -> None:
        """Check the values."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"{field.name}: expected a number of at least 0, got {value!r}")
        if not 0 < self.false_alarm < 1:
            raise ValueError(f"false_alarm: expected a number between 0 and 1, got {self.false_alarm!r}")


class Check(NamedTuple):
    """How bad a measure is, 1 at the limit, and what to say above it."""

    severity: float
    text: str


def judge(report: Fidelity, thresholds: Thresholds, *, terminated: int | None = None) -> Fidelity:
    """Return the report with severity and failure of each column, and the list of failures, worst first.

    Args:
        report: What was measured.
        thresholds: Largest losses to accept.
        terminated: Number of the column that says whether an episode ended; None without one.
    """
    noise = _Noise(report.rows_real, report.rows_synthetic, thresholds.false_alarm / len(report.columns))
    checks = [list(_of_column(column, thresholds, noise)) for column in report.columns]
    if terminated is not None:
        checks[terminated] = [*_of_termination(report, thresholds, noise), *checks[terminated]]
    columns = []
    for column, found in zip(report.columns, checks, strict=True):
        severity, text = max(found, key=lambda check: check.severity)
        failure = f"{column.name}: {text}" if severity > 1 else None
        columns.append(replace(column, severity=severity, failure=failure))
    failures = [Check(column.severity, column.failure) for column in columns if column.failure is not None]
    failures += [check for check in overall_checks(report, thresholds).values() if check.severity > 1]
    failures.sort(key=lambda check: -check.severity)
    return replace(report, columns=tuple(columns), failures=tuple(check.text for check in failures))


class _Noise:
    """Differences of two samples of one distribution, in multiples of those that chance rarely exceeds.

    Args:
        real: Rows of one sample.
        synthetic: Rows of the other.
        probability: Probability that chance exceeds 1.
    """

    def __init__(self, real: int, synthetic: int, probability: float) -> None:
        self.real, self.synthetic = real, synthetic
        self._inverse = 1 / real + 1 / synthetic
        self._log = math.log(2 / probability)

    def distributions(self, distance: float, levels: int = 0) -> float:
        """Largest difference of the cumulative distributions, by the inequality of Dvoretzky, Kiefer and Wolfowitz.

        With `levels`, total variation distance of their shares: its mean is bounded by Cauchy and Schwarz, and its
        deviation from the mean by McDiarmid's inequality, which is the same.
        """
        return distance / (math.sqrt(levels * self._inverse) / 2 + math.sqrt(self._log / 2 * self._inverse))

    def correlations(self, difference: float) -> float:
        """Difference of the similarity of a pair of columns; a correlation of n rows is normal, with variance 1 / n."""
        return difference / (math.sqrt(2 * self._log * self._inverse) / 2)

    def shares(self, one: float, two: float, real: int | None = None, synthetic: int | None = None) -> float:
        """Shares of real and synthetic rows with some property, by Chernoff's inequality, also for rare ones.

        Of all rows with the property, a share of ``m / (n + m)`` is expected among the synthetic ones.
        """
        n, m = real or self.real, synthetic or self.synthetic
        total = one * n + two * m
        if total == 0 or total == n + m:
            return 0.0
        # the rarer of property and complement has the smaller variance, hence the sharper bound
        return max(self._divergence(one * n, two * m, n, m), self._divergence(n - one * n, m - two * m, n, m))

    def _divergence(self, real: float, synthetic: float, n: int, m: int) -> float:
        total, expected = real + synthetic, m / (n + m)
        parts = ((synthetic, expected), (real, 1 - expected))
        return sum(count * math.log(count / (total * share)) for count, share in parts if count > 0) / self._log


def _of_column(column: ColumnFidelity, thresholds: Thresholds, noise: _Noise) -> Iterator[Check]:
    loss = column.marginal_baseline - column.marginal
    yield Check(
        _severity(loss, thresholds.column, noise.distributions(loss)),
        f"marginal {column.marginal:.3f}, real against real {column.marginal_baseline:.3f}",
    )
    if column.levels is not None and column.level_distance is not None:
        yield Check(
            _excess(column.out_of_support_baseline, column.out_of_support, thresholds.out_of_support, noise),
            f"{percent(column.out_of_support)} of the synthetic values equal none of the {column.levels} real ones",
        )
        chance = noise.distributions(column.level_distance, column.levels)
        yield Check(
            _severity(column.level_distance, thresholds.column, chance),
            f"the shares of its {column.levels} values differ by {percent(column.level_distance)} of the rows",
        )
    yield Check(
        _excess(column.out_of_bounds_baseline, column.out_of_bounds, thresholds.out_of_bounds, noise),
        f"{percent(column.out_of_bounds)} of the synthetic values are out of bounds, "
        f"{percent(column.out_of_bounds_baseline)} of the real ones",
    )


def _of_termination(report: Fidelity, thresholds: Thresholds, noise: _Noise) -> Iterator[Check]:
    real, synthetic = report.termination_rate_real or 0.0, report.termination_rate_synthetic or 0.0
    yield Check(
        _severity(abs(synthetic - real), thresholds.termination * real, noise.shares(real, synthetic)),
        f"{percent(synthetic)} of the synthetic rows, {percent(real)} of the real ones",
    )
    for level in report.reward_levels:
        real, synthetic = level.terminated_real, level.terminated_synthetic
        n, m = round(level.share_real * report.rows_real), round(level.share_synthetic * report.rows_synthetic)
        if n and m:
            chance = noise.shares(real, synthetic, n, m)
            yield Check(
                _severity(abs(synthetic - real), thresholds.termination_by_reward, chance),
                f"{percent(synthetic)} of the synthetic rows with reward {level.value:g}, "
                f"{percent(real)} of the real ones",
            )


def overall_checks(report: Fidelity, thresholds: Thresholds) -> dict[str, Check]:
    """Checks of all columns together, by name; those of a pair and of memorisation only if they were measured."""
    noise = _Noise(report.rows_real, report.rows_synthetic, thresholds.false_alarm)
    loss = report.marginal_baseline - report.marginal
    checks = {
        "marginal": Check(
            _severity(loss, thresholds.marginal, noise.distributions(loss)),
            f"mean marginal {report.marginal:.3f}, real against real {report.marginal_baseline:.3f}",
        )
    }
    loss = report.correlation_baseline - report.correlation
    checks["correlation"] = Check(
        _severity(loss, thresholds.correlation, noise.correlations(loss)),
        f"mean correlation {report.correlation:.3f}, real against real {report.correlation_baseline:.3f}",
    )
    if (pair := report.worst_pair) is not None:
        count = len(report.columns) * (len(report.columns) - 1) / 2
        chance = _Noise(report.rows_real, report.rows_synthetic, thresholds.false_alarm / count)
        checks["pair"] = Check(
            _severity(pair.loss, thresholds.pair, chance.correlations(pair.loss)),
            f"correlation of {' and '.join(pair.names)} {pair.synthetic:.2f}, in the real rows {pair.real:.2f}",
        )
    real = report.rejected_real / (report.rows_real + report.rejected_real)
    synthetic = report.rejected_synthetic / (report.rows_synthetic + report.rejected_synthetic)
    checks["finite"] = Check(
        _excess(real, synthetic, thresholds.out_of_bounds, noise),
        f"{percent(synthetic)} of the synthetic rows are not finite",
    )
    if (memory := report.memorisation) is not None:
        loss = memory.share_closer - 0.5
        checks["memorisation"] = Check(
            _severity(loss, thresholds.memorisation, noise.distributions(loss)),
            f"{percent(memory.share_closer)} of the synthetic rows are closer to training than to held-out rows",
        )
    return checks


def _excess(real: float | None, synthetic: float | None, threshold: float, noise: _Noise) -> float:
    """Severity of a share that should be no larger than that of the real rows; 0 if it was not measured."""
    if real is None or synthetic is None:
        return 0.0
    return _severity(synthetic - real, threshold, noise.shares(real, synthetic))


def _severity(loss: float, threshold: float, chance: float) -> float:
    """Severity of a loss: it has to exceed the threshold, and what chance gives."""
    if not loss > 0:  # also NaN: nothing was measured
        return 0.0
    return min(loss / threshold if threshold else math.inf, chance)
