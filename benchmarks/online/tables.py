"""Returns and times of the online benchmark as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.common.statistics import COVERAGE, Comparison, Estimate
from synther_replay.benchmarks.online.results import PARTS, SUBJECT, Run, algorithms

INTERVAL = f"{COVERAGE} % stratified bootstrap interval"


def score_table(
    runs: Sequence[Run],
    step: int,
    found: Comparison,
    *,
    titles: Mapping[str, str] | None = None,
    subject: str = SUBJECT,
) -> str:
    """A row per task, then the aggregates, a column per algorithm.

    Args:
        runs: What to show.
        step: Environment steps at which to show it.
        found: The aggregates.
        titles: Of the columns, for documents, which say elsewhere how many seeds there are.
        subject: Whose probability of improvement is in the last row.
    """
    names, by_name = algorithms(runs), {(run.task, run.algorithm): run for run in runs}
    rows: list[list[Any]] = []
    for task in dict.fromkeys(run.task for run in runs):
        own = {name: by_name[task, name].at(step) for name in names if (task, name) in by_name}
        # only those of which no seed failed: to leave the failed ones out would reward an algorithm that crashes
        means = {name: np.mean(returns) for name, returns in own.items() if np.isfinite(returns).all()}
        best = max(means.values(), default=None)
        cells = [_score_cell(own[n], n in means and means[n] == best, titles) if n in own else None for n in names]
        rows.append([task, *cells])
    rows.append(["IQM of normalised scores", *(interval_cell(found.iqm.get(name)) for name in names)])
    if found.improvement:
        cells = [interval_cell(found.improvement.get(name)) for name in names]
        rows.append([f"probability that {'SynthER' if titles else subject} is better", *cells])
    return markdown_table(("task", *((titles or {}).get(name, name) for name in names)), rows)


def time_table(runs: Sequence[Run]) -> str:
    """How long each run took, and the share of its parts as far as they were counted."""
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
    """Both tables with what a reader must know of them."""
    longer = " (some runs go on)" if any(run.budget > step for run in runs) else ""
    times = "Wall-clock time of whole runs, all seeds together, and its parts"
    if len({run.machine for run in runs}) > 1:
        times += "; the runs were made on different machines, whose times do not compare"
    return "\n".join(
        (
            f"Return after {step:,} environment steps{longer}: mean +- standard deviation over seeds, in bold the best "
            "mean of those without failed seeds. A failed seed (7/8 seeds: one failed) is left out of the mean and "
            f"counts as a random policy, score 0, in the aggregates. Brackets: {INTERVAL}.\n",
            score_table(runs, step, found),
            f"\n{aggregated_tasks(runs, found)} Scores: return / 1000 (DMC), D4RL's random = 0 and expert = 1 (Gym).",
            f"\n{times}. Other work on the machine is included.\n",
            time_table(runs),
            "",
        )
    )


def _score_cell(returns: np.ndarray, best: bool, titles: Mapping[str, str] | None) -> str:
    good = returns[np.isfinite(returns)]
    count = f"{len(good)}/{len(returns)}" if len(good) < len(returns) else f"{len(good)}"
    seeds = f" ({count} seed{'s' if len(returns) > 1 else ''})"
    if titles and len(good) == len(returns):
        seeds = ""
    if not len(good):
        return f"failed{seeds}"
    text = mean_and_spread(good.tolist())
    return f"**{text}**{seeds}" if best else f"{text}{seeds}"


def interval_cell(estimate: Estimate | None) -> str | None:
    """An aggregate with its interval."""
    return None if estimate is None else f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"
