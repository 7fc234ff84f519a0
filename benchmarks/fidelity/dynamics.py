"""How wrong transitions are about the dynamics, against how far they are from the data.

That is how the paper explains why generated rows teach more than real ones with noise: they are further away, and yet
nearer the truth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay import Transitions
from synther_replay.benchmarks.agents.augment import additive
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.benchmarks.environments.simulators import Simulator
from synther_replay.common.seeding import generator_for
from synther_replay.metrics import distance_to_closest, dynamics_error

QUANTILES = {"p10": 0.1, "median": 0.5, "p90": 0.9}
# The same distances for all sets and all sources, so that they can be compared; two steps double the distance.
EDGES = np.concatenate([[0.0], 2.0 ** np.arange(-8, 8.5, 0.5), [np.inf]])


def with_noise(real: Transitions, seed: int) -> Transitions:
    """Real transitions with RAD's additive noise, as TD3+BC and IQL are trained on them: in standard deviations.

    Args:
        real: What to add it to.
        seed: Of the noise.
    """
    scaled = SharedRows(real, device=torch.device("cpu"))  # there, so that all devices draw alike
    rows = additive(scaled.rows, real.spec, generator_for("cpu", seed))
    for columns in (real.spec.observations, real.spec.next_observations):
        rows[:, columns] = rows[:, columns] * scaled.std + scaled.mean
    return Transitions(real.spec, rows.to(real.rows.device))


class DistanceToData:
    """Distance of observation and action to the nearest of some transitions, in standard deviations of these.

    Args:
        real: Transitions; a column that is constant there does not count.
    """

    def __init__(self, real: Transitions) -> None:
        """Measure the deviations."""
        self._columns = real.spec.actions.stop  # of observation and action, which come first
        known = real.rows[:, : self._columns].double()
        self._scale, self._centre = torch.std_mean(known, dim=0)
        self._varied = known.amin(0) < known.amax(0)
        self._known = self._standardised(real)

    def __call__(self, transitions: Transitions) -> Tensor:
        """Of each transition, float64, ``(n,)``."""
        return distance_to_closest(self._standardised(transitions), self._known)

    def _standardised(self, transitions: Transitions) -> Tensor:
        values = transitions.rows[:, : self._columns].double()
        return ((values - self._centre) / self._scale)[:, self._varied]


def dynamics_report(
    transitions: Transitions, distance: DistanceToData, simulator: Simulator, max_rows: int
) -> dict[str, Any]:
    """Squared errors of next observation and reward, over all and by distance to the data, as JSON values.

    Args:
        transitions: Those to judge.
        distance: To the data.
        simulator: That knows better.
        max_rows: As many, evenly spaced, are looked at.
    """
    asked = min(max_rows, len(transitions))
    some = transitions[torch.arange(asked) * len(transitions) // asked]
    some = some[torch.isfinite(some.rows).all(1)]
    whole = torch.from_numpy(simulator.restorable(some.rows[:, some.spec.observations].cpu().numpy()))
    report: dict[str, Any] = {"asked": asked, "clipped": len(some) - int(whole.sum()), "answered": 0, "bins": []}
    if not bool(whole.any()):
        return report
    some = some[whole]
    error = dynamics_error(some, simulator)
    report["answered"] = len(error.indices)
    if not report["answered"]:
        return report
    found = {
        "distance": distance(some[error.indices]).cpu().numpy(),
        "next_observation_mse": error.next_observation_by_row.numpy(),
        "reward_mse": error.reward_by_row.numpy(),
    }
    return report | {key: _summary(values) for key, values in found.items()} | {"bins": _by_distance(found)}


def _by_distance(found: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """A summary for each interval of distances that has rows."""
    place = np.digitize(found["distance"], EDGES) - 1
    bins = []
    for k in np.unique(place):
        above = EDGES[k + 1] if np.isfinite(EDGES[k + 1]) else None
        inside = {key: _summary(values[place == k]) for key, values in found.items()}
        bins.append({"from": float(EDGES[k]), "to": above, "rows": int((place == k).sum()), **inside})
    return bins


def _summary(values: np.ndarray) -> dict[str, float]:
    quantiles = np.quantile(values, [*QUANTILES.values()]).tolist()
    return {"mean": float(values.mean()), **dict(zip(QUANTILES, quantiles, strict=True))}
