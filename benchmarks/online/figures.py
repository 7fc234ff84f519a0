"""Figures and tables of the online benchmark, from its result files.

    python benchmarks/figures.py online --results results/online

reads `<results>/<task>/<algorithm>.json` and writes `online.png` (learning curves), `aggregate.png` (all tasks in one
number per algorithm) and `table.md`, which is printed too. Other files there are left alone unless `--envs` or
`--algorithms` names them. What is missing leaves its place empty, also in the aggregates of its algorithm; a damaged
file is an error.
"""

from __future__ import annotations

import argparse
import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt  # after the choice of the backend

from synther_replay.benchmarks.common.files import make_folder_of, writing
from synther_replay.benchmarks.common.statistics import Comparison, mean_curve
from synther_replay.benchmarks.environments.scores import TASKS
from synther_replay.benchmarks.online.documented import PUBLISHED, STEP
from synther_replay.benchmarks.online.results import (
    KNOWN,
    SUBJECT,
    Run,
    algorithms,
    compare_runs,
    read_runs,
    reported_step,
)
from synther_replay.benchmarks.online.tables import INTERVAL, left_out, report

matplotlib.use("Agg")

# the colours of Okabe and Ito, which colour-blind readers tell apart
COLOURS = dict(zip(KNOWN, ("#000000", "#E69F00", "#009E73", "#0072B2", "#CC79A7", "#56B4E9"), strict=True))
SPARE_COLOURS = ("#D55E00", "#F0E442")


def draw_curves(runs: Sequence[Run], tasks: Sequence[str], path: Path) -> None:
    """A panel per task, mean return against steps; tasks without results keep an empty panel."""
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
    caption = f"Lines: mean over the seeds that did not fail. Shaded: {INTERVAL} of that mean."
    figure.supxlabel(f"environment steps (thousands)\n{caption}", fontsize="medium")
    _save(figure, path)


def draw_aggregate(runs: Sequence[Run], found: Comparison, path: Path) -> None:
    """Inter-quartile means, and beside them the probability that the subject beats each other algorithm."""
    colours = _colours(runs)
    titles = ("IQM of normalised scores", f"probability that {SUBJECT} is better than")
    panels = [(titles[0], found.iqm), (titles[1], found.improvement)][: 2 if found.improvement else 1]
    size = 5.5 * len(panels), 1.8 + 0.4 * len(found.iqm)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")
    for axis, (title, estimates) in zip(axes.flat, panels, strict=True):
        axis.use_sticky_edges = False  # room on the left of the lowest bar
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
    _save(figure, path)


def draw_documented(results: Path, out: Path) -> None:
    """The figures of the documents.

    Args:
        results: Folder of the published results.
        out: Folder to write to.
    """
    runs = read_runs(results / "online" / "main", algorithms=PUBLISHED)
    draw_curves(runs, TASKS, out / "online.png")
    draw_aggregate(runs, compare_runs(runs, STEP), out / "aggregate.png")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command line."""
    parser.add_argument("--results", type=Path, default=Path("results") / "online", help="folder to read")
    parser.add_argument("--out", type=Path, help="folder to write to; the results' own when left out")
    parser.add_argument("--step", type=int, help="report this step instead of the last of the shortest run")
    parser.add_argument("--envs", nargs="+", help="tasks instead of the six, also others")
    parser.add_argument("--algorithms", nargs="+", help="algorithms (names of files) instead of all known ones")
    parser.add_argument("--svg", action="store_true", help="write the figures as .svg too")


def run(args: argparse.Namespace) -> None:
    """Write and print what the command line asks for."""
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
            # one of an earlier call would contradict the table
            (out / f"aggregate{ending}").unlink(missing_ok=True)


def _colours(runs: Sequence[Run]) -> dict[str, str]:
    spare = itertools.cycle(SPARE_COLOURS)
    return {name: COLOURS.get(name) or next(spare) for name in algorithms(runs)}


def _save(figure: plt.Figure, path: Path) -> None:
    with writing(path) as temporary:
        figure.savefig(temporary, dpi=130, format=path.suffix[1:])
    plt.close(figure)
