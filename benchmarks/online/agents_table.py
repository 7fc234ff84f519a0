"""Table of agents: hyper-parameters that stabilise many updates per step, with and without synthetic rows."""

from __future__ import annotations

from pathlib import Path

from synther_replay.benchmarks.agents.sac import Hyperparameters
from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.online.results import read_run

_SHOWN = {
    "temperature": "first temperature",
    "temperature_rate": "its learning rate",
    "weight_decay": "weight decay",
    "normalise_observations": "normalised",
    "learning_rate": "learning rate",
    "gamma": "discount",
}
_EARLY, _LAST = 30_000, 50_000  # steps
HEADER = ("task", "critics", "updates", "synthetic rows", "`consistent`", *_SHOWN.values(), "seeds")


def table(folder: Path) -> str:
    """A row per result: the agent, and its return at 30,000 and 50,000 steps.

    Args:
        folder: Folder with a folder of result files of `online_dmc.py` per task.
    """
    rows = []
    for path in sorted(folder.glob("*/*.json"), key=lambda path: (path.parent.name, len(path.stem), path.stem)):
        run = read_run(path)
        changed = run.settings.get("agent", {})
        values = {name: changed.get(name, getattr(Hyperparameters, name)) for name in _SHOWN}
        values["temperature_rate"] = values["temperature_rate"] or values["learning_rate"]
        shown = [_yes(value) if isinstance(value, bool) else f"{value:g}" for value in values.values()]
        returns = [mean_and_spread(run.at(step).tolist()) for step in (_EARLY, _LAST)]
        share, consistent = f"{run.synthetic_share:.0%}", None
        if run.synthetic_share:
            consistent = _yes(run.settings["generator"].get("consistent", False))
        rows.append([run.task, run.settings["critic"], run.utd, share, consistent, *shown, len(run.returns), *returns])
    return markdown_table((*HEADER, *(f"return at {step:,}" for step in (_EARLY, _LAST))), rows)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
