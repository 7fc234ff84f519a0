"""ScheduledRows: synthetic rows whose refits come on schedule, inline or in the background, and never end a run."""

from __future__ import annotations

import logging
import time
import warnings
import weakref
from typing import Any

from synther_replay.replay.background import REFIT_MODES, BackgroundRefit, default_lag, restored_refit
from synther_replay.replay.fits import Fit
from synther_replay.replay.refitting import RefitJob, RefitReport
from synther_replay.replay.synthetic_rows import SyntheticRows

logger = logging.getLogger(__name__)

_LONG_WAIT = 1.0  # seconds
_OVERTAKEN = "the result of this refit is discarded: another refit, a load or a removal of rows came first"


class ScheduledRows(SyntheticRows):
    """Rows of a generator that is refitted to real transitions on schedule; see `SyntheticSource`, which adds draws."""

    @property
    def refit_mode(self) -> str:
        """``"inline"`` or ``"background"``."""
        return REFIT_MODES[self._in_background]

    @property
    def lag(self) -> int:
        """Environment steps from the begin of a refit in the background to the step that takes its rows."""
        return self._lag or default_lag(self.schedule)

    @property
    def pending_at(self) -> int | None:
        """Environment steps at which the rows of the refit in the background are taken; None if there is none."""
        return None if self._pending is None else self._pending.at

    def refit_if_due(self) -> RefitReport | None:
        """Refit if it is due, ``real_ratio < 1`` and there are at least `generator.min_rows` real rows.

        Not while a job of `begin` is neither committed nor dropped: that is the refit. Errors are warnings. With
        ``refit="background"`` it only begins, and the call that is `lag` steps later takes its rows.
        """
        if self.real_ratio == 1.0:
            return None
        is_due, pending = False, self._pending
        try:
            self._forget_other_version()
            if pending is None:
                is_due = self.schedule.is_due(self.steps, self._last_attempt)
                if not is_due:
                    self._examination.first_look(self.real)
                    return None
                if self._has_open_job() or len(self.real) < self._least_rows():
                    return None
        except Exception as error:
            if is_due:  # a generator that cannot be made: not again at every batch
                self._last_attempt = self.steps
            self._warn_of(error)
            return None
        if pending is not None:
            return self._take_if_due(pending)
        if not self._in_background:
            return self.refit_or_warn()
        self._begin_in_background()
        return None

    def wait_for_refit(self) -> None:
        """Wait for the end of a refit in the background; its rows are taken at their step all the same.

        Saving does so, too. Call it before a file is opened that an interrupted wait would leave half written.
        """
        if self._pending is not None and not self._pending.is_over:
            logger.info("waiting for the refit begun at step %d", self._pending.job.steps)
            self._pending.wait()

    def _begin_in_background(self) -> None:
        try:
            job = self._new_job(None, in_background=True)
            self._job = weakref.ref(job)
            self._pending = BackgroundRefit(job, self.steps + self.lag, self.device)
        except Exception as error:
            self._warn_of(error)

    def _take_if_due(self, pending: BackgroundRefit) -> RefitReport | None:
        """Take the rows of a job in the background at its step, after waiting for it; whatever went wrong is told."""
        job = pending.job
        if self._is_overtaken(job.source, job.version):
            pending.drop()
            self._pending = None
            self._warn_of(RuntimeError(_OVERTAKEN), job.steps)
            return None
        if self.steps < pending.at:
            pending.serve()
            return None
        begun = time.monotonic()
        pending.wait()
        waited = time.monotonic() - begun
        job.paused += waited
        self._pending = None
        if waited > _LONG_WAIT:
            logger.info(
                "waited %.1f s for the refit of step %d; a larger lag than %d avoids it", waited, job.steps, self.lag
            )
        try:
            if pending.error is not None:
                raise pending.error
            for text in job.warnings:
                warnings.warn(text, RuntimeWarning, stacklevel=4)
            report = self.commit(job)
        except Exception as error:
            self._job = None  # whoever keeps the error may keep the job: it is over all the same
            self._warn_of(error, job.steps)
            return None
        if pending.seed is not None:  # the result is of the seed of before
            self._reseed_model(pending.seed)
        return report

    def refit_or_warn(self) -> RefitReport | None:
        """Refit; on any failure warn, keep the previous model and rows, and return None.

        A training run outlives whatever goes wrong here: a diverged fit, memory that runs out, invalid data, an error
        in a generator. The same failure is reported again only at the tenth time in a row. Interrupts propagate.
        """
        try:
            return self.refit()
        except Exception as error:
            self._warn_of(error)
            return None

    def _pending_state(self) -> dict[str, Any] | None:
        """What a job in the background made, after waiting for it; None if there is none."""
        pending = self._pending
        if pending is None or self._is_overtaken(pending.job.source, pending.job.version):
            return None
        return pending.state_dict(self.generator, self._guide)

    def _restored_pending(self, state: dict[str, Any] | None) -> BackgroundRefit | None:
        """The job of a `_pending_state`, to be taken at its step."""
        if state is None:
            return None
        pending = restored_refit(state, self.spec, self.generator, self._guide, self._restored_job)
        self._job = weakref.ref(pending.job)
        return pending

    def _restored_job(self, fit: Fit, rows: int | None, steps: int, real_rows: int) -> RefitJob:
        return self._job_of(fit, rows or min(self.schedule.rows, self.store.capacity), steps, real_rows)

    def _warn_of(self, error: Exception, steps: int | None = None) -> None:
        """Tell of a refit that failed; `steps` are those of its begin, None: of now."""
        steps = self.steps if steps is None else steps
        self._failures += 1
        if getattr(self.on_refit, "takes_failures", False):
            cause = f"{type(error).__name__}: {error}"
            report = RefitReport(None, len(self.store), steps, 0.0, 0.0, error=cause)
            try:
                self._call_hook(report)
            except Exception:
                logger.warning("on_refit failed for a refit that failed", exc_info=True)
        text = f"refit at step {steps} failed; {self._kept()}"
        self._reported.warn_of(error, self._failures, text, stacklevel=3)
