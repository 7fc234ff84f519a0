"""Goals of observations in rows of transitions.

A row has its goal once, because it is the same before and after the step: as the offset from the next achieved goal.
The reward is a sharp function of the offset, and virtual goals often equal what was achieved. With the goal itself,
more rows would be generated whose reward does not belong to their goal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from synther_replay.data.spec import TransitionSpec

ACHIEVED, GOAL = "achieved_goal", "desired_goal"
_OFFSET = "goal_offset"


def split_goal(observation_space: spaces.Space[Any]) -> tuple[spaces.Dict, dict[str, spaces.Space[Any]]]:
    """Return the space of observations without the goal, and the field of the goal."""
    entries = dict(observation_space.spaces) if isinstance(observation_space, spaces.Dict) else {}
    if not {"observation", ACHIEVED, GOAL} <= entries.keys():
        raise ValueError(
            "observation_space: expected a Dict with the keys 'observation', 'achieved_goal' and 'desired_goal', "
            f"got {observation_space}"
        )
    goal = entries.pop(GOAL)
    if all(isinstance(space, spaces.Box) and space.dtype.kind == "f" for space in (goal, entries[ACHIEVED])):
        return spaces.Dict(entries), {_OFFSET: spaces.Box(-torch.inf, torch.inf, goal.shape)}
    return spaces.Dict(entries), {GOAL: goal}


class Goals:
    """Converts goals to columns of rows and back.

    Args:
        spec: Layout of the rows.
        space: Space of observations.
    """

    def __init__(self, spec: TransitionSpec, space: spaces.Dict) -> None:
        """Find the columns."""
        self._is_offset = _OFFSET in spec.extra
        self._columns = spec.field(_OFFSET if self._is_offset else GOAL).columns
        following = spec.field("next_observations").leaf_columns()
        self._achieved = next(columns for leaf, columns in following if leaf.path == (ACHIEVED,))
        self._bounds = _joint_bounds(space[GOAL], space[ACHIEVED]) if self._is_offset else []

    def columns(self, goals: Tensor, achieved: Tensor) -> Tensor:
        """Return the columns of goals, given them and the next achieved goals, ``(n, goal_dim)``."""
        return goals - achieved if self._is_offset else goals

    def of(self, rows: Tensor) -> Tensor:
        """Return the goals of rows, within the bounds of both kinds of goals; inverse of `columns`."""
        if not self._is_offset:
            return rows[:, self._columns]
        goals = rows[:, self._columns] + rows[:, self._achieved]
        self._bounds = [bound.to(goals.device) for bound in self._bounds]
        return goals.clamp_(*self._bounds)


def _joint_bounds(*goals: spaces.Space[Any]) -> list[Tensor]:
    """Least and largest value of any of the spaces; virtual goals are achieved ones, which can lie further out."""
    boxes = [space for space in goals if isinstance(space, spaces.Box)]
    low = np.minimum.reduce([box.low.reshape(-1) for box in boxes])
    high = np.maximum.reduce([box.high.reshape(-1) for box in boxes])
    return [torch.from_numpy(bound.astype(np.float32)) for bound in (low, high)]
