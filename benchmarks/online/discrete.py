"""Table of DQN with and without synthetic rows, from results of `peers.sb3_dqn`."""

from __future__ import annotations

import json
from pathlib import Path

from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.online.results import read_run
from synther_replay.benchmarks.online.tables import returns_cell

_PLAIN, _SYNTHETIC = "dqn", "synther-dqn"
HEADER = ("task", "updates per step", "steps", "seeds", "return", "DQN", "with `SynthERBuffer`")


def table(folder: Path) -> str:
    """Two rows per task and number of updates: the last evaluation, and the mean over all.

    Args:
        folder: Folder with a folder of result files per task; those with and without synthetic rows come in pairs.
    """
    rows = []
    for path in sorted(folder.glob(f"*/{_PLAIN}*.json"), key=lambda path: (path.parent.name, _updates(path))):
        plain, other = read_run(path), read_run(path.with_name(path.name.replace(_PLAIN, _SYNTHETIC, 1)))
        if (plain.returns.shape, plain.budget) != (other.returns.shape, other.budget):
            raise ValueError(f"{other.path}: expected as many seeds, steps and evaluations as {plain.path} has")
        run = [plain.task, _updates(path), f"{plain.budget:,}", len(plain.returns)]
        rows.append([*run, "last", *(returns_cell(r.returns[:, -1]) for r in (plain, other))])
        rows.append([*run, "mean of the curve", *(returns_cell(r.returns.mean(1)) for r in (plain, other))])
    return markdown_table(HEADER, rows)


def _updates(path: Path) -> float:
    """Gradient steps per environment step of a result."""
    return float(json.loads(path.read_text(encoding="utf-8"))["utd"])
