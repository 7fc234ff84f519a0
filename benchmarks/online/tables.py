"""Markdown tables of the online benchmark: returns and wall-clock times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.common.statistics import COVERAGE, Comparison, Estimate
from synther_replay.benchmarks.online.results import PARTS, SUBJECT, Run, algorithms

INTERVAL = f"{COVERAGE} % stratified bootstrap interval"
SCALES = (
    "Scores: return / 1000 (DMC), D4RL's random = 0 and expert = 1 (Gym), a random policy = 0 and TD3 = 1 (Ant and "
    "Humanoid)."
)


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
        runs: Runs to show.
        step: Environment step to report.
        found: Aggregates over tasks.
        titles: Column titles by algorithm; with them, cells omit the number of seeds.
        subject: Algorithm whose probability of improvement is in the last row.
    """
    names, by_name = algorithms(runs), {(run.task, run.algorithm): run for run in runs}
    rows: list[list[Any]] = []
    for task in dict.fromkeys(run.task for run in runs):
        own = {name: by_name[task, name].at(step) for name in names if (task, name) in by_name}
        # Only algorithms without failed seeds: excluding failed seeds would favour algorithms that crash.
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
    """Wall-clock time of each run, and the shares of its timed parts."""
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
    """Sentences with the aggregated tasks, and the tasks and algorithms left out."""
    if not found.tasks:
        return "No aggregates: the most complete algorithms share no task with a known score range."
    rest = [task for task in dict.fromkeys(run.task for run in runs) if task not in found.tasks]
    text = f"Aggregated over {', '.join(found.tasks)}, the tasks of the most complete algorithms."
    text += f" Tasks left out: {', '.join(rest)}." if rest else ""
    return " ".join((text, *left_out(found)))


def left_out(found: Comparison) -> list[str]:
    """A sentence for each algorithm without aggregates."""
    return [f"{name} is left out: no results on {', '.join(tasks)}." for name, tasks in found.lacking.items()]


def report(runs: Sequence[Run], step: int, found: Comparison) -> str:
    """Both tables with a legend."""
    longer = " (some runs are longer)" if any(run.budget > step for run in runs) else ""
    times = "Wall-clock time of whole runs, all seeds together, and its parts"
    if len({run.machine for run in runs}) > 1:
        times += "; the runs used different machines, so their times are not comparable"
    return "\n".join(
        (
            f"Return after {step:,} environment steps{longer}: mean +- standard deviation over seeds; bold: best mean "
            "of the algorithms without failed seeds. Failed seeds (7/8 seeds: one failed) are excluded from the mean "
            f"and score 0, like a random policy, in the aggregates. Brackets: {INTERVAL}.\n",
            score_table(runs, step, found),
            f"\n{aggregated_tasks(runs, found)} {SCALES}",
            f"\n{times}. Other jobs on the machine may have slowed the runs.\n",
            time_table(runs),
            "",
        )
    )


def returns_cell(returns: np.ndarray) -> str:
    """Mean and spread of returns ``(seeds,)``, and how many seeds failed."""
    text, good = _of_good_seeds(returns)
    return text if good in (0, len(returns)) else f"{text} ({len(returns) - good} failed)"


def _score_cell(returns: np.ndarray, best: bool, titles: Mapping[str, str] | None) -> str:
    text, good = _of_good_seeds(returns)
    count = f"{good}/{len(returns)}" if good < len(returns) else f"{good}"
    seeds = "" if titles and good == len(returns) else f" ({count} seed{'s' if len(returns) > 1 else ''})"
    return f"**{text}**{seeds}" if best else f"{text}{seeds}"


def _of_good_seeds(returns: np.ndarray) -> tuple[str, int]:
    """Mean and spread over the seeds that did not fail, and their number."""
    good = returns[np.isfinite(returns)].tolist()
    return mean_and_spread(good) if good else "failed", len(good)


def interval_cell(estimate: Estimate | None) -> str | None:
    """An aggregate with its interval; None without an estimate."""
    return None if estimate is None else f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"
