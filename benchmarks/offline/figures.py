"""Figures and tables of the offline benchmark, from its result files.

    python benchmarks/figures.py offline --results results/offline

reads `<results>/<dataset>/<cell>.json` and writes `table.md`, which is printed too, and these figures: `offline.png`
(locomotion), `offline-mazes.png`, `offline-mixed.png` (real, mixed and synthetic rows), `offline-<algorithm>.png`
(other networks) and the same with `offline-<share>pct` for parts of data sets. What is missing leaves its place empty;
a damaged file is an error.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt  # after the choice of the backend
from matplotlib.patches import Patch

from synther_replay.benchmarks.common.files import make_folder_of, writing
from synther_replay.benchmarks.common.statistics import COVERAGE, mean_estimate
from synther_replay.benchmarks.offline.results import (
    VARIANTS,
    Result,
    column,
    read_results,
    shares,
    tasks,
    with_mixtures,
    with_other_networks,
    without_mixtures,
)
from synther_replay.benchmarks.offline.tables import table

matplotlib.use("Agg")

# the colours of Okabe and Ito, which colour-blind readers tell apart
COLOURS = dict(zip(VARIANTS, ("#000000", "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2"), strict=True))
DOCUMENTED = ("offline", "offline-mazes", "offline-15pct")
"""Figures of the documents."""


def figures(results: Sequence[Result]) -> dict[str, list[Result]]:
    """What to draw, by the names of the files: algorithms as they are, then mixtures, then other networks."""
    found: dict[str, list[Result]] = {}
    for share in shares(results):
        name = "offline" if share is None else f"offline-{share:g}pct"
        of_share = [result for result in results if result.share == share]
        unmixed = without_mixtures(of_share)
        pairs = with_other_networks(unmixed)
        elsewhere = {other for _, other in pairs}
        usual = [result for result in unmixed if result.algo not in elsewhere]
        found[name] = [result for result in usual if tasks(result.dataset) == "locomotion"]
        found[f"{name}-mazes"] = [result for result in usual if tasks(result.dataset) == "mazes"]
        found[f"{name}-mixed"] = with_mixtures(of_share)
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
            own = column(shown, algo, variant)
            at = {name: place + (k - (len(variants) - 1) / 2) * width for place, name in enumerate(datasets)}
            places = [at[name] for name in own]
            means = [mean_estimate([result.scores]) for result in own.values()]
            errors = [[m.value - m.low for m in means], [m.high - m.value for m in means]]
            panel.barh(places, [m.value for m in means], width, color=COLOURS[variant])
            panel.errorbar([m.value for m in means], places, xerr=errors, fmt="none", ecolor="grey", capsize=2)
            for name in datasets:
                panel.text(1, at[name], _note(own.get(name)), va="center", fontsize=6, color="gray")
        panel.set_xlabel("D4RL score", fontsize=8)
        panel.tick_params(labelsize=8)
        panel.set_title(algo, fontsize="medium")
        panel.spines[["top", "right"]].set_visible(False)
    first = panels[0, 0]
    first.set_yticks(range(len(datasets)), datasets, fontsize=8)
    first.set_ylim(len(datasets) - 0.5, -0.5)  # from top to bottom
    handles = [Patch(color=COLOURS[variant], label=variant) for variant in variants]
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


def draw_documented(results: Path, out: Path) -> None:
    """The figures of the documents.

    Args:
        results: Folder of the published results.
        out: Folder to write to.
    """
    # EDAC has few of the data sets
    shown = figures([r for r in read_results(results / "offline" / "main") if not r.algo.startswith("edac")])
    for name in DOCUMENTED:
        if name in shown:
            _save(draw(shown[name]), out / f"{name}.png")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command line."""
    parser.add_argument("--results", type=Path, default=Path("results") / "offline", help="folder to read")
    parser.add_argument("--out", type=Path, help="folder to write to; the results' own when left out")


def run(args: argparse.Namespace) -> None:
    """Write and print what the command line asks for."""
    out = args.out or args.results
    results = read_results(args.results)
    text = table(results)
    make_folder_of(out / "table.md")
    print(text)
    with writing(out / "table.md") as path:
        path.write_text(text)
    for name, shown in figures(results).items():
        _save(draw(shown), out / f"{name}.png")


def _save(figure: Any, path: Path) -> None:
    with writing(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
    plt.close(figure)
