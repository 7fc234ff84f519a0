"""The agents of all seeds in an online run: learner, replay, generator, and transfer to and from the environments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from synther_replay import DiffusionGenerator, Transitions, TransitionSpec
from synther_replay.benchmarks.agents.replay import StackedReplay
from synther_replay.benchmarks.agents.sac import Hyperparameters, StackedSAC
from synther_replay.benchmarks.common.timing import synchronise
from synther_replay.benchmarks.environments.parallel import Steps
from synther_replay.benchmarks.environments.tasks import Task
from synther_replay.benchmarks.online.critic_values import CriticValues
from synther_replay.benchmarks.online.settings import Settings
from synther_replay.benchmarks.online.watchdog import value_range
from synther_replay.common.seeding import derive_seed
from synther_replay.model.fitting import FitReport
from synther_replay.relevance.critics import TDError, Value
from synther_replay.relevance.guide import Guide, Plan, plan_for

_LATEST = 1_000  # latest transitions that value estimates are averaged over: one episode of most tasks


class Agents:
    """M agents with their replay and, for algorithms with synthetic replay, their generator.

    Args:
        settings: Settings of the run.
        task: The task.
        device: Device of the learner.

    Attributes:
        observations: Inputs of the next actions, ``(M, O)`` on the CPU.
        actions: The next actions, ``(M, A)`` on the CPU.
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
        self.plan: Plan | None = None  # of the last refit
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

    def fit(self) -> FitReport:
        """Fit the generator to all real transitions, with their relevance if generation is guided."""
        assert self.generator is not None
        real = self.replay.transitions()
        if self.guide is None:
            return self.generator.fit(real, progress=False)
        self.plan = self.guide.plan(real, self.replay.count)
        return self.generator.fit(real, condition=self.plan.condition, progress=False)

    def generate(self) -> None:
        """Replace the synthetic transitions."""
        assert self.generator is not None and self.schedule is not None
        draw, rows = self.generator.sample, self.schedule.rows
        self.replay.replace_synthetic(draw(rows) if self.plan is None else self.plan.sample(draw, rows))
        synchronise(self.device)

    def value_estimates(self) -> dict[str, list[float]]:
        """`StackedSAC.value_estimates` on a batch spread over the last `_LATEST` transitions, by name ``[M]``.

        `least` and `most` are the range that the rewards so far and the discount allow.
        """
        count, batch = self.replay.count, self.learner.settings.batch_size
        indices = torch.linspace(max(0, count - _LATEST), count - 1, batch, dtype=torch.float64).round().long()
        found = self.learner.value_estimates(self.replay.real[:, indices.to(self.device)])
        rewards = self.replay.real[:, :count, self.spec.rewards.start]
        found["least"], found["most"] = value_range(
            rewards, found["temperature"], found["entropy"], self.spec.action_dim, self.learner.settings.gamma
        )
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
        self.actions.copy_(state["actions"])
        self.observations.copy_(state["observations"])
