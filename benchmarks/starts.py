"""How many transitions begin an episode, or nearly so: an agent comes by there each time, and few rows are of there.

A generator may blur or miss them. First observations are often much alike, which makes them a small, narrow heap apart
from all others.
"""

from __future__ import annotations

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from synther_replay import Transitions

# A row counts as a beginning if no number of its observation lies further outside the range that first observations
# have than so many standard deviations of the data set.
MARGINS = (0.0, 0.03, 0.1, 0.3)


def first_observations(dataset: Dataset) -> np.ndarray:
    """What the episodes of a data set begin with, ``(episodes, O)``."""
    return dataset.observations[dataset.episodes()[:, 0]]


def start_counts(dataset: Dataset, rows: Transitions) -> dict[str, int]:
    """How many rows there are, and how many begin as the data set's episodes do, by the margin."""
    outside = _distance_outside(dataset, rows.rows[:, rows.spec.observations])
    return {"rows": len(rows), **{f"within {margin:g}": int((outside <= margin).sum()) for margin in MARGINS}}


def _distance_outside(dataset: Dataset, observations: Tensor) -> Tensor:
    """Of each observation from the range of first ones, in deviations, by its furthest number, ``(n,)``."""
    first, std = first_observations(dataset), dataset.observations.std(0, dtype=np.float64)
    # A number that never changes has no deviation, and any other is far away.
    limits = (first.min(0), first.max(0), np.maximum(std, 1e-30).astype(np.float32))
    low, high, scale = (torch.from_numpy(limit).to(observations.device) for limit in limits)
    return (torch.maximum(low - observations, observations - high).clamp(min=0) / scale).amax(1)
