"""One online run: agents of all seeds act, learn and are evaluated; it can be stopped and continued at any time."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from evaluation import Evaluator
from learner import Hyperparameters, StackedSAC
from replay import StackedReplay
from reporting import synchronise
from tasks import Task
from workers import Environments, Steps

from synther_replay import DiffusionGenerator, GeneratorConfig, RetrainSchedule, TransitionSpec
from synther_replay.checkpoint import load_checkpoint, save_checkpoint
from synther_replay.errors import DivergedError, GenerationError, is_out_of_memory
from synther_replay.seeding import derive_seed

KIND = "online run"
STRETCH = 500  # environment steps between two points where a run can be continued
CLOCKS = ("env", "learner", "fit", "generate", "evaluate", "start", "checkpoint")


@dataclass(frozen=True)
class Algorithm:
    """What distinguishes one algorithm from another."""

    critics: int
    utd: int
    synthetic: bool = False


ALGORITHMS = {
    "sac": Algorithm(critics=2, utd=1),
    "sac20": Algorithm(critics=2, utd=20),
    "redq": Algorithm(critics=10, utd=20),
    "synther": Algorithm(critics=2, utd=20, synthetic=True),
}
PRESETS = ("paper", "fast", "tiny")


@dataclass(frozen=True)
class Settings:
    """Everything a result depends on; kept with it, and a run is only continued under the same.

    Attributes:
        env: Name of the task.
        algo: One of `ALGORITHMS`.
        preset: Of the generator; None for algorithms without one.
        seeds: Number of agents.
        steps: Environment steps of each.
        utd: Critic updates per environment step.
        random_steps: Environment steps with random actions, before anything is learnt.
        episodes: Per evaluation.
        first_seed: Agents have this seed and the following ones.
        real_ratio: Share of real rows in a batch.
        schedule: `every` and `rows` of the refits, as far as they differ from the preset's.
        generator: Settings of the generator, as far as they differ from the preset's.
    """

    env: str
    algo: str
    preset: str | None
    seeds: int
    steps: int
    utd: int
    random_steps: int = 5_000
    episodes: int = 10
    first_seed: int = 0
    real_ratio: float = 0.5
    schedule: dict[str, int] = field(default_factory=dict)
    generator: dict[str, Any] = field(default_factory=dict)

    def retrain_schedule(self) -> RetrainSchedule:
        """When to refit: first after one interval, but not before anything is learnt."""
        values = {**vars(getattr(RetrainSchedule, str(self.preset))()), **self.schedule}
        return RetrainSchedule(**{**values, "start": max(values["every"], self.random_steps)})

    def generator_config(self, task: Task) -> GeneratorConfig:
        """The preset's, with the paper's choice for rewards where the preset is the paper's."""
        changes = dict(self.generator)
        if self.preset == "paper":
            changes.setdefault("normalise_rewards", task.suite == "gym")
        config: GeneratorConfig = getattr(GeneratorConfig, str(self.preset))(**changes)
        return config

    def evaluation_steps(self) -> set[int]:
        """Every 2,500 steps up to 20,000, then every 10,000, and the last."""
        early = range(2_500, min(self.steps, 20_000) + 1, 2_500)
        return {*early, *range(30_000, self.steps + 1, 10_000), self.steps}


def is_done(path: Path, settings: Settings) -> bool:
    """Whether the result is there already; one of other settings is never overwritten."""
    if not path.exists():
        return False
    try:
        found = json.loads(path.read_text()).get("settings")
    except (json.JSONDecodeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it first") from error
    if found != asdict(settings):
        raise ValueError(f"{path} holds the result of other settings, {found}; remove it, or choose another --out")
    return True


class OnlineRun:
    """Acts, learns, refits and evaluates, in stretches between which it can be saved.

    Args:
        settings: What to run.
        device: Where to learn.
        report: Called with a line of progress.
    """

    def __init__(self, settings: Settings, device: torch.device, report: Callable[[str], None] = print) -> None:
        """Build agents and generator; processes start with `run`."""
        self.settings, self.device, self.report = settings, device, report
        self.task = Task.named(settings.env)
        algorithm = ALGORITHMS[settings.algo]
        box = gym.spaces.Box(-np.inf, np.inf, (self.task.observation_dim,))
        self.spec = TransitionSpec.from_spaces(box, gym.spaces.Box(-1, 1, (self.task.action_dim,)))
        self.seconds: dict[str, float] = defaultdict(float)
        self.step = 0
        self.last_refit: int | None = None
        self.fits: list[dict[str, Any]] = []
        self.failed_at: list[int | None] = [None] * settings.seeds
        self.curve: dict[int, list[float]] = {}
        self._lengths = np.zeros(settings.seeds, np.int64)  # steps of the running episodes
        self._episodes = np.zeros(settings.seeds, np.int64)
        with self._clock("start"):
            self.schedule = settings.retrain_schedule() if algorithm.synthetic else None
            self.replay = StackedReplay(
                self.spec,
                settings.seeds,
                capacity=settings.steps,
                synthetic=self.schedule.rows if self.schedule else 0,
                real_ratio=settings.real_ratio if self.schedule else 1.0,
                device=device,
            )
            hyper = Hyperparameters(critics=algorithm.critics, updates=settings.utd)
            seed = settings.first_seed
            self.learner = StackedSAC(self.replay, self.task.target_entropy, hyper, seed=seed)
            self.generator = None
            if self.schedule:
                config = settings.generator_config(self.task)
                self.generator = DiffusionGenerator(self.spec, config, device=device, seed=seed, stack=settings.seeds)
        pinned = device.type == "cuda"
        self._row = torch.zeros(settings.seeds, self.spec.dim, pin_memory=pinned)
        self._observations = torch.zeros(settings.seeds, self.task.observation_dim, pin_memory=pinned)
        self._actions = torch.zeros(settings.seeds, self.task.action_dim, pin_memory=pinned)

    def run(
        self,
        checkpoint: Path,
        *,
        time_limit: float | None = None,
        checkpoint_every: float = 300.0,
        workers: int | None = None,
    ) -> bool:
        """Go on to the end or the time limit, whichever comes first.

        Args:
            checkpoint: Where the run is saved, and continued from if it was.
            time_limit: Seconds after which to save and stop.
            checkpoint_every: Seconds between two saves on the way.
            workers: Cores to use for environments and evaluations; None for all.

        Returns:
            Whether the end was reached.
        """
        begun = saved = time.monotonic()
        already = self._spent_before(checkpoint)
        seeds = [derive_seed(self.settings.first_seed + k, 5) for k in range(self.settings.seeds)]
        cores = workers or os.cpu_count() or 2
        with (
            self._clock("start"),
            Environments(self.task, seeds, workers=max(1, cores // 2)) as environments,
            Evaluator(self.task.name, seeds, episodes=self.settings.episodes, workers=max(1, cores // 3)) as evaluator,
        ):
            self._begin(environments, checkpoint)
            evaluator.results.update(self.curve)
            with self._paused("start"):
                while self.step < self.settings.steps:
                    if self.step >= self.settings.random_steps:
                        self._prepare_learner()
                    self.learner.reseed(self.step // STRETCH)
                    self._stretch(environments, evaluator)
                    self.seconds["total"] = already + time.monotonic() - begun
                    self._say(evaluator, evaluator.collect())
                    out_of_time = time_limit is not None and time.monotonic() - begun > time_limit
                    due = time.monotonic() - saved > checkpoint_every
                    if self.step < self.settings.steps and (out_of_time or due):
                        self._save(checkpoint, evaluator)
                        saved = time.monotonic()
                        if out_of_time:
                            return False
                with self._clock("evaluate"):
                    self._say(evaluator, evaluator.collect(wait=True))
                self.curve = dict(evaluator.results)
                synchronise(self.device)
        self.seconds["total"] = already + time.monotonic() - begun
        return True

    def result(self) -> dict[str, Any]:
        """What the run showed; a seed that failed has no return from then on."""
        settings = self.settings
        curve = [
            {"step": step, "returns": [self._judged(agent, step, value) for agent, value in enumerate(returns)]}
            for step, returns in sorted(self.curve.items())
        ]
        plain = {key: asdict(settings)[key] for key in ("env", "algo", "preset", "seeds", "utd", "steps")}
        return {
            **plain,
            "curve": curve,
            "failed_at": self.failed_at,
            "wall_seconds": {key: round(self.seconds[key], 2) for key in ("total", *CLOCKS)},
            "fits": self.fits,
            "settings": asdict(settings),
        }

    # ------------------------------------------------------------------ loop

    def _stretch(self, environments: Environments, evaluator: Evaluator) -> None:
        """STRETCH environment steps."""
        settings = self.settings
        rng = np.random.default_rng([settings.first_seed, self.step])
        random_actions = rng.uniform(-1, 1, (STRETCH, *self._actions.shape)).astype(np.float32)
        evaluations = settings.evaluation_steps()
        for k in range(min(STRETCH, settings.steps - self.step)):
            if self.step < settings.random_steps:
                self._actions.numpy()[:] = random_actions[k]
            environments.begin_step(self._actions.numpy())
            if self.step >= settings.random_steps:
                with self._clock("learner"):
                    self.learner.learn()  # on a GPU, while the environments step
            with self._clock("env"):
                after = environments.end_step()
            with self._clock("learner"):
                self._take_in(after)
            if self.schedule and self.schedule.is_due(self.step, self.last_refit):
                self._refit()
            if self.step in evaluations:
                with self._clock("evaluate"):
                    evaluator.submit(self.step, self.learner.policy_weights())

    def _take_in(self, after: Steps) -> None:
        """Store what happened and choose the next actions."""
        for agent in np.flatnonzero(after.failed):
            if self.failed_at[agent] is None:
                self.failed_at[agent] = self.step
                warnings.warn(f"seed {agent} left the numbers at step {self.step}; the others go on", stacklevel=2)
        spec, row = self.spec, self._row.numpy()
        row[:, spec.observations] = self._observations.numpy()
        row[:, spec.actions] = self._actions.numpy()
        row[:, spec.rewards.start] = after.rewards
        row[:, spec.next_observations] = after.following
        row[:, spec.terminated.start] = after.terminated
        row[after.failed] = 0.0
        self.replay.add(self._row)
        self._observations.numpy()[:] = after.observations
        self._lengths = np.where(after.episodes > self._episodes, 0, self._lengths + 1)
        self._episodes = after.episodes.copy()
        self.step += 1
        if self.step >= self.settings.random_steps:
            self.learner.observations.copy_(self._observations, non_blocking=True)
            self.learner.act()
            self._actions.copy_(self.learner.actions, non_blocking=True)
        synchronise(self.device)

    def _refit(self) -> None:
        """Refit and replace the synthetic rows; where that fails for want of luck or memory, go on with the old."""
        assert self.generator is not None and self.schedule is not None
        self.last_refit = self.step
        try:
            with self._clock("fit"):
                report = self.generator.fit(self.replay.transitions(), progress=False)
            with self._clock("generate"):
                self.replay.replace_synthetic(self.generator.sample(self.schedule.rows))
                synchronise(self.device)
        except (RuntimeError, MemoryError) as error:
            if not (isinstance(error, DivergedError | GenerationError) or is_out_of_memory(error)):
                raise
            warnings.warn(f"refit at step {self.step} failed, keeping the synthetic rows: {error}", stacklevel=2)
            return
        self.fits.append({"step": self.step, "steps": report.steps, "held_out_loss": report.held_out_loss})
        self._prepare_learner()

    def _prepare_learner(self) -> None:
        with self._clock("start"):
            self.learner.prepare()

    def _judged(self, agent: int, step: int, value: float) -> float | None:
        failed = self.failed_at[agent]
        lost = (failed is not None and failed < step) or not math.isfinite(value)
        return None if lost else round(value, 2)

    def _say(self, evaluator: Evaluator, steps: list[int]) -> None:
        total, settings = self.seconds["total"], self.settings
        for step in steps:
            returns = np.array(evaluator.results[step])
            left = total / max(self.step, 1) * (settings.steps - self.step)
            name = settings.algo + (f"-{settings.preset}" if settings.preset else "")
            self.report(
                f"{settings.env} {name} step {step:,} of {settings.steps:,}: return {np.nanmean(returns):.1f} "
                f"+- {np.nanstd(returns):.1f} [{np.nanmin(returns):.1f}, {np.nanmax(returns):.1f}], "
                f"{total:.0f} s so far, {left:.0f} s left"
            )

    # ------------------------------------------------------- save and continue

    def _save(self, path: Path, evaluator: Evaluator) -> None:
        with self._clock("evaluate"):
            self._say(evaluator, evaluator.collect(wait=True))
        with self._clock("checkpoint"):
            path.parent.mkdir(parents=True, exist_ok=True)
            save_checkpoint(path, KIND, self._state(evaluator.results))
        self.report(f"saved at step {self.step:,}")

    def _state(self, curve: dict[int, list[float]]) -> dict[str, Any]:
        return {
            "settings": asdict(self.settings),
            "step": self.step,
            "last_refit": self.last_refit,
            "fits": self.fits,
            "failed_at": self.failed_at,
            "curve": {str(step): returns for step, returns in curve.items()},
            "seconds": dict(self.seconds),
            "learner": self.learner.state_dict(),
            "replay": self.replay.state_dict(),
            "generator": self.generator.state_dict() if self.generator else None,
            "actions": self._actions,
            "observations": self._observations,
            "lengths": self._lengths.tolist(),
            "episodes": self._episodes.tolist(),
        }

    def _spent_before(self, path: Path) -> float:
        """Load the run so far, if there is one; returns the seconds it took."""
        if not path.exists():
            return 0.0
        state = load_checkpoint(path, KIND)
        if state["settings"] != asdict(self.settings):
            raise ValueError(
                f"{path} was made with other settings, {state['settings']}; remove it, or choose another --out"
            )
        self.learner.load_state_dict(state["learner"])
        self.replay.load_state_dict(state["replay"])
        if self.generator:
            self.generator.load_state_dict(state["generator"])
        self.step, self.last_refit = state["step"], state["last_refit"]
        self.fits, self.failed_at = state["fits"], state["failed_at"]
        self.curve = {int(step): returns for step, returns in state["curve"].items()}
        self.seconds.update(state["seconds"])
        self._actions.copy_(state["actions"])
        self._observations.copy_(state["observations"])
        self._lengths, self._episodes = np.array(state["lengths"]), np.array(state["episodes"])
        return float(self.seconds["total"])

    def _begin(self, environments: Environments, checkpoint: Path) -> None:
        """First observations, or those where the run was left."""
        if not self.step:
            self._observations.numpy()[:] = environments.observations()
            return
        rows = self.replay.real[:, : self.step, self.spec.actions].cpu().numpy()
        actions = [rows[agent, self.step - length :] for agent, length in enumerate(self._lengths)]
        failed = [at is not None for at in self.failed_at]
        found = environments.return_to(self._episodes.tolist(), actions, failed)
        found[failed] = 0.0
        if not np.array_equal(found, self._observations.numpy()):
            warnings.warn(
                f"{checkpoint}: the environments did not come back to where they were; this machine or its simulator "
                "computes differently, so the run goes on but not as it would have",
                stacklevel=2,
            )
            self._observations.numpy()[:] = found
        self.report(f"continued at step {self.step:,}")

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - begun

    @contextmanager
    def _paused(self, name: str) -> Iterator[None]:
        """Time that does not count for the clock it lies within."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] -= time.monotonic() - begun
