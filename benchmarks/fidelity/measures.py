"""Measures of generated rows against real ones, as JSON values: fidelity, memorisation, dynamics, histograms."""

from __future__ import annotations

from typing import Any

import torch

from synther_replay import Transitions, TransitionSpec
from synther_replay.benchmarks.environments.simulators import Simulator
from synther_replay.benchmarks.fidelity.dynamics import DistanceToData, dynamics_report
from synther_replay.metrics import fidelity

BINS = 40
# Share of the real rows below the first bin and above the last; they are counted in these two bins.
_TAIL = 0.001


class RowMeasures:
    """Compares rows with the real rows that the generators were fitted to.

    Args:
        real: Rows that the generators were fitted to.
        held_out: Other real rows, to measure memorisation; None to skip that.
        simulator: Simulator for the dynamics error; None to skip that.
        dynamics_rows: Largest number of rows to check in the simulator.
        seed: Seed of random choices in `synther_replay.metrics`.
    """

    def __init__(
        self,
        real: Transitions,
        held_out: Transitions | None,
        simulator: Simulator | None,
        *,
        dynamics_rows: int,
        seed: int,
    ) -> None:
        """Compute the ranges of the histograms from the real rows."""
        self.real, self.held_out, self.simulator = real, held_out, simulator
        self.dynamics_rows, self.seed = dynamics_rows, seed
        self._distance = DistanceToData(real)
        self.columns = shown_columns(real.spec)
        self.spans = [_span(real.rows[:, column]) for column in self.columns.values()]

    def all(self, rows: Transitions, *, is_held_out: bool = False) -> dict[str, Any]:
        """Fidelity, memorisation, histograms and dynamics.

        Args:
            rows: Rows to measure.
            is_held_out: Whether they are the held-out rows themselves; memorisation is then skipped.
        """
        held_out = None if is_held_out else self.held_out
        found = fidelity(self.real, rows, held_out=held_out, warn=False, seed=self.seed)  # the tables have the verdict
        return {**found.to_json(), **self.without_reference(rows)}

    def without_reference(self, rows: Transitions) -> dict[str, Any]:
        """Histograms and dynamics only, which need no comparison; used for the real rows themselves."""
        dynamics = None
        if self.simulator is not None:
            dynamics = dynamics_report(rows, self._distance, self.simulator, self.dynamics_rows)
        return {"dynamics": dynamics, "histogram": self.histogram(rows)}

    def histogram(self, rows: Transitions) -> list[list[int]]:
        """Counts of equal bins, for each of `columns` over its range in `spans`."""
        finite = rows.rows[torch.isfinite(rows.rows).all(1)].cpu()
        counts = []
        for column, (low, high) in zip(self.columns.values(), self.spans, strict=True):
            values = finite[:, column].clamp(low, high)
            counts.append(torch.histc(values, BINS, low, high).long().tolist())
        return counts


def shown_columns(spec: TransitionSpec) -> dict[str, int]:
    """Names and indices of the columns with a histogram; next observations are skipped, being like observations."""
    parts = {"observation": spec.observations, "action": spec.actions}
    named = {f"{name} {k - part.start}": k for name, part in parts.items() for k in range(part.start, part.stop)}
    return {**named, "reward": spec.rewards.start, "terminated": spec.terminated.start}


def _span(values: torch.Tensor) -> list[float]:
    """Range of the histogram of a column."""
    ordered = values.sort().values
    tail = int(_TAIL * len(ordered))
    low, high = ordered[tail], ordered[-1 - tail]
    if low == high:  # for example a flag that is rarely set
        low, high = ordered[0], ordered[-1]
    if low == high:
        low, high = low - 0.5, high + 0.5
    return [float(low), float(high)]
