"""Figures and tables of the offline benchmark, from its result files.

    python benchmarks/figures.py offline --results results/offline

reads `<results>/<dataset>/<cell>.json`, writes and prints `table.md`, and draws `offline.png` (locomotion),
`offline-mazes.png`, `offline-ant-mazes.png`, `offline-mixed.png` (real, mixed and synthetic rows) and
`offline-<algorithm>.png` (other networks). Figures of subsampled data sets are named `offline-<share>pct`. Missing
results leave an empty place; damaged files are an error.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.patches import Patch

from synther_replay.benchmarks.common.files import make_folder_of, writing
from synther_replay.benchmarks.common.plotting import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, save_figure
from synther_replay.benchmarks.common.statistics import COVERAGE, mean_estimate
from synther_replay.benchmarks.offline.results import (
    FAMILIES,
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

COLOURS = dict(zip(VARIANTS, (BLACK, SKY_BLUE, ORANGE, GREEN, PURPLE, BLUE), strict=True))
DOCS_FIGURES = ("offline", "offline-mazes", "offline-15pct")
_DPI = 150


def figures(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results to draw, by file name: default networks, then mixed rows, then other networks."""
    found: dict[str, list[Result]] = {}
    for share in shares(results):
        name = "offline" if share is None else f"offline-{share:g}pct"
        of_share = [result for result in results if result.share == share]
        unmixed = without_mixtures(of_share)
        pairs = with_other_networks(unmixed)
        others = {other for _, other in pairs}
        default = [result for result in unmixed if result.algo not in others]
        found[name] = [result for result in default if tasks(result.dataset) == "locomotion"]
        for family in FAMILIES[1:]:
            found[f"{name}-{family.replace(' ', '-')}"] = [r for r in default if tasks(r.dataset) == family]
        found[f"{name}-mixed"] = with_mixtures(of_share)
        found |= {f"{name}-{other}": both for (_, other), both in pairs.items()}
    return {name: shown for name, shown in found.items() if shown}


def draw(shown: Sequence[Result]) -> Any:
    """Bars by data set and training rows, a panel per algorithm; panels share both axes."""
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
    legend = f"Bars: mean at the last evaluation, with its {COVERAGE} % bootstrap interval."
    figure.supxlabel(f"{legend}{rows}\n{seeds} seeds, {updates} updates.", fontsize=8)
    return figure


def _note(result: Result | None) -> str:
    """Text at a bar: a missing result or failed seeds."""
    if result is None:
        return "no result"
    return f"{result.failed} of {len(result.scores)} failed" if result.failed else ""


def draw_for_docs(results: Path, out: Path) -> None:
    """Draw the figures of the documentation.

    Args:
        results: Folder of the published results.
        out: Output folder.
    """
    # EDAC and CQL have results on some data sets only.
    shown = figures([r for r in read_results(results / "offline" / "main") if not r.algo.startswith(("edac", "cql"))])
    for name in DOCS_FIGURES:
        if name in shown:
            save_figure(draw(shown[name]), out / f"{name}.png", dpi=_DPI)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command-line options."""
    parser.add_argument("--results", type=Path, default=Path("results") / "offline", help="input folder")
    parser.add_argument("--out", type=Path, help="output folder (default: the input folder)")


def run(args: argparse.Namespace) -> None:
    """Print and write the table, and draw the figures."""
    out = args.out or args.results
    results = read_results(args.results)
    text = table(results)
    make_folder_of(out / "table.md")
    print(text)
    with writing(out / "table.md") as path:
        path.write_text(text)
    for name, shown in figures(results).items():
        save_figure(draw(shown), out / f"{name}.png", dpi=_DPI)
