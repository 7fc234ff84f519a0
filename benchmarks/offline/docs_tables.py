"""Generated tables of README and docs/results/offline.md, by name, from the published results.

Missing results are shown as "-". Means are over the data sets that all columns have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.offline.results import Column, Result, column, read_results, tasks
from synther_replay.benchmarks.offline.tables import (
    all_scores,
    check_comparable,
    final_scores,
    interval_cell,
    mean_cell,
    score_cell,
)
from synther_replay.benchmarks.offline.worsened import described

ALGORITHMS = {
    "td3bc": "TD3+BC",
    "iql": "IQL",
    "edac": "EDAC",
    "cql": "CQL",
    "td3bc-large": "TD3+BC, larger networks",
}
ROWS = {"real": "real rows", "mixed": "half of each", "synther": "synthetic rows"}
AUGMENTATIONS = ("additive", "multiplicative", "dynamics")
SUBSAMPLED = "walker2d-medium-replay-regen"
"""Data set of the experiment with 15 % of the rows."""
SHARE = 15.0
USUAL_SEEDS = 8
"""Cells with another number of seeds mention it."""
_SETS = ("random", "medium-replay", "medium", "medium-expert")
_MAZES = ("umaze", "medium", "medium-play", "large", "large-play")


def tables(results: Path) -> dict[str, str]:
    """Tables and sentences by name; some only once there are results.

    Args:
        results: Folder of the published results.
    """
    folder = results / "offline"
    main, second, paper = (read_results(folder / name) for name in ("main", "second-draw", "paper-preset"))
    whole = [result for result in main if result.share is None]
    further = {"offline-cql": _by_set("cql", whole), "offline-worsened": _worsened(whole, folder / "worsened")}
    return {
        **{name: text for name, text in further.items() if text},
        "readme-offline-15pct": _fifteen_percent_sentence(main, second),
        "offline-means": _means(whole),
        "offline-td3bc": _by_set("td3bc", _of_family("locomotion", whole)),
        "offline-iql": _by_set("iql", _of_family("locomotion", whole)),
        "offline-edac": _by_set("edac", whole),
        "offline-mazes": _each(_of_family("mazes", whole), ("real", "synther")),
        "offline-ant-mazes": _each(_of_family("ant mazes", whole), ("real", "synther")),
        "offline-mixed": _each([r for r in whole if _kind(r.dataset) == "medium-replay"], tuple(ROWS)),
        "offline-networks": _networks(whole),
        "offline-15pct": _fifteen_percent(main, second),
        "offline-paper-preset": _with_and_without(main, paper, "`offline()`", "`paper()`"),
        "offline-terminations": _terminations(folder),
        "offline-corl-check": _corl_check(folder),
    }


def find(results: Sequence[Result], dataset: str, algo: str, variant: str, share: float | None = None) -> Result | None:
    """The result with these settings; None if there is none."""
    for result in results:
        if (result.dataset, result.algo, result.variant, result.share) == (dataset, algo, variant, share):
            return result
    return None


def _of_family(kind: str, results: Sequence[Result]) -> list[Result]:
    return [result for result in results if tasks(result.dataset) == kind]


def _by_set(algo: str, results: Sequence[Result]) -> str:
    """Scores on real and on synthetic rows, a row per data set; empty without results."""
    if all(result.algo != algo for result in results):
        return ""
    return _comparison(ALGORITHMS[algo], {ROWS[v]: column(results, algo, v) for v in ("real", "synther")})


def _each(results: Sequence[Result], variants: Sequence[str]) -> str:
    """A table for each algorithm that has results of all variants."""
    columns = {algo: {ROWS[v]: column(results, algo, v) for v in variants} for algo in ("td3bc", "iql", "edac")}
    return "\n\n".join(_comparison(ALGORITHMS[algo], own) for algo, own in columns.items() if all(own.values()))


def _networks(results: Sequence[Result]) -> str:
    sets = {result.dataset for result in results if result.algo == "td3bc-large"}
    own = [result for result in results if result.dataset in sets]
    names = {"td3bc": "usual networks", "td3bc-large": "larger networks"}
    columns = {f"{names[a]}, {ROWS[v]}": column(own, a, v) for a in names for v in ("real", "synther")}
    return _comparison("TD3+BC", columns)


def _comparison(title: str, columns: Mapping[str, Column]) -> str:
    """A row per data set, and means over the data sets that all columns have."""
    present = {name: own for name, own in columns.items() if own}
    datasets = sorted(check_comparable(title, present), key=_order)
    rows: list[list[Any]] = [[_short(name), *(_cell(own.get(name)) for own in columns.values())] for name in datasets]
    common = [name for name in datasets if all(name in own for own in columns.values())]
    if len(common) > 1:
        label = f"mean of {len(common)} sets" + ("" if len(common) == len(datasets) else " that all columns have")
        rows.append([f"**{label}**", *(mean_cell(own, common, final_scores) for own in columns.values())])
        rows.append(
            [f"**{label}, all evaluations**", *(mean_cell(own, common, all_scores) for own in columns.values())]
        )
    return markdown_table((title, *columns), rows)


def _means(results: Sequence[Result]) -> str:
    """Means over data sets, a row per algorithm and group of data sets."""
    rows, shown = [], []
    for algo, kind, which in (
        ("td3bc", "locomotion", None),
        ("iql", "locomotion", None),
        ("edac", "locomotion", None),
        ("td3bc", "medium-replay", "medium-replay"),
        ("td3bc-large", "medium-replay", "medium-replay"),
        ("iql", "medium-replay", "medium-replay"),
        ("cql", "medium-replay", "medium-replay"),
        ("td3bc-large", "locomotion", None),
        ("td3bc", "mazes", None),
        ("iql", "mazes", None),
        ("edac", "mazes", None),
        ("td3bc", "ant mazes", None),
        ("iql", "ant mazes", None),
    ):
        own = [r for r in results if (_kind(r.dataset) == which if which else tasks(r.dataset) == kind)]
        pair = [column(own, algo, variant) for variant in ("real", "synther")]
        check_comparable(ALGORITHMS[algo], dict(enumerate(pair)))
        common = sorted((name for name in pair[0] if name in pair[1]), key=_order)
        if common and (algo, common) not in shown:
            shown.append((algo, common))
            cells = [mean_cell(part, common, scores) for scores in (final_scores, all_scores) for part in pair]
            rows.append([ALGORITHMS[algo], f"{len(common)} {kind}" if len(common) > 1 else _short(common[0]), *cells])
    heads = ("real rows", "synthetic rows", "real rows, all evaluations", "synthetic rows, all evaluations")
    return markdown_table(("algorithm", "sets", *heads), rows)


def _fifteen_percent(main: Sequence[Result], second: Sequence[Result]) -> str:
    """Scores with 15 % of the rows and with all rows of a data set."""
    variants = ("real", *AUGMENTATIONS, "synther")
    rows: list[list[Any]] = []
    for algo, results, draw in (("td3bc", main, "first"), ("td3bc", second, "second"), ("iql", main, "first")):
        cells = [find(results, SUBSAMPLED, algo, variant, SHARE) for variant in variants]
        cells.append(find(results, SUBSAMPLED, algo, "real"))
        title = f"{ALGORITHMS[algo]}, {draw} draw"
        rows.append([title, *(_cell(cell) for cell in cells)])
        rows.append([f"{title}, all evaluations", *(cell and interval_cell([cell.mean_scores]) for cell in cells)])
    head = (
        "15 % real rows",
        *(f"{name} noise" for name in AUGMENTATIONS),
        "synthetic rows of the 15 %",
        "all real rows",
    )
    return markdown_table((_short(SUBSAMPLED), *head), rows)


def _fifteen_percent_sentence(main: Sequence[Result], second: Sequence[Result]) -> str:
    cells = [find(main, SUBSAMPLED, "td3bc", variant, SHARE) for variant in ("real", "synther")]
    whole = find(main, SUBSAMPLED, "td3bc", "real")
    again = [find(second, SUBSAMPLED, "td3bc", variant, SHARE) for variant in ("real", "synther")]
    if None in (*cells, whole):
        return ""
    real, synthetic, full = (f"{cell.scores.mean():.1f}" for cell in (*cells, whole))
    text = (
        f"On {SHARE:g} % of walker2d medium-replay (regenerated), TD3+BC scores {real} on real rows and {synthetic} on "
        f"synthetic ones; the full set gives {full}."
    )
    if None in again:
        return text
    return f"{text} A second draw agrees: {again[0].scores.mean():.1f} and {again[1].scores.mean():.1f}."


def _with_and_without(main: Sequence[Result], others: Sequence[Result], without: str, with_it: str) -> str:
    """Results without and with a change of settings, a row per algorithm and data set."""
    rows = []
    for other in sorted(others, key=lambda r: (list(ALGORITHMS).index(r.algo), _order(r.dataset), r.share is not None)):
        own = find(main, other.dataset, other.algo, other.variant, other.share)
        share = "" if other.share is None else f"{other.share:g} % of "
        last = [_cell(result) for result in (own, other)]
        mean = [result and interval_cell([result.mean_scores]) for result in (own, other)]
        rows.append([f"{ALGORITHMS[other.algo]}, {share}{_short(other.dataset)}", *last, *mean])
    heads = (without, with_it, f"{without}, all evaluations", f"{with_it}, all evaluations")
    return markdown_table(("synthetic rows", *heads), rows)


def _worsened(main: Sequence[Result], folder: Path) -> str:
    """Scores on real rows made worse in one way, between real rows as they are and synthetic ones."""
    if not folder.is_dir():
        return ""
    results, blocks = read_results(folder), []
    for algo, dataset in sorted({(result.algo, result.dataset) for result in results}):
        own = [result for result in results if (result.algo, result.dataset) == (algo, dataset)]
        found = {ROWS["real"]: find(main, dataset, algo, "real")}
        found |= {described(result.variant): result for result in sorted(own, key=lambda result: result.variant)}
        found[ROWS["synther"]] = find(main, dataset, algo, "synther")
        check_comparable(algo, {name: {dataset: result} for name, result in found.items() if result})
        rows = [[name, _cell(each), each and interval_cell([each.mean_scores])] for name, each in found.items()]
        title = f"{ALGORITHMS[algo]}, {_short(dataset)}"
        blocks.append(markdown_table((title, "last evaluation", "all evaluations"), rows))
    return "\n\n".join(blocks)


def _terminations(folder: Path) -> str:
    """Precision and recall of generated `terminated` flags, a row per data set."""
    rows, seen = [], set()
    for path in sorted((folder / "main").glob("*/*-synther*.json")):
        content = json.loads(path.read_text())
        key = content["dataset"], content["subsample"]
        counted = content.get("terminals")
        if counted and counted.get("synthetic") and content["preset"] == "offline" and key not in seen:
            seen.add(key)
            real, ours = counted["real"], counted["synthetic"]
            if not real["terminated"] or "by_rule" not in real:  # the task has no rule of the state alone
                continue
            share = "" if key[1] is None else f"{100 * key[1]:g} % of "
            expected = real["terminated"] / real["rows"] * ours["rows"]
            precision, recall = (
                f"{ours['both'] / ours[total]:.0%}" if ours[total] else None for total in ("terminated", "by_rule")
            )
            rows.append([share + _short(key[0]), f"{expected:,.0f}", f"{ours['terminated']:,}", precision, recall])
    title = "generated `terminated` flags against the task's termination rule"
    return markdown_table((title, "expected count", "generated count", "precision", "recall"), rows)


def _corl_check(folder: Path) -> str:
    """Scores of CORL's own scripts and of this repository after the same number of updates."""
    rows = []
    for path in sorted((folder / "corl-check").glob("*/corl-*.json"), key=lambda path: (path.stem, path), reverse=True):
        theirs = json.loads(path.read_text())
        name = f"{path.stem.removeprefix('corl-')}-real.json"
        ours = _scores_at(folder / "corl-check" / path.parent.name / name, theirs["steps"])
        if ours is None and name.startswith("td3bc"):  # not IQL: its learning rate schedule depends on the run length
            ours = _scores_at(folder / "main" / path.parent.name / name, theirs["steps"])
        algo = ALGORITHMS[path.stem.removeprefix("corl-")]
        cells = (f"{mean_and_spread(own, 1)} ({len(own)} seeds)" if own else None for own in (theirs["final"], ours))
        rows.append([f"{algo}, {_short(path.parent.name)}", f"{theirs['steps']:,}", *cells])
    return markdown_table(("real rows", "updates", "CORL's script", "here"), rows)


def _scores_at(path: Path, step: int) -> list[float] | None:
    if not path.is_file():
        return None
    return next((point["scores"] for point in json.loads(path.read_text())["curve"] if point["step"] == step), None)


def _cell(result: Result | None) -> str | None:
    return score_cell(result, usual_seeds=USUAL_SEEDS)


def _short(dataset: str) -> str:
    """Display name of a data set, without the suffix for regenerated ones."""
    return dataset.removesuffix("-regen").replace("-", " ", 1)


def _kind(dataset: str) -> str:
    return dataset.removesuffix("-regen").partition("-")[2]


def _order(dataset: str) -> tuple[str, int]:
    """Sort key: task, then skill of the behaviour policy or size of the maze."""
    kind, known = _kind(dataset), _SETS if tasks(dataset) == "locomotion" else _MAZES
    return dataset.partition("-")[0], known.index(kind) if kind in known else len(known)
