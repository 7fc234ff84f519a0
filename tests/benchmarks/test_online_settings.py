"""Settings of an online run: validation, and when its result counts as done."""

import json
import math

import pytest

from synther_replay import DiffusionGenerator, GeneratorConfig
from synther_replay.benchmarks.common.generator_settings import PRESETS
from synther_replay.benchmarks.common.resumable import differences, is_done
from synther_replay.benchmarks.online.settings import Settings


def make(**changes):
    return Settings(**{"env": "x", "algo": "sac", "preset": None, "seeds": 1, "steps": 1000, "utd": 1, **changes})


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (1, {1}),
        (2_500, {2_500}),
        (6_000, {2_500, 5_000, 6_000}),
        (20_000, set(range(2_500, 20_001, 2_500))),
        (25_000, {*range(2_500, 20_001, 2_500), 25_000}),
        (50_000, {*range(2_500, 20_001, 2_500), 30_000, 40_000, 50_000}),
    ],
)
def test_evaluations_are_frequent_at_first_and_include_the_last_step(steps, expected):
    assert make(steps=steps).evaluation_steps() == expected


@pytest.mark.parametrize(
    ("preset", "random_steps", "expected"),
    [
        ("paper", 5_000, (10_000, 1_000_000, 10_000)),
        ("paper", 12_000, (10_000, 1_000_000, 12_000)),
        ("fast", 5_000, (2_500, 400_000, 5_000)),
        ("fast", 100, (2_500, 400_000, 2_500)),
        ("tiny", 100, (5_000, 20_000, 5_000)),
    ],
)
def test_the_first_refit_follows_an_interval_and_the_random_steps(preset, random_steps, expected):
    schedule = make(algo="synther", preset=preset, random_steps=random_steps).retrain_schedule()
    assert (schedule.every, schedule.rows, schedule.start) == expected


def test_a_schedule_can_be_changed_but_there_must_be_rows_to_fit():
    changed = make(algo="synther", preset="fast", random_steps=1, schedule={"every": 3, "rows": 7})
    schedule = changed.retrain_schedule()
    assert (schedule.every, schedule.rows, schedule.start) == (3, 7, DiffusionGenerator.min_rows)


@pytest.mark.parametrize("env", ["cheetah-run", "Pendulum-v1"])
@pytest.mark.parametrize("preset", PRESETS)
def test_only_the_papers_preset_leaves_rewards_as_they_are_and_only_for_dmc(preset, env):
    made = make(env=env, algo="synther", preset=preset)
    config = made.generator_config()
    assert config.normalise_rewards == (preset != "paper" or env == "Pendulum-v1")
    assert made.to_json()["generator"]["normalise_rewards"] == config.normalise_rewards  # what a result will say


@pytest.mark.parametrize("preset", PRESETS)
def test_only_the_papers_preset_has_another_network_online_and_nothing_else_changes(preset):
    config = make(env="Pendulum-v1", algo="synther", preset=preset).generator_config()
    published = {"embedding": 256} if preset == "paper" else {}  # offline it has 128
    assert config == getattr(GeneratorConfig, preset)(**published, max_seconds=None)  # `tiny` has a limit otherwise


@pytest.mark.parametrize("chosen", [True, False])
def test_normalise_rewards_can_be_overridden(chosen):
    settings = {"normalise_rewards": chosen, "width": 64}
    config = make(env="cheetah-run", algo="synther", preset="paper", generator=settings).generator_config()
    assert (config.normalise_rewards, config.width) == (chosen, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algo": "ppo"}, "algo: expected one of sac"),
        ({"seeds": 0}, "seeds: .* at least 1, got 0"),
        ({"steps": -5}, "steps: "),
        ({"utd": 1.5}, "utd: expected a whole number, got 1.5"),
        ({"random_steps": 0}, "random_steps: "),
        ({"episodes": True}, "episodes: "),
        ({"first_seed": -1}, "first_seed: "),
        ({"real_ratio": 1.01}, "real_ratio: expected a number from 0 to 1, got 1.01"),
        ({"real_ratio": math.nan}, "real_ratio: "),
        ({"preset": "fast"}, "algo: sac has no generator"),
        ({"schedule": {"every": 5}}, "algo: sac has no generator"),
        ({"generator": {"width": 8}}, "algo: sac has no generator"),
        ({"algo": "synther"}, "preset: expected one of paper, fast, tiny, got None"),
        ({"algo": "synther", "preset": "slow"}, "preset: expected one of paper, fast, tiny, got 'slow'"),
        ({"algo": "synther", "preset": "fast", "schedule": {"rows": 0}}, "rows: "),
        ({"algo": "synther", "preset": "fast", "schedule": {"never": 1}}, "never"),
        ({"algo": "synther", "preset": "fast", "generator": {"width": 7}}, "width: expected a multiple of 8"),
        ({"algo": "synther", "preset": "fast", "generator": {"widht": 8}}, "widht"),
    ],
)
def test_invalid_settings_are_refused_with_their_name(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(**changes)


def test_names_are_those_of_files():
    assert make().name == "sac"
    assert make(algo="synther", preset="paper").name == "synther-paper"


def test_they_compare_as_they_come_back_from_a_file(tmp_path):
    made = make(algo="synther", preset="fast", generator={"betas": (0.9, 0.95)})
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"settings": made.to_json()}))
    assert is_done(path, made)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"x"', b"\xff\xfe\x00"])
def test_a_damaged_result_is_named_and_not_taken_for_one(tmp_path, content):
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"result.json: .*damaged"):
        is_done(path, make())
    assert path.read_bytes() == content


def test_a_result_of_other_settings_is_refused(tmp_path):
    path = tmp_path / "result.json"
    assert not is_done(path, make())
    for found in (make(seeds=2).to_json(), None):
        path.write_text(json.dumps({"settings": found}))
        with pytest.raises(ValueError, match="result has other settings"):
            is_done(path, make())


def test_settings_that_differ_are_named_one_by_one_and_absent_is_not_none():
    found = {"steps": 1, "generator": {"width": 8, "patience": None}, "gone": 0}
    wanted = {"steps": 2, "generator": {"width": 8, "patience": None, "max_seconds": None}}
    told = differences(found, wanted)
    assert told == "steps: got 1, expected 2; max_seconds: got 'absent', expected None; gone: got 0, expected 'absent'"
    assert not differences(wanted, wanted)
    assert differences(None, wanted).startswith("settings: got None, expected {")


class TestCritic:
    def test_its_hyperparameters_follow_those_of_the_algorithm(self):
        assert make(algo="sac20", utd=20).hyperparameters() == {"critics": 2, "updates": 20}
        assert make(algo="redq", critic="layernorm").hyperparameters()["critics"] == 10
        changed = make(critic="ensemble", agent={"critics": 4, "weight_decay": 0.1}).hyperparameters()
        assert changed == {"critics": 4, "updates": 1, "layer_norm": True, "weight_decay": 0.1}

    def test_its_name_is_part_of_the_file_name_unless_it_is_plain(self):
        assert make(critic="layernorm").name == "sac-layernorm"
        assert make(algo="synther", preset="fast", critic="residual").name == "synther-fast-residual"
        guided = make(algo="synther", preset="fast", critic="residual", relevance={"name": "reward"})
        assert guided.name == "synther-fast-residual-reward"
        assert guided.to_json()["relevance"] == {"name": "reward", "top": 0.25, "guidance": 2.0, "share": 1.0}

    def test_settings_of_the_plain_critic_are_those_of_older_results(self):
        assert not {"critic", "agent", "relevance"} & make().to_json().keys()
        assert make(critic="layernorm", agent={"critics": 3}).to_json()["critic"] == "layernorm"

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"critic": "layer_norm"}, "critic: .*layernorm"),
            ({"critic": "?"}, "critic: .*plain"),
            ({"agent": {"weigth_decay": 0.1}}, "agent: .*weight_decay"),
            ({"agent": {"updates": 3}}, "agent: "),
            ({"agent": {"critics": 1.5}}, "critics: "),
        ],
    )
    def test_unknown_names_are_refused_with_similar_ones(self, changes, message):
        with pytest.raises((ValueError, TypeError), match=message):
            make(**changes)

    def test_refits_can_start_later(self):
        late = make(algo="synther", preset="fast", schedule={"start": 30_000}).retrain_schedule()
        assert late.start == 30_000
        assert late.every == make(algo="synther", preset="fast").retrain_schedule().every
