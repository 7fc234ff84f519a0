"""RefitJob: one refit, from the real transitions to rows that can replace the synthetic ones."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeGuard

from synther_replay.common.locking import Lock
from synther_replay.common.progress import in_refit
from synther_replay.common.trees import state_of
from synther_replay.data.transitions import Transitions
from synther_replay.protocols import Generator, JobGenerator, Stateful
from synther_replay.relevance.guide import GuidanceReport, Plan


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
    """

    fit: Any
    rows: int
    steps: int
    fit_seconds: float
    sample_seconds: float
    relevance: GuidanceReport | None = None


class RefitJob:
    """A refit that was begun. `run` computes it, `SyntheticSource.commit` takes its result.

    Until the commit nothing of the source changes, so `run` may be called in another thread if the generator has
    `begin` and `commit` (see `JobGenerator`). Other generators are changed by `run`, and restored if it fails.

    Attributes:
        source: Identity of the source that began it.
        version: Version of the real transitions at that time.
        steps: Environment steps at that time.
        real_rows: Number of real rows that it is fitted to.
        fresh: The generated rows after `run`, else None.
        is_committed: Whether its result was taken.
        has_failed: Whether the last `run` raised an error.
    """

    def __init__(
        self,
        generator: Generator,
        real: Transitions,
        *,
        rows: int,
        check: Callable[[Transitions], None],
        source: object,
        version: Hashable,
        steps: int,
        options: dict[str, Any],
        plan: Plan | Callable[[], Plan] | None = None,
    ) -> None:
        """Prepare the fit.

        Args:
            generator: The generator.
            real: Valid real transitions; they may change afterwards, unless the plan is a function.
            rows: Number of rows to generate.
            check: Raises an error for rows that are not valid.
            source: Identity of the source.
            version: Version of the real transitions.
            steps: Environment steps.
            options: Arguments of `JobGenerator.begin`.
            plan: How generation is guided, which needs a generator that takes conditions; None: not at all. A function
                makes it when the job runs.
        """
        begun = time.monotonic()
        self._fit: _Guided | _Job | _InPlace
        if plan is not None:
            self._fit = _Guided(generator, real, options, plan)
        else:
            self._fit = _Job(generator, real, options) if _has_jobs(generator) else _InPlace(generator, real)
        self._seconds = time.monotonic() - begun
        self._rows, self._check = rows, check
        self.source, self.version, self.steps, self.real_rows = source, version, steps, len(real)
        self.fresh: Transitions | None = None
        self.is_committed = self.has_failed = False
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
        return self._fit.plan if isinstance(self._fit, _Guided) else None

    def _run(self) -> RefitReport:
        begun = time.monotonic()
        try:
            fit = self._fit.run()
            fitted = time.monotonic()
            with in_refit():
                fresh = self._fit.sample(self._rows)
            self._check(fresh)
        except BaseException:
            self.has_failed = True
            self._fit.revert()
            raise
        seconds = self._seconds + fitted - begun
        self.fresh = fresh
        relevance = None if self.plan is None else self.plan.report
        return RefitReport(fit, len(fresh), self.steps, seconds, time.monotonic() - fitted, relevance)

    def take_model(self) -> None:
        """Make the fitted model the generator's own."""
        self._fit.commit()

    def return_model(self) -> None:
        """Undo `take_model`."""
        self._fit.revert()
        if isinstance(self._fit, _InPlace):  # the fitted model is lost: `run` computes it again
            self.fresh = self._report = None


class _Job:
    """Fit of a generator that keeps its model until the commit."""

    def __init__(self, generator: JobGenerator, real: Transitions, options: dict[str, Any]) -> None:
        self._generator, self._job, self._is_taken = generator, generator.begin(real, **options), False

    def run(self) -> Any:
        return self._job.run()

    def sample(self, rows: int, **options: Any) -> Transitions:
        fresh: Transitions = self._job.sample(rows, **options)
        return fresh

    def commit(self) -> None:
        self._generator.commit(self._job)
        self._is_taken = True

    def revert(self) -> None:
        if self._is_taken:
            self._generator.revert(self._job)
            self._is_taken = False


class _Guided:
    """Fit with the conditions of a plan. If `run` makes the plan, it begins the fit, too."""

    def __init__(
        self, generator: Any, real: Transitions, options: dict[str, Any], plan: Plan | Callable[[], Plan]
    ) -> None:
        self._generator, self._real, self._options = generator, real, options
        self.plan: Plan | None = None
        self._job: _Job | None = None
        if callable(plan):
            self._make_plan = plan
        else:
            self.plan = plan
            self._begin(plan)

    def _begin(self, plan: Plan) -> _Job:
        self._job = _Job(self._generator, self._real, {**self._options, "condition": plan.condition})
        del self._real  # the job has its own copy
        return self._job

    def run(self) -> Any:
        if self.plan is None:
            self.plan = self._make_plan()  # once, because it trains the relevance
        return (self._job or self._begin(self.plan)).run()

    def sample(self, rows: int) -> Transitions:
        assert self.plan is not None and self._job is not None  # after run
        return self.plan.sample(self._job.sample, rows)

    def commit(self) -> None:
        assert self._job is not None  # after run
        self._job.commit()

    def revert(self) -> None:
        if self._job is not None:
            self._job.revert()


class _InPlace:
    """Fit of a generator that has only `fit` and `sample`; its state is kept to undo it."""

    def __init__(self, generator: Generator, real: Transitions) -> None:
        self._generator, self._real = generator, real
        self._before: dict[str, Any] | None = None

    def run(self) -> Any:
        if isinstance(self._generator, Stateful):
            self._before = state_of(self._generator)
        return self._generator.fit(self._real)

    def sample(self, rows: int) -> Transitions:
        return self._generator.sample(rows)

    def commit(self) -> None:
        """Nothing is left to do."""

    def revert(self) -> None:
        if self._before is not None and isinstance(self._generator, Stateful):
            self._generator.load_state_dict(self._before)


def _has_jobs(generator: Generator) -> TypeGuard[JobGenerator]:
    """Whether the jobs of a generator do what its `fit` and `sample` do; not if those were overridden without jobs."""

    def owner(name: str) -> type | None:
        return next((cls for cls in type(generator).__mro__ if name in vars(cls)), None)

    if not isinstance(generator, JobGenerator) or {"fit", "sample"} & getattr(generator, "__dict__", {}).keys():
        return False
    begin, *others = owner("begin"), owner("fit"), owner("sample")
    # A method without an owner belongs to another object, which a wrapper passes calls on to.
    return begin is not None and all(other is not None and issubclass(begin, other) for other in others)


def takes_conditions(generator: Generator) -> bool:
    """Whether the fits of a generator are jobs that take conditions."""
    if not _has_jobs(generator):
        return False
    options = inspect.signature(generator.begin).parameters
    return "condition" in options or any(option.kind is option.VAR_KEYWORD for option in options.values())
