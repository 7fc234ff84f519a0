"""SynthERCallback: logs refits and fidelity to the logger of Stable-Baselines3."""

from __future__ import annotations

import torch
from stable_baselines3.common.callbacks import BaseCallback

from synther_replay.replay.refitting import RefitReport
from synther_replay.replay.source import SyntheticSource
from synther_replay.watching import PREFIX, RefitLog, RefitRecord

_WITHOUT_HISTOGRAMS = ("stdout", "log", "json", "csv")  # formats of SB3 that have none


class SynthERCallback(BaseCallback):
    """Logs refits to SB3's logger (and so to stdout, CSV, TensorBoard or W&B).

    With ``verbose=1`` it also prints one line per refit. Names and meanings of the values are those of `RefitRecord`,
    with the prefix ``synther/``; and there is `store_age`, the environment steps since the synthetic rows were
    generated. Time counts from the creation of the callback. Rows that miss a threshold, and refits that take most of
    the run, give a warning with advice.

    Args:
        fidelity_rows: Rows to compare after each refit; 0: do not compute the fidelity.
        verbose: 0: print nothing; 1: print one line per refit.
    """

    def __init__(self, fidelity_rows: int = 10_000, verbose: int = 0) -> None:
        """Create the callback; pass it to ``learn(callback=...)``."""
        super().__init__(verbose)
        self._log = RefitLog(self, fidelity_rows=fidelity_rows)
        self._seen: RefitReport | None = None
        self._scalars: dict[str, float] = {}

    @property
    def fidelity_rows(self) -> int:
        """Rows to compare after each refit."""
        return self._log.fidelity_rows

    @property
    def seconds(self) -> float:
        """Total time of all refits since the callback was created."""
        return self._log.seconds

    def write(self, record: RefitRecord) -> None:
        """Record one refit; SB3 writes it at its next dump."""
        self._scalars = record.scalars()
        for name, values in record.histograms().items():
            self.logger.record(name, torch.as_tensor(values), exclude=_WITHOUT_HISTOGRAMS)
        if self.verbose >= 1:
            print(record.line())

    def _on_training_start(self) -> None:
        buffer = getattr(self.model, "replay_buffer", None)
        source = getattr(buffer, "source", None)
        if buffer is None or not isinstance(source, SyntheticSource):
            found = f"{type(self.model).__name__} has none" if buffer is None else f"got {type(buffer).__name__}"
            raise TypeError(f"replay_buffer_class: SynthERCallback needs a SynthERBuffer, {found}")
        if buffer.n_steps > 1 and buffer.gamma != self.model.gamma:
            raise ValueError(
                f"gamma: the buffer has {buffer.gamma}, the algorithm {self.model.gamma}; they must be equal"
            )
        self._seen = source.last_refit

    def _on_training_end(self) -> None:
        source = self.model.replay_buffer.source
        self._notice_refit(source)  # SB3 trains once more after the last step
        if self.verbose >= 1 and not source.refits and source.real_ratio < 1:
            print(f"SynthER: no refit. {_why_none(source)}")

    def _on_step(self) -> bool:
        source = self.model.replay_buffer.source
        self._notice_refit(source)
        now = {"refits": source.refits, "store_size": len(source.store), "seconds": self.seconds}
        if (age := source.store_age) is not None:
            now["store_age"] = age
        for name, value in (self._scalars | {f"{PREFIX}{name}": value for name, value in now.items()}).items():
            self.logger.record(name, value)
        return True

    def _notice_refit(self, source: SyntheticSource) -> None:
        """Log a refit that has not been seen yet; it may be of any path, so the hook is left to the user."""
        report = source.last_refit
        if report is not None and report is not self._seen:
            self._seen = report
            self._log(report, source)


def _why_none(source: SyntheticSource) -> str:
    """Say why no refit was completed."""
    if source.pending_at is not None:
        return f"The rows of the first are taken after {source.pending_at:,} steps, {source.steps:,} were added"
    least, start = getattr(source.generator, "min_rows", 1), getattr(source.schedule, "start", None)
    due = f"The first is due after {start:,} steps" if isinstance(start, int) else "The first was not due"
    return f"{due}, {source.steps:,} were added; it needs {least} real rows, of which there are {len(source.real):,}"
