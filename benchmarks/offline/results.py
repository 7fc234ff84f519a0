"""Result files of the offline benchmark: read, checked, and grouped for tables and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VARIANTS = ("real", "additive", "multiplicative", "dynamics", "mixed", "synther")
"""What agents learnt from, in the order of columns."""
DIGEST = "dataset_digest"
KEYS = ("dataset", "algo", "data", "steps", "seeds", "subsample", "augment", "network", "origin", "real_rows")
KEYS += ("final", "curve")
# Settings and origin: a number without them is not published.
KEYS += ("preset", "settings", "wall_seconds", "machine", "versions", "command", "commit")
_WAYS = ("rows", "real_ratio", "episodes")  # settings that must agree within a comparison
# Settings of the generator that may differ: some sets get more training or width, as in the paper. Offline nothing is
# refitted.
_MORE = ("width", "steps")
_FREE = (*_MORE, "refit_steps")
# Values of settings that files of older commits lack.
_UNKNOWN = {
    "predict_linearly": False,
    "noise_mean": -1.2,
    "noise_std": 1.2,
    "unsquash_actions": False,
    "predict_terminated": False,
    "find_limits": False,
}
_MIXTURE = "mixed"  # tried on few sets, and so compared with the others on those alone
_CHECK = "corl-"  # beginning of the files of CORL's own scripts, which check our learners


@dataclass(frozen=True)
class Result:
    """One result file.

    Attributes:
        dataset: Name of the data set.
        algo: Name of the algorithm, with `-large` for larger networks and `-precise` for fp32.
        usual: The same with its default networks; None if it has them.
        variant: What was learnt from, one of `VARIANTS`.
        steps: Updates that the agents made.
        share: Share of the data set that was used, in per cent; None for all of it.
        regenerated: Whether the data set is regenerated, not D4RL's own file.
        scores: Final scores ``(seeds,)``; a failed seed has 0, as a random policy would.
        over_all: Means over all evaluations ``(seeds,)``.
        evaluations: Updates at each evaluation.
        failed: Number of seeds that failed at the last evaluation.
        rows: Identity of the real rows: their number, command and digest.
        ways: Settings that must agree within a column of a table.
        generator: Settings of the generator that may differ between data sets; None without a generator.
    """

    dataset: str
    algo: str
    usual: str | None
    variant: str
    steps: int
    share: float | None
    regenerated: bool
    scores: np.ndarray
    over_all: np.ndarray
    evaluations: tuple[int, ...]
    failed: int
    rows: Mapping[str, Any]
    ways: Mapping[str, Any]
    generator: Mapping[str, int] | None


def read_result(path: Path) -> Result:
    """Read and check one result file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, got a damaged file: {error}") from error
    missing = [key for key in KEYS if not isinstance(content, dict) or key not in content]
    if missing:
        raise ValueError(f"{path}: expected the keys {', '.join(KEYS)}; missing: {', '.join(missing)}")
    variant = content["augment"] or content["data"]
    alone = not content["augment"] or content["data"] == "real"  # augmented synthetic rows have no place here
    if variant not in VARIANTS or not alone:
        raise ValueError(f"{path}: expected data or augment of {', '.join(VARIANTS)}")
    scores, curve, evaluations = _scores(path, content)
    if content["dataset"] != path.parent.name:  # a file that was copied would be shown as something it is not
        raise ValueError(f"{path}: expected the data set of the folder's name, got {content['dataset']!r}")
    share = None if content["subsample"] is None else 100 * content["subsample"]
    settings, generator = content["settings"], content["settings"].get("generator") or {}
    precise = "-precise" if content.get("precise") else ""  # which older ones do not know
    if content["data"] == "real":
        ways = {}
    else:
        ways = {key: value for key, value in {**_UNKNOWN, **generator}.items() if key not in _FREE}
    return Result(
        content["dataset"],
        content["algo"] + (f"-{content['network']}" if content["network"] else "") + precise,
        content["algo"] + precise if content["network"] else None,
        variant,
        content["steps"],
        share,
        content["origin"] == "regenerated",
        np.nan_to_num(scores, nan=0.0),
        np.nan_to_num(curve, nan=0.0).mean(0),
        evaluations,
        int(np.isnan(scores).sum()),
        {key: content.get(key) for key in ("real_rows", "dataset_command", DIGEST)},
        {"preset": content["preset"], **{key: settings.get(key) for key in _WAYS}, **ways},
        {key: generator[key] for key in _MORE if key in generator} or None,
    )


def _scores(path: Path, content: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Final scores of the seeds, those at all evaluations, and when these were; NaN for a seed that failed."""
    seeds = len(content["seeds"])
    try:
        evaluations = tuple(point["step"] for point in content["curve"])
        curve = np.array([point["scores"] for point in content["curve"]], dtype=float).reshape(len(evaluations), seeds)
        final = np.array(content["final"], dtype=float).reshape(seeds)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected a final score for each seed, and one at each evaluation") from error
    if not curve.size or not np.array_equal(final, curve[-1], equal_nan=True):
        raise ValueError(f"{path}: expected final scores that are those of the last evaluation")
    return final, curve, evaluations


def read_results(folder: Path) -> list[Result]:
    """All result files of a folder but those that only check our learners."""
    paths = [path for path in sorted(folder.glob("*/*.json")) if not path.name.startswith(_CHECK)]
    results = [read_result(path) for path in paths]
    if not results:
        raise ValueError(f"{folder}: expected result files such as hopper-medium-regen/td3bc-real.json, found none")
    return results


def with_mixtures(results: Sequence[Result]) -> list[Result]:
    """Results of algorithms that have learnt from mixtures, on the data sets where one of them has."""
    mixed = [result for result in results if result.variant == _MIXTURE]
    algos, sets = {result.algo for result in mixed}, {result.dataset for result in mixed}
    return [result for result in results if result.algo in algos and result.dataset in sets]


def without_mixtures(results: Sequence[Result]) -> list[Result]:
    """All others."""
    return [result for result in results if result.variant != _MIXTURE]


def with_other_networks(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """By an algorithm and the same with other networks: results of both on the data sets that the latter has."""
    algos = {result.algo for result in results}
    found = {}
    for usual, other in sorted({(r.usual, r.algo) for r in results if r.usual is not None and r.usual in algos}):
        sets = {result.dataset for result in results if result.algo == other}
        found[usual, other] = [r for r in results if r.algo in (usual, other) and r.dataset in sets]
    return found


def shares(results: Sequence[Result]) -> list[float | None]:
    """All data first, then by falling share."""
    found = {result.share for result in results}
    return [*([None] if None in found else []), *sorted((s for s in found if s is not None), reverse=True)]


def tasks(dataset: str) -> str:
    """The kind of tasks that a data set is of."""
    return "mazes" if dataset.startswith("maze2d") else "locomotion"


Column = Mapping[str, Result]
"""Results by data set."""


def column(results: Sequence[Result], algo: str, variant: str) -> Column:
    """Results that are compared with each other: those of a column are made in the same way."""
    found = [result for result in results if (result.algo, result.variant) == (algo, variant)]
    own = {result.dataset: result for result in found}
    if len(own) < len(found):
        twice = next(name for name in own if sum(result.dataset == name for result in found) > 1)
        raise ValueError(f"{algo} {variant}: expected one result on {twice}, there are several files")
    for kind in ("locomotion", "mazes"):
        first, *others = [result for name, result in own.items() if tasks(name) == kind] or [None]
        for other in others:
            if differing := [key for key, value in first.ways.items() if other.ways.get(key) != value]:
                what = f"{differing[0]} {first.ways[differing[0]]!r} and {other.ways.get(differing[0])!r}"
                raise ValueError(f"{algo} {variant}: {first.dataset} and {other.dataset} do not compare, with {what}")
    return own
