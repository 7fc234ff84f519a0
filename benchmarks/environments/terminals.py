"""Termination rules of tasks, to count how many terminated flags of generated rows are right.

Few rows are terminated, and an agent learns what to avoid from these alone. The tasks terminate when a body is too low,
too high or leans too far, which the next observation shows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from synther_replay import Transitions

_ANY = (-math.inf, math.inf)
# Bounds of the first columns of an observation. (Hopper also bounds all columns by 100, which it does not reach.)
_UPRIGHT = {
    "Hopper": ((0.7, math.inf), (-0.2, 0.2)),
    "Walker2d": ((0.8, 2.0), (-1.0, 1.0)),
    "Ant": ((0.2, 1.0),),
    "Humanoid": ((1.0, 2.0),),
    "InvertedPendulum": (_ANY, (-0.2, 0.2)),
}


def has_fallen(task: str, observations: Tensor) -> Tensor | None:
    """Whether the task's rule terminates at each observation ``(n, O)``; None if the task has no such rule."""
    bounds = _UPRIGHT.get(task.partition("-")[0])
    if bounds is None:
        return None
    low, high = torch.tensor(bounds, device=observations.device).T
    posture = observations[:, : len(bounds)]
    return ((posture <= low) | (posture >= high)).any(1)


def terminal_counts(task: str, rows: Transitions) -> dict[str, int]:
    """Counts of all rows, of terminated rows, of rows terminated by the task's rule, and of rows where both agree."""
    found = {"rows": len(rows), "terminated": int(rows.terminated.sum())}
    fallen = has_fallen(task, rows.rows[:, rows.spec.next_observations])
    if fallen is not None:
        found |= {"by_rule": int(fallen.sum()), "both": int((fallen & rows.terminated).sum())}
    return found
