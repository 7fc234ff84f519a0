"""Quality of generated rows: fidelity with a verdict, memorisation, and dynamics error against a simulator.

Rows are `Transitions`, tensors or NumPy arrays ``(n, dim)``. They are compared on the device of the real (or training)
rows, in float64 if all are float64 or integer, else in float32. `fidelity`, `memorisation` and `dynamics_error` drop
and count non-finite rows; the other functions raise ValueError for them.
"""

from synther_replay.metrics.compare import fidelity
from synther_replay.metrics.distances import Memorisation, distance_to_closest, memorisation
from synther_replay.metrics.dynamics import DynamicsError, StepFunction, dynamics_error
from synther_replay.metrics.report import ColumnFidelity, Fidelity, PairFidelity, RewardLevel
from synther_replay.metrics.rows import Rows
from synther_replay.metrics.scores import correlation_similarity, ks_complement
from synther_replay.metrics.verdict import Thresholds

__all__ = [
    "ColumnFidelity",
    "DynamicsError",
    "Fidelity",
    "Memorisation",
    "PairFidelity",
    "RewardLevel",
    "Rows",
    "StepFunction",
    "Thresholds",
    "correlation_similarity",
    "distance_to_closest",
    "dynamics_error",
    "fidelity",
    "ks_complement",
    "memorisation",
]
