"""Scores of the offline benchmark as tables in Markdown.

Scores are D4RL's, of the last evaluation; means over data sets are also given over all
evaluations, which depends less on chance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.common.statistics import COVERAGE, mean_estimate
from synther_replay.benchmarks.offline.results import (
    DIGEST,
    VARIANTS,
    Column,
    Result,
    column,
    shares,
    tasks,
    with_mixtures,
    with_other_networks,
    without_mixtures,
)

_EDAC_UPDATES = 3_000_000


def table(results: Sequence[Result]) -> str:
    """Scores of each algorithm by data set and by what was learnt from, then mixtures and other networks."""
    blocks = []
    for share in shares(results):
        shown = [result for result in results if result.share == share]
        of_what = "" if share is None else f", {share:g} % of each data set"
        unmixed = without_mixtures(shown)
        for what, part in (("", unmixed), (", mixtures", with_mixtures(shown))):
            for algo in sorted({result.algo for result in part}):
                blocks.append(_block(algo + what + of_what, {v: column(part, algo, v) for v in VARIANTS}))
        for both_algos, both in with_other_networks(unmixed).items():
            pairs = itertools.product(both_algos, VARIANTS)
            blocks.append(_block(f"networks{of_what}", {f"{a}, {v}": column(both, a, v) for a, v in pairs}))
    return "\n\n".join([_legend(results), *blocks]) + "\n"


def _block(title: str, columns: Mapping[str, Column]) -> str:
    """One table: a row for each data set, and means over those that the first column shares with another."""
    columns = {name: own for name, own in columns.items() if own}
    datasets = check_comparable(title, columns)
    found = [result for own in columns.values() for result in own.values()]
    rows: list[list[Any]] = [[name, *(_cell(own.get(name)) for own in columns.values())] for name in datasets]
    first = next(iter(columns.values()))
    regenerated = {result.dataset for result in found if result.regenerated}
    for kind, of_kind in _kinds(datasets, regenerated).items():
        evaluated = {result.evaluations for result in found if result.dataset in of_kind}
        # Columns may differ in the data sets that they have. None is compared over others than its neighbours are.
        shared = [tuple(name for name in of_kind if name in first and name in own) for own in columns.values()]
        groups = {of_kind[0]: tuple(of_kind)} if len(of_kind) == 1 else {}
        for common in sorted({names for names in shared if len(names) > 1}, key=len, reverse=True):
            which = "" if len(common) == len(of_kind) else f" ({', '.join(common)})"
            label = f"mean of {len(common)}{which}, {kind}"
            groups[label] = common
            rows.append([label, *(_mean(own, common, lambda result: result.scores) for own in columns.values())])
        if len(evaluated.pop()) > 1:
            for label, common in groups.items():
                means = (_mean(own, common, lambda result: result.over_all) for own in columns.values())
                rows.append([f"{label}, all evaluations", *means])
    return markdown_table((title, *columns), rows)


def check_comparable(title: str, columns: Mapping[str, Column]) -> list[str]:
    """Refuse results of unlike length, rows or evaluations in one table; gives the names of its data sets."""
    found = [result for own in columns.values() for result in own.values()]
    lengths = {result.steps for result in found}
    if len(lengths) > 1:
        raise ValueError(f"{title}: expected runs of the same length, got {sorted(lengths)} updates")
    datasets = list(dict.fromkeys(result.dataset for result in found))
    for name in datasets:
        made = [own[name].rows for own in columns.values() if name in own]
        if any(not _same(one, other) for one, other in itertools.combinations(made, 2)):
            raise ValueError(f"{title}: expected results on the same {name}, got {made}")
    for of_kind in _kinds(datasets, {result.dataset for result in found if result.regenerated}).values():
        evaluated = {result.evaluations for result in found if result.dataset in of_kind}
        if len(evaluated) > 1:
            raise ValueError(f"{title}: expected evaluations at the same updates, got {sorted(evaluated)}")
    return datasets


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether results are of the same rows, as far as both say it: early ones have no digest."""
    return all(one[key] == other[key] for key in one if key != DIGEST or None not in (one[key], other[key]))


def _mean(own: Column, datasets: Sequence[str], scores: Callable[[Result], np.ndarray]) -> str | None:
    """Over data sets, if the column has them all."""
    if not all(name in own for name in datasets):
        return None
    mean = mean_estimate([scores(own[name]) for name in datasets])
    return f"{mean.value:.1f} [{mean.low:.1f}, {mean.high:.1f}]"


def _kinds(datasets: Sequence[str], regenerated: Container[str]) -> dict[str, list[str]]:
    """Data sets whose mean makes sense: tasks of a kind, and official or regenerated."""
    found: dict[str, list[str]] = {}
    for name in datasets:
        found.setdefault(f"{tasks(name)}, {'regenerated' if name in regenerated else 'official'}", []).append(name)
    return found


def _cell(result: Result | None) -> str | None:
    if result is None:
        return None
    failed = f", {result.failed} failed" if result.failed else ""
    mean = mean_estimate([result.scores])
    interval = f"[{mean.low:.1f}, {mean.high:.1f}]"
    return f"{mean_and_spread(result.scores.tolist(), 1)} {interval} ({len(result.scores)} seeds{failed})"


def _legend(results: Sequence[Result]) -> str:
    regenerated = sorted({result.dataset for result in results if result.regenerated})
    official = sorted({result.dataset for result in results if not result.regenerated})
    parts = [
        "D4RL-normalised scores of the last evaluation, or over all of them where it says so: mean and standard "
        "deviation over seeds, of which a failed one counts as 0.",
        f"Brackets: {COVERAGE} % bootstrap interval of the mean, seeds drawn within each data set.",
        "The seeds of a cell share one subsample and one set of synthetic rows; the intervals do not include their "
        "variance.",
        "Policies are evaluated on Gymnasium's -v5 tasks for regenerated sets, on -v4 for D4RL's own files.",
    ]
    parts += _unlike_generators(results)
    if any(result.algo.startswith("edac") and result.steps < _EDAC_UPDATES for result in results):
        parts.append(f"CORL trains EDAC for {_EDAC_UPDATES:,} updates; these runs are shorter.")
    if regenerated:
        parts.append(f"Regenerated by us, not D4RL's own files: {', '.join(regenerated)}.")
    if official:
        parts.append(f"D4RL's own files: {', '.join(official)}.")
    return " ".join(parts)


def _generators(results: Sequence[Result]) -> dict[tuple[str, float | None], Mapping[str, int]]:
    """Size of the one generator of each data set, or of a share of it."""
    sizes: dict[tuple[str, float | None], Mapping[str, int]] = {}
    for result in results:
        if result.generator is not None:
            size = sizes.setdefault((result.dataset, result.share), result.generator)
            if size != result.generator:
                what = f"{dict(size)} and {dict(result.generator)}"
                raise ValueError(f"{result.dataset}: expected one generator for all algorithms, got {what}")
    return sizes


def _unlike_generators(results: Sequence[Result]) -> list[str]:
    """Which data sets had generators of which size, if they are not all the same."""
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
