"""Tables and figures of the offline benchmark, from its result files.

    python benchmarks/plot_offline.py --results results/offline

reads `<results>/<dataset>/<cell>.json` and writes `offline.png`, `offline-<share>pct.png` for each share that data sets
were reduced to, such names with `-mazes`, with `-mixed` for mixtures beside what they are made of and with
`-<algorithm>` for other networks beside the algorithm's own, and `table.md`, which is printed too. What is missing
leaves its place empty; what is damaged stops the program. Scores are D4RL's, of the last evaluation; as that may be a
lucky one, means over data sets, and scores where there is one, are told over all evaluations, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt  # after the choice of the backend
import numpy as np
from matplotlib.patches import Patch

from synther_replay.benchmarks.common.command_line import exit_with_error
from synther_replay.benchmarks.common.files import make_folder_of, writing
from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.common.statistics import COVERAGE, mean_estimate

matplotlib.use("Agg")

# What agents learnt from, in the order of columns, with the colours of Okabe and Ito.
VARIANTS = {
    "real": "#000000",
    "additive": "#56B4E9",
    "multiplicative": "#E69F00",
    "dynamics": "#009E73",
    "mixed": "#CC79A7",
    "simulated": "#D55E00",
    "synther": "#0072B2",
}
KEYS = ("dataset", "algo", "data", "steps", "seeds", "subsample", "augment", "network", "origin", "real_rows")
KEYS += ("final", "curve")
# How it was made, and where a number comes from, without which it is not published.
KEYS += ("preset", "settings", "wall_seconds", "machine", "versions", "command", "commit")
_WAYS = ("rows", "real_ratio", "episodes")  # of the settings, those that a comparison must not mix
# Of the generator's, those that may differ: some sets need more of it, as in the paper, and nothing is fitted twice.
_MORE = ("width", "steps")
_FREE = (*_MORE, "refit_steps")
# How the generator was at commits that do not know such a setting.
_UNKNOWN = {
    "predict_linearly": False,
    "noise_mean": -1.2,
    "noise_std": 1.2,
    "unsquash_actions": False,
    "predict_terminated": False,
    "find_limits": False,
}
_MIXTURE = "mixed"  # tried on few sets, and so held against the others on those alone
_DIGEST = "dataset_digest"
_EDAC_UPDATES = 3_000_000
_CHECK = "corl-"  # how files of offline_corl.py begin: they are to check our learners, mostly with fewer updates


@dataclass(frozen=True)
class Result:
    """One result file.

    Attributes:
        dataset: Name of the data set.
        algo: The algorithm, its networks where they are not its own, and whether its products are precise.
        usual: The same with its own networks; None if it has them.
        variant: What was learnt from, one of `VARIANTS`.
        steps: Updates that the agents made.
        share: Of the data set that was there, in per cent; None for all of it.
        regenerated: Whether we made the data set ourselves.
        scores: Of the seeds, ``(seeds,)``; a failed one has 0, as a random policy would.
        over_all: Their means over all evaluations, ``(seeds,)``.
        evaluations: After how many updates each of these was.
        failed: How many of them failed at the last.
        rows: Which real rows there were.
        ways: How they were used, by name; results beside each other have the same.
        generator: Its settings that may differ from set to set; None if there was none.
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
        {key: content.get(key) for key in ("real_rows", "dataset_command", _DIGEST)},
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


Column = Mapping[str, Result]
"""Results by data set."""


def table(results: Sequence[Result]) -> str:
    """Scores of each algorithm by data set and by what was learnt from, then mixtures and other networks."""
    blocks = []
    for share in _shares(results):
        shown = [result for result in results if result.share == share]
        of_what = "" if share is None else f", {share:g} % of each data set"
        unmixed = [result for result in shown if result.variant != _MIXTURE]
        for what, part in (("", unmixed), (", mixtures", _with_mixtures(shown))):
            for algo in sorted({result.algo for result in part}):
                blocks.append(_block(algo + what + of_what, {v: _column(part, algo, v) for v in VARIANTS}))
        for both_algos, both in _with_other_networks(unmixed).items():
            pairs = itertools.product(both_algos, VARIANTS)
            blocks.append(_block(f"networks{of_what}", {f"{a}, {v}": _column(both, a, v) for a, v in pairs}))
    return "\n\n".join([_legend(results), *blocks]) + "\n"


def _with_mixtures(results: Sequence[Result]) -> list[Result]:
    """Results of algorithms that have learnt from mixtures, on the data sets where one of them has."""
    mixed = [result for result in results if result.variant == _MIXTURE]
    algos, sets = {result.algo for result in mixed}, {result.dataset for result in mixed}
    return [result for result in results if result.algo in algos and result.dataset in sets]


def _with_other_networks(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """By an algorithm and the same with other networks: results of both on the data sets that the latter has."""
    algos = {result.algo for result in results}
    found = {}
    for usual, other in sorted({(r.usual, r.algo) for r in results if r.usual is not None and r.usual in algos}):
        sets = {result.dataset for result in results if result.algo == other}
        found[usual, other] = [r for r in results if r.algo in (usual, other) and r.dataset in sets]
    return found


def _column(results: Sequence[Result], algo: str, variant: str) -> Column:
    """Results that are compared with each other: those of a column are made in the same way."""
    found = [result for result in results if (result.algo, result.variant) == (algo, variant)]
    column = {result.dataset: result for result in found}
    if len(column) < len(found):
        twice = next(name for name in column if sum(result.dataset == name for result in found) > 1)
        raise ValueError(f"{algo} {variant}: expected one result on {twice}, there are several files")
    for of_kind in _kinds(list(column), ()).values():
        first, *others = (column[name] for name in of_kind)
        for other in others:
            if differing := [key for key, value in first.ways.items() if other.ways.get(key) != value]:
                what = f"{differing[0]} {first.ways[differing[0]]!r} and {other.ways.get(differing[0])!r}"
                raise ValueError(f"{algo} {variant}: {first.dataset} and {other.dataset} do not compare, with {what}")
    return column


def _block(title: str, columns: Mapping[str, Column]) -> str:
    """One table: a row for each data set, and means over those that the first column shares with another."""
    columns = {name: column for name, column in columns.items() if column}
    found = [result for column in columns.values() for result in column.values()]
    lengths = {result.steps for result in found}
    if len(lengths) > 1:
        raise ValueError(f"{title}: expected runs of the same length, got {sorted(lengths)} updates")
    datasets = list(dict.fromkeys(result.dataset for result in found))
    for name in datasets:
        made = [column[name].rows for column in columns.values() if name in column]
        if any(not _same(one, other) for one, other in itertools.combinations(made, 2)):
            raise ValueError(f"{title}: expected results on the same {name}, got {made}")
    rows: list[list[Any]] = [[name, *(_cell(column.get(name)) for column in columns.values())] for name in datasets]
    first = next(iter(columns.values()))
    regenerated = {result.dataset for result in found if result.regenerated}
    for kind, of_kind in _kinds(datasets, regenerated).items():
        evaluated = {result.evaluations for result in found if result.dataset in of_kind}
        if len(evaluated) > 1:
            raise ValueError(f"{title}: expected evaluations at the same updates, got {sorted(evaluated)}")
        # Columns may differ in the data sets that they have. None is compared over others than its neighbours are.
        shared = [tuple(name for name in of_kind if name in first and name in column) for column in columns.values()]
        groups = {of_kind[0]: tuple(of_kind)} if len(of_kind) == 1 else {}
        for common in sorted({names for names in shared if len(names) > 1}, key=len, reverse=True):
            which = "" if len(common) == len(of_kind) else f" ({', '.join(common)})"
            label = f"mean of {len(common)}{which}, {kind}"
            groups[label] = common
            rows.append([label, *(_mean(column, common, lambda result: result.scores) for column in columns.values())])
        if len(evaluated.pop()) > 1:
            for label, common in groups.items():
                means = (_mean(column, common, lambda result: result.over_all) for column in columns.values())
                rows.append([f"{label}, all evaluations", *means])
    return markdown_table((title, *columns), rows)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether results are of the same rows, as far as both say it: early ones have no digest."""
    return all(one[key] == other[key] for key in one if key != _DIGEST or None not in (one[key], other[key]))


def _mean(column: Column, datasets: Sequence[str], scores: Callable[[Result], np.ndarray]) -> str | None:
    """Over data sets, if the column has them all."""
    if not all(name in column for name in datasets):
        return None
    mean = mean_estimate([scores(column[name]) for name in datasets])
    return f"{mean.value:.1f} [{mean.low:.1f}, {mean.high:.1f}]"


def _kinds(datasets: Sequence[str], regenerated: Container[str]) -> dict[str, list[str]]:
    """Data sets whose mean makes sense: tasks of a kind, and official or regenerated."""
    found: dict[str, list[str]] = {}
    for name in datasets:
        found.setdefault(f"{_tasks(name)}, {'regenerated' if name in regenerated else 'official'}", []).append(name)
    return found


def _tasks(dataset: str) -> str:
    return "mazes" if dataset.startswith("maze2d") else "locomotion"


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
        "The seeds of a cell share one subsample and one set of synthetic rows, whose own variance is not in there.",
        "Policies are judged on Gymnasium's -v5 tasks for regenerated sets, on -v4 for D4RL's own files.",
    ]
    parts += _unlike_generators(results)
    if any(result.algo.startswith("edac") and result.steps < _EDAC_UPDATES for result in results):
        parts.append(f"CORL trains EDAC for {_EDAC_UPDATES:,} updates, which these have not had.")
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
    told = (
        f"{', '.join(f'{name} {value:,}' for name, value in size)} on {', '.join(sorted(sets[size]))}"
        for size in sorted(sets)
    )
    return [f"Generators are not the same for all data sets: {'; '.join(told)}."]


def figures(results: Sequence[Result]) -> dict[str, list[Result]]:
    """What to draw, by the names of the files: algorithms as they are, then mixtures, then other networks."""
    found: dict[str, list[Result]] = {}
    for share in _shares(results):
        name = "offline" if share is None else f"offline-{share:g}pct"
        of_share = [result for result in results if result.share == share]
        unmixed = [result for result in of_share if result.variant != _MIXTURE]
        pairs = _with_other_networks(unmixed)
        elsewhere = {other for _, other in pairs}
        usual = [result for result in unmixed if result.algo not in elsewhere]
        found[name] = [result for result in usual if _tasks(result.dataset) == "locomotion"]
        found[f"{name}-mazes"] = [result for result in usual if _tasks(result.dataset) == "mazes"]
        found[f"{name}-mixed"] = _with_mixtures(of_share)
        found |= {f"{name}-{other}": both for (_, other), both in pairs.items()}
    return {name: shown for name, shown in found.items() if shown}


def draw(shown: Sequence[Result]) -> Any:
    """Bars by data set and by what was learnt from, a panel for each algorithm; the panels share both scales."""
    counts = Counter(result.algo for result in shown)
    algos = sorted(counts, key=lambda algo: (-counts[algo], algo))
    datasets = list(dict.fromkeys(result.dataset for result in shown))
    variants = [variant for variant in VARIANTS if any(result.variant == variant for result in shown)]
    size = (2 + 2.7 * len(algos), 1.5 + 0.16 * len(datasets) * (len(variants) + 1))
    shared = {"sharex": True, "sharey": True, "squeeze": False, "layout": "constrained"}
    figure, panels = plt.subplots(1, len(algos), figsize=size, **shared)
    width = 0.8 / len(variants)
    for panel, algo in zip(panels[0], algos, strict=True):
        for k, variant in enumerate(variants):
            column = _column(shown, algo, variant)
            at = {name: place + (k - (len(variants) - 1) / 2) * width for place, name in enumerate(datasets)}
            places = [at[name] for name in column]
            means = [mean_estimate([result.scores]) for result in column.values()]
            errors = [[m.value - m.low for m in means], [m.high - m.value for m in means]]
            panel.barh(places, [m.value for m in means], width, color=VARIANTS[variant])
            panel.errorbar([m.value for m in means], places, xerr=errors, fmt="none", ecolor="grey", capsize=2)
            for name in datasets:
                panel.text(1, at[name], _note(column.get(name)), va="center", fontsize=6, color="gray")
        panel.set_xlabel("D4RL score", fontsize=8)
        panel.tick_params(labelsize=8)
        panel.set_title(algo, fontsize="medium")
        panel.spines[["top", "right"]].set_visible(False)
    first = panels[0, 0]
    first.set_yticks(range(len(datasets)), datasets, fontsize=8)
    first.set_ylim(len(datasets) - 0.5, -0.5)  # from top to bottom
    handles = [Patch(color=VARIANTS[variant], label=variant) for variant in variants]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(variants), fontsize=8, frameon=False)
    seeds = "/".join(str(count) for count in sorted({len(result.scores) for result in shown}))
    updates = "/".join(f"{count:,}" for count in sorted({result.steps for result in shown}))
    (share,) = {result.share for result in shown}
    rows = "" if share is None else f" {share:g} % of each data set."
    how = f"Bars: mean at the last evaluation, with its {COVERAGE} % bootstrap interval."
    figure.supxlabel(f"{how}{rows}\n{seeds} seeds, {updates} updates.", fontsize=8)
    return figure


def _note(result: Result | None) -> str:
    """What a bar does not say by itself."""
    if result is None:
        return "no result"  # not begun, or not finished: the files do not say
    return f"{result.failed} of {len(result.scores)} failed" if result.failed else ""


def _shares(results: Sequence[Result]) -> list[float | None]:
    """All data first, then by falling share."""
    found = {result.share for result in results}
    return [*([None] if None in found else []), *sorted((s for s in found if s is not None), reverse=True)]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results") / "offline", help="folder to read")
    parser.add_argument("--out", type=Path, help="folder to write to; the results' own when left out")
    args = parser.parse_args()
    out = args.out or args.results
    try:
        results = read_results(args.results)
        text = table(results)
        make_folder_of(out / "table.md")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(text)
    try:
        with writing(out / "table.md") as path:
            path.write_text(text)
        for name, shown in figures(results).items():
            figure = draw(shown)
            with writing(out / f"{name}.png") as path:
                figure.savefig(path, dpi=150, format="png")
            plt.close(figure)
    except OSError as error:
        sys.exit(exit_with_error(2, error))


if __name__ == "__main__":
    main()
