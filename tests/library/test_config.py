"""GeneratorConfig: presets, overrides, validation, JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import pytest

from synther_replay.config import GeneratorConfig
from synther_replay.diffusion.network import NetworkShape
from synther_replay.diffusion.stack_sampler import SamplerSettings

PRESETS = [GeneratorConfig.paper, GeneratorConfig.fast, GeneratorConfig.offline, GeneratorConfig.tiny]


def _values(config: GeneratorConfig, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(config, name) for name in names)


# --- presets


def test_paper_is_as_published() -> None:
    paper = GeneratorConfig.paper()
    assert _values(paper, "width", "depth", "fourier") == (1024, 6, 16)
    assert _values(paper, "steps", "warm_start", "patience", "max_seconds") == (100_000, False, None, None)
    assert _values(paper, "learning_rate", "betas", "gradient_clip") == (3e-4, (0.9, 0.99), 1.0)
    assert _values(paper, "average_decay", "average_every") == (0.995, 10)
    assert _values(paper, "noise_mean", "noise_std") == (-1.2, 1.2)
    assert _values(paper, "solver", "sampling_steps") == ("heun", 128)
    assert _values(paper, "sigma_min", "sigma_max", "rho") == (0.002, 80.0, 7.0)
    assert _values(paper, "churn", "churn_min", "churn_max", "churn_noise") == (80.0, 0.05, 50.0, 1.003)
    assert paper.held_out == 0.0


@pytest.mark.parametrize(("rows", "batch"), [(1, 256), (799_999, 256), (800_000, 1024), (2_000_000, 1024)])
def test_paper_takes_larger_batches_from_800_thousand_rows_on(rows: int, batch: int) -> None:
    assert GeneratorConfig.paper().batch_size_for(rows) == batch


def test_fast_is_the_published_network_at_half_the_width_warm_started_and_stopped_early_with_few_steps() -> None:
    fast, paper = GeneratorConfig.fast(), GeneratorConfig.paper()
    assert 2 * fast.width == paper.width
    assert dataclasses.replace(fast, width=paper.width).network(42) == paper.network(42)
    assert fast.warm_start
    assert fast.patience is not None
    assert 0 < fast.held_out <= 0.1
    assert fast.steps == 10_000
    assert 1_000 <= fast.refit_steps <= 3_000
    assert fast.sampling_steps <= 32
    assert fast == GeneratorConfig()


def test_offline_is_the_published_network_trained_once_on_as_many_rows_and_sampled_in_few_steps() -> None:
    offline, paper, fast = GeneratorConfig.offline(), GeneratorConfig.paper(), GeneratorConfig.fast()
    assert dataclasses.replace(offline, squeeze_rows=True).network(200) == paper.network(200)
    assert 0.5 < offline.steps * offline.batch_size / (paper.steps * paper.batch_size) < 2
    assert (offline.warm_start, offline.held_out, offline.patience) == (False, 0.0, None)
    assert offline.sampler() == dataclasses.replace(fast.sampler(), steps=24)
    assert offline.unsquash_actions
    assert not any(preset().unsquash_actions for preset in PRESETS if preset != GeneratorConfig.offline)


def test_tiny_is_small_and_otherwise_as_fast() -> None:
    tiny, fast = GeneratorConfig.tiny(), GeneratorConfig.fast()
    assert tiny.network(42).parameters < fast.network(42).parameters / 10
    assert tiny.steps * tiny.batch_size < fast.steps * fast.batch_size
    assert dataclasses.replace(tiny.sampler(), steps=fast.sampling_steps) == fast.sampler()
    assert (tiny.warm_start, tiny.held_out, tiny.patience) == (fast.warm_start, fast.held_out, fast.patience)


@pytest.mark.parametrize(("dim", "embedding"), [(16, 128), (128, 128), (129, 200), (170, 256), (512, 768)])
def test_a_row_longer_than_the_embedding_gets_a_larger_one_except_in_the_papers_network(
    dim: int, embedding: int
) -> None:
    assert GeneratorConfig.fast().network(dim) == NetworkShape(dim, 512, 6, embedding, 16)
    assert GeneratorConfig.fast(squeeze_rows=True).network(dim).embedding == 128
    assert GeneratorConfig.paper().network(dim).embedding == 128


@pytest.mark.parametrize("dim", [100, 129, 513, 1_025, 4_000])
def test_a_row_longer_than_the_width_enters_directly_except_in_the_papers_network(dim: int) -> None:
    for config in (preset() for preset in PRESETS):
        shape = config.network(dim)
        assert shape.direct == (dim > config.width and not config.squeeze_rows)
        if shape.direct:
            assert shape.embedding == config.embedding


@pytest.mark.parametrize("preset", [GeneratorConfig.fast, GeneratorConfig.offline, GeneratorConfig.tiny])
def test_parameters_grow_with_codes_times_width(preset: Any) -> None:
    """Regression: `tiny` had 16 million parameters for 1,000 observations, and four times as many for 2,000."""
    config = preset()
    some, more, many = (config.network(dim).parameters for dim in (1_200, 2_400, 3_600))
    assert many - more == more - some
    assert some < config.network(16).parameters + 1_200 * (2 * config.width + 40)
    assert GeneratorConfig.tiny().network(2_008).parameters < 0.7e6


def test_settings_of_earlier_versions_have_their_network() -> None:
    old = GeneratorConfig.tiny().to_json()
    del old["direct_rows"]
    shape = GeneratorConfig.from_json(old).network(700)
    assert (shape.embedding, shape.direct) == (1056, False)
    assert GeneratorConfig.from_json(old).network(60) == GeneratorConfig.tiny().network(60)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_but_the_papers_is_exact(preset: Any) -> None:
    assert preset().exact == (preset != GeneratorConfig.paper)


@pytest.mark.parametrize("named", [{}, {"predict_terminated": False}])
def test_settings_of_earlier_versions_are_not_exact(named: dict[str, bool]) -> None:
    old = GeneratorConfig.tiny().to_json() | named
    del old["exact"]
    assert GeneratorConfig.from_json(old) == GeneratorConfig.tiny(exact=False)


def test_settings_of_earlier_versions_with_predicted_terminations_are_refused() -> None:
    with pytest.raises(ValueError, match="predict_terminated"):
        GeneratorConfig.from_json({**GeneratorConfig.tiny().to_json(), "predict_terminated": True})


@pytest.mark.parametrize("preset", PRESETS)
def test_rows_that_are_images_are_refused(preset: Any) -> None:
    assert preset().network(4_096).parameters < 20e6
    with pytest.raises(ValueError, match=r"generator: a transition has 4,097 values.*real_ratio=1"):
        preset().network(4_097)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_takes_changes_and_keeps_the_rest(preset: Any) -> None:
    changed = preset(sampling_steps=33, width=64)
    assert _values(changed, "sampling_steps", "width") == (33, 64)
    assert dataclasses.replace(changed, sampling_steps=preset().sampling_steps, width=preset().width) == preset()


@pytest.mark.parametrize("preset", PRESETS)
def test_an_unknown_setting_is_refused_by_name(preset: Any) -> None:
    with pytest.raises(TypeError, match="sampling_stepz"):
        preset(sampling_stepz=3)


@pytest.mark.parametrize("preset", PRESETS)
def test_changes_are_checked_like_everything_else(preset: Any) -> None:
    with pytest.raises(ValueError, match=r"depth: .*0"):
        preset(depth=0)


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GeneratorConfig().width = 8  # type: ignore[misc]


# --- refusals


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            (name, value)
            for name in ("steps", "refit_steps", "batch_size", "large_batch_size", "average_every", "evaluate_every")
            for value in (0, -5)
        ],
        *[(name, value) for name in ("depth", "chunk", "sampling_steps") for value in (0, -1)],
        *[(name, value) for name in ("width", "embedding") for value in (0, 4, 100, -8)],
        ("fourier", 0),
        ("fourier", 7),
        *[
            (name, value)
            for name in ("noise_std", "learning_rate", "gradient_clip", "rho", "churn_noise")
            for value in (0.0, -1.0, math.inf, math.nan)
        ],
        *[("noise_mean", value) for value in (-11.0, 11.0, math.inf, math.nan)],
        ("noise_std", 6.0),
        ("betas", (0.9, 1.0)),
        ("betas", (-0.1, 0.9)),
        ("betas", (0.9,)),
        ("average_decay", 1.0),
        ("average_decay", -0.1),
        ("held_out", -0.1),
        ("held_out", 0.6),
        ("held_out", math.nan),
        ("patience", 0),
        ("max_seconds", 0.0),
        ("max_seconds", -1.0),
        ("max_seconds", math.nan),
        ("solver", "euler"),
        ("sigma_min", 0.0),
        ("sigma_min", -1.0),
        ("sigma_min", 80.0),
        ("churn", -1.0),
        ("churn", math.inf),
        ("eta", -0.5),
        ("eta", math.nan),
        ("precision", "fp16"),
    ],
)
def test_a_bad_value_is_refused_by_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: expected .*, got {re.escape(repr(value))}$"):
        GeneratorConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("patience", None),
        ("max_seconds", None),
        ("max_seconds", 0.5),
        ("max_seconds", 60),
        ("learning_rate", 1),
        ("held_out", 0.0),
        ("held_out", 0.5),
        ("betas", (0.0, 0.0)),
        ("churn", 0.0),
        ("width", 8),
        ("fourier", 2),
        ("average_decay", 0.0),
        ("precision", "fp32"),
        ("precision", "bf16"),
        ("solver", "heun"),
    ],
)
def test_boundary_values_are_accepted(name: str, value: Any) -> None:
    assert getattr(GeneratorConfig(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sigma_max", math.inf),  # gave NaN noise levels
        ("sigma_max", -1.0),  # was reported as an error of sigma_min
        ("churn_min", math.nan),
        ("churn_max", -1.0),
        ("width", 64.0),
        ("steps", 10.5),
        ("steps", "10"),
        ("steps", True),
        ("steps", None),
        ("batch_size", math.inf),
        ("learning_rate", "fast"),
        ("warm_start", "no"),
        ("patience", 1.5),
        ("betas", 0.9),
        ("betas", ("0.9", "0.99")),
        ("solver", 3),
    ],
)
def test_a_value_of_a_wrong_type_or_without_end_is_refused_by_name(name: str, value: Any) -> None:
    """Regression: some values failed later, others without naming the setting."""
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: expected .*, got {re.escape(repr(value))}$"):
        GeneratorConfig(**{name: value})


# --- JSON and the parts


@pytest.mark.parametrize("preset", PRESETS)
def test_settings_survive_json(preset: Any) -> None:
    config = preset(max_seconds=1.5, betas=(0.8, 0.9), normalise_rewards=False)
    again = GeneratorConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert again == config
    assert again.betas == (0.8, 0.9)


def test_json_with_a_setting_of_a_later_release_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="momentum"):
        GeneratorConfig.from_json({**GeneratorConfig().to_json(), "momentum": 0.5})


def test_json_is_checked_like_everything_else() -> None:
    with pytest.raises(ValueError, match=r"width: .*13"):
        GeneratorConfig.from_json({**GeneratorConfig().to_json(), "width": 13})


def test_network_and_sampler_get_their_settings() -> None:
    config = GeneratorConfig(
        width=40, depth=2, embedding=24, fourier=6, solver="heun", sampling_steps=5, sigma_min=0.1, sigma_max=9.0,
        rho=3.0, churn=1.0, churn_min=0.2, churn_max=8.0, churn_noise=1.1, eta=0.7,
    )  # fmt: skip
    assert config.network(11) == NetworkShape(dim=11, width=40, depth=2, embedding=24, fourier=6)
    assert config.sampler() == SamplerSettings(
        solver="heun", steps=5, sigma_min=0.1, sigma_max=9.0, rho=3.0, churn=1.0, churn_min=0.2, churn_max=8.0,
        churn_noise=1.1, eta=0.7,
    )  # fmt: skip
