"""Settings of an online run: algorithms, presets, and everything that the result depends on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from synther_replay import DiffusionGenerator, GeneratorConfig, RetrainSchedule
from synther_replay.benchmarks.agents.named_critics import PLAIN, critic_options
from synther_replay.benchmarks.agents.sac import Hyperparameters
from synther_replay.benchmarks.common.generator_settings import PRESETS, build_generator_config
from synther_replay.benchmarks.environments.tasks import suite_of
from synther_replay.common.checks import whole_number
from synther_replay.relevance.guidance import Guidance
from synther_replay.replay.background import REFIT_MODES, checked_lag, is_background
from synther_replay.replay.mixing import check_real_ratio


@dataclass(frozen=True)
class Algorithm:
    """Number of critics, critic updates per environment step, and whether synthetic replay is used."""

    critics: int
    utd: int
    synthetic: bool = False


ALGORITHMS = {
    "sac": Algorithm(critics=2, utd=1),
    "sac20": Algorithm(critics=2, utd=20),
    "redq": Algorithm(critics=10, utd=20),
    "synther": Algorithm(critics=2, utd=20, synthetic=True),
}


@dataclass(frozen=True)
class Settings:
    """Everything that the result of an online run depends on.

    Saved with the result; a checkpoint is resumed with equal settings only. Invalid values are refused here, except for
    an unknown task, which is refused when the environment is built.

    Attributes:
        env: Name of the task.
        algo: One of `ALGORITHMS`.
        preset: Preset of generator and schedule; None for algorithms without a generator.
        seeds: Number of agents.
        steps: Environment steps per agent.
        utd: Critic updates per environment step.
        random_steps: Environment steps with random actions before training starts.
        episodes: Episodes per evaluation.
        first_seed: Seed of the first agent; the others count up. Episodes of an agent depend on its own seed. Networks
            and noise of all agents are drawn from the first seed, so agents of one seed differ between runs.
        real_ratio: Share of real rows in a batch.
        schedule: `start`, `every`, `rows` and `growth` of the refits, where they differ from the preset.
        generator: Options of the generator that differ from the preset.
        critic: One of `agents.named_critics.CRITICS`.
        agent: Hyper-parameters of the learner that differ from those of algorithm and critic.
        relevance: What generation is guided by, a mapping as in `Guidance.of`; empty: not guided.
        refit: Whether the learner waits for refits, ``"inline"``, or goes on, ``"background"``.
        lag: Environment steps until the rows of a refit in the background are taken; None: as in `SourceOptions`.
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
    schedule: dict[str, Any] = field(default_factory=dict)
    generator: dict[str, Any] = field(default_factory=dict)
    critic: str = PLAIN
    agent: dict[str, Any] = field(default_factory=dict)
    relevance: dict[str, Any] = field(default_factory=dict)
    refit: str = REFIT_MODES[0]
    lag: int | None = None

    def __post_init__(self) -> None:
        """Validate all values."""
        if self.algo not in ALGORITHMS:
            raise ValueError(f"algo: expected one of {', '.join(ALGORITHMS)}, got {self.algo!r}")
        for name in ("seeds", "steps", "utd", "random_steps", "episodes"):
            whole_number(name, getattr(self, name))
        whole_number("first_seed", self.first_seed, least=0)
        check_real_ratio(self.real_ratio)
        Hyperparameters(**self.hyperparameters())
        if self.synthetic:
            if self.preset not in PRESETS:
                raise ValueError(f"preset: expected one of {', '.join(PRESETS)}, got {self.preset!r}")
            self.retrain_schedule()
            self.generator_config()
            self.guidance()
            checked_lag(self.lag, self.refit)
        elif self.preset or self.schedule or self.generator or self.relevance or self.in_background or self.lag:
            names = ("preset", "schedule", "generator", "relevance", "refit", "lag")
            shown = ", ".join(f"{name}={value!r}" for name in names if (value := getattr(self, name)))
            raise ValueError(
                f"algo: {self.algo} has no generator, so preset, schedule, generator, relevance, refit and lag do not "
                f"apply, got {shown}"
            )

    @property
    def synthetic(self) -> bool:
        """Whether the algorithm uses synthetic replay."""
        return ALGORITHMS[self.algo].synthetic

    @property
    def in_background(self) -> bool:
        """Whether the learner goes on during refits."""
        return is_background(self.refit)

    @property
    def name(self) -> str:
        """Algorithm, preset, critic, relevance and background, used as file name; what is usual has no part in it."""
        critic = None if self.critic == PLAIN else self.critic
        refit = self.refit if self.in_background else None
        return "-".join(part for part in (self.algo, self.preset, critic, self.relevance.get("name"), refit) if part)

    def seeds_of(self, agents: Iterable[int]) -> list[int]:
        """Seeds of these agents, which are numbered from 0."""
        return [self.first_seed + agent for agent in agents]

    def hyperparameters(self) -> dict[str, Any]:
        """Hyper-parameters of the learner that differ from the defaults."""
        chosen = {"critics": ALGORITHMS[self.algo].critics, **critic_options(self.critic, self.agent)}
        return {**chosen, "updates": self.utd}

    def retrain_schedule(self) -> RetrainSchedule:
        """Schedule of the refits; the first one comes after one interval, the random steps and `min_rows` rows."""
        preset: RetrainSchedule = getattr(RetrainSchedule, str(self.preset))()
        chosen = RetrainSchedule(**{**asdict(preset), **self.schedule})
        earliest = self.schedule.get("start", 0)
        return replace(chosen, start=max(earliest, chosen.every, self.random_steps, DiffusionGenerator.min_rows))

    def generator_config(self) -> GeneratorConfig:
        """Options of the generator; preset `paper` gets those of the published code for online runs."""
        online = {"embedding": 256, "normalise_rewards": suite_of(self.env) == "gym"} if self.preset == "paper" else {}
        return build_generator_config(str(self.preset), {**online, **self.generator})

    def guidance(self) -> Guidance | None:
        """How generation is guided; None: not at all."""
        return Guidance.of(self.relevance or None, name="--relevance")

    def evaluation_steps(self) -> set[int]:
        """Steps at which policies are evaluated: every 2,500 up to 20,000, then every 10,000, and the last."""
        early = range(2_500, min(self.steps, 20_000) + 1, 2_500)
        return {*early, *range(30_000, self.steps + 1, 10_000), self.steps}

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values, with the presets resolved to their options."""
        values = asdict(self)
        if self.critic == PLAIN:  # as in results from before there were others
            del values["critic"]
        for name in ("agent", "relevance"):
            if not values[name]:
                del values[name]
        if not self.in_background:
            del values["refit"], values["lag"]
        if self.synthetic:
            values["schedule"] = asdict(self.retrain_schedule())
            values["generator"] = self.generator_config().to_json()
        if guidance := self.guidance():
            values["relevance"] = guidance.to_json()
        as_read: dict[str, Any] = json.loads(json.dumps(values))
        return as_read
