"""Figures and tables of the online benchmark, from its result files.

    python benchmarks/plot_online.py --results results/online

reads `<results>/<task>/<algorithm>.json` and writes `online.png` (learning curves), `aggregate.png` (all tasks in one
number per algorithm) and `table.md`, which is printed too. Other files there are left alone unless `--envs` or
`--algorithms` names them. What is missing leaves its place empty, also in the aggregates of its algorithm; what is
damaged stops the program.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt  # after the choice of the backend
import numpy as np

from synther_replay.benchmarks.common.command_line import exit_with_error
from synther_replay.benchmarks.common.files import make_folder_of, writing
from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.common.statistics import COVERAGE, Comparison, Estimate, compare, mean_curve
from synther_replay.benchmarks.environments.scores import REFERENCES, TASKS, normalise
from synther_replay.benchmarks.online.results import KNOWN, PARTS, SUBJECT, Run, read_runs, reported_step

matplotlib.use("Agg")

# the colours of Okabe and Ito, which colour-blind readers tell apart
COLOURS = dict(zip(KNOWN, ("#000000", "#E69F00", "#009E73", "#0072B2", "#CC79A7", "#56B4E9"), strict=True))
SPARE_COLOURS = ("#D55E00", "#F0E442")
INTERVAL = f"{COVERAGE} % stratified bootstrap interval"


def compare_runs(runs: Sequence[Run], step: int) -> Comparison:
    """Aggregate over the tasks that can be normalised and that the most complete algorithms have."""
    scores: dict[str, dict[str, np.ndarray]] = {name: {} for name in _algorithms(runs)}
    for run in runs:
        if run.task in REFERENCES:
            scores[run.algorithm][run.task] = normalise(run.task, run.at(step))
    return compare(scores, subject=SUBJECT)


def score_table(runs: Sequence[Run], step: int, found: Comparison) -> str:
    """Markdown: a row per task, then the aggregates, a column per algorithm."""
    algorithms, by_name = _algorithms(runs), {(run.task, run.algorithm): run for run in runs}
    rows: list[list[Any]] = []
    for task in dict.fromkeys(run.task for run in runs):
        own = {name: by_name[task, name].at(step) for name in algorithms if (task, name) in by_name}
        # only those of which no seed failed: to leave the failed ones out would reward an algorithm that crashes
        means = {name: np.mean(returns) for name, returns in own.items() if np.isfinite(returns).all()}
        best = max(means.values(), default=None)
        cells = [_score_cell(own[n], n in means and means[n] == best) if n in own else None for n in algorithms]
        rows.append([task, *cells])
    rows.append(["IQM of normalised scores", *(_interval_cell(found.iqm.get(name)) for name in algorithms)])
    if found.improvement:
        cells = [_interval_cell(found.improvement.get(name)) for name in algorithms]
        rows.append([f"probability that {SUBJECT} is better", *cells])
    return markdown_table(("task", *algorithms), rows)


def time_table(runs: Sequence[Run]) -> str:
    """Markdown: how long each run took, and the share of its parts as far as they were counted."""
    rows = []
    for run in runs:
        total = run.wall_seconds["total"]
        shares = {part: run.wall_seconds[part] / total for part in PARTS if part in run.wall_seconds}
        if len(shares) == len(PARTS):
            shares["other"] = 1 - sum(shares.values())
        cells = [f"{shares[part]:.1%}" if part in shares else None for part in (*PARTS, "other")]
        rows.append([run.task, run.algorithm, run.budget, f"{total / 60:.1f}", *cells])
    return markdown_table(("task", "algorithm", "steps", "minutes", *PARTS, "other"), rows)


def aggregated_tasks(runs: Sequence[Run], found: Comparison) -> str:
    """Which tasks and algorithms the aggregates are about, and which they leave out."""
    if not found.tasks:
        return "Nothing is aggregated: the most complete algorithms have no task with a known scale in common."
    rest = [task for task in dict.fromkeys(run.task for run in runs) if task not in found.tasks]
    text = f"Aggregated over {', '.join(found.tasks)}, the tasks of the most complete algorithms."
    text += f" Tasks left out: {', '.join(rest)}." if rest else ""
    return " ".join((text, *left_out(found)))


def left_out(found: Comparison) -> list[str]:
    """A sentence for each algorithm that the aggregates leave out."""
    return [f"{name} is left out, having no results on {', '.join(tasks)}." for name, tasks in found.lacking.items()]


def report(runs: Sequence[Run], step: int, found: Comparison) -> str:
    """Both tables with what a reader must know of them, in Markdown."""
    longer = " (some runs go on)" if any(run.budget > step for run in runs) else ""
    times = "Wall-clock time of whole runs, all seeds together, and what it went to"
    if len({run.machine for run in runs}) > 1:
        times += "; the runs were made on different machines, whose times do not compare"
    return "\n".join(
        (
            f"Return after {step:,} environment steps{longer}: mean +- standard deviation over seeds, in bold the best "
            "mean of those without failed seeds. A failed seed (7/8 seeds: one failed) is left out of the mean and "
            f"counts as a random policy, score 0, in the aggregates. Brackets: {INTERVAL}.\n",
            score_table(runs, step, found),
            f"\n{aggregated_tasks(runs, found)} Scores: return / 1000 (DMC), D4RL's random = 0 and expert = 1 (Gym).",
            f"\n{times}. Times are of the machine as it was then, other work included.\n",
            time_table(runs),
            "",
        )
    )


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results") / "online", help="folder to read")
    parser.add_argument("--out", type=Path, help="folder to write to; the results' own when left out")
    parser.add_argument("--step", type=int, help="report this step instead of the last of the shortest run")
    parser.add_argument("--envs", nargs="+", help="tasks instead of the six, also others")
    parser.add_argument("--algorithms", nargs="+", help="algorithms (names of files) instead of all known ones")
    parser.add_argument("--svg", action="store_true", help="write the figures as .svg too")
    args = parser.parse_args(arguments)
    try:
        runs = read_runs(args.results, args.envs, args.algorithms)
        step = reported_step(runs, args.step)
        out = args.out or args.results
        make_folder_of(out / "table.md")
    except ValueError as error:
        parser.error(str(error))
    found = compare_runs(runs, step)
    text = report(runs, step, found)
    print(text)
    try:
        with writing(out / "table.md") as path:
            path.write_text(text, encoding="utf-8")
        for ending in (".png", ".svg") if args.svg else (".png",):
            draw_curves(runs, tuple(dict.fromkeys(args.envs or TASKS)), out / f"online{ending}")
            if found.tasks:
                draw_aggregate(runs, found, out / f"aggregate{ending}")
            else:
                # one of an earlier call would contradict the table
                (out / f"aggregate{ending}").unlink(missing_ok=True)
    except OSError as error:
        sys.exit(exit_with_error(2, error))


def _algorithms(runs: Sequence[Run]) -> list[str]:
    """Names of the algorithms, the known ones in their order and then the others."""
    names = list(dict.fromkeys(run.algorithm for run in runs))
    return [name for name in COLOURS if name in names] + [name for name in names if name not in COLOURS]


def _colours(runs: Sequence[Run]) -> dict[str, str]:
    spare = itertools.cycle(SPARE_COLOURS)
    return {name: COLOURS.get(name) or next(spare) for name in _algorithms(runs)}


def _score_cell(returns: np.ndarray, best: bool) -> str:
    good = returns[np.isfinite(returns)]
    count = f"{len(good)}/{len(returns)}" if len(good) < len(returns) else f"{len(good)}"
    seeds = f"({count} seed{'s' if len(returns) > 1 else ''})"
    if not len(good):
        return f"failed {seeds}"
    text = mean_and_spread(good.tolist())
    return f"**{text}** {seeds}" if best else f"{text} {seeds}"


def _interval_cell(estimate: Estimate | None) -> str | None:
    return None if estimate is None else f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _save(figure: plt.Figure, path: Path) -> None:
    with writing(path) as temporary:
        figure.savefig(temporary, dpi=130, format=path.suffix[1:])
    plt.close(figure)


if __name__ == "__main__":
    main()
