"""RefitLog: an `on_refit` hook that measures every refit and writes it where people look."""

from __future__ import annotations

import logging
import os
from typing import Any

from synther_replay.common.checks import received, whole_number
from synther_replay.common.notices import Notices
from synther_replay.metrics import Thresholds
from synther_replay.replay.refitting import RefitReport
from synther_replay.replay.synthetic_rows import SyntheticRows
from synther_replay.watching.advice import Advisor
from synther_replay.watching.record import RefitRecord, record_of
from synther_replay.watching.run_folder import RunFolder
from synther_replay.watching.writers import RefitWriter

logger = logging.getLogger(__name__)


class RefitLog:
    """Logs refits; pass it as ``on_refit`` to any buffer or adapter.

    ::

        log = RefitLog(TensorBoardWriter("runs/a"), WandbWriter(), folder="runs/a", verbose=1)
        buffer = SyntheticReplayBuffer(real, on_refit=log)

    Nothing that goes wrong here ends the run or undoes a refit: it is a warning, and a line of ``logging`` where
    warnings are errors (``python -W error``). Pickled, for example by ``model.save``
    of Stable-Baselines3, it goes on where it is loaded, with the same folders.

    Args:
        *writers: Where to write to.
        folder: Run directory: history and report for ``synther watch``. None: no files.
        fidelity_rows: Rows to compare after each refit; 0: do not compare.
        thresholds: Largest losses of the synthetic rows to accept.
        most_share: Largest share of the run's time that refits should take; above it comes a warning with advice.
        verbose: 1: one line per refit, through ``logging``.

    Attributes:
        last: The last refit, None before the first and after unpickling.
        seconds: Time of all refits so far.
        pauses: Time that the learner stood still for them.
        failed: Number of refits that failed.
    """

    takes_source = True  # the buffer passes itself, too
    takes_failures = True  # refits that failed are logged, too

    def __init__(
        self,
        *writers: RefitWriter,
        folder: str | os.PathLike[str] | None = None,
        fidelity_rows: int = 10_000,
        thresholds: Thresholds | None = None,
        most_share: float = 0.5,
        verbose: int = 0,
    ) -> None:
        """Check the arguments and make the folder."""
        for writer in writers:
            if not isinstance(writer, RefitWriter):
                raise TypeError(f"writers: expected objects with the method write, got {writer!r}")
        if not isinstance(thresholds, Thresholds | None):
            raise TypeError(f"thresholds: expected Thresholds, {received(thresholds)}")
        self.fidelity_rows = whole_number("fidelity_rows", fidelity_rows, least=0)
        self.verbose = whole_number("verbose", verbose, least=0)
        self._thresholds, self._advisor = thresholds, Advisor(most_share)
        self._writers = (*writers, *(() if folder is None else (RunFolder(folder),)))
        self._failures, self._reported = 0, Notices()
        self.last: RefitRecord | None = None
        self.seconds = self.pauses = 0.0
        self.failed = 0

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without the last refit, which holds thousands of rows."""
        return {**vars(self), "last": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on where it stopped; pauses and failures were not counted by earlier versions."""
        vars(self).update({"pauses": state["seconds"], "failed": 0, **state})

    def __call__(self, report: RefitReport, source: SyntheticRows | None = None) -> None:
        """Measure and write a refit."""
        if report.error is not None:
            self.failed += 1
            self._write(RefitRecord(report, failed=self.failed))
            return
        seconds = report.fit_seconds + report.sample_seconds
        self.seconds += seconds
        self.pauses += seconds if report.pause_seconds is None else report.pause_seconds
        self.last = record = self._measured(report, source)
        self._write(record)
        try:
            self._advisor.look_at(record)
        except Warning as warning:
            logger.warning("%s", warning)

    def _write(self, record: RefitRecord) -> None:
        for writer in self._writers:
            try:
                writer.write(record)
            except Exception as error:
                self._warn_of(error, f"refit log: {type(writer).__name__} failed at step {record.step}")
        if self.verbose:
            _visible().info("%s", record.line())

    def _measured(self, report: RefitReport, source: SyntheticRows | None) -> RefitRecord:
        try:
            return record_of(
                report,
                source,
                seconds=self.seconds,
                pauses=self.pauses,
                fidelity_rows=self.fidelity_rows,
                thresholds=self._thresholds,
            )
        except Exception as error:
            self._warn_of(error, f"refit log: fidelity not computed at step {report.steps}")
            return record_of(report, source, seconds=self.seconds, pauses=self.pauses, fidelity_rows=0)

    def _warn_of(self, error: Exception, text: str) -> None:
        self._failures += 1
        try:
            self._reported.warn_of(error, self._failures, text, stacklevel=4)
        except Warning as warning:
            logger.warning("%s", warning)


def _visible() -> logging.Logger:
    """The logger; if nobody has set up logging, its lines go to stderr, because they were asked for."""
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
    return logger
