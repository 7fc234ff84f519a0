"""One offline run: agents of all seeds train on the same rows and are evaluated; the run is resumable."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from synther_replay.benchmarks.agents.evaluation import Evaluator, tasks_of
from synther_replay.benchmarks.agents.networks.matmul import choose_precision
from synther_replay.benchmarks.common.files import make_folder_of
from synther_replay.benchmarks.common.formatting import finite, mean_and_spread
from synther_replay.benchmarks.common.provenance import origin, record_origin
from synther_replay.benchmarks.common.resumable import (
    checkpoint_path,
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
CHUNK = {"cuda": 5_000, "cpu": 100}  # updates between points at which a checkpoint can be saved: seconds
CLOCKS = ("data", "learner", "evaluate", "start", "checkpoint")
# Settings that are repeated at the top level of the result.
_SHOWN = ("dataset", "algo", "data", "preset", "steps", "subsample", "augment", "worsen", "network", "precise")
_PRINT = partial(print, flush=True)


def run_to_file(path: Path, config: OfflineConfig, source: DataSource, **limits: Any) -> OfflineRun:
    """Start or resume the run whose result file is `path`; the file is written when the run is finished.

    Args:
        path: The result file; the checkpoint is saved next to it.
        config: Settings of the run.
        source: Source of the rows.
        limits: See `OfflineRun.run`.

    Returns:
        The run; `finished` tells whether the result was written.
    """
    checkpoint = checkpoint_path(path)
    if checkpoint.exists():
        saved_state(checkpoint, KIND, config)  # refuse other settings before a generator is fitted
    source.dataset(config)  # fail on a missing data set before a folder is created
    make_folder_of(path)
    run = OfflineRun(config, source)
    if run.run(checkpoint, **limits):
        save_result(path, {**run.result(), **origin(source.device)})
    return run


class OfflineRun:
    """Trains and evaluates in chunks; checkpoints are saved between chunks.

    Args:
        config: Settings of the run.
        source: Source of the rows.
        report: Called with each line of progress.
    """

    def __init__(self, config: OfflineConfig, source: DataSource, report: Callable[[str], None] = _PRINT) -> None:
        """Load the rows, which may fit a generator, and build the agents."""
        self.config, self.device, self.report = config, source.device, report
        self.updates = 0
        self.curve: dict[int, list[float]] = {}
        self.value_estimates: dict[int, dict[str, list[float]]] = {}
        self.made_on: list[dict[str, Any]] = []  # machines and commits, in order
        self.watch = Stopwatch(CLOCKS)
        with self.watch.clock("data"):
            choose_precision(self.device)  # the generator does not depend on the agents' precision
            self.rows, self.about = source.rows(config)
        choose_precision(self.device, precise=config.precise)
        with self.watch.clock("start"):
            self.learner = config.learner(self.rows)

    @property
    def finished(self) -> bool:
        """Whether all updates are done."""
        return self.updates >= self.config.steps

    def run(
        self,
        checkpoint: Path,
        *,
        time_limit: float | None = None,
        checkpoint_every: float = 120.0,
        workers: int | None = None,
    ) -> bool:
        """Run until finished or until the time limit, whichever comes first.

        Args:
            checkpoint: Checkpoint file; the run resumes from it if it exists.
            time_limit: Seconds after which to save and stop, counted from the construction of this object.
            checkpoint_every: Seconds between checkpoints.
            workers: Processes for evaluation; None for one per core.

        Returns:
            Whether the run is finished.
        """
        with self.watch.clock("start"):
            if checkpoint.exists():
                self._load(checkpoint)
            record_origin(self.made_on, self.device)
            self.learner.prepare()
        seeds = [agent_seed(self.config.first_seed + agent) for agent in range(self.config.seeds)]
        episodes = self.config.episodes
        assert episodes is not None, "set in __post_init__"
        processes = min(workers or os.cpu_count() or 1, tasks_of(len(seeds), episodes))
        with Evaluator(self.config.task, seeds, episodes=episodes, workers=processes) as evaluator:
            ended = run_until(
                lambda: self._run_chunk(evaluator),
                lambda: self._save(checkpoint, evaluator),
                lambda: self.finished,
                started=self.watch.started,
                time_limit=time_limit,
                checkpoint_every=checkpoint_every,
            )
            if ended:
                self._collect(evaluator, wait=True)
        return ended

    def result(self) -> dict[str, Any]:
        """The result as JSON values: returns and D4RL scores of each evaluation; `final` has the last scores."""
        config = self.config
        curve = [self._point(step) for step in sorted(self.curve)]
        return {
            **{key: getattr(config, key) for key in _SHOWN},
            "seeds": [config.first_seed + agent for agent in range(config.seeds)],
            **self.about,
            "task": config.task,
            "curve": curve,
            "final": curve[-1]["scores"],
            "value_estimates": [self._value_estimates_at(step) for step in sorted(self.value_estimates)],
            "wall_seconds": {name: round(spent, 2) for name, spent in self.watch.wall_seconds().items()},
            "made_on": self.made_on,
            "settings": config.to_json(),
        }

    def _run_chunk(self, evaluator: Evaluator) -> None:
        """Train up to the end of the chunk or the next evaluation.

        Each call of `learn` has the random stream of its first update, so that the length of a chunk, the times of
        evaluations and where a run was stopped change nothing.
        """
        config, chunk = self.config, CHUNK[self.device.type]
        count = min(chunk - self.updates % chunk, config.evaluate_every - self.updates % config.evaluate_every)
        with self.watch.clock("learner"):
            for _ in range(min(count, config.steps - self.updates) // self.learner.hyper.updates_per_call):
                self.learner.reseed(self.updates)
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
        """Store and report finished evaluations; with `wait`, wait for all of them."""
        with self.watch.clock("evaluate"):
            steps = evaluator.collect(wait=wait)
        total = self.watch.total_seconds()
        running = total - self.watch.seconds["start"] - self.watch.seconds["data"]  # these happen once
        left = running / max(self.updates, 1) * (self.config.steps - self.updates)
        for step in steps:
            self.curve[step] = evaluator.results[step]
            scores = [score for score in self._point(step)["scores"] if score is not None]
            shown = mean_and_spread(scores, 1) if scores else "none (all seeds failed)"
            label = f"{self.config.dataset} {self.config.name} update {step:,} of {self.config.steps:,}"
            self.report(f"{label}: score {shown}, {total:.0f} s elapsed, about {left:.0f} s left")

    def _point(self, step: int) -> dict[str, Any]:
        """One evaluation as JSON values; the return of a non-finite policy is None."""
        returns = [finite(value, ".2f") for value in self.curve[step]]
        scores = [
            None if value is None else round(normalised_score(self.config.dataset, value), 2) for value in returns
        ]
        return {"step": step, "returns": returns, "scores": scores}

    def _value_estimates_at(self, step: int) -> dict[str, Any]:
        """`OfflineLearner.value_estimates` at one evaluation, as JSON values."""
        estimates = self.value_estimates[step].items()
        return {"step": step, **{name: [finite(value, ".5g") for value in each] for name, each in estimates}}

    def _save(self, path: Path, evaluator: Evaluator) -> None:
        self._collect(evaluator, wait=True)
        with self.watch.clock("checkpoint"):
            state = {
                "settings": self.config.to_json(),
                "rows": self.rows.fingerprint(),
                "made_on": self.made_on,
                "updates": self.updates,
                "curve": {str(step): returns for step, returns in self.curve.items()},
                "value_estimates": {str(step): estimates for step, estimates in self.value_estimates.items()},
                "seconds": self.watch.wall_seconds(),
                "learner": self.learner.state_dict(),
            }
            save_state(path, KIND, state)
        self.report(f"checkpoint saved at update {self.updates:,}")

    def _load(self, path: Path) -> None:
        state = saved_state(path, KIND, self.config)
        if state["rows"] != self.rows.fingerprint():
            raise ValueError(
                f"{path}: checkpoint was saved with other rows (got fingerprint {state['rows']}, expected "
                f"{self.rows.fingerprint()}); the data set changed, or the generator gives other rows on this "
                "machine; remove the file to start over"
            )
        self.updates, self.made_on = state["updates"], state["made_on"]
        self.curve = {int(step): returns for step, returns in state["curve"].items()}
        self.value_estimates = {int(step): estimates for step, estimates in state.get("value_estimates", {}).items()}
        self.watch.continue_from(state["seconds"])
        self.learner.load_state_dict(state["learner"])
        self.report(f"resumed at update {self.updates:,}")
