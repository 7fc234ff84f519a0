"""Dynamics error of transitions against their distance to the data.

The paper uses both to explain why generated rows help more than noisy real rows: they are more diverse (further from
the data) and still have a smaller dynamics error.
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
# Bins of the distance, the same for all data sets and sources; two bins double the distance.
EDGES = np.concatenate([[0.0], 2.0 ** np.arange(-8, 8.5, 0.5), [np.inf]])


def with_noise(real: Transitions, seed: int) -> Transitions:
    """Real transitions with RAD's additive noise on standardised observations, as in `agents.augment`.

    Args:
        real: Real transitions.
        seed: Seed of the noise.
    """
    scaled = SharedRows(real, device=torch.device("cpu"))  # on the CPU, so that the noise is the same on all devices
    rows = additive(scaled.rows, real.spec, generator_for("cpu", seed))
    for columns in (real.spec.observations, real.spec.next_observations):
        rows[:, columns] = rows[:, columns] * scaled.std + scaled.mean
    return Transitions(real.spec, rows.to(real.rows.device))


class DistanceToData:
    """Distance of observation and action to the nearest real transition, in standard deviations.

    Args:
        real: Real transitions; their constant columns are ignored.
    """

    def __init__(self, real: Transitions) -> None:
        """Compute the standard deviations."""
        self._columns = real.spec.actions.stop  # observations and actions are the first columns
        known = real.rows[:, : self._columns].double()
        self._scale, self._centre = torch.std_mean(known, dim=0)
        self._varied = known.amin(0) < known.amax(0)
        self._known = self._standardised(real)

    def __call__(self, transitions: Transitions) -> Tensor:
        """Distance of each transition, float64, ``(n,)``."""
        return distance_to_closest(self._standardised(transitions), self._known)

    def _standardised(self, transitions: Transitions) -> Tensor:
        values = transitions.rows[:, : self._columns].double()
        return ((values - self._centre) / self._scale)[:, self._varied]


def dynamics_report(
    transitions: Transitions, distance: DistanceToData, simulator: Simulator, max_rows: int
) -> dict[str, Any]:
    """Squared errors of next observation and reward, overall and by distance to the data, as JSON values.

    Args:
        transitions: Transitions to check.
        distance: Distance to the data.
        simulator: Simulator of the true dynamics.
        max_rows: Largest number of rows to check; they are evenly spaced.
    """
    count = min(max_rows, len(transitions))
    some = transitions[torch.arange(count) * len(transitions) // count]
    some = some[torch.isfinite(some.rows).all(1)]
    whole = torch.from_numpy(simulator.restorable(some.rows[:, some.spec.observations].cpu().numpy()))
    report: dict[str, Any] = {"asked": count, "clipped": len(some) - int(whole.sum()), "answered": 0, "bins": []}
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
    """Summary of each non-empty bin of distances."""
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
