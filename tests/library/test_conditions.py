"""Conditions and weights of a fit, and generation for a condition."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec
from synther_replay.data.conditions import drawn_by_weight

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Box(-1, 1, (1,)))
CONFIG = GeneratorConfig.tiny(width=64, depth=2, steps=400, refit_steps=100, batch_size=256, sampling_steps=12)
QUICK = replace(CONFIG, width=16, depth=1, steps=20, refit_steps=10, batch_size=32)  # where quality does not count


def data(n: int = 2_000, seed: int = 0) -> tuple[Transitions, torch.Tensor]:
    """Observations around -3 or 3, and which."""
    rng = torch.Generator().manual_seed(seed)
    side = (torch.rand(n, generator=rng) < 0.5).float() * 2 - 1
    rows = torch.randn(n, SPEC.dim, generator=rng) * 0.3
    rows[:, 0] += 3 * side
    rows[:, SPEC.actions] = rows[:, SPEC.actions].clamp(-1, 1)
    rows[:, SPEC.terminated] = (side[:, None] > 0) & (rows[:, 1:2] > 0.3)
    return Transitions(SPEC, rows), side


def make(seed: int = 0, config: GeneratorConfig = CONFIG, **options: Any) -> DiffusionGenerator:
    return DiffusionGenerator(SPEC, config, device="cpu", seed=seed, **options)


@pytest.fixture(scope="module")
def conditioned(longer_outcomes: Any) -> DiffusionGenerator:
    generator, (rows, side) = make(), data()
    with longer_outcomes(150):
        generator.fit(rows, condition=side)
    return generator


def test_rows_follow_their_conditions(conditioned: DiffusionGenerator):
    asked = torch.where(torch.arange(1_000) % 2 == 0, 1.0, -1.0)
    rows = conditioned.sample(1_000, condition=asked)
    assert ((rows.rows[:, 0] > 0) == (asked > 0)).float().mean() > 0.9
    assert (conditioned.sample(500, condition=1.0).rows[:, 0] > 0).float().mean() > 0.9


def test_without_a_condition_rows_follow_the_data(conditioned: DiffusionGenerator):
    for options in ({}, {"condition": 1.0, "guidance": 0.0}):
        share = (conditioned.sample(2_000, **options).rows[:, 0] > 0).float().mean()
        assert 0.4 < share < 0.6


def test_guidance_exaggerates_the_condition():
    rows, side = data()
    is_wrong = torch.rand(len(side), generator=torch.Generator().manual_seed(9)) < 0.25
    generator = make(config=replace(CONFIG, exact=False))
    generator.fit(rows, condition=torch.where(is_wrong, -side, side))
    shares = [
        (generator.sample(1_000, condition=1.0, guidance=guidance).rows[:, 0] > 0).float().mean()
        for guidance in (1.0, 4.0)
    ]
    assert shares[0] + 0.1 < shares[1]


def test_guidance_without_a_condition_is_refused(conditioned: DiffusionGenerator):
    with pytest.raises(ValueError, match=r"guidance: applies to a condition, got 2\.0"):
        conditioned.sample(5, guidance=2.0)


def test_guided_rows_do_not_get_the_terminations_of_the_others(conditioned: DiffusionGenerator):
    real = data()[0]
    rate = real.terminated[real.rows[:, 0] > 0].float().mean()
    assert abs(conditioned.sample(4_000, condition=1.0).terminated.float().mean() - rate) < 0.05
    assert conditioned.sample(4_000, condition=-1.0).terminated.float().mean() < 0.02


def test_one_evaluation_unless_it_is_guided(conditioned: DiffusionGenerator, monkeypatch: pytest.MonkeyPatch):
    from synther_replay.diffusion import stack_sampler

    calls, denoise = [], stack_sampler.edm.denoise
    monkeypatch.setattr(stack_sampler.edm, "denoise", lambda *a: (calls.append(a), denoise(*a))[1])
    counts = []
    for guidance in (0.0, 1.0, 2.0):
        calls.clear()
        conditioned.sample(10, condition=1.0, guidance=guidance)
        counts.append(len(calls))
    assert counts == [CONFIG.sampling_steps, CONFIG.sampling_steps, 2 * CONFIG.sampling_steps]


def test_a_fit_without_condition_has_the_network_without_one():
    rows, side = data(200)
    plain, returned = make(config=QUICK), make(config=QUICK)
    plain.fit(rows)
    returned.fit(rows, condition=side, steps=10)
    assert plain.parameters == make(config=QUICK).parameters
    returned.fit(rows)
    assert returned.parameters == plain.parameters
    with pytest.raises(ValueError, match="condition"):
        returned.sample(5, condition=1.0)


def test_networks_of_other_conditions_take_no_memory():
    (rows, side), generator = data(200), make()
    generator.fit(rows, steps=10)
    generator.sample(5)
    parts = [weakref.ref(part) for part in (generator._engine.trainer(0), generator._engine.sampler(0))]
    generator.fit(rows, condition=side, steps=10)
    generator.sample(5, condition=1.0)
    gc.collect()
    assert [part() for part in parts] == [None, None]


def test_other_conditions_start_from_scratch():
    (rows, side), generator = data(200), make(config=QUICK)
    generator.fit(rows)
    assert generator.fit(rows, condition=side).from_scratch
    assert not generator.fit(rows, condition=side).from_scratch
    assert generator.fit(rows, condition=torch.stack((side, side), 1)).from_scratch
    generator.sample(5, condition=torch.zeros(5, 2))
    assert generator.fit(rows).from_scratch


def test_conditioned_generators_are_saved(conditioned: DiffusionGenerator, tmp_path: Path):
    conditioned.save(tmp_path / "file")
    conditioned = copy.deepcopy(conditioned)
    loaded = DiffusionGenerator.load(tmp_path / "file", device="cpu")
    rows, side = data(300, seed=4)
    for _ in range(2):
        one, two = (g.sample(20, condition=1.0, guidance=2.0).rows for g in (conditioned, loaded))
        assert torch.equal(one, two)
        losses = [g.fit(rows, condition=side, steps=20).losses for g in (conditioned, loaded)]
        assert losses[0] == losses[1]
    other = make()
    other.load_state_dict(loaded.state_dict())
    assert torch.equal(other.sample(9, condition=-1.0).rows, loaded.sample(9, condition=-1.0).rows)


def test_a_stack_has_conditions_of_its_own():
    (first, side), (second, other) = data(500), data(500, seed=1)
    generator = make(stack=2)
    both = Transitions(SPEC, torch.stack((first.rows, second.rows)))
    generator.fit(both, condition=torch.stack((side, -other)))
    asked = torch.ones(2, 400)
    found = (generator.sample(400, condition=asked).rows[..., 0] > 0).float().mean(1)
    assert found[0] > 0.9
    assert found[1] < 0.1


def test_tables_are_drawn_by_condition():
    spec = TransitionSpec.from_spaces(gym.spaces.Discrete(10), gym.spaces.Discrete(2))
    rng = np.random.default_rng(0)
    state, action = rng.integers(10, size=500), rng.integers(2, size=500)
    rows = Transitions.from_arrays(spec, state, action, np.zeros(500), (state + action) % 10, np.zeros(500, bool))
    generator = DiffusionGenerator(spec, CONFIG, device="cpu")
    generator.fit(rows, condition=state)
    assert generator.sample(300, condition=9.0).observations.float().mean() > 8.5
    assert generator.sample(300).observations.float().mean() < 6
    state_dict = generator.state_dict()
    generator.load_state_dict(state_dict)
    assert generator.sample(300, condition=0.0).observations.float().mean() < 0.5


@pytest.mark.parametrize(
    "condition",
    [torch.zeros(199), torch.full((200,), np.nan), torch.zeros(200, 0), torch.zeros(200, 65), torch.zeros(2, 200), "x"],
)
def test_bad_conditions_of_a_fit_are_refused_and_change_nothing(condition: Any, same: Any):
    generator, (rows, _) = make(), data(200)
    before = generator.state_dict()
    with pytest.raises((TypeError, ValueError), match="condition"):
        generator.fit(rows, condition=condition)
    assert same(generator.state_dict(), before)


@pytest.mark.parametrize(
    ("condition", "guidance", "name"),
    [(torch.zeros(4), 1.0, "condition"), (np.inf, 1.0, "condition"), (1.0, -1.0, "guidance"), (1.0, "2", "guidance")],
)
def test_bad_conditions_of_a_draw_are_refused(
    conditioned: DiffusionGenerator, condition: Any, guidance: Any, name: str
):
    with pytest.raises((TypeError, ValueError), match=name):
        conditioned.sample(5, condition=condition, guidance=guidance)


def test_a_model_without_conditions_refuses_them():
    generator, (rows, _) = make(), data(200)
    generator.fit(rows, steps=20)
    with pytest.raises(ValueError, match="condition"):
        generator.sample(5, condition=1.0)


# --- weights


def test_weighted_rows_come_as_often_as_they_weigh():
    (rows, side), generator = data(), make()
    generator.fit(rows, weights=torch.where(side > 0, 9.0, 1.0))
    share = (generator.sample(2_000).rows[:, 0] > 0).float().mean()
    assert 0.85 < share < 0.95


def test_rows_without_weight_are_never_seen():
    (rows, side), generator = data(), make()
    rows.rows[side < 0, 0] = 1e6
    generator.fit(rows, weights=(side > 0).float())
    assert generator.sample(1_000).rows[:, 0].max() < 100


@pytest.mark.parametrize(
    "weights",
    [
        torch.zeros(200),
        -torch.ones(200),
        torch.ones(199),
        torch.full((200,), np.nan),
        torch.full((200,), 1e308, dtype=torch.float64),  # the sum overflows
    ],
)
def test_bad_weights_are_refused_and_change_nothing(weights: torch.Tensor, same: Any):
    generator, (rows, _) = make(), data(200)
    before = generator.state_dict()
    with pytest.raises(ValueError, match="weights"):
        generator.fit(rows, weights=weights)
    assert same(generator.state_dict(), before)


@pytest.mark.parametrize("heavy", [0, 7, 99])
def test_one_weight_is_enough(heavy: int):
    weights = torch.zeros(1, 100, dtype=torch.float64)
    weights[0, heavy] = 1e-30
    assert (drawn_by_weight(weights, torch.Generator().manual_seed(0)) == heavy).all()


def test_draws_are_in_proportion():
    weights = torch.tensor([[1.0, 0.0, 3.0, 0.5, 0.5]], dtype=torch.float64).repeat(1, 200)
    drawn = drawn_by_weight(weights, torch.Generator().manual_seed(3))
    counts = torch.bincount(drawn[0], minlength=1_000).view(200, 5).float()
    assert counts.sum(0).tolist() == pytest.approx([200, 0, 600, 100, 100], abs=40)
    assert counts.sum() == 1_000
    assert counts[:, 2].min() >= 1
