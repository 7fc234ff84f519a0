"""Consistency: next observations and rewards follow observation and action as closely as in the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec
from synther_replay.data.codec import TransitionCodec
from synther_replay.errors import CheckpointError
from synther_replay.model.consistency import Columns, Consistency

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-1, 1, (2,)))
CONFIG = GeneratorConfig.tiny(width=64, depth=2, steps=300, refit_steps=100, sampling_steps=12)
QUICK = replace(CONFIG, width=16, depth=1, steps=40)  # where quality does not count


def following(rows: Tensor) -> Tensor:
    """Next observations of a task without chance."""
    state, action = rows[..., SPEC.observations], rows[..., SPEC.actions]
    return state + torch.stack((action[..., 0], action[..., 1], (state[..., 0] + action[..., 0]).sin()), dim=-1) / 2


def reward(rows: Tensor) -> Tensor:
    return (rows[..., SPEC.next_observations] - rows[..., SPEC.observations]).sum(-1, keepdim=True)


def data(noise: float = 0.0, n: int = 3_000, seed: int = 0) -> Tensor:
    """Real rows; next observations have some noise."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, SPEC.dim, generator=rng)
    rows[:, SPEC.actions] = rows[:, SPEC.actions].tanh()
    rows[:, SPEC.next_observations] = following(rows) + noise * torch.randn(n, 3, generator=rng)
    rows[:, SPEC.rewards] = reward(rows)
    rows[:, SPEC.terminated] = 0
    return rows


def fit(rows: Tensor, config: GeneratorConfig = CONFIG) -> DiffusionGenerator:
    generator = DiffusionGenerator(SPEC, config, device="cpu", seed=0)
    generator.fit(Transitions(SPEC, rows))
    return generator


@pytest.fixture(scope="module")
def fitted() -> DiffusionGenerator:
    return fit(data())


@pytest.fixture(scope="module")
def plain() -> DiffusionGenerator:
    return fit(data(), replace(CONFIG, consistent=False))


def deviation(rows: Tensor, truth: Callable[[Tensor], Tensor], part: slice) -> float:
    return float((rows[:, part] - truth(rows)).std())


def test_rows_follow_the_dynamics_more_closely(fitted: DiffusionGenerator, plain: DiffusionGenerator):
    with_it, without = (generator.sample(2_000).rows for generator in (fitted, plain))
    for truth, part in ((following, SPEC.next_observations), (reward, SPEC.rewards)):
        assert deviation(with_it, truth, part) < 0.85 * deviation(without, truth, part)


def test_observations_and_actions_stay_as_they_are(fitted: DiffusionGenerator, plain: DiffusionGenerator):
    with_it, without = (generator.sample(500, seed=1).rows for generator in (fitted, plain))
    before = slice(SPEC.observations.start, SPEC.actions.stop)
    assert torch.equal(with_it[:, before], without[:, before])
    assert not torch.equal(with_it, without)


def test_randomness_of_the_task_keeps_its_size():
    noise = 0.5
    rows = fit(data(noise)).sample(2_000).rows
    found = (rows[:, SPEC.next_observations] - following(rows)).std(0)
    assert ((found > 0.8 * noise) & (found < 1.4 * noise)).all()


def test_a_regression_that_predicts_nothing_changes_hardly_anything():
    rng = torch.Generator().manual_seed(1)
    rows = torch.randn(2_000, SPEC.dim, generator=rng)
    rows[:, SPEC.actions] = rows[:, SPEC.actions].tanh()
    rows[:, SPEC.terminated] = 0
    codec = TransitionCodec(SPEC)
    codec.fit(rows[None])
    codes = codec.encode(rows[None])
    found = Consistency.fit(codes, 200, codes[:, :1_000].clone(), codec, width=32, steps=100, seed=0)
    assert found is not None
    assert found.remaining.min() > 0.9


def test_columns_with_few_values_and_constant_ones_take_no_part():
    rows = data()
    rows[:, SPEC.rewards] = (rows[:, SPEC.rewards] > 0).float()
    rows[:, SPEC.observations.start] = rows[:, SPEC.next_observations.start] = 1.5
    codec = TransitionCodec(SPEC)
    codec.fit(rows[None])
    columns = Columns.of(codec)
    assert columns.now.tolist() == [1, 2]
    assert columns.following.tolist() == [SPEC.next_observations.start + 1, SPEC.next_observations.start + 2]
    assert not len(columns.reward)
    generator = fit(rows, QUICK)
    assert set(generator.sample(500).rows[:, SPEC.rewards.start].tolist()) == {0.0, 1.0}


def test_nothing_to_predict_is_no_error():
    spec = TransitionSpec.from_spaces(gym.spaces.Discrete(4), gym.spaces.Box(-1, 1, (1,)))
    rng = np.random.default_rng(0)
    rows = torch.zeros(2_000, spec.dim)
    for part in (spec.observations, spec.next_observations):
        rows[:, part] = torch.from_numpy(rng.integers(0, 4, (2_000, 1))).float()
    rows[:, spec.actions] = torch.from_numpy(rng.uniform(-1, 1, (2_000, 1))).float()
    generator = DiffusionGenerator(spec, QUICK, device="cpu")
    generator.fit(Transitions(spec, rows))
    assert generator.model.consistency is None
    assert generator.sample(100).rows.isfinite().all()


def test_a_refit_starts_from_the_last_regressions():
    codec, rows = TransitionCodec(SPEC), data()[None]
    codec.fit(rows)
    codes = codec.encode(rows)
    generated = codes[:, :500] + 0.5
    options: dict[str, Any] = {"width": 64, "seed": 0}
    first = Consistency.fit(codes, 300, generated, codec, steps=600, **options)
    warm, cold = (
        Consistency.fit(codes, 300, generated, codec, steps=25, previous=previous, **options)
        for previous in (first, None)
    )
    assert first is not None and warm is not None and cold is not None
    assert warm.remaining.mean() < 0.5 * cold.remaining.mean()
    other = Consistency.fit(codes, 300, generated, codec, steps=25, previous=first, width=32, seed=0)  # of another size
    assert other is not None and other.width == 32


def test_each_model_of_a_stack_has_its_own():
    codec, rows = TransitionCodec(SPEC), torch.stack((data(), data(2.0)))
    codec.fit(rows)
    codes = codec.encode(rows)
    found = Consistency.fit(codes, 300, codes[:, :500] + 0.5, codec, width=32, steps=300, seed=0)
    assert found is not None
    exact, random = found.remaining[:, :3].mean(1)
    assert exact < 0.5 * random


def test_a_saved_generator_makes_the_same_rows(fitted: DiffusionGenerator, tmp_path: Any):
    fitted.save(tmp_path / "generator")
    loaded = DiffusionGenerator.load(tmp_path / "generator", device="cpu")
    assert torch.equal(loaded.sample(300).rows, fitted.sample(300).rows)


def test_states_without_it_are_read(fitted: DiffusionGenerator):
    state = fitted.state_dict()
    del state["consistency"], state["config"]["consistent"]
    generator = DiffusionGenerator(SPEC, replace(CONFIG, consistent=False), device="cpu")
    generator.load_state_dict(state)
    assert generator.model.consistency is None


@pytest.mark.parametrize(
    "change",
    [
        {"width": 0},
        {"width": 10**9},
        {"width": "64"},
        {"remaining": torch.full((1, 4), 2.0)},
        {"remaining": torch.zeros(1, 3)},
        {"dynamics": torch.zeros(1, 3)},
        {"other": torch.zeros(1)},
    ],
)
def test_impossible_states_are_refused(fitted: DiffusionGenerator, change: dict[str, Any]):
    state = fitted.state_dict()
    state["consistency"] |= change
    with pytest.raises(CheckpointError, match="consistency"):
        DiffusionGenerator(SPEC, CONFIG, device="cpu").load_state_dict(state)


def test_weights_that_are_not_finite_are_refused(fitted: DiffusionGenerator):
    state = fitted.state_dict()
    state["consistency"]["rewards"][0, 0] = torch.nan
    with pytest.raises(CheckpointError, match="not finite"):
        DiffusionGenerator(SPEC, CONFIG, device="cpu").load_state_dict(state)
