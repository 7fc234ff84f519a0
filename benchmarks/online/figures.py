"""Figures and tables of the online benchmark, from its result files.

    python benchmarks/figures.py online --results results/online

reads `<results>/<task>/<algorithm>.json`, writes and prints `table.md`, and draws `online.png` (learning curves) and
`aggregate.png` (aggregates over tasks). Tasks and algorithms of other names are read only if `--envs` or `--algorithms`
lists them. Missing results leave an empty place, also in the aggregates of the algorithm; damaged files are an error.
"""

from __future__ import annotations

import argparse
import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from synther_replay.benchmarks.common.files import make_folder_of, writing
from synther_replay.benchmarks.common.plotting import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY_BLUE,
    VERMILLION,
    YELLOW,
    save_figure,
)
from synther_replay.benchmarks.common.statistics import Comparison, mean_curve
from synther_replay.benchmarks.environments.scores import SUITE, TASKS
from synther_replay.benchmarks.online import suite
from synther_replay.benchmarks.online.docs_tables import PUBLISHED, STEP
from synther_replay.benchmarks.online.results import (
    KNOWN,
    SUBJECT,
    Run,
    algorithms,
    compare_runs,
    read_runs,
    reported_step,
)
from synther_replay.benchmarks.online.sections import FIGURE
from synther_replay.benchmarks.online.tables import INTERVAL, left_out, report

COLOURS = dict(zip(KNOWN, (BLACK, ORANGE, GREEN, BLUE, PURPLE, SKY_BLUE), strict=True))
COLOURS |= {suite.WITHOUT: ORANGE, suite.WITH: BLUE}
SPARE_COLOURS = (VERMILLION, YELLOW)


def draw_curves(runs: Sequence[Run], tasks: Sequence[str], path: Path) -> None:
    """Learning curves, a panel per task; tasks without results have an empty panel."""
    columns = min(3, len(tasks))
    shape = -(-len(tasks) // columns), columns
    figure, grid = plt.subplots(*shape, figsize=(4 * shape[1], 3 * shape[0] + 1), squeeze=False, layout="constrained")
    colours, lines = _colours(runs), {}
    for k, axis in enumerate(grid.flat):
        axis.set_visible(k < len(tasks))
        own = [run for run in runs if k < len(tasks) and run.task == tasks[k]]
        axis.set_title(tasks[k] if k < len(tasks) else "", fontsize="medium")
        axis.grid(alpha=0.3)
        for run in own:
            curve, colour = mean_curve(run.returns), colours[run.algorithm]
            (lines[run.algorithm],) = axis.plot(run.steps / 1000, curve.value, color=colour, linewidth=1.8)
            axis.fill_between(run.steps / 1000, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
        if not own:
            axis.text(0.5, 0.5, "no results", transform=axis.transAxes, ha="center", color="gray")
    figure.legend([lines[name] for name in colours], list(colours), loc="outside upper center", ncols=len(colours))
    figure.supylabel("return")
    caption = f"Lines: mean over seeds without failure. Shaded: {INTERVAL} of the mean."
    figure.supxlabel(f"environment steps (thousands)\n{caption}", fontsize="medium")
    save_figure(figure, path)


def draw_aggregate(runs: Sequence[Run], found: Comparison, path: Path) -> None:
    """Interquartile means, and the probability that `SUBJECT` is better than each other algorithm."""
    colours = _colours(runs)
    titles = ("IQM of normalised scores", f"probability that {SUBJECT} is better than")
    panels = [(titles[0], found.iqm), (titles[1], found.improvement)][: 2 if found.improvement else 1]
    size = 5.5 * len(panels), 1.8 + 0.4 * len(found.iqm)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")
    for axis, (title, estimates) in zip(axes.flat, panels, strict=True):
        axis.use_sticky_edges = False  # leaves a margin left of the lowest bar
        for k, (name, estimate) in enumerate(estimates.items()):
            axis.barh(k, estimate.high - estimate.low, left=estimate.low, height=0.5, color=colours[name], alpha=0.4)
            axis.plot([estimate.value] * 2, [k - 0.25, k + 0.25], color=colours[name], linewidth=2.5)
        axis.set_yticks(range(len(estimates)), list(estimates))
        axis.invert_yaxis()
        axis.set_title(title, fontsize="medium")
        axis.grid(axis="x", alpha=0.3)
    if found.improvement:
        axes[0, 1].axvline(0.5, color="gray", linestyle="--", linewidth=1)
        axes[0, 1].set_xlim(-0.02, 1.02)
    text = " ".join((f"Bars: {INTERVAL}. Tasks: {', '.join(found.tasks)}.", *left_out(found)))
    figure.supxlabel(textwrap.fill(text, 70 * len(panels)), fontsize="small")
    save_figure(figure, path)


def draw_for_docs(results: Path, out: Path) -> None:
    """Draw the figures of the documentation.

    Args:
        results: Folder of the published results.
        out: Output folder.
    """
    runs = read_runs(results / "online" / "main", algorithms=PUBLISHED)
    draw_curves(runs, TASKS, out / "online.png")
    draw_aggregate(runs, compare_runs(runs, STEP), out / "aggregate.png")
    if suite_runs := suite.read_suite(results / "online" / "suite"):
        draw_curves(suite_runs, [task for task in SUITE if any(run.task == task for run in suite_runs)], out / FIGURE)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command-line options."""
    parser.add_argument("--results", type=Path, default=Path("results") / "online", help="input folder")
    parser.add_argument("--out", type=Path, help="output folder (default: the input folder)")
    parser.add_argument("--step", type=int, help="step to report (default: the last step of the shortest run)")
    parser.add_argument("--envs", nargs="+", help="tasks (default: the six tasks of the benchmark)")
    parser.add_argument("--algorithms", nargs="+", help="algorithms, as in the file names (default: all known ones)")
    parser.add_argument("--svg", action="store_true", help="also write the figures as .svg")


def run(args: argparse.Namespace) -> None:
    """Print and write the table, and draw the figures."""
    runs = read_runs(args.results, args.envs, args.algorithms)
    step = reported_step(runs, args.step)
    out = args.out or args.results
    make_folder_of(out / "table.md")
    found = compare_runs(runs, step)
    text = report(runs, step, found)
    print(text)
    with writing(out / "table.md") as path:
        path.write_text(text, encoding="utf-8")
    for ending in (".png", ".svg") if args.svg else (".png",):
        draw_curves(runs, tuple(dict.fromkeys(args.envs or TASKS)), out / f"online{ending}")
        if found.tasks:
            draw_aggregate(runs, found, out / f"aggregate{ending}")
        else:
            # A figure of an earlier call would contradict the table.
            (out / f"aggregate{ending}").unlink(missing_ok=True)


def _colours(runs: Sequence[Run]) -> dict[str, str]:
    spare = itertools.cycle(SPARE_COLOURS)
    return {name: COLOURS.get(name) or next(spare) for name in algorithms(runs)}
