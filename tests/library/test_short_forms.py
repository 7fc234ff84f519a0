"""Short forms of settings: whatever a YAML file can say."""

import pickle

import pytest
import torch
import yaml

from synther_replay import (
    DiffusionGenerator,
    GeneratorConfig,
    RetrainSchedule,
    RingBuffer,
    SourceOptions,
    SyntheticReplayBuffer,
)
from synther_replay.common.short_forms import default_preset

QUICK = {"preset": "tiny", "width": 16, "depth": 1, "embedding": 8, "steps": 10, "sampling_steps": 2, "batch_size": 32}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("generator: fast", GeneratorConfig.fast()),
        ("generator: paper", GeneratorConfig.paper()),
        ("generator:", GeneratorConfig.fast()),
        ("generator: {}", GeneratorConfig.fast()),
        ("generator: {steps: 20_000}", GeneratorConfig.fast(steps=20_000)),
        ("generator: {preset: tiny, steps: 20000, patience: null}", GeneratorConfig.tiny(steps=20_000, patience=None)),
        ("generator: {learning_rate: 1e-3, steps: 2e4}", GeneratorConfig.fast(learning_rate=1e-3, steps=20_000)),
        ("generator: {steps: !!float 2e4, held_out: 0}", GeneratorConfig.fast(steps=20_000, held_out=0.0)),
        ("generator: {betas: [0.9, 0.95], exact: no}", GeneratorConfig.fast(betas=(0.9, 0.95), exact=False)),
        ("generator: {solver: heun, max_seconds: 5}", GeneratorConfig.fast(solver="heun", max_seconds=5.0)),
    ],
)
def test_settings_of_a_generator_from_yaml(said, meant):
    assert GeneratorConfig.of(yaml.safe_load(said)["generator"]) == meant


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("schedule: 5_000", RetrainSchedule(every=5_000, rows=20_000, start=2_500)),
        ("schedule: tiny", RetrainSchedule.tiny()),
        ("schedule: paper", RetrainSchedule.paper()),
        ("schedule:", RetrainSchedule.tiny()),
        ("schedule: {rows: 1e5}", RetrainSchedule(every=5_000, rows=100_000, start=2_500)),
        ("schedule: {preset: fast, start: 100}", RetrainSchedule(start=100, growth=0.125)),
        ("schedule: {preset: fast, every: 700}", RetrainSchedule(every=700)),
        ("schedule: {preset: fast, every: 700, growth: 0.5}", RetrainSchedule(every=700, growth=0.5)),
    ],
)
def test_schedules_from_yaml(said, meant):
    assert RetrainSchedule.of(yaml.safe_load(said)["schedule"], default="tiny") == meant


def test_objects_and_their_json_pass():
    class Own(RetrainSchedule):
        """Of a user."""

    config, schedule = GeneratorConfig.tiny(width=24), Own(every=3)
    assert GeneratorConfig.of(config) is config
    assert GeneratorConfig.of(config.to_json()) == config
    assert RetrainSchedule.of(schedule) is schedule
    assert RetrainSchedule.of(schedule.state_dict()) == RetrainSchedule(every=3)


@pytest.mark.parametrize(
    ("value", "error", "names"),
    [
        ("fsat", ValueError, ["'fsat'", "'fast'", "tiny", "offline", "paper"]),
        ({"preset": "best"}, ValueError, ["'best'", "fast", "tiny", "offline", "paper"]),
        ({"preset": None}, ValueError, ["None", "fast"]),
        ({"step": 3}, ValueError, ["'step'", "'steps'"]),
        ({3: 3}, ValueError, ["3", "steps"]),
        ({"steps": "many"}, ValueError, ["steps", "'many'"]),
        ({"steps": 2.5}, ValueError, ["steps", "2.5"]),
        ({"steps": 0}, ValueError, ["steps", "0"]),
        (7, TypeError, ["generator", "7", "fast", "paper"]),
        (["fast"], TypeError, ["generator", "'fast'"]),
        (GeneratorConfig, TypeError, ["generator"]),
        (RetrainSchedule(), TypeError, ["generator", "RetrainSchedule"]),
    ],
)
def test_bad_settings_are_refused_with_what_is_known(value, error, names):
    with pytest.raises(error) as raised:
        GeneratorConfig.of(value)
    assert not [name for name in names if name not in str(raised.value)], raised.value


@pytest.mark.parametrize("value", [0, True, 2.5, "often", {"evry": 3}, {"every": -1}, [5], GeneratorConfig.tiny()])
def test_bad_schedules_are_refused(value):
    with pytest.raises((TypeError, ValueError), match=r"schedule|every"):
        RetrainSchedule.of(value)


@pytest.mark.parametrize(
    ("cls", "value", "message"),
    [
        (GeneratorConfig, {"steps": "many"}, "^generator: steps: .*'many'"),
        (RetrainSchedule, {"start": "1k"}, "^schedule: start: .*'1k'"),
    ],
)
def test_a_bad_value_is_named_with_its_argument(cls, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        cls.of(value)


def test_the_preset_follows_the_device():
    assert default_preset(torch.device("cpu")) == "tiny"
    assert default_preset(torch.device("cuda", 1)) == "fast"


def test_a_generator_takes_short_forms(spec):
    assert DiffusionGenerator(spec, "tiny", device="cpu").config == GeneratorConfig.tiny()
    assert DiffusionGenerator(spec, {"steps": 9}, device="cpu").config == GeneratorConfig.tiny(steps=9)
    assert DiffusionGenerator(spec, QUICK, device="cpu").config.width == 16
    with pytest.raises(ValueError, match=r"^config: .*'best'.*paper"):
        DiffusionGenerator(spec, "best", device="cpu")


def filled(spec, numbered, *, seed=0):
    real = RingBuffer(spec, 1_000, device="cpu")
    buffer = SyntheticReplayBuffer(real, QUICK, schedule={"start": 40, "rows": 50}, device="cpu", seed=seed)
    buffer.add(numbered(60))
    return buffer


def test_a_buffer_takes_short_forms_and_one_seed(spec, numbered):
    batches = [filled(spec, numbered, seed=seed).sample(32).rows for seed in (3, 3, 4)]
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])


def test_a_buffer_without_settings_has_the_defaults_of_the_device(spec):
    buffer = SyntheticReplayBuffer(RingBuffer(spec, 100, device="cpu"), device="cpu")
    assert buffer.generator.config == GeneratorConfig.tiny()
    assert buffer.schedule == RetrainSchedule.tiny()


def test_a_buffer_refuses_bad_settings_by_name(spec):
    real = RingBuffer(spec, 10, device="cpu")
    with pytest.raises(ValueError, match=r"^generator: .*'best'"):
        SyntheticReplayBuffer(real, "best", device="cpu")
    with pytest.raises(ValueError, match=r"^schedule: .*'often'"):
        SyntheticReplayBuffer(real, schedule="often", device="cpu")


def test_options_take_short_forms_and_refuse_bad_ones_at_once(spec, numbered):
    options = SourceOptions(generator=QUICK, schedule=700, seed=3)
    source = pickle.loads(pickle.dumps(options)).build(RingBuffer(spec, 100, device="cpu"), spec, "cpu")
    assert source.generator.config == GeneratorConfig.of(QUICK)
    assert source.generator.seed == 3
    assert source.schedule == RetrainSchedule(every=700, rows=20_000, start=2_500)
    for bad in ({"generator": "best"}, {"generator": 7}, {"generator": {"a": 1}}, {"schedule": "often"}):
        with pytest.raises((TypeError, ValueError), match=next(iter(bad))):
            SourceOptions(**bad)
