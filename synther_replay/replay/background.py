"""BackgroundRefit: a refit that is computed beside the learner and taken at a step that the run determines."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch

from synther_replay.common.acceleration import refit_stream
from synther_replay.common.cancelling import cancelled_when
from synther_replay.common.checks import whole_number
from synther_replay.common.requests import Requests, asking
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.protocols import Generator, Schedule
from synther_replay.relevance.guide import Guide
from synther_replay.replay.fits import Fit, ImportedFit, RefitResult, has_jobs, plan_of
from synther_replay.replay.process import RefitProcess, check_portable, check_sent, threads_of_a_process
from synther_replay.replay.refitting import RefitJob, new_fit
from synther_replay.replay.worker import RefitTask

logger = logging.getLogger(__name__)

Where = Literal["thread", "process"]
REFIT_MODES = ("inline", "background")
_LAG = 500  # for schedules without `every`
_LOOKS_EVERY = 0.001  # seconds, for requests of a job that is waited for
_LONGEST_END = 10.0  # seconds to wait for a thread when the interpreter ends


def is_background(refit: Any) -> bool:
    """Whether refits run in the background; raises ValueError for an unknown mode."""
    if refit not in REFIT_MODES:
        raise ValueError(f"refit: expected one of {', '.join(REFIT_MODES)}, got {refit!r}")
    return bool(refit == "background")


def checked_lag(lag: Any, refit: Any) -> int | None:
    """Return a lag as an int, None stays None; raises ValueError for a lag of refits that run inline."""
    if lag is not None and not is_background(refit):
        raise ValueError(f"lag: applies to refit='background' only, got {lag!r} with refit={refit!r}")
    return None if lag is None else whole_number("lag", lag)


def warn_of_long_lag(lag: int | None, schedule: Schedule) -> None:
    """Warn of a lag beyond the schedule's interval: its refits then come less often than it says."""
    every = getattr(schedule, "every", None)
    if lag is not None and isinstance(every, int) and lag > every:
        warnings.warn(
            f"lag: got {lag}, more than every={every} of the schedule; no refit begins before the rows of the last one "
            f"are taken, so there are at least {lag} steps between two refits",
            RuntimeWarning,
            stacklevel=4,
        )


def where_of(generator: Generator) -> Where:
    """Where refits of a generator run in the background: as it says, else a process on a CPU, a thread on a GPU."""
    chosen = getattr(generator, "background", None)
    if chosen is None:
        device = torch.device(getattr(generator, "device", None) or "cpu")
        return "process" if device.type == "cpu" else "thread"
    if chosen not in ("thread", "process"):
        raise ValueError(f"generator: expected background to be 'thread' or 'process', got {chosen!r}")
    return "thread" if chosen == "thread" else "process"


def check_background(generator: Generator, guide: Guide | None) -> None:
    """Raise TypeError unless a generator can be refitted in the background, guided or not."""
    if getattr(generator, "group", None) is not None:
        raise TypeError('refit: a generator that several processes fit together needs refit="inline"')
    if where_of(generator) == "process":
        check_portable(generator)
        if guide is not None and guide.is_planned_later:
            check_sent(guide.relevance, 'use refit="inline"')
    elif not has_jobs(generator):
        raise TypeError(
            f"refit: {type(generator).__name__} cannot be refitted in a thread, because its fit changes it; "
            'it needs begin, commit and revert (see JobGenerator), or use refit="inline"'
        )


def new_background_fit(
    generator: Generator,
    guide: Guide | None,
    real: Transitions,
    options: dict[str, Any],
    *,
    rows: int,
    steps: int,
    device: torch.device,
    is_over: Callable[[], bool] = lambda: False,
) -> Fit:
    """The fit of a job in the background; the generator may change afterwards, the transitions may not.

    Args:
        generator: The generator.
        guide: Guides generation; None: nothing does. It plans in the background if it can.
        real: Valid real transitions.
        options: Arguments of `JobGenerator.begin`.
        rows: Number of rows to generate.
        steps: Environment steps.
        device: Device of the rows that the guide is given.
        is_over: See `Guide.plan`.
    """
    plan = plan_of(guide, real, steps, device, is_over)
    if where_of(generator) == "thread":
        return new_fit(generator, real, options, plan, is_later=True)
    own_guide, plan = (guide, None) if callable(plan) else (None, plan)  # a process plans with a guide of its own
    parts = pickle.dumps((generator, own_guide))
    task = RefitTask(parts, real.spec, real.rows.cpu(), options, plan, rows, steps, threads_of_a_process())
    return ImportedFit(real.spec, generator, guide, RefitProcess(task).compute)


def default_lag(schedule: Schedule) -> int:
    """Half of the schedule's interval: the fastest learners, too, then hardly wait for a refit."""
    every = getattr(schedule, "every", None)
    return max(1, every // 2) if isinstance(every, int) else _LAG


class BackgroundRefit:
    """A job that a thread computes, on a CUDA stream of its own where there is one, or waits for in a process.

    Args:
        job: The job.
        at: Environment steps at which its result is taken.
        device: Device of the rows.
        seed: Seed to go on with after the job; None: that of before.

    Attributes:
        seed: See the argument; the source sets it if it is given another seed meanwhile.
    """

    def __init__(self, job: RefitJob, at: int, device: torch.device, seed: int | None = None) -> None:
        """Start the thread."""
        self.job, self.at, self.seed = job, at, seed
        self._device = device
        self._start()

    def _start(self) -> None:
        self._owner, self._cancelled, self._errors = os.getpid(), threading.Event(), list[BaseException]()
        self._requests = Requests()
        stream = None
        if self._device.type == "cuda":
            stream = refit_stream(self._device)
            # For the rows, and for memory of the last refit that the learner has just freed.
            stream.wait_stream(torch.cuda.current_stream(self._device))
        # A daemon: it must not keep the interpreter from ending; see `_end_all`.
        self._thread = threading.Thread(
            target=_compute,
            args=(self.job, stream, self._cancelled, self._requests, self._errors),
            name="refit",
            daemon=True,
        )
        _running.add((self._cancelled, self._thread))
        self._thread.start()
        self._end = weakref.finalize(self, self._cancelled.set)  # nobody will take its result

    def wait(self) -> None:
        """Wait for the end of the job; an interrupt leaves it as it is."""
        if os.getpid() != self._owner:  # a fork has no other threads, so the job begins again here
            self._end.detach()
            self._start()
        while self._thread.is_alive():
            self._requests.serve()
            self._thread.join(_LOOKS_EVERY)

    @property
    def is_over(self) -> bool:
        """Whether nothing is computed any more."""
        return os.getpid() == self._owner and not self._thread.is_alive()

    def serve(self) -> None:
        """Do what the job needs of the learner's thread, which is to capture CUDA graphs; call it at every step."""
        begun = time.monotonic()
        if self._requests.serve():
            self.job.paused += time.monotonic() - begun

    @property
    def error(self) -> Exception | None:
        """Why the job failed; None after one that did not."""
        if not self._errors:
            return None
        error = self._errors[0]
        return error if isinstance(error, Exception) else RuntimeError(f"the refit ended with {error!r}")

    def drop(self) -> None:
        """End the job soon; nobody waits for it."""
        self._cancelled.set()

    def state_dict(self, generator: Generator, guide: Guide | None) -> dict[str, Any]:
        """Wait for the end of the job, and return its result for a checkpoint."""
        self.wait()
        job, error, result = self.job, self.error, None
        if error is None:
            try:
                result = job.result(generator, guide).state_dict()
            except Exception as refused:  # for example the generator was fitted meanwhile: the resumed run tells
                error = refused
        return {
            "at": self.at,
            "steps": job.steps,
            "real_rows": job.real_rows,
            "rows": job.rows,
            "seed": self.seed,
            "error": None if error is None else f"{type(error).__name__}: {error}",
            "result": result,
        }


def restored_refit(
    state: dict[str, Any],
    spec: TransitionSpec,
    generator: Generator,
    guide: Guide | None,
    job_of: Callable[[Fit, int | None, int, int], RefitJob],
) -> BackgroundRefit:
    """The refit of a `BackgroundRefit.state_dict`, to be taken at its step.

    Args:
        state: The state.
        spec: Layout of the rows.
        generator: The generator, after its own state was loaded.
        guide: The guide, too.
        job_of: Makes a job of a fit, the number of rows to generate (None: not known, the state is of an earlier
            version), the environment steps at its begin and the number of real rows.
    """
    at, steps, real_rows = (whole_number(name, state[name], least=0) for name in ("at", "steps", "real_rows"))
    rows = None if state.get("rows") is None else whole_number("rows", state["rows"])
    error = state["error"]
    result = None if error is not None else RefitResult.from_state(state["result"])

    def computed() -> RefitResult:
        if result is None:
            raise RuntimeError(f"before the save: {error}")
        return result

    logger.info("the refit begun at step %d was waited for when it was saved; its rows are taken at step %d", steps, at)
    job = job_of(ImportedFit(spec, generator, guide, computed), rows, steps, real_rows)
    return BackgroundRefit(job, at, torch.device("cpu"), state["seed"])


def _compute(
    job: RefitJob,
    stream: torch.cuda.Stream | None,
    cancelled: threading.Event,
    requests: Requests,
    errors: list[BaseException],
) -> None:
    try:
        with (
            cancelled_when(cancelled.is_set),
            asking(requests),
            contextlib.nullcontext() if stream is None else torch.cuda.stream(stream),
        ):
            try:
                job.run()
            finally:
                if stream is not None:
                    stream.synchronize()  # the learner reads the result on another stream
    except BaseException as error:
        logger.debug("a refit failed", exc_info=True)
        errors.append(_without_frames(error))
    finally:
        _running.discard((cancelled, threading.current_thread()))


def _without_frames(error: BaseException) -> BaseException:
    """Drop what an error and those before it hold: the memory of a refit, which the learner may need."""
    part: BaseException | None = error
    while part is not None:
        traceback.clear_frames(part.__traceback__)
        part.__traceback__, part = None, part.__cause__ or part.__context__
    return error


_running: set[tuple[threading.Event, threading.Thread]] = set()


@atexit.register
def _end_all() -> None:
    """End all jobs before the interpreter ends: a thread that computes on a GPU would not survive that."""
    running = list(_running)
    for cancelled, _ in running:
        cancelled.set()
    for _, thread in running:
        thread.join(_LONGEST_END)
