"""fidelity: measures synthetic rows against real ones and judges them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from synther_replay.common.seeding import generator_for
from synther_replay.data.columns import column_names
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.metrics.distances import memorisation
from synther_replay.metrics.report import ColumnFidelity, Fidelity, PairFidelity
from synther_replay.metrics.rows import Rows, clean
from synther_replay.metrics.scores import Correlations, Marginals, correlations, marginals, rank_correlation
from synther_replay.metrics.support import Outside, bounds_of, outside, range_of, reward_levels, termination_rate
from synther_replay.metrics.verdict import Thresholds, judge

_PAIRS = 8  # whose rank correlation is measured, too
_REASONS = 3  # failures named in the warning; the report has all of them


def fidelity(
    real: Rows,
    synthetic: Rows,
    *,
    held_out: Rows | None = None,
    names: Sequence[str] | None = None,
    thresholds: Thresholds | None = None,
    warn: bool = True,
    seed: int = 0,
) -> Fidelity:
    """Compare synthetic rows ``(m, dim)`` with real ones ``(n, dim)`` and judge them.

    The scores are the means of SDMetrics' KSComplement and CorrelationSimilarity. Their baseline compares real with
    real rows: as many as there are synthetic ones, at most half, against the rest. The verdict, `passed` and
    `failures`, applies `Thresholds` to them. Termination rates, levels of the reward and bounds need `Transitions`.

    Args:
        real: Real rows.
        synthetic: Rows to judge.
        held_out: Real rows ``(k, dim)`` that the generator was not trained on. The result then includes `memorisation`.
        names: Names of the observation's columns or of all columns. None: ``observation[0]`` and so on, or
            ``column 0`` for plain matrices.
        thresholds: Largest losses to accept.
        warn: Give a `RuntimeWarning` with the worst failures if a threshold is missed.
        seed: Seed of the choice of rows for the baseline and for `memorisation`.

    Raises:
        TypeError: Rows of another type.
        ValueError: Shapes or specs differ, a set has fewer than two finite rows, or the number of names is wrong.

    >>> fidelity(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([[3.0], [4.0]])).marginal
    0.5
    """
    found = compare_rows(real, synthetic, held_out=held_out, names=names, seed=seed)
    report = found.fidelity
    if held_out is not None:
        report = replace(report, memorisation=memorisation(synthetic, real, held_out, seed=seed))
    report = judge(report, thresholds or Thresholds(), terminated=found.terminated)
    if warn and report.failures:
        rest = f" (and {len(report.failures) - _REASONS} more)" if len(report.failures) > _REASONS else ""
        reasons = "; ".join(report.failures[:_REASONS])
        warnings.warn(f"fidelity: synthetic rows differ from real ones: {reasons}{rest}", RuntimeWarning, stacklevel=2)
    return report


@dataclass(frozen=True, eq=False)
class Compared:
    """Scores that are not judged yet, and what they were computed from."""

    fidelity: Fidelity  # without memorisation and verdict
    real: Tensor  # finite rows, (n, dim)
    synthetic: Tensor  # finite rows, (m, dim)
    held_out: Tensor | None  # finite rows, (k, dim)
    parts: tuple[Tensor, Tensor]  # of the real rows, compared with each other for the baseline
    correlations: Correlations
    spec: TransitionSpec | None  # of the rows, if they are `Transitions`

    @property
    def terminated(self) -> int | None:
        """Number of the column that says whether an episode ended; None without a spec."""
        return None if self.spec is None else int(self.spec.terminated.start)


def compare_rows(
    real: Rows, synthetic: Rows, *, held_out: Rows | None, names: Sequence[str] | None, seed: int
) -> Compared:
    """Measure synthetic against real rows; the arguments are those of `fidelity`."""
    named = {"real": real, "synthetic": synthetic} | ({} if held_out is None else {"held_out": held_out})
    (one, two, *rest), rejected = clean(named)
    spec = next((rows.spec for rows in named.values() if isinstance(rows, Transitions)), None)
    titles = _names(one.shape[1], spec, names)
    parts = _parts(one, len(two), seed)
    found, pairs = marginals(one, two, parts), correlations(parts, two)
    out_of_range = outside(two, range_of(one))
    out_of_bounds = None if spec is None else [outside(rows, bounds_of(spec, one)) for rows in (two, one)]
    report = Fidelity(
        marginal=float(found.scores.mean()),
        correlation=pairs.similarity,
        marginal_by_column=found.scores,
        rejected_real=rejected[0],
        rejected_synthetic=rejected[1],
        memorisation=None,
        rows_real=len(one),
        rows_synthetic=len(two),
        marginal_baseline=float(found.baseline.mean()),
        correlation_baseline=pairs.baseline,
        columns=_columns(titles, found, out_of_range, out_of_bounds),
        out_of_range=out_of_range.share,
        worst_pair=_worst_pair(titles, pairs, one, two),
    )
    if spec is not None and out_of_bounds is not None:
        report = replace(
            report,
            out_of_bounds=out_of_bounds[0].share,
            out_of_bounds_baseline=out_of_bounds[1].share,
            termination_rate_real=termination_rate(one, spec),
            termination_rate_synthetic=termination_rate(two, spec),
            reward_levels=reward_levels(one, two, spec, found.levels[spec.rewards.start]),
        )
    return Compared(report, one, two, rest[0] if rest else None, parts, pairs, spec)


def _names(dim: int, spec: TransitionSpec | None, names: Sequence[str] | None) -> tuple[str, ...]:
    if spec is not None:
        return column_names(spec, names)
    if names is None:
        return tuple(f"column {place}" for place in range(dim))
    if len(names) != dim:
        raise ValueError(f"names: expected {dim} (all columns), got {len(names)}")
    return tuple(map(str, names))


def _parts(real: Tensor, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Split the real rows at random: as many as there are synthetic ones, at most half, and the rest."""
    order = torch.randperm(len(real), generator=generator_for("cpu", seed), device="cpu")  # equal on all devices
    order, size = order.to(real.device), min(size, len(real) // 2)
    return real[order[:size]], real[order[size:]]


def _worst_pair(names: tuple[str, ...], pairs: Correlations, real: Tensor, synthetic: Tensor) -> PairFidelity | None:
    """The worst pair by both correlations, of the few that are worst by Pearson's."""
    found = [
        PairFidelity(
            names=(names[one], names[two]),
            real=float(pairs.real[one, two]),
            synthetic=float(pairs.synthetic[one, two]),
            parts=(float(pairs.first[one, two]), float(pairs.second[one, two])),
            ranks=(
                rank_correlation(real[:, one], real[:, two]),
                rank_correlation(synthetic[:, one], synthetic[:, two]),
            ),
        )
        for one, two in pairs.worst(_PAIRS)
    ]
    return max(found, key=lambda pair: pair.loss, default=None)


def _columns(
    names: tuple[str, ...], found: Marginals, out_of_range: Outside, out_of_bounds: list[Outside] | None
) -> tuple[ColumnFidelity, ...]:
    """The measures of each column, not judged yet."""
    columns = [
        ColumnFidelity(*values)
        for values in zip(names, found.scores.tolist(), found.baseline.tolist(), out_of_range.by_column, strict=True)
    ]
    for place, levels in enumerate(found.levels):
        if out_of_bounds is not None:
            synthetic, real = (part.by_column[place] for part in out_of_bounds)
            columns[place] = replace(columns[place], out_of_bounds=synthetic, out_of_bounds_baseline=real)
        if levels is not None:
            columns[place] = replace(
                columns[place],
                levels=len(levels.values),
                out_of_support=levels.out_of_support,
                out_of_support_baseline=levels.out_of_support_baseline,
                level_distance=levels.distance,
            )
    return tuple(columns)
