"""Table of agents: hyper-parameters that stabilise many updates per step, with and without synthetic rows."""

from __future__ import annotations

from pathlib import Path

from synther_replay.benchmarks.agents.sac import Hyperparameters
from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.online.results import read_run

_SHOWN = {
    "temperature": "first temperature",
    "weight_decay": "weight decay",
    "normalise_observations": "normalised",
    "learning_rate": "learning rate",
    "gamma": "discount",
}
HEADER = ("task", "critics", "updates", "synthetic rows", *_SHOWN.values(), "seeds", "return")


def table(folder: Path) -> str:
    """A row per result: the agent, and its return at the last step.

    Args:
        folder: Folder with a folder of result files of `online_dmc.py` per task.
    """
    rows = []
    for path in sorted(folder.glob("*/*.json"), key=lambda path: (path.parent.name, len(path.stem), path.stem)):
        run = read_run(path)
        changed = run.settings.get("agent", {})
        values = [changed.get(name, getattr(Hyperparameters, name)) for name in _SHOWN]
        shown = [("yes" if value else "no") if isinstance(value, bool) else f"{value:g}" for value in values]
        returns = mean_and_spread(run.at(run.budget).tolist())
        share = f"{run.synthetic_share:.0%}"
        rows.append([run.task, run.settings["critic"], run.utd, share, *shown, len(run.returns), returns])
    return markdown_table(HEADER, rows)
