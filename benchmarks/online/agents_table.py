"""Table of agents: hyper-parameters that stabilise many updates per step, with and without synthetic rows."""

from __future__ import annotations

from pathlib import Path

from synther_replay.benchmarks.agents.named_critics import place_of
from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.online.results import Run, read_run
from synther_replay.benchmarks.online.tables import returns_cell

STEP = 40_000
_USUAL_UPDATES, _USUAL_SEEDS = 20, 4


def table(folder: Path) -> str:
    """A row per agent and share of synthetic rows, with the return at `STEP` in a column per task.

    Args:
        folder: Folder with a folder of result files of `online_dmc.py` per task.
    """
    found: dict[tuple[str, str], dict[str, Run]] = {}
    for run in map(read_run, sorted(folder.glob("*/*.json"))):
        same = found.setdefault((_agent(run), _rows(run)), {})
        if run.task in same:
            raise ValueError(f"{run.path}: expected one result of each agent, got another in {same[run.task].path}")
        same[run.task] = run
    tasks = sorted({task for own in found.values() for task in own})
    rows = [
        [*row, *(_cell(found[row][task]) if task in found[row] else None for task in tasks)]
        for row in sorted(found, key=lambda row: (place_of(row[0]), row))
    ]
    return markdown_table(("agent", "synthetic rows", *tasks), rows)


def _agent(run: Run) -> str:
    return run.agent if run.utd == _USUAL_UPDATES else f"{run.agent}, {run.utd} updates"


def _rows(run: Run) -> str:
    if not run.synthetic_share:
        return "none"
    consistent = ", `consistent`" if run.settings["generator"].get("consistent", False) else ""
    return f"{run.synthetic_share:.0%}{consistent}"


def _cell(run: Run) -> str:
    seeds = len(run.returns)
    return returns_cell(run.at(STEP)) + (f" ({seeds})" if seeds != _USUAL_SEEDS else "")
