"""RefitRecord: what is known about one refit, and the names of its values in every logger."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from synther_replay.data.transitions import Transitions
from synther_replay.metrics import Fidelity, Thresholds, fidelity
from synther_replay.replay.refitting import RefitReport
from synther_replay.replay.synthetic_rows import SyntheticRows

PREFIX = "synther/"
_BINS = 24  # of the histograms in a history file
_SAME_SECONDS = 0.05  # pause and time of a refit differ by more only in the background


@dataclass(frozen=True, eq=False)
class RefitRecord:
    """One refit. `scalars` and `histograms` define the names that all writers use, after the prefix ``synther/``.

    Scalars:

    * `refits`: number of refits so far;
    * `seconds`: time of all refits that were logged, `refit_seconds`: of this one;
    * `pause_seconds`: time that the learner stood still for this one, which differs for refits in the background;
    * `failed_refits`: number of refits so far that failed, in the record of one that did;
    * `store_size`: number of synthetic rows;
    * `fit_loss`, `held_out_loss`: losses of the fit, if the generator reports them;
    * `rejected`: number of generated rows so far that were rejected as non-finite;
    * `marginal`, `correlation`: fidelity of synthetic against real rows, 1 is perfect;
    * `worst_marginal`: marginal of the column that is worst against its threshold;
    * `termination_rate_real`, `termination_rate_synthetic`: share of terminated rows;
    * `reward_out_of_support`: share of synthetic rewards that equal no real one, if the real rewards have few values;
    * `failures`: number of failed checks, see `Fidelity.failures`;
    * `relevance_real`, `relevance_chosen`, `guided_share`: see `GuidanceReport`, if generation is guided.

    Histograms: `rewards_real` and `rewards_synthetic`, and `marginals`, one value per column.

    Attributes:
        report: Report of the refit.
        number: Number of the refit, from 1; None if only the report is known.
        seconds: Time of all refits that were logged.
        pauses: Time that the learner stood still for all of them; None: as `seconds`.
        failed: Number of refits that failed.
        rejected: Rejected rows; None if the generator does not count them.
        fidelity: Fidelity of the synthetic rows; None if it was not computed.
        real: Some real rows, those that were compared; None if there are none.
        synthetic: Some synthetic rows.
    """

    report: RefitReport
    number: int | None = None
    seconds: float = 0.0
    pauses: float | None = None
    failed: int = 0
    rejected: int | None = None
    fidelity: Fidelity | None = None
    real: Transitions | None = None
    synthetic: Transitions | None = None

    @property
    def step(self) -> int:
        """Environment steps when the refit began; the step of all values."""
        return self.report.steps

    @property
    def refit_seconds(self) -> float:
        """Time of this refit."""
        return self.report.fit_seconds + self.report.sample_seconds

    @property
    def pause_seconds(self) -> float:
        """Time that the learner stood still for this refit."""
        return self.refit_seconds if self.report.pause_seconds is None else self.report.pause_seconds

    def scalars(self) -> dict[str, float]:
        """Values by name, without those that are not known."""
        report, found, guided = self.report, self.fidelity, self.report.relevance
        if report.error is not None:
            return {f"{PREFIX}failed_refits": self.failed, f"{PREFIX}store_size": report.rows}
        values: dict[str, Any] = {
            "refits": self.number,
            "seconds": self.seconds,
            "refit_seconds": self.refit_seconds,
            "pause_seconds": self.pause_seconds,
            "store_size": report.rows,
            "fit_loss": getattr(report.fit, "loss", None),
            "held_out_loss": getattr(report.fit, "held_out_loss", None),
            "rejected": self.rejected,
        }
        if found is not None:
            values |= {
                "marginal": found.marginal,
                "correlation": found.correlation,
                "worst_marginal": found.worst.marginal,
                "termination_rate_real": found.termination_rate_real,
                "termination_rate_synthetic": found.termination_rate_synthetic,
                "failures": len(found.failures),
            }
            if self.real is not None:
                values["reward_out_of_support"] = found.columns[self.real.spec.rewards.start].out_of_support
        if guided is not None:
            values |= {"relevance_real": guided.real, "relevance_chosen": guided.chosen, "guided_share": guided.share}
        return {f"{PREFIX}{name}": value for name, value in values.items() if isinstance(value, int | float)}

    def histograms(self) -> dict[str, Tensor]:
        """Values on the CPU by name, each ``(n,)``."""
        values = {}
        if self.real is not None and self.synthetic is not None:
            values = {"rewards_real": self.real.rewards, "rewards_synthetic": self.synthetic.rewards}
        if self.fidelity is not None:
            values["marginals"] = self.fidelity.marginal_by_column
        return {f"{PREFIX}{name}": value.detach().float().cpu() for name, value in values.items()}

    def line(self) -> str:
        """One line for people.

        >>> RefitRecord(RefitReport(None, 400_000, 30_000, 1.0, 0.4), number=12).line()
        'refit 12 | step 30,000 | 1.4 s | 400K rows'
        """
        if self.report.error is not None:
            return f"refit failed | step {self.step:,} | {self.report.error} | kept {compact(self.report.rows)} rows"
        parts = [] if self.number is None else [f"refit {self.number}"]
        parts.append(f"step {self.step:,}")
        if isinstance(loss := getattr(self.report.fit, "loss", None), float):
            parts.append(f"loss {loss:.2f}")
        if (found := self.fidelity) is not None:
            parts.append(f"marginal {found.marginal:.3f}")
            if found.termination_rate_real is not None and found.termination_rate_synthetic is not None:
                real, synthetic = 100 * found.termination_rate_real, 100 * found.termination_rate_synthetic
                parts.append(f"terminated {_percent(synthetic)} % (real {_percent(real)} %)")
        parts.append(f"{self.refit_seconds:.1f} s")
        if abs(self.pause_seconds - self.refit_seconds) > _SAME_SECONDS:  # it ran in the background
            parts[-1] += f" (paused {self.pause_seconds:.2g} s)"
        parts.append(f"{compact(self.report.rows)} rows")
        if found is not None and not found.passed:
            parts.append(f"worst {found.worst.name}, failed checks: {len(found.failures)}")
        return " | ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """All values for a line of a history file; what is not finite becomes None."""
        found = self.fidelity
        return {
            "step": self.step,
            "line": self.line(),
            "error": self.report.error,
            "scalars": {name: value if math.isfinite(value) else None for name, value in self.scalars().items()},
            "failures": [] if found is None else list(found.failures),
            "columns": {} if found is None else {column.name: column.marginal for column in found.columns},
            "rewards": self._binned_rewards(),
        }

    def _binned_rewards(self) -> dict[str, list[float]] | None:
        """Shares of real and synthetic rewards in the same bins."""
        if self.real is None or self.synthetic is None:
            return None
        parts = [rows.rewards.detach().double().cpu() for rows in (self.real, self.synthetic)]
        both = torch.cat(parts)
        if not both.numel() or not bool(both.isfinite().all()):
            return None
        low, high = float(both.min()), float(both.max())
        edges = torch.linspace(low, high if high > low else low + 1.0, _BINS + 1, dtype=torch.float64, device="cpu")
        shares = [(torch.histogram(part, edges).hist / max(1, len(part))).tolist() for part in parts]
        return {"edges": edges.tolist(), "real": shares[0], "synthetic": shares[1]}


def record_of(
    report: RefitReport,
    source: SyntheticRows | None,
    *,
    seconds: float,
    pauses: float | None = None,
    fidelity_rows: int,
    thresholds: Thresholds | None = None,
) -> RefitRecord:
    """Measure a refit.

    Args:
        report: Report of the refit.
        source: The buffer or source that was refitted; None: only the report is known.
        seconds: Time of all refits so far.
        pauses: Time that the learner stood still for them; None: as `seconds`.
        fidelity_rows: Rows to compare; below two, fidelity is not computed.
        thresholds: Largest losses to accept.
    """
    if source is None:
        return RefitRecord(report, seconds=seconds, pauses=pauses)
    known: dict[str, Any] = {
        "number": source.refits,
        "seconds": seconds,
        "pauses": pauses,
        "rejected": getattr(source.generator, "rejected", None),
    }
    # The record stays until the next refit. Views would keep a whole copy of the buffer and the store in memory.
    synthetic = Transitions(source.spec, source.store.rows[:fidelity_rows].clone())
    if len(synthetic) < 2:
        return RefitRecord(report, **known)
    real = source.usable_transitions()
    real = Transitions(real.spec, real.rows[:: max(1, len(real) // fidelity_rows)].clone())  # evenly over the buffer
    found = fidelity(real, synthetic, thresholds=thresholds, warn=False)
    return RefitRecord(report, **known, fidelity=found, real=real, synthetic=synthetic)


def compact(count: int) -> str:
    """A number of rows for people.

    >>> compact(64), compact(36_000), compact(400_000), compact(1_500_000)
    ('64', '36K', '400K', '1.5M')
    """
    for unit, name in ((1_000_000, "M"), (1_000, "K")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return str(count)


def _percent(value: float) -> str:
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"
