"""Statistics over tasks and seeds: normalised scores, inter-quartile mean, probability of improvement, intervals.

The measures are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021).
The scores of one algorithm are one array per task, ``(seeds,)``; tasks may differ in their number of seeds. Intervals
are percentiles of a stratified bootstrap: within each task as many seeds are drawn with replacement as there are. With
fewer than about five seeds such intervals are too narrow, and with one seed they have no width at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

COVERAGE = 95
REPEATS = 2000
MEAN_REPEATS = 50_000  # means are cheap; with fewer draws the ends of intervals vary in the printed digits


class Estimate(NamedTuple):
    """A value with its bootstrap interval: numbers, or arrays of one shape."""

    value: np.ndarray | float
    low: np.ndarray | float
    high: np.ndarray | float


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`.

    Attributes:
        tasks: The tasks compared: those that all algorithms with the most tasks have in common.
        iqm: Inter-quartile mean of the normalised scores, by algorithm.
        improvement: Probability that the subject beats the algorithm, by algorithm; empty without the subject.
        lacking: Tasks that are missing, by algorithm; such algorithms are excluded from the comparison.
    """

    tasks: tuple[str, ...]
    iqm: Mapping[str, Estimate]
    improvement: Mapping[str, Estimate]
    lacking: Mapping[str, tuple[str, ...]]


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean of the middle half along the last axis, ``(..., count)`` to ``(...)``.

    A quarter of the values, rounded down, is dropped at either end.
    """
    ordered = np.sort(scores, axis=-1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)


def improvement_rate(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Share of pairs in which ours is better; a tie counts half. ``(..., n)`` and ``(..., m)`` to ``(...)``.

    This is the Mann-Whitney U statistic divided by ``n * m``.
    """
    ours, theirs = ours[..., :, None], theirs[..., None, :]
    return ((ours > theirs) + 0.5 * (ours == theirs)).mean((-2, -1))


def iqm_estimate(scores: Sequence[np.ndarray], *, repeats: int = REPEATS, seed: int = 0) -> Estimate:
    """Inter-quartile mean over all runs of all tasks; a task with more seeds weighs more."""
    _check(scores)
    drawn = _resample(scores, repeats, np.random.default_rng(seed))
    value = interquartile_mean(np.concatenate(scores))
    return _estimate(value, interquartile_mean(np.concatenate(drawn, axis=-1)))


def mean_estimate(scores: Sequence[np.ndarray], *, repeats: int = MEAN_REPEATS, seed: int = 0) -> Estimate:
    """Mean over tasks of the means over their seeds."""
    _check(scores)
    drawn = _resample(scores, repeats, np.random.default_rng(seed))
    return _estimate(np.mean([own.mean() for own in scores]), np.mean([own.mean(-1) for own in drawn], axis=0))


def improvement_estimate(
    ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], *, repeats: int = REPEATS, seed: int = 0
) -> Estimate:
    """Probability that a run of ours beats one of theirs on the same task, averaged over tasks."""
    _check(ours)
    _check(theirs)
    if len(ours) != len(theirs):
        raise ValueError(f"theirs: expected the {len(ours)} tasks of ours, got {len(theirs)}")
    generator = np.random.default_rng(seed)
    drawn = zip(_resample(ours, repeats, generator), _resample(theirs, repeats, generator), strict=True)
    value = np.mean([improvement_rate(a, b) for a, b in zip(ours, theirs, strict=True)])
    return _estimate(value, np.mean([improvement_rate(a, b) for a, b in drawn], axis=0))


def mean_curve(returns: np.ndarray, *, repeats: int = REPEATS, seed: int = 0) -> Estimate:
    """Mean over seeds at every point of a curve, ``(seeds, points)`` to ``(points,)``; NaN (failed seeds) is ignored.

    The bootstrap draws whole curves. Points that no seed reached are NaN.
    """
    if returns.ndim != 2 or 0 in returns.shape:
        raise ValueError(f"returns: expected a non-empty array (seeds, points), got shape {returns.shape}")
    seeds = len(returns)
    drawn = np.random.default_rng(seed).integers(seeds, size=(repeats, seeds))
    # Count how often each seed was drawn and use the counts as weights: avoids an array (repeats, seeds, points).
    weights = (drawn[:, :, None] == np.arange(seeds)).sum(1).astype(float)
    present = np.isfinite(returns)
    filled = np.where(present, returns, 0.0)
    with np.errstate(invalid="ignore"):
        value = filled.sum(0) / present.sum(0)
        means = (weights @ filled) / (weights @ present)
    reached = present.any(0)
    low, high = np.full((2, returns.shape[1]), np.nan)
    low[reached], high[reached] = np.nanpercentile(means[:, reached], _tails(), axis=0)
    return Estimate(value, low, high)


def compare(
    scores: Mapping[str, Mapping[str, np.ndarray]], *, subject: str, repeats: int = REPEATS, seed: int = 0
) -> Comparison:
    """Compare algorithms on the tasks that those with the most tasks have in common.

    An algorithm that lacks some of these tasks is excluded, so that the numbers of the others do not change.

    Args:
        scores: Normalised scores ``(seeds,)``, by algorithm and task.
        subject: The algorithm whose probability of improvement over each other one is computed.
        repeats: Bootstrap draws.
        seed: Seed of the bootstrap, the same for every algorithm.
    """
    if not scores:
        raise ValueError("scores: expected at least one algorithm, got none")
    most = max(len(own) for own in scores.values())
    complete = [own for own in scores.values() if len(own) == most]
    tasks = tuple(task for task in complete[0] if all(task in own for own in complete))
    if not tasks:
        return Comparison(tasks, {}, {}, {})
    missing = {name: tuple(task for task in tasks if task not in own) for name, own in scores.items()}
    common = {name: [own[task] for task in tasks] for name, own in scores.items() if not missing[name]}
    others = [name for name in common if name != subject] if subject in common else []
    return Comparison(
        tasks,
        {name: iqm_estimate(own, repeats=repeats, seed=seed) for name, own in common.items()},
        {name: improvement_estimate(common[subject], common[name], repeats=repeats, seed=seed) for name in others},
        {name: those for name, those in missing.items() if those},
    )


def _check(scores: Sequence[np.ndarray]) -> None:
    shapes = [np.shape(own) for own in scores]
    if not shapes or any(len(shape) != 1 or shape == (0,) for shape in shapes):
        raise ValueError(f"scores: expected one non-empty array (seeds,) per task, got shapes {shapes}")
    if not all(np.isfinite(own).all() for own in scores):
        raise ValueError("scores: expected finite values, got NaN or infinity; normalise() gives failed seeds a score")


def _resample(scores: Sequence[np.ndarray], repeats: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Bootstrap samples ``(repeats, seeds)`` of each task, drawn with replacement."""
    return [own[generator.integers(len(own), size=(repeats, len(own)))] for own in scores]


def _estimate(value: np.ndarray | float, drawn: np.ndarray) -> Estimate:
    low, high = np.percentile(drawn, _tails())
    return Estimate(float(value), float(low), float(high))


def _tails() -> tuple[float, float]:
    return (100 - COVERAGE) / 2, (100 + COVERAGE) / 2
