"""SyntheticRows: generated transitions, replaced by refits of their generator to real ones."""

from __future__ import annotations

import functools
import logging
import time
import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch

from synther_replay.common.checks import check_call, check_hook, names_argument, received, resolve_device, whole_number
from synther_replay.common.locking import Lock
from synther_replay.common.notices import Notices
from synther_replay.common.seeding import Stream, derive_seed
from synther_replay.common.short_forms import default_preset
from synther_replay.data.mismatch import mismatch
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.protocols import Generator, RealTransitions, Schedule
from synther_replay.relevance.guidance import Guidance
from synther_replay.relevance.guide import Guide, Plan
from synther_replay.relevance.protocol import Relevance
from synther_replay.relevance.rewards import Return
from synther_replay.replay.background import (
    BackgroundRefit,
    check_background,
    checked_lag,
    is_background,
    new_background_fit,
    warn_of_long_lag,
    where_of,
)
from synther_replay.replay.examination import Examination, check_generated
from synther_replay.replay.fits import Fit, plan_of, takes_conditions
from synther_replay.replay.indices import ShuffleStream
from synther_replay.replay.mixing import check_real_ratio
from synther_replay.replay.refitting import RefitJob, RefitReport, new_fit
from synther_replay.replay.schedule import as_schedule
from synther_replay.replay.store import SyntheticStore

logger = logging.getLogger(__name__)


class SyntheticRows:
    """Rows of a generator that can be refitted to real transitions; `ScheduledRows` adds when that happens."""

    _needs: Any = RealTransitions
    _is_in_hook = False  # whether `on_refit` runs
    # Makes a generator from a short form. `synther_replay.options` sets it: this package knows no diffusion.
    make_generator: ClassVar[Callable[..., Generator]]

    def __init__(
        self,
        real: RealTransitions,
        generator: Generator | Callable[..., Generator] | Mapping[str, Any] | str | Any = None,
        *,
        spec: TransitionSpec | None = None,
        real_ratio: float = 0.5,
        capacity: int = 1_000_000,
        schedule: Schedule | Mapping[str, Any] | str | int | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
        on_refit: Callable[[RefitReport], object] | None = None,
        relevance: Any = None,
        refit: str = "inline",
        lag: int | None = None,
    ) -> None:
        """Check the arguments and create an empty store."""
        seed = whole_number("seed", seed, least=0)
        self._in_background = is_background(refit)
        self._lag = checked_lag(lag, refit)
        guidance = Guidance.of(relevance)
        self._guide = None if guidance is None else Guide(guidance, derive_seed(seed, Stream.RELEVANCE))
        self._plan: Plan | None = None  # of the model in use
        check_hook(on_refit)
        if not isinstance(real, self._needs):
            raise TypeError(f"real: expected the methods of {self._needs.__name__}, got {type(real).__name__}")
        spec = spec or getattr(generator, "spec", None) or getattr(real, "spec", None)
        if not isinstance(spec, TransitionSpec):
            raise TypeError(f"spec: required, because neither generator nor real has a spec (got {spec!r})")
        _check_spec("real", real, spec)
        if isinstance(self.relevance, Return) and not getattr(real, "is_ordered", True):
            raise ValueError(f"relevance: Return needs rows in the order of their steps, not {type(real).__name__}")
        self.real, self.spec = real, spec
        self.real_ratio = check_real_ratio(real_ratio)
        if not isinstance(generator, Generator) and not callable(generator):
            device = resolve_device(device or "auto")
            generator = functools.partial(self.make_generator, generator, spec, seed=seed)
            generator = generator(device=device) if self.real_ratio < 1.0 else generator
        if device is None:
            device = getattr(generator, "device", "cpu")
        self.generator = generator
        self.store = SyntheticStore(spec, capacity, resolve_device(device), seed=seed)
        self.schedule = schedule
        self.on_refit = on_refit
        self.steps = len(real)
        self.refits = 0
        self.last_refit: RefitReport | None = None
        self._last_attempt: int | None = None
        self._generated_at: int | None = None  # steps when the rows in the store were generated
        self._version = _version_of(real)  # of the rows that store and model are made from
        self._is_stale = False  # whether the model is of another version
        self._identity = object()  # jobs remember it; a copy has another one, and so has a refitted source
        self._job: weakref.ref[RefitJob] | None = None  # of the last `begin`
        self._pending: BackgroundRefit | None = None
        self._adding = Lock()
        self._examination = Examination()
        self._failures, self._reported = 0, Notices()  # failed refits since the last successful one
        self._shuffles = ShuffleStream(derive_seed(seed, Stream.PLACES), self.device)

    @property
    def device(self) -> torch.device:
        """Device of synthetic rows and batches."""
        return self.store.device

    @property
    def generator(self) -> Generator:
        """The generator; made now if it was not needed before."""
        if not isinstance(self._generator, Generator):
            self.generator = self._generator(device=self.device)
            if not isinstance(self._generator, Generator):
                raise TypeError(f"generator: expected a function that makes one, it made {self._generator!r}")
        return self._generator

    @generator.setter
    def generator(self, generator: Generator | Callable[..., Generator]) -> None:
        if not isinstance(generator, Generator):
            _check_maker(generator)
        _check_spec("generator", generator, self.spec)
        if isinstance(generator, Generator):
            check_generator(generator, self._guide, in_background=self._in_background)
        self._generator = generator
        if self.real_ratio < 1.0 and isinstance(generator, Generator):
            self._warn_of_small_buffer()

    @property
    def schedule(self) -> Schedule:
        """When to refit; can be set during a run, also in a short form of `RetrainSchedule.of`."""
        return self._schedule

    @schedule.setter
    def schedule(self, schedule: Schedule | Mapping[str, Any] | str | int | None) -> None:
        schedule = as_schedule(schedule, default=default_preset(self.device))
        warn_of_long_lag(self._lag, schedule)
        self._schedule: Schedule = schedule

    @property
    def relevance(self) -> Relevance | None:
        """What real rows are scored by; None: generation is not guided."""
        return None if self._guide is None else self._guide.relevance

    @property
    def store_age(self) -> int | None:
        """Environment steps since the synthetic rows were generated; None if there are none."""
        if not len(self.store) or self._generated_at is None:
            return None
        return max(0, self.steps - self._generated_at)

    def refit(self, rows: int | None = None) -> RefitReport:
        """Fit the generator to the real transitions, generate rows and replace the synthetic ones in one step.

        It is `begin` and `commit` in a row. Invalid real rows are left out, see `usable_transitions`. If it raises,
        generator and store are unchanged.

        Args:
            rows: Number of rows to generate, at most the capacity. None: the schedule's number.
        """
        before, self._last_attempt = self._last_attempt, self.steps
        try:
            return self.commit(self._new_job(rows))
        except Exception:
            # It reaches the user anyway, as itself or as a warning; the log has its traceback.
            logger.info("refit at step %d failed; %s", self.steps, self._kept(), exc_info=True)
            raise
        except BaseException:
            self._last_attempt = before  # an interrupted refit stays due
            logger.warning("refit at step %d was interrupted; %s", self.steps, self._kept())
            raise

    def begin(self, rows: int | None = None) -> RefitJob:
        """Begin a refit with the real transitions of this moment.

        `RefitJob.run` computes it, here or in another thread, and `commit` takes its result: model and rows stay as
        they are until then. The schedule counts from here, and no other refit becomes due until the job is committed
        or dropped.

        Args:
            rows: Number of rows to generate, at most the capacity. None: the schedule's number.
        """
        job = self._new_job(rows)
        self._job = weakref.ref(job)  # weak: a job that is dropped is over
        return job

    def _new_job(self, rows: int | None, *, in_background: bool = False) -> RefitJob:
        """A job for the real rows of now."""
        rows = self.schedule.rows if rows is None else whole_number("rows", rows)
        paused_at = time.monotonic()
        self._let_job_end()
        is_stale = self._forget_other_version()
        self._last_attempt = self.steps
        real = self._examination.usable(self.real, least=self._least_rows())
        begun, guide = time.monotonic(), self._guide
        count = min(rows, self.store.capacity)
        options: dict[str, Any] = {"from_scratch": True} if is_stale else {}
        is_later = guide is not None and guide.is_planned_later
        if (in_background or is_later) and not getattr(self.real, "gives_copies", False):
            real = Transitions(real.spec, real.rows.clone())  # some buffers return the rows that they go on writing to
        is_over = functools.partial(self._is_overtaken, self._identity, self._version)
        fit: Fit
        if in_background:
            where: dict[str, Any] = {"rows": count, "steps": self.steps, "device": self.device}
            fit = new_background_fit(self.generator, guide, real, options, is_over=is_over, **where)
        else:
            fit = new_fit(self.generator, real, options, plan_of(guide, real, self.steps, self.device, is_over))
        job = self._job_of(fit, count, self.steps, len(real), time.monotonic() - begun)
        job.paused = time.monotonic() - paused_at
        return job

    def _job_of(self, fit: Fit, rows: int, steps: int, real_rows: int, seconds: float = 0.0) -> RefitJob:
        return RefitJob(
            fit,
            rows=rows,
            check=functools.partial(check_generated, self.spec, count=rows),
            steps=steps,
            real_rows=real_rows,
            source=self._identity,
            version=self._version,
            seconds=seconds,
        )

    def commit(self, job: RefitJob) -> RefitReport:
        """Take model and rows of a job in one step; if it has not run yet, it runs now.

        Raises:
            ValueError: The job was begun by another buffer, before the last commit, load or removal of rows, or with
                another version of the real transitions. Nothing is changed.
        """
        if self._is_in_hook:
            raise RuntimeError("on_refit: the hook must not refit, because every refit calls it")
        if not isinstance(job, RefitJob):
            raise TypeError(f"job: expected a RefitJob, got {job!r}")
        if job.is_committed:
            raise ValueError("job: it was committed before")
        if job.source is not self._identity:
            raise ValueError(
                "job: it was begun by another buffer, or before this one was refitted, loaded, emptied or started over"
            )
        if job.version != _version_of(self.real):
            raise ValueError(f"job: it was begun with version {job.version!r} of the real transitions")
        begun = time.monotonic()
        report = self._swap(job, job.run(), begun)
        job.is_committed = True
        logger.info(
            "refit %d at step %d: fitted to %d real rows in %.1f s%s, generated %d rows in %.1f s, paused %.2f s",
            self.refits,
            job.steps,
            job.real_rows,
            report.fit_seconds,
            _losses(report.fit),
            report.rows,
            report.sample_seconds,
            report.pause_seconds,
        )
        return report

    def _swap(self, job: RefitJob, report: RefitReport, begun: float) -> RefitReport:
        """Take model and rows of a job that has run, and tell the hook; if anything fails, nothing is changed.

        Args:
            job: The job.
            report: Its report.
            begun: When the commit began, which the report's pause counts from.
        """
        ran = time.monotonic()
        assert job.fresh is not None  # after run
        changed = "_identity", "refits", "last_refit", "_generated_at", "_failures", "_reported", "_is_stale", "_plan"
        before, previous = {name: getattr(self, name) for name in changed}, None  # other threads may add rows meanwhile
        try:
            job.take_model()
            previous = self.store.replace(job.fresh)
            now = time.monotonic()
            report = replace(
                report,
                sample_seconds=report.sample_seconds + now - ran,
                pause_seconds=job.paused + now - begun,
            )
            self.refits += 1
            self.last_refit, self._generated_at = report, job.steps
            self._failures, self._reported, self._is_stale, self._plan = 0, Notices(), False, job.plan
            self._identity = object()  # jobs that were begun before are overtaken
            if self.on_refit is not None:
                self._is_in_hook = True
                self._call_hook(report)
        except BaseException:
            vars(self).update(before)
            if previous is not None:
                self.store.put_back(previous)
            job.return_model()
            raise
        finally:
            self._is_in_hook = False
        return report

    def _call_hook(self, report: RefitReport) -> None:
        """Call `on_refit` with a report, and with the source if it takes that."""
        hook: Any = self.on_refit
        try:
            hook(report, self) if getattr(hook, "takes_source", False) else hook(report)
        except Exception as error:
            error.add_note("raised by on_refit, which undoes the refit")
            raise

    def usable_transitions(self) -> Transitions:
        """Return the real transitions without invalid rows (NaN, infinity), with actions clipped to their space.

        A warning tells the number and place of such rows: once, and again when there are ten times as many.
        """
        return self._examination.usable(self.real)

    def reseed(self, seed: int) -> None:
        """Continue with another seed, so that copies in several workers draw different rows.

        Real transitions and generators with a method `reseed` continue with it, too.
        """
        seed = whole_number("seed", seed, least=0)
        if self._pending is not None:
            self._pending.wait()  # it is of the seed of before
            self._pending.seed = seed
        self.store.reseed(seed)
        self._shuffles = ShuffleStream(derive_seed(seed, Stream.PLACES), self.device)
        if isinstance(self._generator, functools.partial) and "seed" in self._generator.keywords:  # not made yet
            self._generator = functools.partial(self._generator, seed=seed)
        if hasattr(self.real, "reseed"):
            self.real.reseed(seed)
        self._reseed_model(seed)

    def _reseed_model(self, seed: int) -> None:
        if hasattr(self._generator, "reseed"):
            self._generator.reseed(seed)
        if self._guide is not None:
            self._guide.reseed(derive_seed(seed, Stream.RELEVANCE))

    def start_over(self) -> None:
        """Remove all synthetic rows and set the step count to 0; the schedule starts again, the model is kept.

        For a real buffer whose contents were replaced.
        """
        self.clear()
        self.steps, self._last_attempt = 0, None

    def clear(self) -> None:
        """Remove all synthetic rows; jobs that were begun before are refused. Model and step count are kept."""
        self.store.clear()
        self._identity = object()

    def generate(self, rows: int) -> Transitions:
        """Generate rows with the current model and check that they are valid transitions of the spec."""
        self._let_job_end()
        draw, plan = self.generator.sample, self._plan
        fresh = draw(rows) if plan is None else plan.sample(draw, rows)
        check_generated(self.spec, fresh, rows)
        return fresh

    def to(self, device: torch.device | str) -> Self:
        """Move synthetic rows and batches, and the generator if it has a method `to`, to another device."""
        self._let_job_end()
        self.store.to(resolve_device(device))
        self._shuffles.to(self.device)
        if isinstance(self._generator, Generator) and hasattr(self._generator, "to"):  # else it will be made there
            self._generator.to(self.device)
        return self

    def _forget_other_version(self) -> bool:
        """Remove what was made from another version of the real rows; return whether the model is such."""
        version = _version_of(self.real)
        if version != self._version:
            self._let_job_end()
            logger.info("version %r of the real rows follows %r: synthetic rows are removed", version, self._version)
            self.store.clear()
            self._version, self._last_attempt, self._is_stale = version, None, True
            if self._guide is not None:
                self._guide.forget()
        return self._is_stale

    def _let_job_end(self) -> None:
        """Wait for a job in a thread: it may hold locks of generator and guide and ask for this thread meanwhile."""
        if self._pending is not None and where_of(self.generator) == "thread":
            self._pending.wait()

    def _is_overtaken(self, identity: object, version: Hashable) -> bool:
        """Whether `commit` would refuse a job that was begun with this identity and version."""
        return identity is not self._identity or version != self._version

    def _has_open_job(self) -> bool:
        """Whether `commit` would take the job of the last `begin`, and nobody has dropped it."""
        job = None if self._job is None else self._job()
        return job is not None and job.is_open and not self._is_overtaken(job.source, job.version)

    def _kept(self) -> str:
        return f"kept the previous model and {len(self.store)} synthetic rows"

    def _warn_of_small_buffer(self) -> None:
        """Warn of a real buffer that never holds enough rows for a refit; not all say how many they hold."""
        capacity, least = getattr(self.real, "capacity", None), self._least_rows()
        if isinstance(capacity, int) and capacity < least:
            warnings.warn(
                f"real: holds at most {capacity} transitions, and the generator needs at least {least}: there will be "
                "no refit, and every batch is real",
                RuntimeWarning,
                stacklevel=4,
            )

    def _least_rows(self) -> int:
        return max(1, getattr(self.generator, "min_rows", 1))


def check_generator(generator: Generator, guide: Guide | None, *, in_background: bool) -> None:
    """Raise an error unless a generator can be refitted with this guide, inline or in the background.

    Raises:
        TypeError: It cannot be guided or fitted in the background, or its methods take other arguments.
        ValueError: It is a stack.
    """
    check_call("generator: expected fit(transitions)", generator.fit, None)
    check_call("generator: expected sample(n)", generator.sample, 1)
    if guide is not None and not takes_conditions(generator):
        raise TypeError(
            f"relevance: {type(generator).__name__} cannot be guided; its begin must take the argument condition, "
            "as that of DiffusionGenerator does"
        )
    if (stack := getattr(generator, "stack", 1)) != 1:
        raise ValueError(f"generator: expected stack=1, got {stack}")
    if in_background:
        check_background(generator, guide)


def _check_maker(make: Any) -> None:
    """Raise TypeError unless a generator can be made by ``make(device=...)``, as far as can be told before the call."""
    expected = "generator: expected an object with fit and sample, or a function that makes one on a given device"
    owner = make if isinstance(make, type) else getattr(make, "__self__", None)
    makes_own = isinstance(owner, type) and not (hasattr(owner, "fit") and hasattr(owner, "sample"))
    if makes_own and not names_argument(make, "device"):
        raise TypeError(f"{expected}, {received(make)}")  # it makes something else, such as settings
    check_call(expected, make, device=None)


def _check_spec(name: str, part: object, spec: TransitionSpec) -> None:
    if (own := getattr(part, "spec", spec)) != spec:
        raise ValueError(f"{name}: {mismatch(own, spec)}")


def _version_of(real: object) -> int | str | None:
    """Version of the real transitions; None if they have none."""
    version = getattr(real, "version", None)
    if version is not None and not isinstance(version, int | str):
        raise TypeError(f"real: expected a version that is an int or str, got {version!r}")
    return version


def _losses(fit: Any) -> str:
    """Losses of a fit report for the log; empty for generators that report none."""
    losses = (("loss", getattr(fit, "loss", None)), ("held-out loss", getattr(fit, "held_out_loss", None)))
    return "".join(f", {name} {value:.4f}" for name, value in losses if isinstance(value, float))
