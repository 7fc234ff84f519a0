"""The suite of twelve tasks: one agent with and without synthetic rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from synther_replay.benchmarks.common.statistics import Comparison
from synther_replay.benchmarks.environments.scores import SUITE
from synther_replay.benchmarks.online.results import Run, compare_runs, read_run, reported_step
from synther_replay.benchmarks.online.tables import score_table
from synther_replay.benchmarks.online.variants import variant

WITHOUT, WITH = "real rows only", "with synthetic rows"
_LEARNER = ("utd", "steps", "random_steps", "episodes")


def read_suite(folder: Path) -> list[Run]:
    """Runs of the suite in the order of its tasks, first all `WITHOUT`, then all `WITH`, which is their algorithm.

    Args:
        folder: Folder with a folder of at most two result files of `online_dmc.py` per task.

    Raises:
        ValueError: A task is not of the suite, has two results of a kind, or two that differ in the learner.
    """
    found: dict[tuple[str, str], Run] = {}
    for run in map(read_run, sorted(folder.glob("*/*.json"))):
        if run.task not in SUITE:
            raise ValueError(f"{run.path}: expected a task of {', '.join(SUITE)}, got {run.task!r}")
        kind = WITH if run.synthetic_share else WITHOUT
        if other := found.get((kind, run.task)):
            raise ValueError(f"{run.path}: expected one result {kind!r} of each task, got another in {other.path}")
        found[kind, run.task] = replace(run, algorithm=kind)
    for task in SUITE:
        if (WITHOUT, task) in found and (WITH, task) in found:
            _check_same_learner(found[WITHOUT, task], found[WITH, task])
    return [found[kind, task] for kind in (WITHOUT, WITH) for task in SUITE if (kind, task) in found]


def table(runs: Sequence[Run]) -> str:
    """Returns and aggregates, what the agent is, and which results are missing; empty without runs."""
    if not runs:
        return ""
    step = reported_step(runs)
    having = {kind: [run.task for run in runs if run.algorithm == kind] for kind in (WITHOUT, WITH)}
    both = [task for task in SUITE if all(task in tasks for tasks in having.values())]
    paired = [run for run in runs if run.task in both]
    lines = [f"- Agent: {line}" for line in _agents(runs)]
    if len(both) < len(SUITE):
        lines.append(f"- Aggregates are over {len(both)} of {len(SUITE)} tasks: those with both results.")
    for kind, tasks in having.items():
        if missing := [task for task in SUITE if task not in tasks]:
            lines.append(f"- Missing, {kind}: {', '.join(missing)}.")
    for run in runs:
        if run.diverged:
            seeds = ", ".join(map(str, run.diverged))
            lines.append(f"- Value estimates left their range on {run.task}, {run.algorithm}: seeds {seeds}.")
    found = compare_runs(paired, step, WITH) if paired else Comparison((), {}, {}, {})
    scores = score_table(runs, step, found, titles={kind: kind for kind in having}, subject=WITH)
    return "\n\n".join((f"Return after {step:,} environment steps:", scores, "\n".join(lines)))


def _agents(runs: Sequence[Run]) -> list[str]:
    """The agents of the runs in words; with their tasks if there are several."""
    tasks: dict[str, list[str]] = {}
    for run in runs:
        if run.algorithm == WITH:
            critic, updates, share, relevance, _, seeds = variant(run)
            guided = f", relevance {relevance}" if relevance else ""
            first = run.settings["first_seed"]
            text = f"critics {critic}; {updates} updates per step; {share:.0%} synthetic rows{guided}"
            tasks.setdefault(f"{text}; seeds {first} to {first + seeds - 1}", []).append(run.task)
    return [text + (f" ({', '.join(own)})" if len(tasks) > 1 else "") for text, own in tasks.items()]


def _check_same_learner(real: Run, mixed: Run) -> None:
    ours, theirs = ({"agent": run.agent} | {name: run.settings.get(name) for name in _LEARNER} for run in (mixed, real))
    if ours != theirs:
        raise ValueError(f"{mixed.path}: expected the learner of {real.path}, {theirs}, got {ours}")
