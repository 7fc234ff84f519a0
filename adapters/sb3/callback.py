"""What the generator does, in the log of Stable-Baselines3."""

from __future__ import annotations

from stable_baselines3.common.callbacks import BaseCallback

from synther_replay.common.checks import whole_number
from synther_replay.metrics import fidelity
from synther_replay.replay.source import RefitReport, SyntheticSource


class SynthERCallback(BaseCallback):
    """Logs what the generator does to SB3's logger, and so to TensorBoard, CSV files or W&B.

    All names begin with ``synther/``: `refits`, `fit_loss`, `held_out_loss`, `seconds` (spent on refits while this
    callback watched), `store_size`, `store_age` (steps since it was filled), `marginal`, `correlation` (of
    synthetic against real rows, 1 is perfect) and `rejected` (generated rows thrown away).

    Args:
        fidelity_rows: Rows to compare after each refit; 0 leaves marginal and correlation out.
        verbose: As in every callback of SB3.
    """

    def __init__(self, fidelity_rows: int = 10_000, verbose: int = 0) -> None:
        """Log nothing yet."""
        super().__init__(verbose)
        self.fidelity_rows = whole_number("fidelity_rows", fidelity_rows, least=0)
        self.seconds = 0.0
        self._seen: RefitReport | None = None
        self._scores: dict[str, float] = {}

    def _on_training_start(self) -> None:
        buffer = self.model.replay_buffer
        source = getattr(buffer, "source", None)
        if not isinstance(source, SyntheticSource):
            raise TypeError(f"replay_buffer_class: SynthERCallback needs a SynthERBuffer, got {type(buffer).__name__}")
        if buffer.n_steps > 1 and buffer.gamma != self.model.gamma:
            raise ValueError(f"gamma: that of the buffer is {buffer.gamma}, that of the algorithm {self.model.gamma}")
        self._seen = source.last_refit

    def _on_step(self) -> bool:
        source = self.model.replay_buffer.source
        report = source.last_refit
        if report is not None and report is not self._seen:
            self._seen = report
            self.seconds += report.fit_seconds + report.sample_seconds
            self._scores = self._judge(source, report)
        self.logger.record("synther/refits", source.refits)
        self.logger.record("synther/store_size", len(source.store))
        self.logger.record("synther/seconds", self.seconds)
        if report is not None:
            self.logger.record("synther/store_age", source.steps - report.steps)
        for name, value in self._scores.items():
            self.logger.record(f"synther/{name}", value)
        return True

    def _judge(self, source: SyntheticSource, report: RefitReport) -> dict[str, float]:
        scores = {
            "fit_loss": getattr(report.fit, "loss", None),
            "held_out_loss": getattr(report.fit, "held_out_loss", None),
            "rejected": getattr(source.generator, "rejected", None),
        }
        synthetic = source.store.rows[: self.fidelity_rows]
        if len(synthetic) > 1:  # one alone has no distribution
            real = source.real.transitions().rows
            every = max(1, len(real) // self.fidelity_rows)  # from all ages of the buffer, as the generator learnt
            found = fidelity(real[::every], synthetic)
            scores |= {"marginal": found.marginal, "correlation": found.correlation}
        return {name: value for name, value in scores.items() if value is not None}
