"""Markdown tables of the offline benchmark.

Scores are D4RL-normalised scores of the last evaluation. Means over data sets are also given over all evaluations,
which reduces their variance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.common.statistics import COVERAGE, Estimate, mean_estimate
from synther_replay.benchmarks.offline.results import (
    DIGEST,
    REAL_ROWS,
    VARIANTS,
    Column,
    Result,
    column,
    shares,
    tasks,
    variants_of,
    with_mixtures,
    with_other_networks,
    without_mixtures,
)

_EDAC_UPDATES = 3_000_000


def table(results: Sequence[Result]) -> str:
    """All tables with a legend: a table per algorithm, then mixed rows, then other networks."""
    blocks = []
    for share in shares(results):
        shown = [result for result in results if result.share == share]
        share_note = "" if share is None else f", {share:g} % of each data set"
        unmixed = without_mixtures(shown)
        for note, part in (("", unmixed), (", mixtures", with_mixtures(shown))):
            for algo in sorted({result.algo for result in part}):
                blocks.append(_block(algo + note + share_note, {v: column(part, algo, v) for v in variants_of(part)}))
        for both_algos, both in with_other_networks(unmixed).items():
            pairs = itertools.product(both_algos, VARIANTS)
            blocks.append(_block(f"networks{share_note}", {f"{a}, {v}": column(both, a, v) for a, v in pairs}))
    return "\n\n".join([_legend(results), *blocks]) + "\n"


def _block(title: str, columns: Mapping[str, Column]) -> str:
    """One table: a row per data set, and means over the data sets that the first column and another one have."""
    columns = {name: own for name, own in columns.items() if own}
    datasets = check_comparable(title, columns)
    found = [result for own in columns.values() for result in own.values()]
    rows: list[list[Any]] = [[name, *(score_cell(own.get(name)) for own in columns.values())] for name in datasets]
    first = next(iter(columns.values()))
    regenerated = {result.dataset for result in found if result.regenerated}
    for kind, of_kind in _kinds(datasets, regenerated).items():
        evaluated = {result.evaluations for result in found if result.dataset in of_kind}
        # Means use only data sets that both columns have.
        shared = [tuple(name for name in of_kind if name in first and name in own) for own in columns.values()]
        groups = {of_kind[0]: tuple(of_kind)} if len(of_kind) == 1 else {}
        for common in sorted({names for names in shared if len(names) > 1}, key=len, reverse=True):
            which = "" if len(common) == len(of_kind) else f" ({', '.join(common)})"
            label = f"mean of {len(common)}{which}, {kind}"
            groups[label] = common
            rows.append([label, *(mean_cell(own, common, final_scores) for own in columns.values())])
        if len(evaluated.pop()) > 1:
            for label, common in groups.items():
                means = (mean_cell(own, common, all_scores) for own in columns.values())
                rows.append([f"{label}, all evaluations", *means])
    return markdown_table((title, *columns), rows)


def check_comparable(title: str, columns: Mapping[str, Column]) -> list[str]:
    """Names of the data sets of a table; refuses runs of different length, real rows or evaluation steps."""
    found = [result for own in columns.values() for result in own.values()]
    lengths = {result.steps for result in found}
    if len(lengths) > 1:
        raise ValueError(f"{title}: expected runs of the same length, got {sorted(lengths)} updates")
    datasets = list(dict.fromkeys(result.dataset for result in found))
    for name in datasets:
        sources = [own[name].source for own in columns.values() if name in own]
        if any(not _same_source(one, other) for one, other in itertools.combinations(sources, 2)):
            raise ValueError(f"{title}: expected results on the same {name}, got {sources}")
    for of_kind in _kinds(datasets, {result.dataset for result in found if result.regenerated}).values():
        evaluated = {result.evaluations for result in found if result.dataset in of_kind}
        if len(evaluated) > 1:
            raise ValueError(f"{title}: expected evaluations at the same updates, got {sorted(evaluated)}")
    return datasets


def _same_source(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two results used the same real rows; numbers of rows and digests are compared if both have one."""
    return all(
        one[key] == other[key] for key in one if key not in (DIGEST, REAL_ROWS) or None not in (one[key], other[key])
    )


def final_scores(result: Result) -> np.ndarray:
    """Scores ``(seeds,)`` of the last evaluation."""
    return result.scores


def all_scores(result: Result) -> np.ndarray:
    """Mean scores ``(seeds,)`` over all evaluations."""
    return result.mean_scores


def mean_cell(own: Column, datasets: Sequence[str], scores: Callable[[Result], np.ndarray]) -> str | None:
    """Mean over data sets with its interval; None if the column lacks one of them."""
    if not all(name in own for name in datasets):
        return None
    return interval_cell([scores(own[name]) for name in datasets])


def interval_cell(scores: Sequence[np.ndarray]) -> str:
    """Mean over data sets of scores ``(seeds,)``, with its interval."""
    mean = _estimate(tuple(tuple(own.tolist()) for own in scores))
    return f"{mean.value:.1f} [{mean.low:.1f}, {mean.high:.1f}]"


def score_cell(result: Result | None, *, usual_seeds: int | None = None) -> str | None:
    """Mean, standard deviation and interval of a result; None without a result.

    Args:
        result: The result.
        usual_seeds: Number of seeds that the cell does not mention.
    """
    if result is None:
        return None
    count = len(result.scores)
    notes = [] if count == usual_seeds else [f"{count} seeds"]
    notes += [f"{result.failed} failed"] if result.failed else []
    interval = interval_cell([result.scores]).partition(" ")[2]
    text = f"{mean_and_spread(result.scores.tolist(), 1)} {interval}"
    return f"{text} ({', '.join(notes)})" if notes else text


@cache
def _estimate(scores: tuple[tuple[float, ...], ...]) -> Estimate:
    """Bootstrap estimate; cached because cells are in several tables."""
    return mean_estimate([np.array(own) for own in scores])


def _kinds(datasets: Sequence[str], regenerated: Container[str]) -> dict[str, list[str]]:
    """Data sets to average over, by task family and by official or regenerated."""
    found: dict[str, list[str]] = {}
    for name in datasets:
        found.setdefault(f"{tasks(name)}, {'regenerated' if name in regenerated else 'official'}", []).append(name)
    return found


def _legend(results: Sequence[Result]) -> str:
    regenerated = sorted({result.dataset for result in results if result.regenerated})
    official = sorted({result.dataset for result in results if not result.regenerated})
    parts = [
        'D4RL-normalised scores of the last evaluation (rows "all evaluations": mean over all of them): mean and '
        "standard deviation over seeds. A failed seed scores 0.",
        f"Brackets: {COVERAGE} % bootstrap interval of the mean, seeds drawn within each data set.",
        "The seeds of a cell share one subsample and one set of synthetic rows; the intervals do not include their "
        "variance.",
        "Policies are evaluated on Gymnasium's -v5 tasks for regenerated sets, on -v4 for D4RL's own files.",
    ]
    parts += _generator_sizes_note(results)
    if any(result.algo.startswith("edac") and result.steps < _EDAC_UPDATES for result in results):
        parts.append(f"CORL trains EDAC for {_EDAC_UPDATES:,} updates; these runs are shorter.")
    if regenerated:
        parts.append(f"Regenerated data sets, not D4RL's own files: {', '.join(regenerated)}.")
    if official:
        parts.append(f"D4RL's own files: {', '.join(official)}.")
    return " ".join(parts)


def _generators(results: Sequence[Result]) -> dict[tuple[str, float | None], Mapping[str, int]]:
    """Generator sizes by data set and share; refuses different sizes on the same rows."""
    sizes: dict[tuple[str, float | None], Mapping[str, int]] = {}
    for result in results:
        if result.generator is not None:
            size = sizes.setdefault((result.dataset, result.share), result.generator)
            if size != result.generator:
                both = f"{dict(size)} and {dict(result.generator)}"
                raise ValueError(f"{result.dataset}: expected one generator for all algorithms, got {both}")
    return sizes


def _generator_sizes_note(results: Sequence[Result]) -> list[str]:
    """A sentence with the generator sizes of the data sets; empty if all are equal."""
    sets: dict[tuple[tuple[str, int], ...], set[str]] = {}
    for (dataset, share), size in _generators(results).items():
        sets.setdefault(tuple(size.items()), set()).add(dataset if share is None else f"{share:g} % of {dataset}")
    if len(sets) < 2:
        return []
    sizes = (
        f"{', '.join(f'{name} {value:,}' for name, value in size)} on {', '.join(sorted(sets[size]))}"
        for size in sorted(sets)
    )
    return [f"Generators differ between data sets: {'; '.join(sizes)}."]
