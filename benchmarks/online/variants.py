"""Tables of variants of the agent: critics, updates per step, share of synthetic rows and relevance, by task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from synther_replay.benchmarks.agents.named_critics import place_of
from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.environments.scores import SUITE
from synther_replay.benchmarks.online.results import Run, read_run
from synther_replay.benchmarks.online.tables import returns_cell

HEADER = ("critics", "updates", "synthetic rows", "relevance", "steps", "seeds")
_Variant = tuple[str, int, float, str, int, int]


def table(folder: Path, beside: Sequence[str] = ()) -> str:
    """A row per variant, with the return at its last step in a column per task; empty without files in `folder`.

    Args:
        folder: Folder with a folder of result files of `online_dmc.py` per task.
        beside: Other result files, as patterns relative to the parent of `folder` with `{task}` in them. They are shown
            where `folder` has no result of the same variant on the task.
    """
    own = {path.parent.name for path in folder.glob("*/*.json")}
    tasks = [*(task for task in SUITE if task in own), *sorted(own.difference(SUITE))]
    found: dict[_Variant, dict[str, Run]] = {}
    for task in tasks:
        for run in _runs(folder.glob(f"{task}/*.json")):
            same = found.setdefault(variant(run), {})
            if task in same:
                raise ValueError(f"{run.path}: expected one result of each variant, got another in {same[task].path}")
            same[task] = run
        for pattern in beside:
            for run in _runs(folder.parent.glob(pattern.format(task=task))):
                found.setdefault(variant(run), {}).setdefault(task, run)
    rows = []
    for row in sorted(found, key=lambda row: (place_of(row[0]), row)):
        critic, updates, share, relevance, steps, seeds = row
        cells = [returns_cell(found[row][task].at(steps)) if task in found[row] else None for task in tasks]
        rows.append([critic, updates, f"{share:.0%}", relevance or None, f"{steps:,}", seeds, *cells])
    return markdown_table((*HEADER, *tasks), rows) if rows else ""


def variant(run: Run) -> _Variant:
    """What a row of the table has in common: the values of `HEADER`."""
    return run.agent, run.utd, run.synthetic_share, run.relevance, run.budget, len(run.returns)


def _runs(paths: Iterable[Path]) -> list[Run]:
    return [read_run(path) for path in sorted(paths)]
