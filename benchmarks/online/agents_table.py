"""Table of agents: hyper-parameters that stabilise many updates per step, with and without synthetic rows."""

from __future__ import annotations

from pathlib import Path

from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.online.results import Run, read_run
from synther_replay.benchmarks.online.tables import returns_cell

_USUAL_UPDATES = 20
_STEPS = (30_000, 40_000, 50_000)
_HEADER = ("task", "agent", "synthetic rows", "seeds", *(f"return at {step:,}" for step in _STEPS))


def table(folder: Path) -> str:
    """A row per result: what differs from the agent of the main table, and the returns.

    Args:
        folder: Folder with a folder of result files of `online_dmc.py` per task.
    """
    rows = []
    runs = (read_run(path) for path in sorted(folder.glob("*/*.json")))
    for run in sorted(runs, key=lambda run: (run.task, run.agent, run.synthetic_share)):
        returns = [returns_cell(run.at(step)) if step in run.steps else None for step in _STEPS]
        rows.append([run.task, _agent(run), _rows(run), len(run.returns), *returns])
    return markdown_table(_HEADER, rows)


def _agent(run: Run) -> str:
    return run.agent if run.utd == _USUAL_UPDATES else f"{run.agent}, {run.utd} updates"


def _rows(run: Run) -> str:
    if not run.synthetic_share:
        return "none"
    consistent = ", `consistent`" if run.settings["generator"].get("consistent", False) else ""
    return f"{run.synthetic_share:.0%}{consistent}"
