"""report: everything about synthetic rows on one page."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from synther_replay.metrics import Fidelity, Rows, StepFunction, Thresholds
from synther_replay.persistence.atomic import replacing
from synther_replay.report.comparison import Comparison
from synther_replay.report.measures import Measures, measure
from synther_replay.report.page import page
from synther_replay.report.remarks import remarks

_HEIGHT = 800  # of the page in a notebook, in pixels


def report(
    real: Rows,
    synthetic: Rows,
    *,
    held_out: Rows | None = None,
    names: Sequence[str] | None = None,
    thresholds: Thresholds | None = None,
    env: str | StepFunction | None = None,
    q: Callable[[Any, Any], Any] | None = None,
    value: Callable[[Any], Any] | None = None,
    gamma: float = 0.99,
    settings: Mapping[str, Any] | None = None,
    title: str = "Quality of synthetic rows",
    seed: int = 0,
) -> QualityReport:
    """Compare synthetic rows ``(m, dim)`` with real ones ``(n, dim)`` on one page.

    In a notebook the result displays itself. Nearest rows, projection and dynamics are measured on some rows, drawn
    with `seed`; the page says how many. The same rows and seed give the same page.

    Args:
        real: Real rows, those that the generator was trained on.
        synthetic: Rows to judge.
        held_out: Real rows ``(k, dim)`` that the generator was not trained on, for a verdict on memorisation.
        names: Names of the observation's columns or of all columns, as in `fidelity`.
        thresholds: Largest losses that the verdict accepts.
        env: Task of Gymnasium for the dynamics error, such as ``HalfCheetah-v5`` (see `synther_replay.simulators`), or
            a function as in `dynamics_error`.
        q: Function from observations and actions to values ``(n,)``, for the TD error; needs `value`.
        value: Function from observations to values ``(n,)``.
        gamma: Discount of the TD error.
        settings: What to show under cost and settings: values, mappings or dataclasses by title, for example
            ``{"Fit": fit_report, "Generator": config}``.
        title: Title of the page.
        seed: Seed of all choices of rows.

    Raises:
        TypeError: Rows of another type.
        ValueError: Shapes or specs differ, a set has fewer than two finite rows, the number of names is wrong, or the
            task has no simulator.

    >>> import torch
    >>> real, synthetic = torch.randn(2, 500, 3, generator=torch.Generator().manual_seed(0))
    >>> report(real, synthetic).passed
    True
    """
    measures = measure(
        real,
        synthetic,
        held_out=held_out,
        names=names,
        thresholds=thresholds or Thresholds(),
        env=env,
        q=q,
        value=value,
        gamma=gamma,
        seed=seed,
    )
    return QualityReport(measures, title, _described(settings or {}))


class QualityReport:
    """A quality report, made by `report`.

    Attributes:
        measures: All numbers of the page.
        title: Title of the page.
        settings: Cost and settings as text, by title and name.
    """

    def __init__(self, measures: Measures, title: str, settings: Mapping[str, Mapping[str, str]]) -> None:
        """Keep the measures; the page is made when it is asked for."""
        self.measures, self.title, self.settings = measures, title, settings

    @property
    def fidelity(self) -> Fidelity:
        """Scores and verdict."""
        return self.measures.fidelity

    @property
    def passed(self) -> bool:
        """Whether no threshold is missed."""
        return self.fidelity.passed

    @property
    def remarks(self) -> list[str]:
        """What is worth knowing and not part of the verdict, such as copies of real rows; a sentence each."""
        return remarks(self.measures)

    @cached_property
    def html(self) -> str:
        """The page: one file without links to others.

        Raises:
            ImportError: Plotly is not installed.
        """
        return page(self.measures, self.title, self.settings)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, atomically, and return its path."""
        target, text = Path(path), self.html
        with replacing(target) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")
        return target

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON values: those of `Fidelity`, and what the page adds to them."""
        measures = self.measures
        values = self.fidelity.to_json()
        values |= {
            "remarks": self.remarks,
            "seed": measures.seed,
            "settings": {title: dict(group) for title, group in self.settings.items()},
        }
        if (closest := measures.nearest) is not None:
            shares = {"copies": closest.copies, "copies_baseline": closest.copies_baseline, "near": closest.near}
            values["nearest"] = shares | {"held_out": closest.held_out, **_quantiles(closest.compared())}
        if (plane := measures.projection) is not None:
            values["coverage"] = {"synthetic": plane.covered, "baseline": plane.covered_baseline}
        if (dynamics := measures.dynamics) is not None:
            errors = {"next_observation": dynamics.next_observation, "reward": dynamics.reward}
            values["dynamics"] = {name: _quantiles(compared) for name, compared in errors.items()}
            values["dynamics"] |= {"simulator": dynamics.simulator, "unanswered": dynamics.unanswered}
        return values | {name: _quantiles(compared) for name, compared in measures.critics.items()}

    def __str__(self) -> str:
        """The summary of `fidelity`."""
        return str(self.fidelity)

    def __repr__(self) -> str:
        """The verdict in one line."""
        verdict = "passed" if self.passed else f"failed: {self.fidelity.failures[0]}"
        return f"QualityReport({self.fidelity.rows_synthetic:,} synthetic rows, {verdict})"

    def _repr_html_(self) -> str:
        """The page in a frame, for notebooks: its style and script do not touch those of the notebook."""
        frame = "width:100%;border:0"
        return f'<iframe srcdoc="{html.escape(self.html)}" height="{_HEIGHT}" style="{frame}"></iframe>'


def _quantiles(compared: Comparison) -> dict[str, dict[str, float]]:
    return {"real": compared.real, "synthetic": compared.synthetic}


def _described(settings: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Settings as text by title and name; single values come under one title."""
    groups: dict[str, dict[str, str]] = {}
    for title, group in settings.items():
        if is_dataclass(group) and not isinstance(group, type):
            group = asdict(group)
        if isinstance(group, Mapping):
            groups[str(title)] = {str(name): _value(value) for name, value in group.items()}
        else:
            groups.setdefault("Settings", {})[str(title)] = _value(group)
    return groups


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
