"""Figures and tables of the online benchmark, from its result files.

    python benchmarks/plot_online.py --results benchmarks/results/online

reads `<results>/<task>/<algorithm>.json` and writes `online.png` (learning curves), `aggregate.png` (all tasks in one
number per algorithm) and `table.md`, which is printed too. Other files there are left alone unless `--envs` or
`--algorithms` names them. What is missing leaves its place empty; what is damaged stops the program.
"""

from __future__ import annotations

import argparse
import itertools
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from aggregate import COVERAGE, REFERENCES, TASKS, Comparison, Estimate, compare, mean_curve, normalise
from reporting import markdown_table

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # after the choice of the backend

SUBJECT = "synther-fast"
# the colours of Okabe and Ito, which colour-blind readers tell apart
COLOURS = {"sac": "#000000", "sac20": "#E69F00", "redq": "#009E73", SUBJECT: "#0072B2", "synther-paper": "#CC79A7"}
SPARE_COLOURS = ("#D55E00", "#56B4E9", "#F0E442")
# the last four are where a number comes from, without which it is not published
KEYS = ("env", "algo", "preset", "seeds", "utd", "steps", "curve", "wall_seconds")
KEYS += ("machine", "versions", "command", "commit")
PARTS = ("env", "learner", "fit", "generate", "evaluate")
INTERVAL = f"{COVERAGE} % stratified bootstrap interval"


@dataclass(frozen=True)
class Run:
    """One result file: all seeds of an algorithm on a task.

    Attributes:
        path: Where it was read.
        task: Name of the environment.
        algorithm: File name without its ending, e.g. `synther-fast`.
        budget: Environment steps that the run was meant to last.
        steps: Where the policy was evaluated, ``(points,)``, rising.
        returns: Of every seed there, ``(seeds, points)``; NaN where the seed had failed.
        wall_seconds: `total` and its `PARTS`, of all seeds together.
        machine: What it ran on, in words.
    """

    path: Path
    task: str
    algorithm: str
    budget: int
    steps: np.ndarray
    returns: np.ndarray
    wall_seconds: Mapping[str, float]
    machine: str

    def at(self, step: int) -> np.ndarray:
        """Returns ``(seeds,)`` of the evaluation at `step`."""
        if step not in self.steps:
            span = f"{len(self.steps)} entries from step {self.steps[0]} to {self.steps[-1]}"
            raise ValueError(f"{self.path}: expected an entry of the curve at step {step}, got {span}")
        return self.returns[:, int(np.searchsorted(self.steps, step))]


def read_run(path: Path) -> Run:
    """Read and check one result file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, got a damaged file: {error}") from error
    _expect(isinstance(content, dict), path, "a JSON object")
    missing = [key for key in KEYS if key not in content]
    _expect(not missing, path, f"the keys {', '.join(KEYS)}; missing: {', '.join(missing)}")
    form = 'curve to be a list of {"step": int, "returns": [a number or null for each of the seeds]}, steps rising'
    try:
        steps = np.array([point["step"] for point in content["curve"]])
        returns = np.array([point["returns"] for point in content["curve"]], dtype=float).T
        seeds = len(content["seeds"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected {form}: {error!r}") from error
    _expect(isinstance(content["steps"], int), path, f"steps to be a number of steps, got {content['steps']!r}")
    rising = steps.dtype.kind == "i" and bool((np.diff(steps) > 0).all())
    _expect(rising and seeds > 0 and returns.shape == (seeds, len(steps)), path, form)
    wall = content["wall_seconds"]
    timed = isinstance(wall, dict) and all(isinstance(wall.get(part), int | float) for part in ("total", *PARTS))
    _expect(timed and wall["total"] > 0, path, f"wall_seconds of total (positive), {', '.join(PARTS)}")
    # a file that was copied or renamed would be drawn as something it is not
    named = (content["algo"], f"{content['algo']}-{content['preset']}")
    _expect(content["env"] == path.parent.name, path, f"env to be the folder's name, not {content['env']!r}")
    _expect(path.stem in named or path.stem not in COLOURS, path, f"algo and preset as in the file's name, got {named}")
    returns[~np.isfinite(returns)] = np.nan
    machine = json.dumps(content["machine"], sort_keys=True)
    return Run(path, content["env"], path.stem, content["steps"], steps, returns, wall, machine)


def read_runs(folder: Path, tasks: Sequence[str] | None = None, algorithms: Sequence[str] | None = None) -> list[Run]:
    """The result files of a folder, by default those of the six tasks and five algorithms; what is named must exist."""
    names = [f"{task}/{name}.json" for task in tasks or TASKS for name in algorithms or COLOURS]
    paths = [folder / name for name in dict.fromkeys(names)]
    runs = [read_run(path) for path in paths if path.is_file()]
    _expect(bool(runs), folder, f"result files such as {names[0]}, found none")
    for task in tasks or ():
        _expect(any(run.task == task for run in runs), folder / task, "result files, found none")
    for name in algorithms or ():
        _expect(
            any(run.algorithm == name for run in runs), folder, f"a file {name}.json in a task's folder, found none"
        )
    return runs


def reported_step(runs: Sequence[Run], step: int | None = None) -> int:
    """The step that the table is about: `step`, or the end, which then must be the same for all."""
    if step is None:
        step = runs[0].budget
        for run in runs:
            same = f"steps {step} as in {runs[0].path}, got {run.budget}; choose with --step or --envs"
            _expect(run.budget == step, run.path, same)
    for run in runs:
        run.at(step)
    return step


def compare_runs(runs: Sequence[Run], step: int) -> Comparison:
    """Aggregate over the tasks that can be normalised and that all algorithms have."""
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
    if found.tasks:
        totals = [[by_name[task, name].wall_seconds["total"] for task in found.tasks] for name in algorithms]
        rows.append(["wall-clock minutes", *(f"{np.mean(own) / 60:.1f}" for own in totals)])
    return markdown_table(("task", *algorithms), rows)


def time_table(runs: Sequence[Run]) -> str:
    """Markdown: how long each run took, and the share of its parts."""
    rows = []
    for run in runs:
        total = run.wall_seconds["total"]
        parts = [run.wall_seconds[part] / total for part in PARTS]
        shares = [f"{share:.1%}" for share in (*parts, 1 - sum(parts))]
        rows.append([run.task, run.algorithm, run.budget, f"{total / 60:.1f}", *shares])
    return markdown_table(("task", "algorithm", "steps", "minutes", *PARTS, "other"), rows)


def aggregated_tasks(runs: Sequence[Run], found: Comparison) -> str:
    """One sentence on which tasks the aggregates are about."""
    rest = [task for task in dict.fromkeys(run.task for run in runs) if task not in found.tasks]
    names = ", ".join(_algorithms(runs))
    if not found.tasks:
        return f"Nothing is aggregated: no task with a known scale has results of all of {names}."
    left_out = f" Left out: {', '.join(rest)}." if rest else ""
    count = f"the tasks that have results of all of {names}; minutes are the mean over them"
    return f"Aggregated over {', '.join(found.tasks)}: {count}.{left_out}"


def report(runs: Sequence[Run], step: int, found: Comparison) -> str:
    """Both tables with what a reader must know of them, in Markdown."""
    times = "Wall-clock time of whole runs, all seeds together, and what it went to"
    if len({run.machine for run in runs}) > 1:
        times += "; the runs were made on different machines, whose times do not compare"
    return "\n".join(
        (
            f"Return after {step:,} environment steps: mean ± standard deviation over seeds, in bold the best mean of "
            "those without failed seeds. A failed seed (7/8 seeds: one failed) is left out of the mean and counts as a "
            f"random policy, score 0, in the aggregates. Brackets: {INTERVAL}.\n",
            score_table(runs, step, found),
            f"\n{aggregated_tasks(runs, found)} Scores: return / 1000 (DMC), D4RL's random = 0 and expert = 1 (Gym).",
            f"\n{times}:\n",
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
    size = 5.5 * len(panels), 1.8 + 0.4 * len(colours)
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
    text = textwrap.fill(f"Bars: {INTERVAL}. Tasks: {', '.join(found.tasks)}.", 70 * len(panels))
    figure.supxlabel(text, fontsize="small")
    _save(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "online")
    parser.add_argument("--out", type=Path, help="folder to write to; the results' own when left out")
    parser.add_argument("--step", type=int, help="report this step instead of the last")
    parser.add_argument("--envs", nargs="+", help="tasks instead of the six, also others")
    parser.add_argument("--algorithms", nargs="+", help="algorithms (names of files) instead of all known ones")
    parser.add_argument("--svg", action="store_true", help="write the figures as .svg too")
    args = parser.parse_args(arguments)
    try:
        runs = read_runs(args.results, args.envs, args.algorithms)
        step = reported_step(runs, args.step)
    except ValueError as error:
        parser.error(str(error))
    found = compare_runs(runs, step)
    out = args.out or args.results
    out.mkdir(parents=True, exist_ok=True)
    text = report(runs, step, found)
    print(text)
    (out / "table.md").write_text(text, encoding="utf-8")
    for ending in (".png", ".svg") if args.svg else (".png",):
        draw_curves(runs, tuple(dict.fromkeys(args.envs or TASKS)), out / f"online{ending}")
        if found.tasks:
            draw_aggregate(runs, found, out / f"aggregate{ending}")
        else:
            # one of an earlier call would contradict the table
            (out / f"aggregate{ending}").unlink(missing_ok=True)


def _expect(condition: bool, path: Path, what: str) -> None:
    if not condition:
        raise ValueError(f"{path}: expected {what}")


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
    text = f"{good.mean():.0f}" + (f" ± {good.std(ddof=1):.0f}" if len(good) > 1 else "")
    return f"**{text}** {seeds}" if best else f"{text} {seeds}"


def _interval_cell(estimate: Estimate | None) -> str | None:
    return None if estimate is None else f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
