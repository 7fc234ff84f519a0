"""What an offline run can be asked for: data, algorithm and the settings that its result depends on."""

from __future__ import annotations

import difflib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from synther_replay import GeneratorConfig
from synther_replay.benchmarks.agents.augment import AUGMENTATIONS
from synther_replay.benchmarks.agents.cql import CQLSettings, StackedCQL
from synther_replay.benchmarks.agents.edac import EDACSettings, StackedEDAC
from synther_replay.benchmarks.agents.iql import IQLSettings, StackedIQL
from synther_replay.benchmarks.agents.offline_base import OfflineLearner, OfflineSettings
from synther_replay.benchmarks.agents.shared_rows import SharedRows
from synther_replay.benchmarks.agents.td3bc import StackedTD3BC, TD3BCSettings
from synther_replay.benchmarks.common.command_line import (
    GENERATOR_PRESETS,
    generator_of,
)
from synther_replay.benchmarks.data.download import ADDRESSES, RECIPES, REGENERATED
from synther_replay.benchmarks.environments.scores import TASK_COLUMNS
from synther_replay.benchmarks.environments.simulators import simulator_of
from synther_replay.common.checks import whole_number
from synther_replay.replay.mixing import check_real_ratio

ALGORITHMS: dict[str, tuple[Any, type[OfflineSettings]]] = {
    "td3bc": (StackedTD3BC, TD3BCSettings),
    "iql": (StackedIQL, IQLSettings),
    "edac": (StackedEDAC, EDACSettings),
    "cql": (StackedCQL, CQLSettings),
}
# The paper's larger networks come with larger batches.
NETWORKS: dict[str, dict[str, int]] = {"large": {"hidden": 512, "hidden_layers": 3, "batch_size": 1024}}
DATA = ("real", "synther", "mixed")
_NAMES = [
    name
    for name in (*ADDRESSES, *(recipe + REGENERATED for recipe in RECIPES))
    if name.startswith(tuple(TASK_COLUMNS)) and simulator_of(name)
]
# Where CORL has an algorithm depart from its usual settings; "reward_range": rewards are divided by the range of
# returns and multiplied by 1,000.
_SMOOTH = {"deterministic": True, "target_speed": 0.001, "reward_range": True}
_MANY = {"critics": 50}
# For EDAC on random sets CORL has no settings; it takes the usual ones here.
CORL_OVERRIDES: dict[str, dict[str, dict[str, Any]]] = {
    "iql": {
        "hopper-medium": _SMOOTH,
        "hopper-medium-replay": _SMOOTH,
        "hopper-medium-expert": {"beta": 6.0, "expectile": 0.5},
    },
    "edac": {
        "hopper-medium": _MANY,
        "hopper-medium-replay": _MANY,
        "hopper-medium-expert": _MANY,
        "halfcheetah-medium-expert": {"eta": 5.0},
        "walker2d-medium-expert": {"eta": 5.0},
        "maze2d-umaze": {"eta": 0.1},
        "maze2d-medium": {"eta": 0.1},
        "maze2d-large": {"eta": 0.1},
    },
    "cql": {"hopper-medium": {"reward_range": True}},
}


@dataclass(frozen=True)
class OfflineConfig:
    """One config of a table: everything its result depends on.

    Attributes:
        dataset: Official name or regenerated one, as `datasets.load` knows them; others have no score.
        algo: One of `ALGORITHMS`.
        data: What is learnt from: the real rows, only synthetic ones, or a mixture.
        seeds: Number of agents, which learn from the same rows.
        steps: Critic updates of each.
        preset: Of the generator; None where all is real.
        rows: Synthetic rows; None for 5,000,000, in a mixture for as many as there are real ones, as in the paper.
        real_ratio: Share of real rows in a mixture.
        subsample: Share of the data set that is there at all; None: all of it.
        augment: One of `AUGMENTATIONS`, or None.
        network: One of `NETWORKS`, or None for the algorithm's own.
        first_seed: Of networks, batches, subsample and generator; agents are judged with this seed and the following.
        episodes: Per evaluation; None for 10, in mazes 100, where an episode is worth all or nothing.
        evaluate_every: Updates between two evaluations.
        generator: Settings of the generator, as far as they differ from the preset's.
        precise: Whether agents' products on a GPU take floats in full precision, as on a CPU, and not halves.
    """

    dataset: str
    algo: str
    data: str
    seeds: int = 8
    steps: int = 1_000_000
    preset: str | None = None
    rows: int | None = None
    real_ratio: float = 0.5
    subsample: float | None = None
    augment: str | None = None
    network: str | None = None
    first_seed: int = 0
    episodes: int | None = None
    evaluate_every: int = 50_000
    generator: dict[str, Any] = field(default_factory=dict)
    precise: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot work, by name and value."""
        if self.episodes is None:
            object.__setattr__(self, "episodes", 100 if self.dataset.startswith("maze2d") else 10)
        if self.dataset not in _NAMES:
            near = ", ".join(difflib.get_close_matches(self.dataset, _NAMES, n=3, cutoff=0.8))
            tasks = ", ".join(TASK_COLUMNS)
            hint = f"near are {near}" if near else f"expected one of D4RL's or a regenerated one, of {tasks}"
            raise ValueError(f"dataset: there is no benchmark of {self.dataset!r}, {hint}")
        for name, known in (("algo", ALGORITHMS), ("data", DATA)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.algo == "cql" and self.dataset.startswith("maze2d"):
            raise ValueError("algo: on mazes CORL's cql has a Lagrange multiplier, which ours has not")
        for name in ("seeds", "steps", "episodes", "evaluate_every"):
            whole_number(name, getattr(self, name))
        if self.rows is not None:
            whole_number("rows", self.rows)
        whole_number("first_seed", self.first_seed, least=0)
        check_real_ratio(self.real_ratio)
        if self.subsample is not None and not 0 < self.subsample <= 1:
            raise ValueError(f"subsample: expected a number above 0 and at most 1, got {self.subsample!r}")
        if self.augment is not None and self.augment not in AUGMENTATIONS:
            raise ValueError(f"augment: expected one of {', '.join(AUGMENTATIONS)}, got {self.augment!r}")
        if self.augment is not None and self.synthetic:
            raise ValueError(f"augment: is for real data, to hold synthetic data against, got {self.data}")
        if self.network is not None and self.network not in NETWORKS:
            raise ValueError(f"network: expected one of {', '.join(NETWORKS)}, got {self.network!r}")
        if self.synthetic:
            if self.preset not in GENERATOR_PRESETS:
                raise ValueError(f"preset: expected one of {', '.join(GENERATOR_PRESETS)}, got {self.preset!r}")
            if self.generator_config().max_seconds is not None:
                raise ValueError("generator: with max_seconds the rows would depend on the machine's speed")
        elif self.preset or self.generator or self.rows:
            raise ValueError(f"data: {self.data} has no generator, so it takes no preset, settings or rows of one")
        per_call = self._settings().updates_per_call
        for name in ("steps", "evaluate_every"):
            if getattr(self, name) % per_call:
                raise ValueError(f"{name}: expected a multiple of {per_call}, got {getattr(self, name)}")

    @property
    def synthetic(self) -> bool:
        """Whether there are synthetic rows."""
        return self.data != "real"

    @property
    def name(self) -> str:
        """Algorithm and data, as files are named."""
        share = None if self.subsample is None else f"{100 * self.subsample:g}pct"
        precise = "precise" if self.precise else None
        return "-".join(part for part in (self.algo, self.data, share, self.augment, self.network, precise) if part)

    @property
    def task(self) -> str:
        """Where policies are judged: where the data come from, or what is nearest to it today."""
        task = simulator_of(self.dataset, official=not self.dataset.endswith(REGENERATED))
        assert task is not None, "names of others are refused"
        return task

    @property
    def scales_rewards(self) -> bool:
        """Whether rewards count relative to the range of returns."""
        return bool(self._overrides().get("reward_range"))

    @property
    def scales_observations(self) -> bool:
        """Whether observations get a mean of 0 and a standard deviation of 1; EDAC takes them as they are."""
        return self.algo != "edac"

    def generator_config(self) -> GeneratorConfig:
        """The preset's, with what the paper changes for this data set, and what is asked for."""
        return generator_of(str(self.preset), self.generator, self.dataset)

    def synthetic_rows(self, real: int) -> int:
        """How many rows to generate, where there are so many real ones."""
        if self.rows is not None:
            return self.rows
        return real if self.data == "mixed" else 5_000_000

    def learner(self, rows: SharedRows) -> OfflineLearner:
        """The agents, before they have learnt anything."""
        build, _ = ALGORITHMS[self.algo]
        learner: OfflineLearner = build(rows, self.seeds, self._settings(), seed=self.first_seed)
        return learner

    def to_json(self) -> dict[str, Any]:
        """The settings as they come back from a file, with those of generator and algorithm in this release."""
        values = asdict(self)
        if self.synthetic:
            values["generator"] = self.generator_config().to_json()
        # As in results from before there was a choice.
        generator = values["generator"]
        for settings, name in ((values, "precise"), (generator, "predict_terminated"), (generator, "find_limits")):
            if not settings.get(name):
                settings.pop(name, None)
        scaling = {name: getattr(self, name) for name in ("scales_rewards", "scales_observations")}
        values["algorithm"] = {**asdict(self._settings()), **scaling}
        as_read: dict[str, Any] = json.loads(json.dumps(values))
        return as_read

    @property
    def _plain_name(self) -> str:
        """Of the data set, without its version, or "regen"."""
        return self.dataset.rpartition("-")[0]

    def _overrides(self) -> dict[str, Any]:
        return CORL_OVERRIDES.get(self.algo, {}).get(self._plain_name, {})

    def _settings(self) -> OfflineSettings:
        _, kind = ALGORITHMS[self.algo]
        changes = {name: value for name, value in self._overrides().items() if name != "reward_range"}
        if self.algo == "iql":
            changes["steps"] = self.steps
        return kind(**{**changes, **(NETWORKS[self.network] if self.network else {})})


RESULTS = Path("results") / "offline"
