"""Whether transitions end where their task says that they do: a generator may put its ends elsewhere.

Few rows end, and by those alone an agent learns what to avoid. Hopper and Walker2d end where the body is too low or too
high or leans too far, which the next observation tells.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from synther_replay import Transitions

# Between which the first two numbers of an observation, height and angle, must lie. (Hopper's other bounds, of 100, are
# beyond what it reaches.)
_UPRIGHT = {"Hopper": ((0.7, math.inf), (-0.2, 0.2)), "Walker2d": ((0.8, 2.0), (-1.0, 1.0))}


def has_fallen(task: str, observations: Tensor) -> Tensor | None:
    """Which observations ``(n, O)`` are ends by the rule of a task, such as ``Hopper-v5``; None where it has none."""
    bounds = _UPRIGHT.get(task.partition("-")[0])
    if bounds is None:
        return None
    low, high = torch.tensor(bounds, device=observations.device).T
    posture = observations[:, : len(bounds)]
    return ((posture <= low) | (posture >= high)).any(1)


def terminal_counts(task: str, rows: Transitions) -> dict[str, int]:
    """How many rows there are, how many are terminated, how many should be by the rule, and how many are both."""
    found = {"rows": len(rows), "terminated": int(rows.terminated.sum())}
    fallen = has_fallen(task, rows.rows[:, rows.spec.next_observations])
    if fallen is not None:
        found |= {"by_rule": int(fallen.sum()), "both": int((fallen & rows.terminated).sum())}
    return found
