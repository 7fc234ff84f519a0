"""Measures: everything that the page shows, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.metrics import Fidelity, Rows, StepFunction, Thresholds
from synther_replay.metrics.compare import compare_rows
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
    found = compare_rows(real, synthetic, held_out=held_out, names=names, seed=seed)
    spec, correlations = found.spec, found.correlations
    if spec is None and (env is not None or value is not None or q is not None):
        raise TypeError("env, q, value: these need Transitions, which say what each column is")
    sets = None if spec is None else (_transitions(spec, found.real), _transitions(spec, found.synthetic))
    closest = nearest(found.real, found.synthetic, found.held_out, seed=seed)
    scores = found.fidelity
    if closest is not None and closest.held_out:
        scores = replace(scores, memorisation=closest.memorisation)
    levels = [column.levels is not None for column in scores.columns]
    return Measures(
        fidelity=judge(scores, thresholds, terminated=found.terminated),
        thresholds=thresholds,
        histograms=column_histograms(found.parts, found.synthetic, levels),
        correlation_real=correlations.real.cpu(),
        correlation_synthetic=correlations.synthetic.cpu(),
        projection=project(found.parts, found.synthetic, correlations.real, seed=seed),
        nearest=closest,
        dynamics=None if env is None or sets is None else compare_dynamics(*sets, env),
        critics={} if sets is None else compare_critics(*sets, q=q, value=value, gamma=gamma),
        terminated=found.terminated,
        seed=seed,
    )


def _transitions(spec: TransitionSpec, rows: Tensor) -> Transitions:
    return Transitions(spec, rows.to(torch.float32))
