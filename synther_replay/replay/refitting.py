"""RefitJob: one refit, from the real transitions to rows that can replace the synthetic ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from synther_replay.common.locking import Lock
from synther_replay.common.progress import in_refit
from synther_replay.common.trees import state_of
from synther_replay.data.transitions import Transitions
from synther_replay.protocols import Generator
from synther_replay.relevance.guide import GuidanceReport, Guide, Plan
from synther_replay.replay.fits import DeferredFit, Fit, ImportedFit, InPlaceFit, MakePlan, RefitResult, has_jobs


@dataclass(frozen=True)
class RefitReport:
    """Result of one refit.

    Attributes:
        fit: Return value of the generator's `fit`.
        rows: Number of generated rows.
        steps: Environment steps when the refit began.
        fit_seconds: Time to fit the generator, with that of a relevance which is scored when the job runs.
        sample_seconds: Time to generate and store the rows.
        relevance: How the refit was guided; None without relevance.
        pause_seconds: Time that the learner stood still, without that of the hook `on_refit`: all of a refit that runs
            inline; of one in the background the time to read and to swap rows, and to wait for it if it was late. None:
            not measured.
        error: Why there are no new rows; None: there are. `rows` are then those of before.
    """

    fit: Any
    rows: int
    steps: int
    fit_seconds: float
    sample_seconds: float
    relevance: GuidanceReport | None = None
    pause_seconds: float | None = None
    error: str | None = None


class RefitJob:
    """A refit that was begun. `run` computes it, `SyntheticSource.commit` takes its result.

    Until the commit nothing of the source changes, so `run` may be called in another thread if the generator has
    `begin` and `commit` (see `JobGenerator`). Other generators are changed by `run`, and restored if it fails.

    Attributes:
        source: Identity of the source that began it.
        version: Version of the real transitions at that time.
        steps: Environment steps at that time.
        real_rows: Number of real rows that it is fitted to.
        rows: Number of rows to generate.
        fresh: The generated rows after `run`, else None.
        is_committed: Whether its result was taken.
        has_failed: Whether the last `run` raised an error.
        paused: Seconds that the learner has stood still for it so far, to begin it and to wait for it.
    """

    def __init__(
        self,
        fit: Fit,
        *,
        rows: int,
        check: Callable[[Transitions], None],
        steps: int,
        real_rows: int = 0,
        source: object = None,
        version: Hashable = None,
        seconds: float = 0.0,
    ) -> None:
        """Keep what `run` needs.

        Args:
            fit: The fit.
            rows: Number of rows to generate.
            check: Raises an error for rows that are not valid.
            steps: Environment steps.
            real_rows: Number of real rows.
            source: Identity of the source.
            version: Version of the real transitions.
            seconds: Time that the preparation took.
        """
        self._fit, self.rows, self._check, self._seconds = fit, rows, check, seconds
        self.source, self.version, self.steps, self.real_rows = source, version, steps, real_rows
        self.fresh: Transitions | None = None
        self.is_committed = self.has_failed = False
        self.paused = 0.0
        self._report: RefitReport | None = None
        self._running = Lock()

    def run(self) -> RefitReport:
        """Fit the generator and generate rows, once; another call waits for it and returns the same report.

        If it raises, the generator is unchanged and `run` may be called again.
        """
        with self._running:
            if self._report is None:
                self.has_failed = False
                self._report = self._run()
            return self._report

    @property
    def is_open(self) -> bool:
        """Whether its result may still be taken."""
        return not (self.is_committed or self.has_failed)

    @property
    def plan(self) -> Plan | None:
        """How generation is guided; None: not at all, or not planned yet."""
        return self._fit.plan

    @property
    def warnings(self) -> tuple[str, ...]:
        """Texts of warnings that were given in another process."""
        return self._fit.result.warnings if isinstance(self._fit, ImportedFit) and self._fit.result is not None else ()

    def _run(self) -> RefitReport:
        begun = time.monotonic()
        try:
            fit = self._fit.run()
            fitted = time.monotonic()
            with in_refit():
                fresh = self._fit.sample(self.rows)
            self._check(fresh)
        except BaseException:
            self.has_failed = True
            self._fit.revert()
            raise
        self.fresh = fresh
        seconds = self._seconds + fitted - begun, time.monotonic() - fitted
        if isinstance(self._fit, ImportedFit) and self._fit.result is not None:
            seconds = self._fit.result.fit_seconds, self._fit.result.sample_seconds
        relevance = None if self.plan is None else self.plan.report
        return RefitReport(fit, len(fresh), self.steps, *seconds, relevance)

    def take_model(self) -> None:
        """Make the fitted model the generator's own."""
        self._fit.commit()

    def return_model(self) -> None:
        """Undo `take_model`."""
        self._fit.revert()
        if isinstance(self._fit, InPlaceFit):  # the fitted model is lost: `run` computes it again
            self.fresh = self._report = None

    def result(self, generator: Generator, guide: Guide | None) -> RefitResult:
        """What `run` made, as data; generator and guide are those of the job."""
        report = self.run()
        if isinstance(self._fit, ImportedFit) and self._fit.result is not None:
            return self._fit.result
        assert self.fresh is not None  # after run
        self.take_model()
        state = state_of(generator)
        if not isinstance(self._fit, InPlaceFit):
            self.return_model()
        relevance = None if guide is None else guide.state_dict()
        seconds = report.fit_seconds, report.sample_seconds
        return RefitResult(report.fit, self.fresh.rows, state, self.plan, relevance, *seconds)


def new_fit(
    generator: Generator, real: Transitions, options: dict[str, Any], plan: MakePlan, *, is_later: bool = False
) -> DeferredFit | InPlaceFit:
    """The fit of a generator to valid real transitions.

    Args:
        generator: The generator.
        real: They may change afterwards, unless the fit begins later or the generator has no jobs.
        options: Arguments of `JobGenerator.begin`.
        plan: How generation is guided, which needs a generator that takes conditions; None: not at all. A function
            makes it when the job runs.
        is_later: Whether the fit begins when the job runs.
    """
    if plan is None and not has_jobs(generator):
        return InPlaceFit(generator, real)
    return DeferredFit(generator, real, options, plan, is_later=is_later or callable(plan))  # type: ignore[arg-type]
