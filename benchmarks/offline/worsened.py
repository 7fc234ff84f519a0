"""Real rows made worse in one way, to test which fault of synthetic rows an algorithm cannot stand.

    starts=20      rows of the first 20 steps of an episode are removed
    ends=20        rows of the last 20 steps before a termination are removed
    rare-ends=0.1  a tenth of these rows is kept
    blur=0.1       normal noise is added to observations, next observations and rewards, independently
    copies=5       each row is repeated five times, and blurred by 0.01, so that copies differ

The size of noise is in standard deviations: of the change per step of an observation's column, and of the reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from synther_replay.benchmarks.data.registry import Dataset

_NEAR_END = 20  # steps, of "rare-ends"
_BLUR_OF_COPIES = 0.01
_FIELDS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")


def worsened(dataset: Dataset, how: str, seed: int) -> Dataset:
    """A data set made worse.

    Args:
        dataset: All rows of a data set, in order.
        how: Kind and amount, such as ``"ends=20"``.
        seed: Random seed.
    """
    kind, amount = parse(how)
    return KINDS[kind](dataset, amount, np.random.default_rng(seed))


def parse(how: str) -> tuple[str, float]:
    """Kind and amount of ``KIND=AMOUNT``; raises `ValueError` for an unknown kind or an impossible amount."""
    kind, _, text = how.partition("=")
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if kind not in KINDS:
        raise ValueError(f"worsen: expected KIND=AMOUNT with a kind of {', '.join(KINDS)}, got {how!r}")
    if not 0 < amount < math.inf or (kind in _WHOLE and amount % 1) or (kind == "rare-ends" and amount >= 1):
        expected = "a whole number above 0" if kind in _WHOLE else "a number above 0"
        raise ValueError(f"worsen: {kind}: expected {expected}{' and below 1' * (kind == 'rare-ends')}, got {how!r}")
    return kind, amount


def described(how: str) -> str:
    """Name of the rows in a table."""
    kind, amount = parse(how)
    return _DESCRIPTIONS[kind].format(amount)


def _without_starts(dataset: Dataset, steps: float, rng: np.random.Generator) -> Dataset:
    return _keep(dataset, _since_start(dataset) >= steps)


def _without_ends(dataset: Dataset, steps: float, rng: np.random.Generator) -> Dataset:
    return _keep(dataset, _until_termination(dataset) >= steps)


def _with_rare_ends(dataset: Dataset, share: float, rng: np.random.Generator) -> Dataset:
    return _keep(dataset, (_until_termination(dataset) >= _NEAR_END) | (rng.random(len(dataset)) < share))


def _blurred(dataset: Dataset, size: float, rng: np.random.Generator) -> Dataset:
    of_observations = size * (dataset.next_observations - dataset.observations).std(0)
    sizes = {
        "observations": of_observations,
        "next_observations": of_observations,
        "rewards": size * dataset.rewards.std(),
    }
    fields = {}
    for name, scale in sizes.items():
        values = getattr(dataset, name)
        fields[name] = values + (rng.standard_normal(values.shape, dtype=np.float32) * scale).astype(np.float32)
    return replace(dataset, **fields)


def _copied(dataset: Dataset, times: float, rng: np.random.Generator) -> Dataset:
    # One copy of the whole set after the other: rows stay in order, so that episodes stay whole.
    fields = {name: np.concatenate([getattr(dataset, name)] * int(times)) for name in _FIELDS}
    return _blurred(replace(dataset, **fields), _BLUR_OF_COPIES, rng)


KINDS: dict[str, Callable[[Dataset, float, np.random.Generator], Dataset]] = {
    "starts": _without_starts,
    "ends": _without_ends,
    "rare-ends": _with_rare_ends,
    "blur": _blurred,
    "copies": _copied,
}
_DESCRIPTIONS = {
    "starts": "real rows without the first {:g} steps of episodes",
    "ends": "real rows without the last {:g} steps before a termination",
    "rare-ends": f"real rows with a share of {{:g}} of the last {_NEAR_END} steps before a termination",
    "blur": "real rows with noise of {:g} standard deviations",
    "copies": "real rows {:g} times, with little noise",
}
_WHOLE = ("starts", "ends", "copies")  # kinds whose amount is a whole number


def _keep(dataset: Dataset, kept: np.ndarray) -> Dataset:
    """Some of the rows; the row before a gap does not continue with the next one."""
    if not kept.any():
        raise ValueError(f"worsen: no row of {dataset.name} is left")
    timeouts = dataset.timeouts | (~dataset.terminals & np.append(~kept[1:], False))
    fields = {name: getattr(dataset, name)[kept] for name in _FIELDS}
    return replace(dataset, **{**fields, "timeouts": timeouts[kept]})


def _since_start(dataset: Dataset) -> np.ndarray:
    """Steps of each row since its episode began, ``(n,)``."""
    first, stop = dataset.episodes().T
    return np.arange(len(dataset)) - np.repeat(first, stop - first)


def _until_termination(dataset: Dataset) -> np.ndarray:
    """Steps of each row before its episode terminated, ``(n,)``; infinite if it did not."""
    first, stop = dataset.episodes().T
    end = np.where(dataset.terminals[stop - 1], stop - 1, np.inf)
    return np.repeat(end, stop - first) - np.arange(len(dataset))
