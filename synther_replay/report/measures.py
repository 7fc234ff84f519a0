"""Measures: everything that the page shows, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.metrics import Fidelity, Rows, StepFunction, Thresholds, fidelity
from synther_replay.metrics.compare import baseline_parts
from synther_replay.metrics.rows import clean
from synther_replay.metrics.scores import correlation_matrix
from synther_replay.metrics.verdict import judge
from synther_replay.report.comparison import Comparison
from synther_replay.report.critics import compare_critics
from synther_replay.report.dynamics import Dynamics, compare_dynamics
from synther_replay.report.histograms import Histogram, column_histograms
from synther_replay.report.nearest import Nearest, nearest
from synther_replay.report.projection import Projection, project


@dataclass(frozen=True, eq=False)
class Measures:
    """What was measured.

    Attributes:
        fidelity: Scores and verdict.
        thresholds: Largest losses that the verdict accepts.
        histograms: Counts of each column: two parts of the real rows, which together are all of them, and the
            synthetic rows.
        correlation_real: Correlations of the real columns, ``(dim, dim)``; NaN where a column is constant.
        correlation_synthetic: Those of the synthetic columns.
        projection: Rows on a plane; None if fewer than two columns vary.
        nearest: Distances to the nearest real row; None if the rows are too few or all equal.
        dynamics: Errors against the simulator; None without one.
        critics: Values and TD errors by name; empty without critics.
        terminated: Number of the column that says whether an episode ended; None without a spec.
        seed: Seed of all choices of rows.
    """

    fidelity: Fidelity
    thresholds: Thresholds
    histograms: list[Histogram]
    correlation_real: Tensor
    correlation_synthetic: Tensor
    projection: Projection | None
    nearest: Nearest | None
    dynamics: Dynamics | None
    critics: dict[str, Comparison]
    terminated: int | None
    seed: int

    @property
    def termination_severity(self) -> float:
        """How bad terminations are, 1 at the limit; 0 without a spec."""
        return 0.0 if self.terminated is None else self.fidelity.columns[self.terminated].severity


def measure(
    real: Rows,
    synthetic: Rows,
    *,
    held_out: Rows | None,
    names: Sequence[str] | None,
    thresholds: Thresholds,
    env: str | StepFunction | None,
    q: Callable[[Any, Any], Any] | None,
    value: Callable[[Any], Any] | None,
    gamma: float,
    seed: int,
) -> Measures:
    """Measure synthetic against real rows; the arguments are those of `report`."""
    named = {"real": real, "synthetic": synthetic} | ({} if held_out is None else {"held_out": held_out})
    (one, two, *rest), _ = clean(named)
    spec = next((rows.spec for rows in named.values() if isinstance(rows, Transitions)), None)
    if spec is None and (env is not None or value is not None or q is not None):
        raise TypeError("env, q, value: these need Transitions, which say what each column is")
    terminated = None if spec is None else int(spec.terminated.start)
    sets = None if spec is None else (_transitions(spec, one), _transitions(spec, two))
    parts = baseline_parts(one, len(two), seed)
    scores = fidelity(real, synthetic, names=names, thresholds=thresholds, warn=False, seed=seed)
    closest = nearest(one, two, rest[0] if rest else None, seed=seed)
    if closest is not None and closest.held_out:
        # Judged again rather than measured by `fidelity`, which asks for ten times as many distances.
        scores = judge(replace(scores, memorisation=closest.memorisation), thresholds, terminated=terminated)
    correlations = [correlation_matrix(rows).cpu() for rows in (one, two)]
    levels = [column.levels is not None for column in scores.columns]
    return Measures(
        fidelity=scores,
        thresholds=thresholds,
        histograms=column_histograms(parts, two, levels),
        correlation_real=correlations[0],
        correlation_synthetic=correlations[1],
        projection=project(parts, two, correlations[0], seed=seed),
        nearest=closest,
        dynamics=None if env is None or sets is None else compare_dynamics(*sets, env),
        critics={} if sets is None else compare_critics(*sets, q=q, value=value, gamma=gamma),
        terminated=terminated,
        seed=seed,
    )


def _transitions(spec: TransitionSpec, rows: Tensor) -> Transitions:
    return Transitions(spec, rows.to(torch.float32))
