"""Result files of the offline benchmark: read, checked, and grouped for tables and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VARIANTS = ("real", "additive", "multiplicative", "dynamics", "mixed", "synther")
"""Kinds of training rows, in the order of table columns."""
DIGEST, REAL_ROWS = "dataset_digest", "real_rows"
KEYS = ("dataset", "algo", "data", "steps", "seeds", "subsample", "augment", "network", "origin", "real_rows")
KEYS += ("final", "curve")
# Settings and origin; results without them are refused.
KEYS += ("preset", "settings", "wall_seconds", "machine", "versions", "command", "commit")
MUST_MATCH = ("rows", "real_ratio", "episodes")  # settings that must be equal within a column
# Generator options that may differ within a column: some data sets use a larger network or more training steps, as in
# the paper. `refit_steps` is not used offline.
SIZE_OPTIONS = ("width", "steps")
MAY_DIFFER = (*SIZE_OPTIONS, "refit_steps")
# Values of options that result files of older commits lack.
DEFAULTS_OF_OLD_FILES = {
    "noise_mean": -1.2,
    "noise_std": 1.2,
    "unsquash_actions": False,
    "exact": False,
    "direct_rows": True,
    "find_limits": False,
    "consistent": False,
}
FAMILIES = ("locomotion", "mazes", "ant mazes")
MIXED = "mixed"  # half real, half synthetic rows; run on few data sets and compared on those only
CORL_PREFIX = "corl-"  # file name prefix of results of CORL's own scripts


@dataclass(frozen=True)
class Result:
    """One result file.

    Attributes:
        dataset: Name of the data set.
        algo: Name of the algorithm, with `-large` for larger networks and `-precise` for fp32.
        base_algo: Name of the algorithm with default networks; None if this result has default networks.
        variant: Kind of training rows, one of `VARIANTS`, or how real rows were made worse.
        steps: Number of updates.
        share: Percentage of the data set that was used; None for the full data set.
        regenerated: Whether the data set is regenerated, not D4RL's own file.
        scores: Final scores ``(seeds,)``; a failed seed has 0, the score of a random policy.
        mean_scores: Means over all evaluations ``(seeds,)``.
        evaluations: Number of updates at each evaluation.
        failed: Number of seeds without a score at the last evaluation.
        source: Number, command and digest of the real rows; no number if they were made worse.
        matched: Settings that must be equal within a column of a table.
        generator: Generator sizes, which may differ between data sets; None without a generator.
    """

    dataset: str
    algo: str
    base_algo: str | None
    variant: str
    steps: int
    share: float | None
    regenerated: bool
    scores: np.ndarray
    mean_scores: np.ndarray
    evaluations: tuple[int, ...]
    failed: int
    source: Mapping[str, Any]
    matched: Mapping[str, Any]
    generator: Mapping[str, int] | None


def read_cell(path: Path) -> Result:
    """Read and check one result file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, got a damaged file: {error}") from error
    missing = [key for key in KEYS if not isinstance(content, dict) or key not in content]
    if missing:
        raise ValueError(f"{path}: expected the keys {', '.join(KEYS)}; missing: {', '.join(missing)}")
    worsened = content.get("worsen")  # absent in older files
    variant = worsened or content["augment"] or content["data"]
    supported = not content["augment"] or content["data"] == "real"  # augmented synthetic rows are not supported
    if variant not in (*VARIANTS, worsened) or not supported:
        raise ValueError(f"{path}: expected data or augment of {', '.join(VARIANTS)}")
    scores, curve, evaluations = _scores(path, content)
    if content["dataset"] != path.parent.name:  # a copied file would be shown under the wrong name
        raise ValueError(f"{path}: expected the data set of the folder's name, got {content['dataset']!r}")
    share = None if content["subsample"] is None else 100 * content["subsample"]
    settings, generator = content["settings"], content["settings"].get("generator") or {}
    precise = "-precise" if content.get("precise") else ""  # absent in older files
    if content["data"] == "real":
        options = {}
    else:
        options = {k: value for k, value in {**DEFAULTS_OF_OLD_FILES, **generator}.items() if k not in MAY_DIFFER}
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
        {key: content.get(key) for key in (REAL_ROWS, "dataset_command", DIGEST)}
        | ({REAL_ROWS: None} if worsened else {}),
        {"preset": content["preset"], **{key: settings.get(key) for key in MUST_MATCH}, **options},
        {key: generator[key] for key in SIZE_OPTIONS if key in generator} or None,
    )


def _scores(path: Path, content: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Final scores, scores at all evaluations, and updates at each evaluation; NaN for failed seeds."""
    seeds = len(content["seeds"])
    try:
        evaluations = tuple(point["step"] for point in content["curve"])
        curve = np.array([point["scores"] for point in content["curve"]], dtype=float).reshape(len(evaluations), seeds)
        final = np.array(content["final"], dtype=float).reshape(seeds)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected a final score for each seed, and one at each evaluation") from error
    if not curve.size or not np.array_equal(final, curve[-1], equal_nan=True):
        raise ValueError(f"{path}: expected final scores equal to those of the last evaluation")
    return final, curve, evaluations


def read_results(folder: Path) -> list[Result]:
    """Read all result files of a folder, except those of CORL's own scripts."""
    paths = [path for path in sorted(folder.glob("*/*.json")) if not path.name.startswith(CORL_PREFIX)]
    results = [read_cell(path) for path in paths]
    if not results:
        raise ValueError(f"{folder}: expected result files such as hopper-medium-regen/td3bc-real.json, found none")
    return results


def with_mixtures(results: Sequence[Result]) -> list[Result]:
    """Results of the algorithms and data sets that have a result on mixed rows."""
    mixed = [result for result in results if result.variant == MIXED]
    algos, sets = {result.algo for result in mixed}, {result.dataset for result in mixed}
    return [result for result in results if result.algo in algos and result.dataset in sets]


def without_mixtures(results: Sequence[Result]) -> list[Result]:
    """Results on real or synthetic rows alone."""
    return [result for result in results if result.variant != MIXED]


def with_other_networks(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """Results with default and other networks on the same data sets, by the names of both algorithms."""
    algos = {result.algo for result in results}
    found = {}
    pairs = {(r.base_algo, r.algo) for r in results if r.base_algo is not None and r.base_algo in algos}
    for base, other in sorted(pairs):
        sets = {result.dataset for result in results if result.algo == other}
        found[base, other] = [r for r in results if r.algo in (base, other) and r.dataset in sets]
    return found


def variants_of(results: Sequence[Result]) -> list[str]:
    """Kinds of training rows: those of `VARIANTS`, then ways in which real rows were made worse."""
    return [*VARIANTS, *sorted({result.variant for result in results} - set(VARIANTS))]


def shares(results: Sequence[Result]) -> list[float | None]:
    """Shares of the results: the full data set (None) first, then in descending order."""
    found = {result.share for result in results}
    return [*([None] if None in found else []), *sorted((s for s in found if s is not None), reverse=True)]


def tasks(dataset: str) -> str:
    """Task family of a data set, one of `FAMILIES`."""
    return {"maze2d": "mazes", "antmaze": "ant mazes"}.get(dataset.partition("-")[0], "locomotion")


Column = Mapping[str, Result]
"""Results by data set."""


def column(results: Sequence[Result], algo: str, variant: str) -> Column:
    """Results of one algorithm and variant; refuses results with different settings."""
    found = [result for result in results if (result.algo, result.variant) == (algo, variant)]
    by_dataset = {result.dataset: result for result in found}
    if len(by_dataset) < len(found):
        twice = next(name for name in by_dataset if sum(result.dataset == name for result in found) > 1)
        raise ValueError(f"{algo} {variant}: expected one result on {twice}, got several files")
    for kind in FAMILIES:
        first, *others = [result for name, result in by_dataset.items() if tasks(name) == kind] or [None]
        for other in others:
            if differing := [key for key, value in first.matched.items() if other.matched.get(key) != value]:
                name = differing[0]
                raise ValueError(
                    f"{algo} {variant}: expected the same {name}, got {first.matched[name]!r} on {first.dataset} and "
                    f"{other.matched.get(name)!r} on {other.dataset}"
                )
    return by_dataset
