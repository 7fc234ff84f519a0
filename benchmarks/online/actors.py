"""The agents of all seeds in an online run: learner, replay, generator, and transfer to and from the environments."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from synther_replay import DiffusionGenerator, Transitions, TransitionSpec
from synther_replay.benchmarks.agents.critic_values import CriticValues
from synther_replay.benchmarks.agents.replay import StackedReplay
from synther_replay.benchmarks.agents.sac import Hyperparameters, StackedSAC
from synther_replay.benchmarks.agents.value_range import value_range
from synther_replay.benchmarks.environments.parallel import Steps
from synther_replay.benchmarks.environments.tasks import Task
from synther_replay.benchmarks.online.overestimation import values_and_excess
from synther_replay.benchmarks.online.settings import Settings
from synther_replay.common.seeding import derive_seed
from synther_replay.relevance.critics import TDError, Value
from synther_replay.relevance.guide import Guide, plan_for
from synther_replay.replay.background import (
    BackgroundRefit,
    default_lag,
    new_background_fit,
    restored_refit,
)
from synther_replay.replay.fits import Fit
from synther_replay.replay.refitting import RefitJob, RefitReport, new_fit

_LATEST = 1_000  # latest transitions that value estimates are averaged over: one episode of most tasks
_OPTIONS = {"progress": False}  # of fits


class Agents:
    """M agents with their replay and, for algorithms with synthetic replay, their generator.

    Args:
        settings: Settings of the run.
        task: The task.
        device: Device of the learner.

    Attributes:
        observations: Inputs of the next actions, ``(M, O)`` on the CPU.
        actions: The next actions, ``(M, A)`` on the CPU.
        pending: The refit in the background that is under way; None: there is none.
    """

    def __init__(self, settings: Settings, task: Task, device: torch.device) -> None:
        """Draw the initial networks."""
        self.device = device
        box = gym.spaces.Box(-np.inf, np.inf, (task.observation_dim,))
        self.spec = TransitionSpec.from_spaces(box, gym.spaces.Box(-1, 1, (task.action_dim,)))
        self.schedule = settings.retrain_schedule() if settings.synthetic else None
        self.replay = StackedReplay(
            self.spec,
            settings.seeds,
            capacity=settings.steps,
            synthetic=self.schedule.rows if self.schedule else 0,
            real_ratio=settings.real_ratio if self.schedule else 1.0,
            device=device,
        )
        hyper = Hyperparameters(**settings.hyperparameters())
        seed = settings.first_seed
        self.learner = StackedSAC(self.replay, task.target_entropy, hyper, seed=seed)
        self.generator = None
        guidance = settings.guidance()
        self.guide = None if guidance is None else Guide(guidance, derive_seed(seed, 7))
        self.pending: BackgroundRefit | None = None
        self._lag = settings.lag
        if self.guide and isinstance(self.guide.relevance, TDError | Value):
            critic = CriticValues(self.learner)
            self.guide.relevance.attach(q=critic.q, value=critic.value, gamma=critic.gamma)
        if self.schedule:
            config = settings.generator_config()
            seed = derive_seed(seed, 6)  # learner and generator must not share random streams
            self.generator = DiffusionGenerator(self.spec, config, device=device, seed=seed, stack=settings.seeds)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self._row, self.observations, self.actions = (
            torch.zeros(settings.seeds, width, pin_memory=device.type == "cuda")
            for width in (self.spec.dim, task.observation_dim, task.action_dim)
        )

    def store(self, after: Steps) -> None:
        """Store the transitions of one step; those of a failed agent are zeros."""
        self.await_copies()  # the copy of the last row must be finished before the row is overwritten
        spec, row = self.spec, self._row.numpy()
        row[:, spec.observations] = self.observations.numpy()
        row[:, spec.actions] = self.actions.numpy()
        row[:, spec.rewards.start] = after.rewards
        row[:, spec.next_observations] = after.next_observations
        row[:, spec.terminated.start] = after.terminated
        row[after.failed] = 0.0
        self.replay.add(self._row)
        self._note_copies()
        self.observations.numpy()[:] = after.observations

    def act(self) -> None:
        """Start computing the next actions; `actions` is valid after `await_copies`."""
        self.learner.observations.copy_(self.observations, non_blocking=True)
        self.learner.act()
        self.actions.copy_(self.learner.actions, non_blocking=True)
        self._note_copies()

    def await_copies(self) -> None:
        """Wait until rows and actions have been copied to and from the GPU, but not for work queued since."""
        if self._copied:
            self._copied.synchronize()

    def _note_copies(self) -> None:
        if self._copied:
            self._copied.record()

    def warm_up(self) -> None:
        """Compile fitting and sampling, with a temporary generator and random rows."""
        if self.generator is None or self.schedule is None:
            return
        config = replace(self.generator.config, steps=self.generator.config.average_every)
        temporary = DiffusionGenerator(self.spec, config, device=self.device, seed=0, stack=self.replay.agents)
        rows = torch.rand(self.replay.agents, self.schedule.start, self.spec.dim, device=self.device)
        rows[..., self.spec.terminated] = rows[..., self.spec.terminated].round()  # the outcome model, too
        real = Transitions(self.spec, rows[0] if self.replay.agents == 1 else rows)
        plan = plan_for(real.rewards, self.guide.guidance) if self.guide else None
        temporary.fit(real, condition=plan.condition if plan else None, progress=False)
        plan.sample(temporary.sample, self.schedule.rows) if plan else temporary.sample(self.schedule.rows)

    @property
    def lag(self) -> int:
        """Environment steps until the rows of a refit in the background are taken."""
        assert self.generator is not None and self.schedule is not None
        return self._lag or default_lag(self.schedule)

    def refit_of_now(self) -> RefitJob:
        """A refit with the real transitions of now, for `take`, which computes it."""
        assert self.generator is not None
        real, steps = self.replay.transitions(), self.replay.count
        plan = self.guide.plan(real, steps) if self.guide else None
        return self._job_of(new_fit(self.generator, real, _OPTIONS, plan), steps)

    def begin_refit(self) -> None:
        """Begin a refit in the background with the real transitions of now."""
        begun = time.monotonic()
        assert self.generator is not None and self.schedule is not None
        steps, rows = self.replay.count, self.schedule.rows
        real = Transitions(self.spec, self.replay.transitions().rows.clone())
        fit = new_background_fit(self.generator, self.guide, real, _OPTIONS, rows=rows, steps=steps, device=self.device)
        job = self._job_of(fit, steps)
        job.paused = time.monotonic() - begun
        self.pending = BackgroundRefit(job, steps + self.lag, self.device)

    def finished_refit(self) -> RefitJob:
        """Wait for the refit in the background, which is then no longer pending, and return it for `take`."""
        assert self.pending is not None
        begun = time.monotonic()
        self.pending.wait()
        pending, self.pending = self.pending, None
        if pending.error is not None:
            raise pending.error
        pending.job.paused += time.monotonic() - begun
        return pending.job

    def take(self, job: RefitJob) -> RefitReport:
        """Replace model and synthetic transitions by those of a refit."""
        report = job.run()
        begun = time.monotonic()
        assert job.fresh is not None  # after run
        job.take_model()
        self.replay.replace_synthetic(job.fresh)
        return replace(report, pause_seconds=job.paused + time.monotonic() - begun)

    def _job_of(self, fit: Fit, steps: int) -> RefitJob:
        assert self.schedule is not None
        return RefitJob(fit, rows=self.schedule.rows, check=Transitions.check, steps=steps, real_rows=steps)

    def value_estimates(self) -> dict[str, list[float]]:
        """`StackedSAC.value_estimates` on a batch spread over the last `_LATEST` transitions, by name ``[M]``.

        `least` and `most` are the range that the rewards so far and the discount allow, `excess` is how much of the
        values of the latest transitions did not follow.
        """
        count, batch = self.replay.count, self.learner.settings.batch_size
        indices = torch.linspace(max(0, count - _LATEST), count - 1, batch, dtype=torch.float64).round().long()
        found = self.learner.value_estimates(self.replay.real[:, indices.to(self.device)])
        rewards = self.replay.real[:, :count, self.spec.rewards.start]
        extremes = rewards.amin(1), rewards.amax(1)
        found["least"], found["most"] = value_range(
            extremes, found["temperature"], found["entropy"], self.spec.action_dim, self.learner.settings.gamma
        )
        found["excess"] = values_and_excess(self.learner)[1]
        if self.learner.settings.max_caution:
            found["caution"] = self.learner.critics.caution
        return {name: each.tolist() for name, each in found.items()}

    def actions_since(self, lengths: np.ndarray) -> list[np.ndarray]:
        """The last ``lengths[i]`` actions of each agent i."""
        count = self.replay.count
        taken = self.replay.real[:, :count, self.spec.actions].cpu().numpy()
        return [own[count - length :] for own, length in zip(taken, lengths, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """State to resume from."""
        return {
            "learner": self.learner.state_dict(),
            "replay": self.replay.state_dict(),
            "generator": self.generator.state_dict() if self.generator else None,
            "relevance": self.guide.state_dict() if self.guide else None,
            "pending": self.pending.state_dict(self.generator, self.guide) if self.pending and self.generator else None,
            "actions": self.actions,
            "observations": self.observations,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`, in place."""
        self.learner.load_state_dict(state["learner"])
        self.replay.load_state_dict(state["replay"])
        if self.generator:
            self.generator.load_state_dict(state["generator"])
        if self.guide:
            self.guide.load_state_dict(state["relevance"])
        if self.generator and (pending := state.get("pending")):
            self.pending = restored_refit(
                pending,
                self.spec,
                self.generator,
                self.guide,
                lambda fit, _rows, steps, _real_rows: self._job_of(fit, steps),
            )
        self.actions.copy_(state["actions"])
        self.observations.copy_(state["observations"])
