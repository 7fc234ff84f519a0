"""What an online run can be asked for: algorithms, presets and the settings that its result depends on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from synther_replay import DiffusionGenerator, GeneratorConfig, RetrainSchedule
from synther_replay.benchmarks.common.command_line import PRESETS, generator_of
from synther_replay.benchmarks.environments.tasks import suite_of
from synther_replay.common.checks import whole_number
from synther_replay.replay.mixing import check_real_ratio


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


@dataclass(frozen=True)
class Settings:
    """Everything a result depends on; kept with it, and a run is only continued under the same.

    The learner's hyper-parameters are not among them: the algorithm fixes them (`ALGORITHMS`, and `Hyperparameters` in
    `learner`). Whether the task exists is seen when it is built; all else that cannot work is refused here.

    Attributes:
        env: Name of the task.
        algo: One of `ALGORITHMS`.
        preset: Of the generator; None for algorithms without one.
        seeds: Number of agents.
        steps: Environment steps of each.
        utd: Critic updates per environment step.
        random_steps: Environment steps with random actions, before anything is learnt.
        episodes: Per evaluation.
        first_seed: Agents have this seed and the following ones, from which their episodes come; networks and noise of
            all are drawn from the first, so an agent of one run is not the agent of that seed in another.
        real_ratio: Share of real rows in a batch.
        schedule: `every`, `rows` and `growth` of the refits, as far as they differ from the preset's.
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
    schedule: dict[str, Any] = field(default_factory=dict)
    generator: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot work, by name and value."""
        if self.algo not in ALGORITHMS:
            raise ValueError(f"algo: expected one of {', '.join(ALGORITHMS)}, got {self.algo!r}")
        for name in ("seeds", "steps", "utd", "random_steps", "episodes"):
            whole_number(name, getattr(self, name))
        whole_number("first_seed", self.first_seed, least=0)
        check_real_ratio(self.real_ratio)
        if self.synthetic:
            if self.preset not in PRESETS:
                raise ValueError(f"preset: expected one of {', '.join(PRESETS)}, got {self.preset!r}")
            self.retrain_schedule()
            self.generator_config()
        elif self.preset or self.schedule or self.generator:
            raise ValueError(f"algo: {self.algo} has no generator, so it takes no preset, schedule or settings of one")

    @property
    def synthetic(self) -> bool:
        """Whether there is a generator."""
        return ALGORITHMS[self.algo].synthetic

    @property
    def name(self) -> str:
        """Algorithm and preset, as files are named."""
        return "-".join(part for part in (self.algo, self.preset) if part)

    def retrain_schedule(self) -> RetrainSchedule:
        """When to refit: first after one interval, but not before anything is learnt or can be fitted."""
        preset: RetrainSchedule = getattr(RetrainSchedule, str(self.preset))()
        chosen = RetrainSchedule(**{**asdict(preset), **self.schedule})
        return replace(chosen, start=max(chosen.every, self.random_steps, DiffusionGenerator.min_rows))

    def generator_config(self) -> GeneratorConfig:
        """The preset's; where it is the paper's, with what the published code has for online runs."""
        online = {"embedding": 256, "normalise_rewards": suite_of(self.env) == "gym"} if self.preset == "paper" else {}
        return generator_of(str(self.preset), {**online, **self.generator})

    def evaluation_steps(self) -> set[int]:
        """Every 2,500 steps up to 20,000, then every 10,000, and the last."""
        early = range(2_500, min(self.steps, 20_000) + 1, 2_500)
        return {*early, *range(30_000, self.steps + 1, 10_000), self.steps}

    def to_json(self) -> dict[str, Any]:
        """The settings as they come back from a file, with what the preset stands for in this release."""
        values = asdict(self)
        if self.synthetic:
            values["schedule"] = asdict(self.retrain_schedule())
            values["generator"] = self.generator_config().to_json()
        as_read: dict[str, Any] = json.loads(json.dumps(values))
        return as_read
