"""Everything that is measured on the rows of a generator, as JSON values."""

from __future__ import annotations

import math
from typing import Any

import torch

from synther_replay import Transitions, TransitionSpec
from synther_replay.benchmarks.environments.simulators import Simulator
from synther_replay.benchmarks.fidelity.dynamics import DistanceToData, dynamics_report
from synther_replay.metrics import fidelity

BINS = 40
# Shares of the real rows below the first and above the last bin; such rows are counted in these two.
_TAIL = 0.001


class Judge:
    """Holds rows against the real ones that a generator was fitted to.

    Args:
        real: What the generators were fitted to.
        held_out: Real rows that they have not seen, to look for memorised ones with; None without.
        simulator: That knows the dynamics; None without.
        dynamics_rows: How many rows of each kind it is asked about.
        seed: Of what `synther_replay.metrics` draws.
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
        """Look at the real rows."""
        self.real, self.held_out, self.simulator = real, held_out, simulator
        self.dynamics_rows, self.seed = dynamics_rows, seed
        self._distance = DistanceToData(real)
        self.columns = shown_columns(real.spec)
        self.spans = [_span(real.rows[:, column]) for column in self.columns.values()]

    def verdict(self, rows: Transitions, *, fresh: bool = False) -> dict[str, Any]:
        """Fidelity, memorisation, histograms and dynamics.

        Args:
            rows: To be judged.
            fresh: Whether they are the held-out ones themselves, for which memorisation has no meaning.
        """
        found = fidelity(self.real, rows, held_out=None if fresh else self.held_out, seed=self.seed)
        memory = found.memorisation
        return {
            "marginal": found.marginal,
            "correlation": number(found.correlation),
            "marginal_by_column": found.marginal_by_column.tolist(),
            "rejected": found.rejected_synthetic,
            "memorisation": None if memory is None else {key: number(value) for key, value in vars(memory).items()},
            **self.look(rows),
        }

    def look(self, rows: Transitions) -> dict[str, Any]:
        """Histograms and dynamics only: all that there is to say of the real rows themselves."""
        dynamics = None
        if self.simulator is not None:
            dynamics = dynamics_report(rows, self._distance, self.simulator, self.dynamics_rows)
        return {"dynamics": dynamics, "histogram": self.histogram(rows)}

    def histogram(self, rows: Transitions) -> list[list[int]]:
        """Rows in each of the equal bins of each column of `columns`, between its `spans`."""
        finite = rows.rows[torch.isfinite(rows.rows).all(1)].cpu()
        counts = []
        for column, (low, high) in zip(self.columns.values(), self.spans, strict=True):
            values = finite[:, column].clamp(low, high)
            counts.append(torch.histc(values, BINS, low, high).long().tolist())
        return counts


def shown_columns(spec: TransitionSpec) -> dict[str, int]:
    """Names and places of the columns of a histogram: next observations look like observations."""
    parts = {"observation": spec.observations, "action": spec.actions}
    named = {f"{name} {k - part.start}": k for name, part in parts.items() for k in range(part.start, part.stop)}
    return {**named, "reward": spec.rewards.start, "terminated": spec.terminated.start}


def number(value: float) -> float | None:
    """As JSON has it, which knows neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def _span(values: torch.Tensor) -> list[float]:
    """From where to where the histogram of a column goes."""
    ordered = values.sort().values
    tail = int(_TAIL * len(ordered))
    low, high = ordered[tail], ordered[-1 - tail]
    if low == high:  # such as a flag that is rarely set
        low, high = ordered[0], ordered[-1]
    if low == high:
        low, high = low - 0.5, high + 0.5
    return [float(low), float(high)]
