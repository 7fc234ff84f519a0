"""SynthERCallback: logs refits and fidelity to the logger of Stable-Baselines3."""

from __future__ import annotations

import warnings

from stable_baselines3.common.callbacks import BaseCallback

from synther_replay.common.checks import whole_number
from synther_replay.data.transitions import Transitions
from synther_replay.metrics import Fidelity, fidelity
from synther_replay.replay.refitting import RefitReport
from synther_replay.replay.source import SyntheticSource


class SynthERCallback(BaseCallback):
    """Logs refits to SB3's logger (and so to stdout, CSV, TensorBoard or W&B).

    With ``verbose=1`` it also prints one line per refit, with the name of the worst column and what is wrong with it.
    Logged values, all with the prefix ``synther/``:

    * `refits`: number of refits so far;
    * `fit_loss`, `held_out_loss`: losses of the last refit;
    * `seconds`: total time of all refits since the callback was created;
    * `store_size`: number of synthetic rows;
    * `store_age`: environment steps since the synthetic rows were generated;
    * `marginal`, `correlation`: fidelity of synthetic against real rows, 1 is perfect;
    * `worst_marginal`: marginal of the column that is worst against its threshold;
    * `termination_rate_real`, `termination_rate_synthetic`: share of terminated rows;
    * `reward_out_of_support`: share of synthetic rewards that equal no real one, if the real rewards have few values;
    * `failures`: number of failed checks, see `Fidelity.failures`;
    * `rejected`: total number of generated rows rejected as non-finite;
    * `relevance_real`, `relevance_chosen`, `guided_share`: see `GuidanceReport`, if generation is guided.

    Args:
        fidelity_rows: Rows to compare after each refit; 0: do not compute the fidelity, from `marginal` to `failures`.
        verbose: 0: print nothing; 1: print one line per refit.
    """

    def __init__(self, fidelity_rows: int = 10_000, verbose: int = 0) -> None:
        """Create the callback; pass it to ``learn(callback=...)``."""
        super().__init__(verbose)
        self.fidelity_rows = whole_number("fidelity_rows", fidelity_rows, least=0)
        self.seconds = 0.0
        self._seen: RefitReport | None = None
        self._scores: dict[str, float] = {}
        self._fidelity: Fidelity | None = None

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
        self._notice_refit(source)
        self.logger.record("synther/refits", source.refits)
        self.logger.record("synther/store_size", len(source.store))
        self.logger.record("synther/seconds", self.seconds)
        if (age := source.store_age) is not None:
            self.logger.record("synther/store_age", age)
        for name, value in self._scores.items():
            self.logger.record(f"synther/{name}", value)
        return True

    def _notice_refit(self, source: SyntheticSource) -> None:
        """Evaluate and print a refit that has not been seen yet."""
        report = source.last_refit
        if report is None or report is self._seen:
            return
        self._seen = report
        self.seconds += report.fit_seconds + report.sample_seconds
        self._fidelity = self._measure(source)
        self._scores = self._evaluate(source, report)
        if self.verbose >= 1:
            print(self._summary(source, report))

    def _summary(self, source: SyntheticSource, report: RefitReport) -> str:
        seconds = report.fit_seconds + report.sample_seconds
        text = (
            f"SynthER refit {source.refits} at step {report.steps}: {report.rows} synthetic rows "
            f"from {len(source.real)} real rows in {seconds:.1f} s"
        )
        if (found := self._fidelity) is None:
            return text
        text = f"{text}, marginal {found.marginal:.3f}, worst column {found.worst.name}"
        return text if found.passed else f"{text}; {len(found.failures)} failed checks, the worst: {found.failures[0]}"

    def _measure(self, source: SyntheticSource) -> Fidelity | None:
        """Fidelity of the synthetic rows; None if it is not wanted or fails, which must not end a training run."""
        synthetic = source.store.rows[: self.fidelity_rows]
        if len(synthetic) < 2:  # fidelity needs two rows
            return None
        try:
            real = source.usable_transitions()
            every = max(1, len(real) // self.fidelity_rows)  # evenly over the whole buffer
            return fidelity(real[::every], Transitions(source.spec, synthetic), warn=False)
        except Exception as error:
            warnings.warn(f"SynthERCallback: fidelity not computed: {error!r}", RuntimeWarning, stacklevel=2)
            return None

    def _evaluate(self, source: SyntheticSource, report: RefitReport) -> dict[str, float]:
        scores = {
            "fit_loss": getattr(report.fit, "loss", None),
            "held_out_loss": getattr(report.fit, "held_out_loss", None),
            "rejected": getattr(source.generator, "rejected", None),
        }
        if (guided := report.relevance) is not None:
            scores |= {
                "relevance_real": guided.real,
                "relevance_chosen": guided.chosen,
                "guided_share": guided.share,
            }
        if (found := self._fidelity) is not None:
            scores |= {
                "marginal": found.marginal,
                "correlation": found.correlation,
                "worst_marginal": found.worst.marginal,
                "termination_rate_real": found.termination_rate_real,
                "termination_rate_synthetic": found.termination_rate_synthetic,
                "reward_out_of_support": found.columns[source.spec.rewards.start].out_of_support,
                "failures": len(found.failures),
            }
        return {name: value for name, value in scores.items() if value is not None}
