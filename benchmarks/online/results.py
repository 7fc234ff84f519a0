"""Result files of the online benchmark: read, checked, and compared over tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from synther_replay.benchmarks.agents.named_critics import CRITICS, PLAIN, agent_in_words
from synther_replay.benchmarks.common.statistics import Comparison, compare
from synther_replay.benchmarks.environments.scores import SCORE_RANGE, TASKS, normalise
from synther_replay.benchmarks.online.settings import ALGORITHMS

SUBJECT = "synther-fast"  # algorithm that the others are compared with
KNOWN = ("sac", "sac20", "redq", SUBJECT, "synther-paper", "synther-tiny")
# The last four state the origin of a result; results without them are refused.
KEYS = ("env", "algo", "preset", "seeds", "utd", "steps", "curve", "wall_seconds")
KEYS += ("machine", "versions", "command", "commit")
PARTS = ("env", "learner", "fit", "generate", "evaluate")


@dataclass(frozen=True)
class Run:
    """One result file: all seeds of an algorithm on a task.

    Attributes:
        path: Path of the result file.
        task: Name of the environment.
        algorithm: File name without its ending, e.g. `synther-fast`.
        budget: Planned number of environment steps.
        steps: Environment steps at each evaluation, ``(points,)``, increasing.
        returns: Mean returns of each evaluation, ``(seeds, points)``; NaN for a failed seed.
        wall_seconds: `total` and the timed ones of `PARTS`, of all seeds together.
        machine: Description of the machine.
        utd: Critic updates per environment step.
        settings: Everything that the run was asked for; empty for runs in Stable-Baselines3.
        diverged: Seeds whose value estimates left their range at some evaluation.
    """

    path: Path
    task: str
    algorithm: str
    budget: int
    steps: np.ndarray
    returns: np.ndarray
    wall_seconds: Mapping[str, float]
    machine: str
    utd: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    diverged: tuple[int, ...] = ()

    @property
    def synthetic_share(self) -> float:
        """Share of synthetic rows in a batch."""
        return 1 - self.settings["real_ratio"] if ALGORITHMS[self.settings["algo"]].synthetic else 0.0

    @property
    def agent(self) -> str:
        """The agent in words: its critics, and what differs from them; agents that differ have different words."""
        name = self.settings.get("critic", PLAIN)
        _expect(name in CRITICS, self.path, f"critic to be one of {', '.join(CRITICS)}, got {name!r}")
        chosen = {"critics": ALGORITHMS[self.settings["algo"]].critics, **CRITICS[name]}
        return agent_in_words({**chosen, **self.settings.get("agent", {})})

    @property
    def relevance(self) -> str:
        """What generation is guided by; empty: not guided."""
        return str(self.settings.get("relevance", {}).get("name", ""))

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
    form = 'curve to be a list of {"step": int, "returns": [a number or null for each of the seeds]}, steps increasing'
    try:
        steps = np.array([point["step"] for point in content["curve"]])
        returns = np.array([point["returns"] for point in content["curve"]], dtype=float).T
        seeds = len(content["seeds"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected {form}: {error!r}") from error
    _expect(isinstance(content["steps"], int), path, f"steps to be a number of steps, got {content['steps']!r}")
    increasing = steps.dtype.kind == "i" and bool((np.diff(steps) > 0).all())
    _expect(increasing and seeds > 0 and returns.shape == (seeds, len(steps)), path, form)
    wall = content["wall_seconds"]
    timed = isinstance(wall, dict) and all(isinstance(wall.get(part, 0), int | float) for part in ("total", *PARTS))
    parts = f"optional numbers for {', '.join(PARTS)}"
    _expect(timed and wall.get("total", 0) > 0, path, f"wall_seconds with a positive total and {parts}")
    # A copied or renamed file would be drawn under the wrong name.
    named = (content["algo"], f"{content['algo']}-{content['preset']}")
    _expect(content["env"] == path.parent.name, path, f"env to be the folder's name, not {content['env']!r}")
    _expect(path.stem in named or path.stem not in KNOWN, path, f"algo and preset as in the file's name, got {named}")
    returns[~np.isfinite(returns)] = np.nan
    return Run(
        path,
        content["env"],
        path.stem,
        content["steps"],
        steps,
        returns,
        wall,
        machine=json.dumps(content["machine"], sort_keys=True),
        utd=content["utd"],
        settings=content.get("settings", {}),
        diverged=tuple(sorted({seed for found in content.get("diverged", ()) for seed in found["seeds"]})),
    )


def read_runs(folder: Path, tasks: Sequence[str] | None = None, algorithms: Sequence[str] | None = None) -> list[Run]:
    """Read the result files of a folder, by default of all `TASKS` and `KNOWN` algorithms; given names must exist."""
    names = [f"{task}/{name}.json" for task in tasks or TASKS for name in algorithms or KNOWN]
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
    """Step to report: `step`, or the end of the shortest run; all runs must have an evaluation there."""
    if step is None:
        step = min(run.budget for run in runs)
    for run in runs:
        run.at(step)
    return step


def algorithms(runs: Sequence[Run]) -> list[str]:
    """Names of the algorithms: first those of `KNOWN` in that order, then the others."""
    names = list(dict.fromkeys(run.algorithm for run in runs))
    return [name for name in KNOWN if name in names] + [name for name in names if name not in KNOWN]


def compare_runs(runs: Sequence[Run], step: int, subject: str = SUBJECT) -> Comparison:
    """Aggregate over the tasks in `SCORE_RANGE` that the most complete algorithms have."""
    scores: dict[str, dict[str, np.ndarray]] = {name: {} for name in algorithms(runs)}
    for run in runs:
        if run.task in SCORE_RANGE:
            scores[run.algorithm][run.task] = normalise(run.task, run.at(step))
    return compare(scores, subject=subject)


def _expect(condition: bool, path: Path, what: str) -> None:
    if not condition:
        raise ValueError(f"{path}: expected {what}")
