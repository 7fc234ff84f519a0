"""Values where they may be: limits of the spaces, range of the real rows, terminations at each level of the reward."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from synther_replay.data.transitions import ROUNDING_OF_ACTIONS, TransitionSpec
from synther_replay.metrics.report import RewardLevel
from synther_replay.metrics.scores import Levels

_ROWS = 65_536  # bound on temporary memory: rows compared at once


class Limits(NamedTuple):
    """Allowed values of each column, tensors ``(dim,)``."""

    low: Tensor
    high: Tensor
    whole: Tensor  # whether only whole numbers are allowed


class Outside(NamedTuple):
    """How many values are not allowed."""

    share: float  # share of rows with such a value
    by_column: list[float]  # share of the values of each column


def range_of(rows: Tensor) -> Limits:
    """Smallest and largest value of each column."""
    low, high = rows.amin(0), rows.amax(0)
    return Limits(low, high, torch.zeros_like(low, dtype=torch.bool))


def bounds_of(spec: TransitionSpec, rows: Tensor) -> Limits:
    """Limits of the spaces, in the dtype of `rows`: a bound of 0.1 allows the float32 nearest to it."""
    low, high = map(torch.from_numpy, spec.bounds())
    leaves = [leaf for field in spec.fields for leaf in field.leaves]
    whole = torch.tensor([leaf.kind != "real" for leaf in leaves for _ in range(leaf.size)], device="cpu")
    low, high = (limit.to(rows) for limit in (low - ROUNDING_OF_ACTIONS, high + ROUNDING_OF_ACTIONS))
    return Limits(low, high, whole.to(rows.device))


def outside(rows: Tensor, limits: Limits) -> Outside:
    """Count the values outside their limits."""
    places = (limits.low.isfinite() | limits.high.isfinite() | limits.whole).nonzero()[:, 0]
    low, high, whole = (limit[places] for limit in limits)
    any_whole = bool(whole.any())
    values, count = torch.zeros(rows.shape[1], dtype=torch.long, device=rows.device), 0
    for part in torch.split(rows, _ROWS):
        limited = part if len(places) == part.shape[1] else part[:, places]
        wrong = (limited < low) | (limited > high)
        if any_whole:
            wrong |= whole & (limited != limited.round())
        values[places] += wrong.sum(0)
        count += int(wrong.any(1).sum())
    return Outside(count / len(rows), (values.double() / len(rows)).tolist())


def termination_rate(rows: Tensor, spec: TransitionSpec) -> float:
    """Share of rows in which the task ended the episode."""
    return float(_terminated(rows, spec).double().mean())


def reward_levels(
    real: Tensor, synthetic: Tensor, spec: TransitionSpec, levels: Levels | None
) -> tuple[RewardLevel, ...]:
    """Share of each level of the reward, and of the terminated rows among its rows; empty without levels."""
    if levels is None:
        return ()
    sets = zip((real, synthetic), (levels.real, levels.synthetic), strict=True)
    (share_real, ended_real), (share_synthetic, ended_synthetic) = (
        ([count / len(rows) for count in counts], _ended(rows, spec, levels.values, counts)) for rows, counts in sets
    )
    return tuple(
        RewardLevel(*numbers)
        for numbers in zip(levels.values, share_real, share_synthetic, ended_real, ended_synthetic, strict=True)
    )


def _ended(rows: Tensor, spec: TransitionSpec, values: list[float], counts: list[int]) -> list[float]:
    """Share of terminated rows among those of each level; NaN for a level without rows."""
    rewards = rows[_terminated(rows, spec), spec.rewards.start].contiguous()
    known = torch.tensor(values, dtype=rows.dtype, device=rows.device)
    level = torch.searchsorted(known, rewards).clamp(max=len(values) - 1)
    ended = torch.bincount(level[known[level] == rewards], minlength=len(values)).tolist()
    return [part / count if count else float("nan") for part, count in zip(ended, counts, strict=True)]


def _terminated(rows: Tensor, spec: TransitionSpec) -> Tensor:
    return rows[:, spec.terminated.start] > 0.5
