"""Advisor: warns, with advice, of refits that are bad or that take too much of the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from synther_replay.common.notices import Notices
from synther_replay.watching.record import RefitRecord

_BAD_IN_A_ROW = 3  # refits before a warning: the first ones see few rows
_FIRST_SECONDS = 60.0  # of refits before their share of the run is judged: first refits compile and start from nothing


class Advisor:
    """Looks at every refit; a warning comes once, and again when the same has happened ten times as often.

    Args:
        most_share: Largest share of the run's time that refits should take.
        clock: Seconds of a clock that only goes forward.
    """

    def __init__(self, most_share: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the clock of the run."""
        if isinstance(most_share, bool) or not isinstance(most_share, int | float) or not 0 < most_share <= 1:
            raise ValueError(f"most_share: expected a number above 0 and up to 1, got {most_share!r}")
        self.most_share = float(most_share)
        self._clock, self._began = clock, clock()
        self._bad, self._of_rows = 0, Notices()  # bad refits in a row
        self._slow, self._of_time = 0, Notices()

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, with the time of the run so far: clocks of other processes begin elsewhere."""
        return {**vars(self), "_began": self._began - self._clock()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on with the time of the run."""
        vars(self).update(state)
        self._began += self._clock()

    def look_at(self, record: RefitRecord) -> None:
        """Warn if there is something to warn of."""
        self._judge_rows(record)
        self._judge_time(record)

    def _judge_rows(self, record: RefitRecord) -> None:
        guided, found = record.report.relevance, record.fidelity
        if found is None or (guided is not None and guided.share):  # guided rows are meant to differ
            return
        if found.passed:
            self._bad, self._of_rows = 0, Notices()
            return
        self._bad += 1
        more = f" (and {len(found.failures) - 1} more)" if len(found.failures) > 1 else ""
        self._of_rows.warn(
            "rows",
            self._bad // _BAD_IN_A_ROW,
            f"synthetic rows of {self._bad} refits in a row, the last at step {record.step:,}, differ from real ones: "
            f"{found.failures[0]}{more}. "
            'Train the generator longer, for example generator={"steps": 20_000}, or raise real_ratio',
            stacklevel=4,
        )

    def _judge_time(self, record: RefitRecord) -> None:
        run, seconds = self._clock() - self._began, record.seconds if record.pauses is None else record.pauses
        if seconds < _FIRST_SECONDS or seconds <= self.most_share * run:
            return
        self._slow += 1
        self._of_time.warn(
            "time",
            self._slow,
            f"refits took {seconds / max(run, seconds):.0%} of the run so far ({seconds:.0f} s). "
            'Refit less often, for example schedule={"every": 10_000}, generate fewer rows, take a smaller '
            'generator ("fast" on a GPU, "tiny" on a CPU), or let the learner go on: refit="background", with a larger '
            "lag if it has to wait",
            stacklevel=4,
        )
