"""Settings of the stages: everything that their results depend on, and where files lie."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from synther_replay import GeneratorConfig
from synther_replay.benchmarks.common.generator_settings import GENERATOR_PRESETS, build_generator_config
from synther_replay.benchmarks.pixels.codec import CodecSettings
from synther_replay.benchmarks.pixels.rendering import RenderSettings
from synther_replay.common.checks import whole_number

WORK = Path("results", "pixels")  # default folder of all files; benchmarks/results holds the published results
TASKS = ("walker-walk", "cheetah-run")
LEVELS = ("medium", "expert", "mixed")
ALGORITHMS = ("bc", "drqbc")
HEADS = ("real", "synthetic")  # latents that heads are trained on
POLICIES = {"pixels": "agent of images", "real": "heads on real latents", "synthetic": "heads on synthetic latents"}
"""Policies of a run and their titles: heads of the agent of images, and those trained on latents."""


def _check_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")


class JsonSettings:
    """Settings as JSON values; base of the dataclasses below."""

    def to_json(self) -> dict[str, Any]:
        """All values, as they are read from a file: with tuples as lists."""
        values: dict[str, Any] = json.loads(json.dumps(self._values()))
        return values

    def _values(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload]


@dataclass(frozen=True)
class RecordSettings(JsonSettings):
    """A data set of frames.

    Attributes:
        task: Task of DeepMind Control.
        level: "medium" or "expert": episodes of that policy. "mixed": of the snapshots up to the medium policy in turn,
            as V-D4RL's medium-replay.
        episodes: Number of episodes.
        steps: Actions of an episode, at most; the tasks end after 500.
        seed: Seed of the episodes.
        render: Quality of the frames.
        codec: Compression of the frames.
    """

    task: str
    level: str
    episodes: int = 200
    steps: int = 500
    seed: int = 0
    render: RenderSettings = field(default_factory=RenderSettings)
    codec: CodecSettings = field(default_factory=CodecSettings)

    def __post_init__(self) -> None:
        """Validate all values."""
        _check_choice("level", self.level, LEVELS)
        whole_number("episodes", self.episodes)
        whole_number("steps", self.steps)
        whole_number("seed", self.seed, least=0)

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return f"{self.task}-{self.level}"


@dataclass(frozen=True)
class LearnerSettings(JsonSettings):
    """Hyper-parameters of V-D4RL; its noise falls over 45 % of the updates, so here over as many of ours.

    Attributes:
        algo: "bc" or "drqbc".
        updates: Number of updates; V-D4RL makes 275,000.
        seed: Seed of networks and batches.
        noise: Standard deviation of the noise on the policy's actions: first value, last value.
        noise_share: Share of the updates after which the last value is reached.
    """

    algo: str
    updates: int = 100_000
    seed: int = 0
    batch_size: int = 256
    learning_rate: float = 3e-4
    gamma: float = 0.99
    n_step: int = 3
    target_speed: float = 0.01
    alpha: float = 2.5  # weight of the value term against behaviour cloning
    noise: tuple[float, float] = (1.0, 0.1)
    noise_share: float = 0.45
    noise_clip: float = 0.3
    hidden: int = 1_024

    def __post_init__(self) -> None:
        """Validate what the command line sets."""
        _check_choice("algo", self.algo, ALGORITHMS)
        for name in ("updates", "batch_size", "n_step", "hidden"):
            whole_number(name, getattr(self, name))
        whole_number("seed", self.seed, least=0)


@dataclass(frozen=True)
class LatentSettings(JsonSettings):
    """A generator of latents.

    Attributes:
        learner: Settings of the run whose encoder and trunks give the latents.
        preset: Preset of the generator.
        generator: Options that differ from it.
    """

    learner: LearnerSettings
    preset: str = "offline"
    generator: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate the preset."""
        _check_choice("preset", self.preset, GENERATOR_PRESETS)

    def config(self) -> GeneratorConfig:
        """Options of the generator."""
        return build_generator_config(self.preset, self.generator)

    def _values(self) -> dict[str, Any]:
        """With the options of the generator resolved."""
        return super()._values() | {"generator": self.config().to_json()}


@dataclass(frozen=True)
class HeadSettings(JsonSettings):
    """Heads that are trained from scratch on latents.

    Attributes:
        data: "real" or "synthetic" latents.
        learner: Settings of the heads.
        latents: Settings of encoder and generator.
        rows: Synthetic latents; 0 with real ones.
    """

    data: str
    learner: LearnerSettings
    latents: LatentSettings
    rows: int = 0

    def __post_init__(self) -> None:
        """Validate all values."""
        _check_choice("data", self.data, HEADS)
        whole_number("rows", self.rows, least=1 if self.data == "synthetic" else 0)

    def _values(self) -> dict[str, Any]:
        """Real latents do not depend on the generator."""
        values = super()._values() | {"latents": self.latents.to_json()}
        if self.data == "real":
            values["latents"] = {"learner": values["latents"]["learner"]}
            del values["rows"]
        return values


@dataclass(frozen=True)
class Places:
    """Paths of all files of a run.

    Args:
        work: Folder of all files.
        dataset: Name of the data set.
        algo: Name of the algorithm.
        seed: Seed of the run.
    """

    work: Path
    dataset: str
    algo: str
    seed: int

    @property
    def archive(self) -> Path:
        """The recorded episodes."""
        return archive_path(self.work, self.dataset)

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.work / "runs" / self.dataset / f"{self.algo}-{self.seed}"

    @property
    def trained(self) -> Path:
        """Result of the stage train."""
        return self.folder / "train.json"

    @property
    def agent(self) -> Path:
        """The trained agent."""
        return self.folder / "agent.safetensors"

    @property
    def latents(self) -> Path:
        """Result of the stage latents."""
        return self.folder / "latents.json"

    @property
    def generator(self) -> Path:
        """The generator of latents."""
        return self.folder / "generator.safetensors"

    def heads(self, data: str) -> Path:
        """Result of the stage heads, for "real" or "synthetic" latents."""
        return self.folder / f"heads-{data}.json"

    def policy(self, name: str) -> Path:
        """What a policy needs to act, in fp16: "encoder" or the head trained on "pixels", "real" or "synthetic"."""
        return self.folder / f"policy-{name}.safetensors"

    @property
    def evaluated(self) -> Path:
        """Result of the stage evaluate."""
        return self.work / self.dataset / f"{self.algo}-{self.seed}.json"


def archive_path(work: Path, dataset: str) -> Path:
    """Path of the recorded episodes of a data set."""
    return work / "data" / f"{dataset}.npz"
