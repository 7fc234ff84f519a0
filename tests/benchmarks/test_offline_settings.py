"""Settings of an offline run: validation, derived settings, and comparison."""

import json
import math
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from synther_replay import GeneratorConfig
from synther_replay.benchmarks.agents.augment import AUGMENTATIONS
from synther_replay.benchmarks.agents.cql import CQLSettings
from synther_replay.benchmarks.agents.edac import EDACSettings
from synther_replay.benchmarks.agents.iql import IQLSettings
from synther_replay.benchmarks.agents.td3bc import TD3BCSettings
from synther_replay.benchmarks.common.resumable import is_done
from synther_replay.benchmarks.data.download import RECIPES
from synther_replay.benchmarks.data.registry import normalised_score
from synther_replay.benchmarks.offline import run as offline_run
from synther_replay.benchmarks.offline import settings as offline_settings
from synther_replay.benchmarks.offline.settings import OfflineConfig

SYNTHETIC = {"data": "synther", "preset": "fast"}


def make(**changes):
    return OfflineConfig(**{"dataset": "walker2d-medium-v2", "algo": "td3bc", "data": "real", **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dataset": "hopper-medum-regen"},
            "dataset: unknown data set 'hopper-medum-regen'; did you mean hopper-medium-regen",
        ),
        ({"dataset": "hopper-medium"}, "dataset: unknown data set 'hopper-medium'; did you mean "),
        ({"dataset": "hopper-expert-regen"}, "dataset: unknown data set 'hopper-expert-regen'; did you mean "),
        (
            {"dataset": "kitchen-complete-v0"},
            "dataset: unknown data set 'kitchen-complete-v0'; expected a data set of D4RL",
        ),
        ({"dataset": "ant-medium-v2"}, "dataset: unknown data set 'ant-medium-v2'"),
        ({"dataset": "mujoco/hopper/medium-v0"}, "dataset: unknown data set 'mujoco/hopper/medium-v0'"),
        ({"dataset": "hopper-medium-v2.hdf5"}, "dataset: unknown data set 'hopper-medium-v2.hdf5'"),
        ({"dataset": ""}, "dataset: unknown data set ''"),
        ({"algo": "sac"}, "algo: expected one of td3bc, iql, edac, cql, got 'sac'"),
        ({"data": "fake"}, "data: expected one of real, synther, mixed, got 'fake'"),
        ({"seeds": 0}, "seeds: expected a whole number of at least 1, got 0"),
        ({"seeds": 2.0}, "seeds: expected a whole number, got 2.0"),
        ({"steps": -100}, "steps: expected a whole number of at least 1, got -100"),
        ({"steps": 250}, "steps: expected a multiple of 100, got 250"),
        ({"evaluate_every": 99}, "evaluate_every: expected a multiple of 100, got 99"),
        ({"evaluate_every": 0}, "evaluate_every: expected a whole number of at least 1, got 0"),
        ({"rows": 0}, "rows: "),
        ({"episodes": True}, "episodes: expected a whole number, got True"),
        ({"first_seed": -1}, "first_seed: expected a whole number of at least 0, got -1"),
        ({"real_ratio": 1.01}, "real_ratio: expected a number from 0 to 1, got 1.01"),
        ({"real_ratio": math.nan}, "real_ratio: "),
        ({"subsample": 0.0}, "subsample: expected a number above 0 and at most 1, got 0.0"),
        ({"subsample": 1.5}, "subsample: expected a number above 0 and at most 1, got 1.5"),
        ({"subsample": math.nan}, "subsample: expected a number above 0 and at most 1, got nan"),
        ({"augment": "noise"}, "augment: expected one of additive, multiplicative, dynamics, got 'noise'"),
        ({"preset": "fast"}, "data: real uses no generator.* got preset='fast'"),
        ({"generator": {"width": 8}}, "data: real uses no generator.* got generator="),
        ({"rows": 9}, "data: real uses no generator.* got rows=9"),
        ({**SYNTHETIC, "augment": "additive"}, "augment: requires data 'real', got 'synther'"),
        ({"data": "synther"}, "preset: expected one of paper, fast, tiny, offline, got None"),
        ({"data": "mixed", "preset": "slow"}, "preset: expected one of paper, fast, tiny, offline, got 'slow'"),
        ({**SYNTHETIC, "generator": {"width": 7}}, "width: expected a multiple of 8"),
        ({**SYNTHETIC, "generator": {"widht": 8}}, "--set: unknown setting 'widht'"),
    ],
)
def test_invalid_settings_are_refused_with_name_and_value(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"subsample": 1},
        {"first_seed": 0},
        {"real_ratio": 0},
        {"steps": 100},
        {"evaluate_every": 100},
        {**SYNTHETIC, "rows": 1},
    ],
)
def test_valid_limits_are_accepted(changes):
    assert {key: getattr(make(**changes), key) for key in changes} == changes


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "td3bc-real"),
        ({"algo": "iql", **SYNTHETIC}, "iql-synther"),
        ({"subsample": 0.15}, "td3bc-real-15pct"),
        ({"subsample": 0.07}, "td3bc-real-7pct"),
        ({"subsample": 0.005}, "td3bc-real-0.5pct"),
        ({"subsample": 1.0}, "td3bc-real-100pct"),
        ({"augment": "dynamics"}, "td3bc-real-dynamics"),
        ({"data": "mixed", "preset": "tiny", "subsample": 0.5, "network": "large"}, "td3bc-mixed-50pct-large"),
        ({"network": "large", "precise": True}, "td3bc-real-large-precise"),
    ],
)
def test_names_are_those_of_files(changes, name):
    assert make(**changes).name == name


def test_published_results_match_their_settings():
    """Otherwise the command of a published result would refuse its own file."""
    names = {field.name for field in fields(OfflineConfig)}
    paths = sorted((Path(__file__).parents[2] / "benchmarks" / "results" / "offline" / "main").glob("*/*.json"))
    assert len(paths) > 50
    for path in paths:
        settings = json.loads(path.read_text())["settings"]
        if "betas" in settings["generator"]:
            settings["generator"]["betas"] = tuple(settings["generator"]["betas"])
            settings["generator"].setdefault("exact", False)
        config = OfflineConfig(**{name: value for name, value in settings.items() if name in names})
        assert is_done(path, config)
        assert path.name == f"{config.name}.json"


def test_later_settings_are_recorded_only_when_on():
    def noted(**changes):
        settings = make(data="synther", preset="tiny", **changes).to_json()
        return "precise" in settings, {"exact", "find_limits"} & settings["generator"].keys()

    assert noted() == (False, {"exact"})
    assert noted(generator={"exact": False, "find_limits": False}) == (False, set())
    assert noted(precise=True, generator={"exact": False, "find_limits": True}) == (True, {"find_limits"})


@pytest.mark.parametrize(
    ("dataset", "task"),
    [
        ("halfcheetah-medium-replay-v2", "HalfCheetah-v4"),
        ("walker2d-medium-v1", "Walker2d-v4"),
        ("hopper-medium-expert-regen", "Hopper-v5"),
        ("walker2d-random-regen", "Walker2d-v5"),
        ("maze2d-umaze-v1", "maze2d-umaze"),
        ("maze2d-medium-regen", "maze2d-medium"),
        ("maze2d-large-regen", "maze2d-large"),
        ("antmaze-umaze-regen", "antmaze-umaze"),
        ("antmaze-large-play-regen", "antmaze-large"),
        ("antmaze-medium-diverse-v2", "antmaze-medium"),
    ],
)
def test_policies_are_evaluated_on_the_task_of_the_set(dataset, task):
    assert make(dataset=dataset).task == task


def test_every_set_that_can_be_regenerated_has_a_task_and_a_score():
    for recipe in RECIPES:
        made = make(dataset=f"{recipe}-regen")
        assert made.task
        assert math.isfinite(normalised_score(made.dataset, 0.0))


class TestAlgorithm:
    def settings(self, algo, dataset, steps=1_000):
        return make(algo=algo, dataset=dataset, steps=steps)._settings()

    @pytest.mark.parametrize(
        "dataset", ["hopper-medium-v2", "halfcheetah-medium-regen", "maze2d-umaze-regen", "antmaze-umaze-regen"]
    )
    def test_td3bc_is_the_same_everywhere(self, dataset):
        assert self.settings("td3bc", dataset) == TD3BCSettings()
        assert not make(dataset=dataset).scales_rewards

    @pytest.mark.parametrize(
        ("dataset", "changes", "scales"),
        [
            ("hopper-medium-v2", {"deterministic": True, "target_speed": 0.001}, True),
            ("hopper-medium-replay-regen", {"deterministic": True, "target_speed": 0.001}, True),
            ("hopper-medium-expert-regen", {"beta": 6.0, "expectile": 0.5}, False),
            ("hopper-random-regen", {}, False),
            ("walker2d-medium-regen", {}, False),
            ("halfcheetah-medium-replay-v2", {}, False),
            ("maze2d-medium-regen", {}, False),
            ("antmaze-umaze-regen", {"beta": 10.0, "expectile": 0.9}, False),
            ("antmaze-large-diverse-v2", {"beta": 10.0, "expectile": 0.9}, False),
        ],
    )
    def test_iql_departs_where_corl_does(self, dataset, changes, scales):
        assert self.settings("iql", dataset) == IQLSettings(steps=1_000, **changes)
        assert make(algo="iql", dataset=dataset).scales_rewards == scales

    @pytest.mark.parametrize(
        ("dataset", "changes"),
        [
            ("hopper-medium-regen", {"critics": 50}),
            ("hopper-medium-expert-v2", {"critics": 50}),
            ("walker2d-medium-expert-regen", {"eta": 5.0}),
            ("halfcheetah-medium-expert-v2", {"eta": 5.0}),
            ("walker2d-medium-replay-regen", {}),
            ("maze2d-large-regen", {"eta": 0.1}),
        ],
    )
    def test_edac_departs_where_corl_does(self, dataset, changes):
        assert self.settings("edac", dataset) == EDACSettings(**changes)
        assert not make(algo="edac", dataset=dataset).scales_rewards

    @pytest.mark.parametrize(("dataset", "scales"), [("hopper-medium-regen", True), ("hopper-medium-replay-v2", False)])
    def test_cql_departs_where_corl_does(self, dataset, scales):
        assert self.settings("cql", dataset) == CQLSettings()
        assert make(algo="cql", dataset=dataset).scales_rewards == scales
        assert make(algo="cql", dataset=dataset).to_json()["algorithm"]["scales_rewards"] == scales

    @pytest.mark.parametrize(
        ("algo", "dataset", "shift"),
        [
            ("td3bc", "antmaze-medium-play-regen", -1.0),
            ("iql", "antmaze-umaze-v2", -1.0),
            ("edac", "antmaze-umaze-regen", 0.0),
            ("td3bc", "maze2d-umaze-regen", 0.0),
        ],
    )
    def test_rewards_are_shifted_where_corl_does(self, algo, dataset, shift):
        config = make(algo=algo, dataset=dataset)
        assert config.reward_shift == shift
        assert config.to_json()["algorithm"].get("reward_shift", 0.0) == shift  # results without a shift lack the key

    @pytest.mark.parametrize("maze", ["maze2d", "antmaze"])
    def test_cql_has_no_multiplier_for_mazes(self, maze):
        with pytest.raises(ValueError, match=f"algo: cql does not support {maze}"):
            make(algo="cql", dataset=f"{maze}-umaze-regen")

    def test_mazes_are_evaluated_with_more_episodes(self):
        assert (make().episodes, make(episodes=3).episodes) == (10, 3)
        assert {make(dataset=f"{maze}-umaze-regen").episodes for maze in ("maze2d", "antmaze")} == {100}

    @pytest.mark.parametrize(
        ("dataset", "width", "steps"),
        [
            ("hopper-medium-v2", 2048, 100_000),
            ("hopper-medium-expert-regen", 2048, 100_000),
            ("halfcheetah-medium-expert-regen", 2048, 100_000),
            ("hopper-medium-replay-regen", 1024, 30_000),
            ("halfcheetah-medium-v2", 1024, 30_000),
            ("walker2d-medium-expert-regen", 1024, 30_000),
        ],
    )
    def test_where_the_papers_generator_is_wider_ours_is_trained_for_longer(self, dataset, width, steps):
        assert make(dataset=dataset, data="mixed", preset="paper").generator_config().width == width
        ours = make(dataset=dataset, data="synther", preset="offline").generator_config()
        assert ours == GeneratorConfig.offline(steps=steps)
        asked = make(dataset=dataset, data="synther", preset="offline", generator={"steps": 7})
        assert asked.generator_config() == GeneratorConfig.offline(steps=7)
        assert make(dataset=dataset, **SYNTHETIC).generator_config() == GeneratorConfig.fast()
        chosen = make(dataset=dataset, data="synther", preset="paper", generator={"width": 64})
        assert chosen.generator_config().width == 64

    def test_rows_that_depend_on_the_clock_are_refused(self):
        with pytest.raises(ValueError, match="generator: max_seconds is not allowed"):
            make(**SYNTHETIC, generator={"max_seconds": 5.0})

    @pytest.mark.parametrize("algo", offline_settings.ALGORITHMS)
    def test_only_edac_takes_observations_as_they_are(self, algo):
        assert make(algo=algo).scales_observations == (algo != "edac")

    @pytest.mark.parametrize("algo", offline_settings.ALGORITHMS)
    def test_larger_networks_come_with_larger_batches(self, algo):
        large, usual = (make(algo=algo, network=network) for network in ("large", None))
        found = large._settings()
        assert (found.hidden, found.hidden_layers, found.batch_size) == (512, 3, 1024)
        assert replace(found, hidden=256, hidden_layers=usual._settings().hidden_layers, batch_size=256) == (
            usual._settings()
        )
        assert large.name == f"{usual.name}-large"

    def test_iql_slows_down_over_the_whole_run(self):
        assert self.settings("iql", "walker2d-medium-v2", steps=700).steps == 700


class TestToJson:
    def test_is_what_comes_back_from_a_file(self, tmp_path):
        made = make(data="mixed", preset="tiny", generator={"betas": (0.9, 0.95), "width": 64})
        assert json.loads(json.dumps(made.to_json())) == made.to_json()
        path = tmp_path / "result.json"
        path.write_text(json.dumps({"settings": made.to_json()}))
        assert is_done(path, made)

    def test_holds_all_there_is_to_choose_and_what_it_stands_for(self):
        made = make(data="synther", preset="tiny", generator={"width": 64})
        found = made.to_json()
        assert found.keys() == {*OfflineConfig.__dataclass_fields__, "algorithm"} - {"precise", "worsen"}
        told = GeneratorConfig.from_json(found["generator"] | {"direct_rows": True})  # omitted
        assert told == GeneratorConfig.tiny(width=64, max_seconds=None)
        scaling = {"scales_rewards": False, "scales_observations": True}
        assert found["algorithm"] == {**asdict(TD3BCSettings()), **scaling}
        assert make().to_json()["generator"] == {}
        assert make(precise=True).to_json()["precise"] is True

    @pytest.mark.parametrize(
        "changes",
        [
            {"dataset": "walker2d-medium-regen"},
            {"algo": "iql"},
            {"data": "mixed"},
            {"seeds": 7},
            {"steps": 100},
            {"preset": "paper"},
            {"rows": 9},
            {"real_ratio": 0.25},
            {"subsample": 1.0},
            {"first_seed": 1},
            {"episodes": 1},
            {"evaluate_every": 100},
            {"generator": {"sampling_steps": 5}},
        ],
    )
    def test_is_another_with_any_other_choice(self, changes):
        assert make(**{**SYNTHETIC, **changes}).to_json() != make(**SYNTHETIC).to_json()

    def test_is_another_with_augmentation(self):
        assert make(augment=next(iter(AUGMENTATIONS))).to_json() != make().to_json()

    def test_is_the_same_where_a_preset_is_only_repeated(self):
        repeated = {"width": GeneratorConfig.fast().width}
        assert make(**SYNTHETIC, generator=repeated).to_json() == make(**SYNTHETIC).to_json()

    @pytest.mark.parametrize("algo", ["td3bc", "iql"])
    def test_is_another_in_a_release_whose_algorithm_is(self, algo, monkeypatch):
        before, genuine = make(algo=algo).to_json(), OfflineConfig._settings
        monkeypatch.setattr(OfflineConfig, "_settings", lambda self: replace(genuine(self), gamma=0.95))
        assert make(algo=algo).to_json() != before

    def test_is_another_in_a_release_whose_preset_is(self, monkeypatch):
        before = make(**SYNTHETIC).to_json()
        other = type("Release", (), {"fast": staticmethod(lambda **changes: GeneratorConfig(depth=3, **changes))})
        build = lambda preset, changes, dataset: other.fast(**changes)  # noqa: E731
        monkeypatch.setattr(offline_settings, "build_generator_config", build)
        assert make(**SYNTHETIC).to_json() != before


@pytest.mark.parametrize("algo", offline_settings.ALGORITHMS)
def test_chunks_are_whole_calls_of_every_learner(algo):
    per_call = make(algo=algo)._settings().updates_per_call
    assert [chunk % per_call for chunk in offline_run.CHUNK.values()] == [0, 0]  # else a run would never make progress


class TestWorsened:
    def test_it_is_part_of_name_and_settings(self):
        found = make(algo="edac", worsen="ends=20")
        assert found.name == "edac-real-ends=20"
        assert found.to_json()["worsen"] == "ends=20"

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"worsen": "ends"}, "worsen: ends: expected a whole number above 0, got 'ends'"),
            ({"worsen": "end=20"}, "worsen: expected KIND=AMOUNT with a kind of starts, ends, "),
            ({"worsen": "ends=20", "data": "synther", "preset": "tiny"}, "worsen: requires data 'real', got 'synther'"),
        ],
    )
    def test_what_cannot_be_is_refused(self, changes, message):
        with pytest.raises(ValueError, match=message):
            make(**changes)
