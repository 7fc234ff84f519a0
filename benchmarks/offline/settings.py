"""Settings of an offline run: data set, algorithm, and everything that the result depends on."""

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
from synther_replay.benchmarks.common.generator_settings import GENERATOR_PRESETS, build_generator_config
from synther_replay.benchmarks.data.download import ADDRESSES, ANT_MAZES, RECIPES, REGENERATED
from synther_replay.benchmarks.environments.scores import TASK_COLUMNS
from synther_replay.benchmarks.environments.simulators import simulator_of
from synther_replay.benchmarks.offline.worsened import parse as parse_worsening
from synther_replay.common.checks import whole_number
from synther_replay.replay.mixing import check_real_ratio

RESULTS = Path("results", "offline")  # default folder; benchmarks/results holds the published results
ALGORITHMS: dict[str, tuple[Any, type[OfflineSettings]]] = {
    "td3bc": (StackedTD3BC, TD3BCSettings),
    "iql": (StackedIQL, IQLSettings),
    "edac": (StackedEDAC, EDACSettings),
    "cql": (StackedCQL, CQLSettings),
}
# The paper's larger networks, with larger batches.
NETWORKS: dict[str, dict[str, int]] = {"large": {"hidden": 512, "hidden_layers": 3, "batch_size": 1024}}
DATA = ("real", "synther", "mixed")
_MAZES = ("maze2d-", "antmaze-")
# Settings of `CORL_OVERRIDES` that change rewards and not the algorithm.
_REWARDS = ("reward_range", "reward_shift")
_NAMES = [
    name
    for name in (*ADDRESSES, *(recipe + REGENERATED for recipe in RECIPES))
    if name.startswith(tuple(TASK_COLUMNS)) and simulator_of(name)
]
# CORL's settings that differ from its defaults, by algorithm and data set. "reward_range": rewards are divided by the
# range of episode returns and multiplied by 1,000. "reward_shift" is added to rewards.
_SMOOTH = {"deterministic": True, "target_speed": 0.001, "reward_range": True}
_MANY = {"critics": 50}
_ANT_MAZES = [f"antmaze-{name}" for name in ANT_MAZES]
_EACH_STEP_COSTS = {"reward_shift": -1.0}
_ANT_MAZE_IQL = {**_EACH_STEP_COSTS, "beta": 10.0, "expectile": 0.9}
# CORL has no settings for EDAC on the random data sets; its defaults are used there.
CORL_OVERRIDES: dict[str, dict[str, dict[str, Any]]] = {
    "td3bc": dict.fromkeys(_ANT_MAZES, _EACH_STEP_COSTS),
    "iql": {
        **dict.fromkeys(_ANT_MAZES, _ANT_MAZE_IQL),
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
    """Everything that the result of an offline run depends on.

    Attributes:
        dataset: Name of an official or regenerated D4RL data set; others have no score.
        algo: One of `ALGORITHMS`.
        data: Rows to train on: "real", "synther" (synthetic only) or "mixed".
        seeds: Number of agents; all train on the same rows.
        steps: Critic updates per agent.
        preset: Preset of the generator; None for real data.
        rows: Number of synthetic rows. None: 5,000,000, or as many as real rows for mixed data, as in the paper.
        real_ratio: Share of real rows in a batch of mixed data.
        subsample: Share of the data set to use; None for all of it.
        augment: One of `AUGMENTATIONS`, or None.
        network: One of `NETWORKS`, or None for the algorithm's default.
        first_seed: Seed of networks, batches, subsample and generator, and evaluation seed of the first agent; the
            evaluation seeds of the others count up.
        episodes: Episodes per evaluation. None: 10, or 100 for mazes, whose returns vary most between episodes.
        evaluate_every: Updates between evaluations.
        generator: Options of the generator that differ from the preset.
        worsen: How real rows are made worse, see `worsened`; None: they are not.
        precise: Whether agents are trained in fp32 on a GPU, as on a CPU, instead of with fp16 matrix products.
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
    worsen: str | None = None

    def __post_init__(self) -> None:
        """Validate all values and set the default of `episodes`."""
        if self.episodes is None:
            object.__setattr__(self, "episodes", 100 if self.dataset.startswith(_MAZES) else 10)
        if self.dataset not in _NAMES:
            near = ", ".join(difflib.get_close_matches(self.dataset, _NAMES, n=3, cutoff=0.8))
            tasks = ", ".join(TASK_COLUMNS)
            hint = f"did you mean {near}?" if near else f"expected a data set of D4RL or a regenerated one, of {tasks}"
            raise ValueError(f"dataset: unknown data set {self.dataset!r}; {hint}")
        for name, known in (("algo", ALGORITHMS), ("data", DATA)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.algo == "cql" and self.dataset.startswith(_MAZES):
            raise ValueError(
                f"algo: cql does not support {self.dataset}; on mazes CORL's cql uses a Lagrange multiplier, which is "
                "not implemented here"
            )
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
            raise ValueError(f"augment: requires data 'real', got {self.data!r}")
        if self.worsen is not None:
            parse_worsening(self.worsen)
            if self.data != "real":
                raise ValueError(f"worsen: requires data 'real', got {self.data!r}")
        if self.network is not None and self.network not in NETWORKS:
            raise ValueError(f"network: expected one of {', '.join(NETWORKS)}, got {self.network!r}")
        if self.synthetic:
            if self.preset not in GENERATOR_PRESETS:
                raise ValueError(f"preset: expected one of {', '.join(GENERATOR_PRESETS)}, got {self.preset!r}")
            if self.generator_config().max_seconds is not None:
                raise ValueError(
                    "generator: max_seconds is not allowed, because results would depend on the speed of the machine; "
                    f"got {self.generator_config().max_seconds}"
                )
        elif self.preset or self.generator or self.rows:
            given = {"preset": self.preset, "generator": self.generator, "rows": self.rows}
            shown = ", ".join(f"{name}={value!r}" for name, value in given.items() if value)
            raise ValueError(
                f"data: {self.data} uses no generator, so preset, generator and rows do not apply, got {shown}"
            )
        per_call = self._settings().updates_per_call
        for name in ("steps", "evaluate_every"):
            if getattr(self, name) % per_call:
                raise ValueError(f"{name}: expected a multiple of {per_call}, got {getattr(self, name)}")

    @property
    def synthetic(self) -> bool:
        """Whether synthetic rows are used."""
        return self.data != "real"

    @property
    def name(self) -> str:
        """Algorithm, data and variant, used as file name."""
        share = None if self.subsample is None else f"{100 * self.subsample:g}pct"
        precise = "precise" if self.precise else None
        parts = (self.algo, self.data, self.worsen, share, self.augment, self.network, precise)
        return "-".join(part for part in parts if part)

    @property
    def task(self) -> str:
        """The task in which policies are evaluated: that of the data set, or its successor in Gymnasium."""
        task = simulator_of(self.dataset, official=not self.dataset.endswith(REGENERATED))
        assert task is not None, "checked in __post_init__"
        return task

    @property
    def scales_rewards(self) -> bool:
        """Whether rewards are divided by the range of returns."""
        return bool(self._overrides().get("reward_range"))

    @property
    def reward_shift(self) -> float:
        """What is added to rewards."""
        return float(self._overrides().get("reward_shift", 0.0))

    @property
    def scales_observations(self) -> bool:
        """Whether observations are standardised; EDAC uses raw observations."""
        return self.algo != "edac"

    def generator_config(self) -> GeneratorConfig:
        """Options of the generator: the preset, the changes for this data set, then `generator`."""
        return build_generator_config(str(self.preset), self.generator, self.dataset)

    def synthetic_rows(self, real: int) -> int:
        """Number of rows to generate, given the number of real rows."""
        if self.rows is not None:
            return self.rows
        return real if self.data == "mixed" else 5_000_000

    def learner(self, rows: SharedRows) -> OfflineLearner:
        """Build the untrained agents."""
        build, _ = ALGORITHMS[self.algo]
        learner: OfflineLearner = build(rows, self.seeds, self._settings(), seed=self.first_seed)
        return learner

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values, with the options of generator and algorithm resolved."""
        values = asdict(self)
        if self.synthetic:
            values["generator"] = self.generator_config().to_json()
        # Omitted at the value of older results, which are compared with these settings and do not have them. Rows of
        # all data sets are too short for `direct_rows`.
        generator = values["generator"]
        omitted = {"exact": False, "find_limits": False, "direct_rows": True, "consistent": False}
        omitted_here = {"precise": False, "worsen": None}
        for settings, name, old in (
            *((values, *item) for item in omitted_here.items()),
            *((generator, *item) for item in omitted.items()),
        ):
            if settings.get(name, old) == old:
                settings.pop(name, None)
        scaling: dict[str, Any] = {name: getattr(self, name) for name in ("scales_rewards", "scales_observations")}
        if self.reward_shift:
            scaling["reward_shift"] = self.reward_shift
        values["algorithm"] = {**asdict(self._settings()), **scaling}
        as_read: dict[str, Any] = json.loads(json.dumps(values))
        return as_read

    @property
    def _plain_name(self) -> str:
        """Name of the data set without its version or "regen"."""
        return self.dataset.rpartition("-")[0]

    def _overrides(self) -> dict[str, Any]:
        return CORL_OVERRIDES.get(self.algo, {}).get(self._plain_name, {})

    def _settings(self) -> OfflineSettings:
        _, kind = ALGORITHMS[self.algo]
        changes = {name: value for name, value in self._overrides().items() if name not in _REWARDS}
        if self.algo == "iql":
            changes["steps"] = self.steps
        return kind(**{**changes, **(NETWORKS[self.network] if self.network else {})})
