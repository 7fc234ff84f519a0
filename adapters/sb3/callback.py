"""SynthERCallback: logs refits and fidelity to the logger of Stable-Baselines3."""

from __future__ import annotations

from stable_baselines3.common.callbacks import BaseCallback

from synther_replay.common.checks import whole_number
from synther_replay.metrics import fidelity
from synther_replay.replay.source import RefitReport, SyntheticSource


class SynthERCallback(BaseCallback):
    """Logs refits to SB3's logger (and so to stdout, CSV, TensorBoard or W&B).

    With ``verbose=1`` it also prints one line per refit. Logged values, all with the prefix ``synther/``:

    * `refits`: number of refits so far;
    * `fit_loss`, `held_out_loss`: losses of the last refit;
    * `seconds`: total time of all refits since the callback was created;
    * `store_size`: number of synthetic rows;
    * `store_age`: environment steps since the last refit;
    * `marginal`, `correlation`: fidelity of synthetic against real rows, 1 is perfect;
    * `rejected`: total number of generated rows rejected as non-finite.

    Args:
        fidelity_rows: Rows to compare after each refit; 0: do not compute marginal and correlation.
        verbose: 0: print nothing; 1: print one line per refit.
    """

    def __init__(self, fidelity_rows: int = 10_000, verbose: int = 0) -> None:
        """Create the callback; pass it to ``learn(callback=...)``."""
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
            raise ValueError(
                f"gamma: the buffer has {buffer.gamma}, the algorithm {self.model.gamma}; they must be equal"
            )
        self._seen = source.last_refit

    def _on_training_end(self) -> None:
        source = self.model.replay_buffer.source
        self._notice_refit(source)  # SB3 trains once more after the last step
        if self.verbose >= 1 and not source.refits and source.real_ratio < 1:
            print(f"SynthER: no refit in {source.steps} steps, schedule.start is {source.schedule.start}")

    def _on_step(self) -> bool:
        source = self.model.replay_buffer.source
        report = self._notice_refit(source)
        self.logger.record("synther/refits", source.refits)
        self.logger.record("synther/store_size", len(source.store))
        self.logger.record("synther/seconds", self.seconds)
        if report is not None:
            self.logger.record("synther/store_age", source.steps - report.steps)
        for name, value in self._scores.items():
            self.logger.record(f"synther/{name}", value)
        return True

    def _notice_refit(self, source: SyntheticSource) -> RefitReport | None:
        """Evaluate and print a refit that has not been seen yet; returns the last one."""
        report = source.last_refit
        if report is not None and report is not self._seen:
            self._seen = report
            self.seconds += report.fit_seconds + report.sample_seconds
            self._scores = self._evaluate(source, report)
            if self.verbose >= 1:
                print(self._summary(source, report))
        return report

    def _summary(self, source: SyntheticSource, report: RefitReport) -> str:
        seconds = report.fit_seconds + report.sample_seconds
        text = (
            f"SynthER refit {source.refits} at step {report.steps}: {report.rows} synthetic rows "
            f"from {len(source.real)} real rows in {seconds:.1f} s"
        )
        marginal = self._scores.get("marginal")
        return text if marginal is None else f"{text}, marginal {marginal:.3f}"

    def _evaluate(self, source: SyntheticSource, report: RefitReport) -> dict[str, float]:
        scores = {
            "fit_loss": getattr(report.fit, "loss", None),
            "held_out_loss": getattr(report.fit, "held_out_loss", None),
            "rejected": getattr(source.generator, "rejected", None),
        }
        synthetic = source.store.rows[: self.fidelity_rows]
        if len(synthetic) > 1:  # fidelity needs two rows
            real = source.real.transitions().rows
            every = max(1, len(real) // self.fidelity_rows)  # evenly over the whole buffer
            similarity = fidelity(real[::every], synthetic)
            scores |= {"marginal": similarity.marginal, "correlation": similarity.correlation}
        return {name: value for name, value in scores.items() if value is not None}
