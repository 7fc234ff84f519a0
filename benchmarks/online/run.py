"""One online run: agents of all seeds act, train and are evaluated; the run is resumable."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from synther_replay import RetrainSchedule
from synther_replay.benchmarks.agents.evaluation import Evaluator
from synther_replay.benchmarks.agents.networks.matmul import choose_precision
from synther_replay.benchmarks.agents.policy import save_policies
from synther_replay.benchmarks.common.files import make_folder_of
from synther_replay.benchmarks.common.processes import worker_context
from synther_replay.benchmarks.common.provenance import origin, record_origin
from synther_replay.benchmarks.common.resumable import (
    checkpoint_path,
    run_until,
    save_result,
    save_state,
    saved_state,
)
from synther_replay.benchmarks.common.timing import synchronise
from synther_replay.benchmarks.environments.parallel import Environments, Steps
from synther_replay.benchmarks.environments.tasks import Task, agent_seed
from synther_replay.benchmarks.online.actors import Agents
from synther_replay.benchmarks.online.caution import adjust_caution
from synther_replay.benchmarks.online.progress import Progress
from synther_replay.benchmarks.online.reporting import Reporter
from synther_replay.benchmarks.online.settings import Settings
from synther_replay.benchmarks.online.watchdog import out_of_range
from synther_replay.replay.refitting import RefitJob

KIND = "online run"
CHUNK = 500  # environment steps between points at which a checkpoint can be saved
_PRINT = partial(print, flush=True)  # so that a redirected log is up to date


def run_to_file(path: Path, settings: Settings, device: torch.device, **limits: Any) -> OnlineRun:
    """Start or resume the run whose result file is `path`; the file is written when the run is finished.

    Args:
        path: The result file; the checkpoint is saved next to it.
        settings: Settings of the run.
        device: Device of the learner.
        limits: See `OnlineRun.run`.

    Returns:
        The run; `finished` tells whether the result was written.
    """
    run = OnlineRun(settings, device)
    make_folder_of(path)
    if run.run(checkpoint_path(path), **limits):
        save_result(path, {**run.result(), **origin(device)})
    return run


class OnlineRun:
    """Acts, trains, refits and evaluates in chunks; checkpoints are saved between chunks.

    An object runs once. A stopped run is resumed by a new object from the checkpoint.

    Args:
        settings: Settings of the run.
        device: Device of the learner.
        report: Called with each line of progress.
    """

    def __init__(self, settings: Settings, device: torch.device, report: Callable[[str], None] = _PRINT) -> None:
        """Build agents and generator; worker processes start in `run`."""
        self.settings, self.device, self.report = settings, device, report
        self.progress = Progress(settings.seeds)
        self._reporter = Reporter(settings, self.progress, report)
        choose_precision(device)
        with self.progress.clock("start"):
            worker_context()  # the fork server imports packages while the agents are built
            self.task = Task.named(settings.env)
            self.agents = Agents(settings, self.task, device)

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.progress.step >= self.settings.steps

    def run(
        self,
        checkpoint: Path,
        *,
        time_limit: float | None = None,
        checkpoint_every: float = 120.0,
        workers: int | None = None,
        keep_policies: Path | None = None,
    ) -> bool:
        """Run until finished or until the time limit, whichever comes first.

        Args:
            checkpoint: Checkpoint file; the run resumes from it if it exists.
            time_limit: Seconds after which to save and stop; a running refit is finished first.
            checkpoint_every: Seconds between checkpoints.
            workers: CPU cores for environments and evaluation; None for all.
            keep_policies: Folder for the policies of each evaluation, ``<step>.safetensors``; None: not saved.

        Returns:
            Whether the run is finished.
        """
        started = time.monotonic()
        with ExitStack() as stack:
            with self.progress.clock("start"):
                if checkpoint.exists():
                    self._load(checkpoint)
                record_origin(self.progress.made_on, self.device)
                environments, evaluator = self._start_processes(stack, workers or os.cpu_count() or 2)
                if self.device.type == "cuda":  # compile now: timed as "start" and not as "fit"
                    self.agents.warm_up()  # while the worker processes build their environments
                self._restore(environments)
            ended = run_until(
                lambda: self._run_chunk(environments, evaluator, keep_policies),
                lambda: self._save(checkpoint, evaluator),
                lambda: self.finished,
                started=started,
                time_limit=time_limit,
                checkpoint_every=checkpoint_every,
            )
            if ended:
                if self.agents.pending is not None:
                    self.agents.pending.drop()  # nothing is trained on its rows
                self._collect(evaluator, wait=True)
                synchronise(self.device)
        return ended

    def result(self) -> dict[str, Any]:
        """The result as JSON values; returns of a failed seed are None from its failure on."""
        settings, progress = self.settings, self.progress
        return {
            **{key: getattr(settings, key) for key in ("env", "algo", "preset", "critic", "utd", "steps")},
            "seeds": settings.seeds_of(range(settings.seeds)),
            "curve": [{"step": step, "returns": progress.returns(step)} for step in sorted(progress.curve)],
            "value_estimates": [
                {"step": step, **progress.value_estimates_at(step)} for step in sorted(progress.value_estimates)
            ],
            "failed_at": progress.failed_at,
            "diverged": [
                {"step": step, "seeds": settings.seeds_of(out_of_range(estimates))}
                for step, estimates in sorted(progress.value_estimates.items())
            ],
            "wall_seconds": {name: round(spent, 2) for name, spent in progress.wall_seconds().items()},
            "fits": progress.fits,
            "made_on": progress.made_on,
            "settings": settings.to_json(),
        }

    # ------------------------------------------------------------------ loop

    def _run_chunk(self, environments: Environments, evaluator: Evaluator, keep_policies: Path | None) -> None:
        """Run CHUNK environment steps; they depend only on the state at the start of the chunk."""
        settings, progress, agents = self.settings, self.progress, self.agents
        if progress.step >= settings.random_steps:
            self._prepare_learner()
        if agents.learner.settings.max_caution and progress.step > settings.random_steps:
            with progress.clock("learner"):
                adjust_caution(agents.learner)
        agents.learner.reseed(progress.step // CHUNK)
        rng = np.random.default_rng([settings.first_seed, progress.step])
        random_actions = rng.uniform(-1, 1, (CHUNK, *agents.actions.shape)).astype(np.float32)
        evaluations = settings.evaluation_steps()
        for k in range(min(CHUNK, settings.steps - progress.step)):
            if progress.step < settings.random_steps:
                agents.actions.numpy()[:] = random_actions[k]
            else:
                with progress.clock("learner"):
                    if progress.step > settings.random_steps and agents.learner.settings.is_reset_at(progress.step):
                        agents.learner.reset(progress.step)
                    agents.learner.learn()  # asynchronous on a GPU: runs while the environments step
                    agents.await_copies()
            with progress.clock("env"):
                environments.begin_step(agents.actions.numpy())
                after = environments.end_step()
            with progress.clock("learner"):
                self._store(after)
            # no refit after the last step: nothing is trained on its rows
            if agents.schedule and not self.finished:
                self._refit_if_due(agents.schedule)
            if progress.step in evaluations:
                with progress.clock("evaluate"):
                    weights = agents.learner.policy_weights()
                    evaluator.submit(progress.step, weights)
                    if progress.step > settings.random_steps:  # critics are untrained before
                        progress.value_estimates[progress.step] = agents.value_estimates()
                        self._reporter.values(progress.step)
                    if keep_policies:
                        save_policies(keep_policies / f"{progress.step}.safetensors", weights)
        agents.await_copies()
        self._collect(evaluator)

    def _store(self, after: Steps) -> None:
        """Store the transitions of one step and start computing the next actions."""
        for agent in self.progress.advance(after.episodes, after.failed):
            seed, step = self.settings.first_seed + agent, self.progress.failed_at[agent]
            warnings.warn(
                f"seed {seed}: action, observation or reward became non-finite at step {step}; stopped, the other "
                "seeds continue",
                stacklevel=2,
            )
        self.agents.store(after)
        if self.progress.step >= self.settings.random_steps:
            self.agents.act()

    def _refit_if_due(self, schedule: RetrainSchedule) -> None:
        progress, agents = self.progress, self.agents
        if agents.pending is not None:
            if progress.step >= agents.pending.at:
                self._take_refit(agents.finished_refit)
            else:
                with progress.clock("fit"):
                    agents.pending.serve()
        elif schedule.is_due(progress.step, progress.last_refit):
            if not self.settings.in_background:
                progress.last_refit = progress.step
                self._take_refit(agents.refit_of_now)
            elif progress.step + agents.lag < self.settings.steps:  # else nothing would be trained on its rows
                progress.last_refit = progress.step
                with self._failures_told(), progress.clock("fit"):
                    agents.begin_refit()

    def _take_refit(self, get: Callable[[], RefitJob]) -> None:
        """Take model and rows of a refit."""
        progress, report = self.progress, None
        with self._failures_told(), progress.clock("fit"):
            report = self.agents.take(get())
        if report is None:
            return
        entry = {"step": report.steps, "steps": report.fit.steps, "held_out_loss": report.fit.held_out_loss}
        if self.settings.in_background:
            entry["pause_seconds"] = round(report.pause_seconds or 0.0, 4)
            entry["job_seconds"] = round(report.fit_seconds + report.sample_seconds, 4)
        else:
            progress.move(report.sample_seconds, "fit", "generate")
        if report.relevance is not None:
            entry["relevance"] = asdict(report.relevance)
        progress.fits.append(entry)
        self._prepare_learner()

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        """Warn of a refit that fails, whatever the error is: the run goes on with the previous synthetic rows."""
        try:
            yield
        except Exception as error:
            warnings.warn(
                f"refit begun at step {self.progress.last_refit} failed: {error}; keeping the previous synthetic rows",
                stacklevel=3,
            )

    def _prepare_learner(self) -> None:
        with self.progress.clock("start"):
            self.agents.learner.prepare()

    def _collect(self, evaluator: Evaluator, *, wait: bool = False) -> None:
        """Store and report finished evaluations; with `wait`, wait for all of them."""
        with self.progress.clock("evaluate"):
            steps = evaluator.collect(wait=wait)
        self.progress.curve |= {step: evaluator.results[step] for step in steps}
        self._reporter.evaluations(steps)

    # ------------------------------------------------------- save and resume

    def _save(self, path: Path, evaluator: Evaluator) -> None:
        self._collect(evaluator, wait=True)
        with self.progress.clock("checkpoint"):
            settings = {"settings": self.settings.to_json()}
            save_state(path, KIND, {**settings, **self.progress.state_dict(), **self.agents.state_dict()})
        self.report(f"checkpoint saved at step {self.progress.step:,}")

    def _load(self, path: Path) -> None:
        state = saved_state(path, KIND, self.settings)
        self.progress.load_state_dict(state)
        self.agents.load_state_dict(state)

    def _start_processes(self, stack: ExitStack, cores: int) -> tuple[Environments, Evaluator]:
        """Start the worker processes of environments and evaluation."""
        settings = self.settings
        seeds = [agent_seed(seed) for seed in settings.seeds_of(range(settings.seeds))]
        environments = stack.enter_context(Environments(self.task, seeds, workers=max(1, cores // 2)))
        evaluator = Evaluator(self.task.name, seeds, episodes=settings.episodes, workers=max(1, cores // 3))
        return environments, stack.enter_context(evaluator)

    def _restore(self, environments: Environments) -> None:
        """Get the first observations, or restore the environments of a resumed run by repeating actions."""
        progress, saved = self.progress, self.agents.observations.numpy()
        if not progress.step:
            saved[:] = environments.observations()
            return
        failed = [at is not None for at in progress.failed_at]
        actions = self.agents.actions_since(progress.lengths)
        restored = environments.replay_to(progress.episodes.tolist(), actions, failed)
        restored[failed] = 0.0
        if not np.array_equal(restored, saved):
            error = float(np.abs(restored - saved).max())
            warnings.warn(
                f"the environments could not be restored exactly (observations differ by up to {error:.2g}); the CPU "
                "or the version of MuJoCo differs, so the resumed run differs from an uninterrupted one",
                stacklevel=2,
            )
            saved[:] = restored
        refit = ""
        if pending := self.agents.pending:
            refit = (
                f"; the refit begun at step {pending.job.steps:,} was waited for when the checkpoint was saved, its "
                f"rows are taken at step {pending.at:,}"
            )
        self.report(f"resumed at step {progress.step:,}{refit}")
