"""Lines of progress of an online run: returns with the time left, and values that are out of range or too high."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from synther_replay.benchmarks.common.formatting import mean_and_spread
from synther_replay.benchmarks.online.progress import Progress
from synther_replay.benchmarks.online.settings import Settings
from synther_replay.benchmarks.online.watchdog import advice, advice_overestimating, out_of_range, overestimating


class Reporter:
    """Reports what the progress of a run has.

    Args:
        settings: Settings of the run.
        progress: Its progress.
        write: Called with each line.
    """

    def __init__(self, settings: Settings, progress: Progress, write: Callable[[str], None]) -> None:
        """Keep the arguments."""
        self.settings, self.progress, self.write = settings, progress, write
        self._measured_from: tuple[int, float] | None = None  # step and seconds, to estimate the time left

    def evaluations(self, steps: Sequence[int]) -> None:
        """Report the returns of these evaluations; call it at regular steps, with none where there are none."""
        total, left = self.progress.total_seconds(), self._seconds_left()
        rest = "" if left is None else f", about {left:.0f} s left"
        for step in steps:
            line = f"step {step:,} of {self.settings.steps:,}: return {_spread(self.progress.returns(step))}"
            self._write(f"{line}, {total:.0f} s elapsed{rest}")

    def values(self, step: int) -> None:
        """Report value estimates that have left their range, or are far above what followed."""
        settings, estimates = self.settings, self.progress.value_estimates[step]
        for found, words in ((out_of_range, advice), (overestimating, advice_overestimating)):
            if agents := found(estimates):
                self._write(f"step {step:,}: {words(settings.seeds_of(agents), settings.critic)}")

    def _write(self, line: str) -> None:
        self.write(f"{self.settings.env} {self.settings.name} {line}")

    def _seconds_left(self) -> float | None:
        """An estimate from the steps of training: random steps and the first fit are faster or slower than the rest."""
        settings, progress = self.settings, self.progress
        if progress.step <= settings.random_steps:
            return None
        running = progress.total_seconds() - progress.seconds["start"]  # compilation happens once
        first_step, first_running = self._measured_from = self._measured_from or (progress.step, running)
        if progress.step == first_step:
            return None
        return (running - first_running) / (progress.step - first_step) * (settings.steps - progress.step)


def _spread(returns: list[float | None]) -> str:
    """Mean, standard deviation and range over the seeds that did not fail."""
    known = [value for value in returns if value is not None]
    if not known:
        return "none (all seeds failed)"
    return f"{mean_and_spread(known, 1)} [{min(known):.1f}, {max(known):.1f}]"
