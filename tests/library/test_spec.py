"""TransitionSpec: named fields, extra ones among them."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec
from synther_replay.data.columns import column_names

BOX, ACTIONS = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (1,))


def with_cost() -> TransitionSpec:
    return TransitionSpec.from_spaces(BOX, ACTIONS, discount=True, extra={"cost": gym.spaces.Box(0, 5, (2,))})


def transitions(n: int = 64) -> Transitions:
    rng = np.random.default_rng(0)
    observations, actions = rng.uniform(-1, 1, (2, n, 2)), rng.uniform(-1, 1, (n, 1))
    return Transitions.from_arrays(
        with_cost(),
        observations[0],
        actions,
        rng.normal(size=n),
        observations[1],
        np.arange(n) % 10 == 0,
        discount=0.9 ** rng.integers(1, 4, n),
        cost=rng.uniform(0, 5, (n, 2)),
    )


def test_extra_fields_follow_the_five_others():
    spec = with_cost()
    assert [field.name for field in spec.fields][3:] == ["next_observations", "terminated", "discount", "cost"]
    assert (spec.dim, spec.terminated, spec.field("cost").columns) == (10, slice(6, 7), slice(8, 10))
    assert column_names(spec)[-4:] == ("terminated", "discount", "cost[0]", "cost[1]")


def test_values_of_extra_fields_are_read_by_name():
    rows = transitions()
    assert rows.field("cost").shape == (64, 2)
    assert rows.field("discount").shape == (64,)
    assert torch.equal(rows.field("terminated"), rows.terminated)
    with pytest.raises(KeyError, match="costs"):
        rows.field("costs")


@pytest.mark.parametrize("extra", [{}, {"cost": np.zeros(2)}, {"discount": 1.0, "cost": np.zeros(2), "more": 1.0}])
def test_missing_and_unknown_extra_fields_are_refused(extra: dict):
    with pytest.raises(TypeError, match="extra fields"):
        Transitions.from_arrays(with_cost(), np.zeros(2), np.zeros(1), 0.0, np.zeros(2), False, **extra)


@pytest.mark.parametrize("name", ["rewards", "two words", "class"])
def test_names_of_extra_fields_are_checked(name: str):
    with pytest.raises(ValueError, match="extra"):
        TransitionSpec.from_spaces(BOX, ACTIONS, extra={name: ACTIONS})


def test_discount_is_an_extra_field():
    spec = TransitionSpec.from_spaces(BOX, ACTIONS, extra={"discount": gym.spaces.Box(0, 1, ())})
    assert spec == TransitionSpec.from_spaces(BOX, ACTIONS, discount=True)


def test_specs_with_other_fields_differ():
    plain, discounted = (TransitionSpec.from_spaces(BOX, ACTIONS, discount=flag) for flag in (False, True))
    assert plain != discounted
    assert "extra" not in plain.to_json()  # files of five fields are those of before
    for spec in (plain, discounted, with_cost()):
        assert TransitionSpec.from_json(spec.to_json()) == spec == pickle.loads(pickle.dumps(spec))
        assert hash(spec) == hash(pickle.loads(pickle.dumps(spec)))


def test_pickled_spec_of_version_0_2_has_no_extra_fields():
    old = TransitionSpec.__new__(TransitionSpec)
    old.__setstate__({"observation_space": BOX, "action_space": ACTIONS, "observation_leaves": ()})
    assert old == TransitionSpec.from_spaces(BOX, ACTIONS)


def test_extra_fields_are_generated():
    real = transitions(500)
    generator = DiffusionGenerator(real.spec, GeneratorConfig.tiny(width=32, steps=50), device="cpu")
    generator.fit(real)
    rows = generator.sample(1_000)
    rows.check()
    levels = real.field("discount").unique()
    assert torch.isin(rows.field("discount"), levels).all()
    assert (rows.field("cost") >= 0).all()
    assert (rows.field("cost") <= 5).all()


def test_rewards_with_few_values_can_depend_on_an_extra_field(outcome_steps: Callable[..., None]):
    outcome_steps(300)
    spec = TransitionSpec.from_spaces(BOX, ACTIONS, extra={"goal": gym.spaces.Box(-9, 9, ())})
    numbers = torch.randn(600, spec.dim, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    numbers[:, spec.terminated] = 0.0
    numbers[:, spec.rewards] = (numbers[:, spec.field("goal").columns] > 0.3).float()
    generator = DiffusionGenerator(spec, GeneratorConfig.tiny(width=32, steps=300), device="cpu", seed=0)
    generator.fit(Transitions(spec, numbers))
    rows = generator.sample(500)
    assert ((rows.field("goal") > 0.3) == (rows.rewards > 0.5)).float().mean() > 0.9
