"""Rules of sparse rewards, to count how many rewards of generated rows are where the task gives them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

# By the next observation. The reward is 1 where the rule holds, else 0.
_RULES: dict[str, Callable[[Tensor], Tensor]] = {
    "reacher-hard": lambda seen: seen[:, 2:4].norm(dim=1) <= 0.025,  # from the finger to the target, both radii
    "reacher-easy": lambda seen: seen[:, 2:4].norm(dim=1) <= 0.06,
    "finger-turn_hard": lambda seen: seen[:, -1] <= 0,  # distance to the target, less its radius
    "finger-turn_easy": lambda seen: seen[:, -1] <= 0,
}
GOAL_TASKS = tuple(_RULES)


def is_rewarded(task: str, next_observations: Tensor) -> Tensor:
    """Whether the task's rule gives a reward at each next observation ``(n, O)``."""
    return _RULES[task](next_observations)
