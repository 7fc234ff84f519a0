"""One offline run: agents of all seeds learn from the same rows and are judged on the way; it can be continued."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from synther_replay.benchmarks.agents.evaluation import Evaluator
from synther_replay.benchmarks.agents.networks.matmul import choose_precision
from synther_replay.benchmarks.common.files import make_folder_of
from synther_replay.benchmarks.common.formatting import mean_and_spread
from synther_replay.benchmarks.common.provenance import origin, record_origin
from synther_replay.benchmarks.common.resumable import (
    checkpoint_beside,
    run_until,
    save_result,
    save_state,
    saved_state,
)
from synther_replay.benchmarks.common.timing import Stopwatch, synchronise
from synther_replay.benchmarks.data.registry import normalised_score
from synther_replay.benchmarks.environments.tasks import agent_seed
from synther_replay.benchmarks.offline.rows import DataSource
from synther_replay.benchmarks.offline.settings import OfflineConfig

KIND = "offline run"
CHUNK = {"cuda": 5_000, "cpu": 100}  # updates between two points where a run can be continued: seconds on either
CLOCKS = ("data", "learner", "evaluate", "start", "checkpoint")
# Of a config, at the top of its result.
_SHOWN = ("dataset", "algo", "data", "preset", "steps", "subsample", "augment", "network", "precise")
_PRINT = partial(print, flush=True)


def run_to_file(path: Path, config: OfflineConfig, source: DataSource, **limits: Any) -> OfflineRun:
    """Begin or continue the run whose result belongs at `path`, and write it if the end is reached.

    Args:
        path: The result; a run that is not finished is saved beside it.
        config: What to run.
        source: Of the rows.
        limits: See `OfflineRun.run`.

    Returns:
        The run; `finished` says whether the result is there.
    """
    checkpoint = checkpoint_beside(path)
    if checkpoint.exists():
        saved_state(checkpoint, KIND, config)  # what cannot be continued is refused before a generator is fitted
    source.dataset(config)  # one that is not there leaves no folder behind
    make_folder_of(path)
    run = OfflineRun(config, source)
    if run.run(checkpoint, **limits):
        save_result(path, {**run.result(), **origin(source.device)})
    return run


class OfflineRun:
    """Learns and evaluates, in chunks between which it can be saved.

    Args:
        config: What to run.
        source: Of the rows.
        report: Called with a line of progress.
    """

    def __init__(self, config: OfflineConfig, source: DataSource, report: Callable[[str], None] = _PRINT) -> None:
        """Get the rows, which may mean to fit a generator."""
        self.config, self.device, self.report = config, source.device, report
        self.updates = 0
        self.curve: dict[int, list[float]] = {}
        self.value_estimates: dict[int, dict[str, list[float]]] = {}
        self.made_on: list[dict[str, Any]] = []  # machines and commits, the first one first
        self.watch = Stopwatch(CLOCKS)
        with self.watch.clock("data"):
            choose_precision(self.device)  # a generator is the same for agents of either precision
            self.rows, self.about = source.rows(config)
        choose_precision(self.device, precise=config.precise)
        with self.watch.clock("start"):
            self.learner = config.learner(self.rows)

    @property
    def finished(self) -> bool:
        """Whether all updates are made."""
        return self.updates >= self.config.steps

    def run(
        self,
        checkpoint: Path,
        *,
        time_limit: float | None = None,
        checkpoint_every: float = 120.0,
        workers: int | None = None,
    ) -> bool:
        """Go on to the end or the time limit, whichever comes first.

        Args:
            checkpoint: Where the run is saved, and continued from if it was.
            time_limit: Seconds after which to save and stop, counted from the beginning of this object.
            checkpoint_every: Seconds between two saves on the way.
            workers: Processes for evaluations; None as many as there are cores.

        Returns:
            Whether the end was reached.
        """
        with self.watch.clock("start"):
            if checkpoint.exists():
                self._load(checkpoint)
            record_origin(self.made_on, self.device)
            self.learner.prepare()
        seeds = [agent_seed(self.config.first_seed + agent) for agent in range(self.config.seeds)]
        processes = min(workers or os.cpu_count() or 1, len(seeds))
        with Evaluator(self.config.task, seeds, episodes=self.config.episodes, workers=processes) as evaluator:
            ended = run_until(
                lambda: self._run_chunk(evaluator),
                lambda: self._save(checkpoint, evaluator),
                lambda: self.finished,
                begun=self.watch.begun,
                time_limit=time_limit,
                checkpoint_every=checkpoint_every,
            )
            if ended:
                self._collect(evaluator, wait=True)
        return ended

    def result(self) -> dict[str, Any]:
        """What the run showed: returns and D4RL's scores of each evaluation, those of the last as `final`."""
        config = self.config
        curve = [self._point(step) for step in sorted(self.curve)]
        return {
            **{key: getattr(config, key) for key in _SHOWN},
            "seeds": [config.first_seed + agent for agent in range(config.seeds)],
            **self.about,
            "task": config.task,
            "curve": curve,
            "final": curve[-1]["scores"],
            "value_estimates": [self._beliefs_at(step) for step in sorted(self.value_estimates)],
            "wall_seconds": {name: round(spent, 2) for name, spent in self.watch.wall_seconds().items()},
            "made_on": self.made_on,
            "settings": config.to_json(),
        }

    def _run_chunk(self, evaluator: Evaluator) -> None:
        """Updates up to the next point where the run can be continued or is judged, from the state before alone."""
        config, chunk = self.config, CHUNK[self.device.type]
        ahead = min(chunk - self.updates % chunk, config.evaluate_every - self.updates % config.evaluate_every)
        with self.watch.clock("learner"):
            self.learner.reseed(self.updates)
            for _ in range(min(ahead, config.steps - self.updates) // self.learner.hyper.updates_per_call):
                self.learner.learn()
                self.updates += self.learner.hyper.updates_per_call
            synchronise(self.device)
        if self.updates % config.evaluate_every == 0 or self.finished:
            with self.watch.clock("evaluate"):
                evaluator.submit(self.updates, self.learner.policy_weights())
                self.value_estimates[self.updates] = {
                    name: each.tolist() for name, each in self.learner.value_estimates().items()
                }
        self._collect(evaluator)

    def _collect(self, evaluator: Evaluator, *, wait: bool = False) -> None:
        """Take over the evaluations that are ready, or wait for all, and report them."""
        with self.watch.clock("evaluate"):
            steps = evaluator.collect(wait=wait)
        total = self.watch.total_seconds()
        going = total - self.watch.seconds["start"] - self.watch.seconds["data"]  # which are not done again
        left = going / max(self.updates, 1) * (self.config.steps - self.updates)
        for step in steps:
            self.curve[step] = evaluator.results[step]
            scores = [score for score in self._point(step)["scores"] if score is not None]
            shown = mean_and_spread(scores, 1) if scores else "of no seed, all failed"
            where = f"{self.config.dataset} {self.config.name} update {step:,} of {self.config.steps:,}"
            self.report(f"{where}: score {shown}, {total:.0f} s so far, {left:.0f} s left")

    def _point(self, step: int) -> dict[str, Any]:
        """One evaluation; a policy that became non-finite has no return."""
        returns = [_finite(value, ".2f") for value in self.curve[step]]
        scores = [
            None if value is None else round(normalised_score(self.config.dataset, value), 2) for value in returns
        ]
        return {"step": step, "returns": returns, "scores": scores}

    def _beliefs_at(self, step: int) -> dict[str, Any]:
        """What the agents thought then; see the learner's."""
        value_estimates = self.value_estimates[step].items()
        return {"step": step, **{name: [_finite(value, ".5g") for value in each] for name, each in value_estimates}}

    def _save(self, path: Path, evaluator: Evaluator) -> None:
        self._collect(evaluator, wait=True)
        with self.watch.clock("checkpoint"):
            state = {
                "settings": self.config.to_json(),
                "rows": self.rows.fingerprint(),
                "made_on": self.made_on,
                "updates": self.updates,
                "curve": {str(step): returns for step, returns in self.curve.items()},
                "value_estimates": {
                    str(step): value_estimates for step, value_estimates in self.value_estimates.items()
                },
                "seconds": self.watch.wall_seconds(),
                "learner": self.learner.state_dict(),
            }
            save_state(path, KIND, state)
        self.report(f"saved at update {self.updates:,}")

    def _load(self, path: Path) -> None:
        state = saved_state(path, KIND, self.config)
        if state["rows"] != self.rows.fingerprint():
            raise ValueError(
                f"{path} is of a run with other rows: the data set was made anew, or this machine generates others; "
                "remove it to begin again"
            )
        self.updates, self.made_on = state["updates"], state["made_on"]
        self.curve = {int(step): returns for step, returns in state["curve"].items()}
        self.value_estimates = {
            int(step): value_estimates for step, value_estimates in state.get("value_estimates", {}).items()
        }
        self.watch.continue_from(state["seconds"])
        self.learner.load_state_dict(state["learner"])
        self.report(f"continued at update {self.updates:,}")


def _finite(value: float, digits: str) -> float | None:
    """Rounded, or None for what is no number."""
    return float(format(value, digits)) if np.isfinite(value) else None
