"""One online run: agents of all seeds act, learn and are evaluated; it can be stopped and continued at any time."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from synther_replay.benchmarks.agents.evaluation import Evaluator
from synther_replay.benchmarks.agents.networks.matmul import choose_precision
from synther_replay.benchmarks.agents.policy import save_policies
from synther_replay.benchmarks.common.files import make_folder_of
from synther_replay.benchmarks.common.formatting import mean_and_spread
from synther_replay.benchmarks.common.processes import worker_context
from synther_replay.benchmarks.common.provenance import origin, record_origin
from synther_replay.benchmarks.common.resumable import (
    checkpoint_beside,
    run_until,
    save_result,
    save_state,
    saved_state,
)
from synther_replay.benchmarks.common.timing import synchronise
from synther_replay.benchmarks.environments.parallel import Environments, Steps
from synther_replay.benchmarks.environments.tasks import Task, agent_seed
from synther_replay.benchmarks.online.actors import Agents
from synther_replay.benchmarks.online.progress import Progress
from synther_replay.benchmarks.online.settings import Settings
from synther_replay.errors import DivergedError, GenerationError, is_out_of_memory

KIND = "online run"
CHUNK = 500  # environment steps between two points where a run can be continued
_PRINT = partial(print, flush=True)  # also where the output goes to a file


def run_to_file(path: Path, settings: Settings, device: torch.device, **limits: Any) -> OnlineRun:
    """Begin or continue the run whose result belongs at `path`, and write it if the end is reached.

    Args:
        path: The result; a run that is not finished is saved beside it.
        settings: What to run.
        device: Where to learn.
        limits: See `OnlineRun.run`.

    Returns:
        The run; `finished` says whether the result is there.
    """
    run = OnlineRun(settings, device)
    make_folder_of(path)
    if run.run(checkpoint_beside(path), **limits):
        save_result(path, {**run.result(), **origin(device)})
    return run


class OnlineRun:
    """Acts, learns, refits and evaluates, in chunks between which it can be saved.

    It runs once: what was stopped is continued by a new one from its checkpoint.

    Args:
        settings: What to run.
        device: Where to learn.
        report: Called with a line of progress.
    """

    def __init__(self, settings: Settings, device: torch.device, report: Callable[[str], None] = _PRINT) -> None:
        """Build agents and generator; processes start with `run`."""
        self.settings, self.device, self.report = settings, device, report
        self.progress = Progress(settings.seeds)
        self._measured_from: tuple[int, float] | None = None  # step and seconds, for what is said of the time left
        choose_precision(device)
        with self.progress.clock("start"):
            worker_context()  # imports while the rest is built
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
        """Go on to the end or the time limit, whichever comes first.

        Args:
            checkpoint: Where the run is saved, and continued from if it was.
            time_limit: Seconds after which to save and stop; a refit is not interrupted.
            checkpoint_every: Seconds between two saves on the way.
            workers: Cores to use for environments and evaluations; None for all.
            keep_policies: Folder for the policies of each evaluation, ``<step>.safetensors``; None to keep none.

        Returns:
            Whether the end was reached.
        """
        begun = time.monotonic()
        with ExitStack() as stack:
            with self.progress.clock("start"):
                if checkpoint.exists():
                    self._load(checkpoint)
                record_origin(self.progress.made_on, self.device)
                environments, evaluator = self._processes(stack, workers or os.cpu_count() or 2)
                if self.device.type == "cuda":  # where there is something to compile; counted here, not as fitting
                    self.agents.warm_up()  # while the processes build their environments
                self._enter(environments)
            ended = run_until(
                lambda: self._run_chunk(environments, evaluator, keep_policies),
                lambda: self._save(checkpoint, evaluator),
                lambda: self.finished,
                begun=begun,
                time_limit=time_limit,
                checkpoint_every=checkpoint_every,
            )
            if ended:
                self._collect(evaluator, wait=True)
                synchronise(self.device)
        return ended

    def result(self) -> dict[str, Any]:
        """What the run showed; a seed that failed has no return from then on."""
        settings, progress = self.settings, self.progress
        return {
            **{key: getattr(settings, key) for key in ("env", "algo", "preset", "utd", "steps")},
            "seeds": [settings.first_seed + agent for agent in range(settings.seeds)],
            "curve": [{"step": step, "returns": progress.returns(step)} for step in sorted(progress.curve)],
            "value_estimates": [
                {"step": step, **progress.beliefs_at(step)} for step in sorted(progress.value_estimates)
            ],
            "failed_at": progress.failed_at,
            "wall_seconds": {name: round(spent, 2) for name, spent in progress.wall_seconds().items()},
            "fits": progress.fits,
            "made_on": progress.made_on,
            "settings": settings.to_json(),
        }

    # ------------------------------------------------------------------ loop

    def _run_chunk(self, environments: Environments, evaluator: Evaluator, keep_policies: Path | None) -> None:
        """CHUNK environment steps, which depend on the state before them alone."""
        settings, progress, agents = self.settings, self.progress, self.agents
        if progress.step >= settings.random_steps:
            self._prepare_learner()
        agents.learner.reseed(progress.step // CHUNK)
        rng = np.random.default_rng([settings.first_seed, progress.step])
        random_actions = rng.uniform(-1, 1, (CHUNK, *agents.actions.shape)).astype(np.float32)
        evaluations = settings.evaluation_steps()
        for k in range(min(CHUNK, settings.steps - progress.step)):
            if progress.step < settings.random_steps:
                agents.actions.numpy()[:] = random_actions[k]
            else:
                with progress.clock("learner"):
                    agents.learner.learn()  # on a GPU this only begins, and goes on while the environments step
                    agents.await_copies()
            with progress.clock("env"):
                environments.begin_step(agents.actions.numpy())
                after = environments.end_step()
            with progress.clock("learner"):
                self._take_in(after)
            # not at the very end, where nothing is learnt from it any more
            if agents.schedule and not self.finished and agents.schedule.is_due(progress.step, progress.last_refit):
                self._refit()
            if progress.step in evaluations:
                with progress.clock("evaluate"):
                    weights = agents.learner.policy_weights()
                    evaluator.submit(progress.step, weights)
                    if progress.step > settings.random_steps:  # before, they think nothing yet
                        progress.value_estimates[progress.step] = agents.value_estimates()
                    if keep_policies:
                        save_policies(keep_policies / f"{progress.step}.safetensors", weights)
        agents.await_copies()
        self._collect(evaluator)

    def _take_in(self, after: Steps) -> None:
        """Store what happened and begin to choose the next actions."""
        for agent in self.progress.advance(after.episodes, after.failed):
            seed, step = self.settings.first_seed + agent, self.progress.failed_at[agent]
            warnings.warn(f"seed {seed} became non-finite at step {step}; the others go on", stacklevel=2)
        self.agents.take_in(after)
        if self.progress.step >= self.settings.random_steps:
            self.agents.act()

    def _refit(self) -> None:
        """Refit and replace the synthetic rows; where that fails for want of luck or memory, go on with the old."""
        progress = self.progress
        progress.last_refit = progress.step
        try:
            with progress.clock("fit"):
                report = self.agents.fit()
            with progress.clock("generate"):
                self.agents.generate()
        except (RuntimeError, MemoryError) as error:
            if not (isinstance(error, DivergedError | GenerationError) or is_out_of_memory(error)):
                raise
            warnings.warn(f"refit at step {progress.step} failed, keeping the synthetic rows: {error}", stacklevel=2)
            return
        progress.fits.append({"step": progress.step, "steps": report.steps, "held_out_loss": report.held_out_loss})
        self._prepare_learner()

    def _prepare_learner(self) -> None:
        with self.progress.clock("start"):
            self.agents.learner.prepare()

    def _collect(self, evaluator: Evaluator, *, wait: bool = False) -> None:
        """Take over the evaluations that are ready, or wait for all, and report them."""
        progress, settings = self.progress, self.settings
        with progress.clock("evaluate"):
            steps = evaluator.collect(wait=wait)
        total = progress.total_seconds()
        going = total - progress.seconds["start"]  # compiling is not done again
        left = ""
        if progress.step > settings.random_steps:  # those, and the first fit, are no measure of the steps to come
            first_step, first_going = self._measured_from = self._measured_from or (progress.step, going)
            if progress.step > first_step:
                each = (going - first_going) / (progress.step - first_step)
                left = f", {each * (settings.steps - progress.step):.0f} s left"
        for step in steps:
            progress.curve[step] = evaluator.results[step]
            where = f"{settings.env} {settings.name} step {step:,} of {settings.steps:,}"
            self.report(f"{where}: return {_spread(progress.returns(step))}, {total:.0f} s so far{left}")

    # ------------------------------------------------------- save and continue

    def _save(self, path: Path, evaluator: Evaluator) -> None:
        self._collect(evaluator, wait=True)
        with self.progress.clock("checkpoint"):
            settings = {"settings": self.settings.to_json()}
            save_state(path, KIND, {**settings, **self.progress.state_dict(), **self.agents.state_dict()})
        self.report(f"saved at step {self.progress.step:,}")

    def _load(self, path: Path) -> None:
        state = saved_state(path, KIND, self.settings)
        self.progress.load_state_dict(state)
        self.agents.load_state_dict(state)

    def _processes(self, stack: ExitStack, cores: int) -> tuple[Environments, Evaluator]:
        """Start what steps environments and what evaluates."""
        settings = self.settings
        seeds = [agent_seed(settings.first_seed + agent) for agent in range(settings.seeds)]
        environments = stack.enter_context(Environments(self.task, seeds, workers=max(1, cores // 2)))
        evaluator = Evaluator(self.task.name, seeds, episodes=settings.episodes, workers=max(1, cores // 3))
        return environments, stack.enter_context(evaluator)

    def _enter(self, environments: Environments) -> None:
        """First observations, or those where the run was left."""
        progress, here = self.progress, self.agents.observations.numpy()
        if not progress.step:
            here[:] = environments.observations()
            return
        failed = [at is not None for at in progress.failed_at]
        actions = self.agents.actions_since(progress.lengths)
        found = environments.replay_to(progress.episodes.tolist(), actions, failed)
        found[failed] = 0.0
        if not np.array_equal(found, here):
            warnings.warn(
                "the environments did not come back to where they were; this machine or its simulator computes "
                "differently, so the run goes on but not as it would have",
                stacklevel=2,
            )
            here[:] = found
        self.report(f"continued at step {progress.step:,}")


def _spread(returns: list[float | None]) -> str:
    """Mean, standard deviation and range of the seeds that did not fail."""
    known = [value for value in returns if value is not None]
    if not known:
        return "of no seed, all failed"
    return f"{mean_and_spread(known, 1)} [{min(known):.1f}, {max(known):.1f}]"
