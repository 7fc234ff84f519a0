"""Relevance: scores of real rows."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from synther_replay import Transitions, TransitionSpec
from synther_replay.common.mlp import Shape
from synther_replay.common.regression import Regression, initial_weights
from synther_replay.errors import CheckpointError, DivergedError
from synther_replay.relevance import Curiosity, Guidance, Relevance, Return, Reward, TDError, Value

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Box(-1, 1, (1,)))


def rows(n: int = 200, seed: int = 0) -> Transitions:
    x = torch.randn(n, SPEC.dim, generator=torch.Generator().manual_seed(seed))
    x[:, SPEC.actions] = x[:, SPEC.actions].clamp(-1, 1)
    x[:, SPEC.terminated] = 0
    return Transitions(SPEC, x)


def episodes(*lengths: int, environment: int = 0) -> Transitions:
    """Episodes one after another, each ended by a time limit; rewards are 1 in the first, 2 in the second, ..."""
    parts = []
    for number, length in enumerate(lengths):
        state = torch.randn(length + 1, 2, generator=torch.Generator().manual_seed(100 * environment + number))
        part = torch.zeros(length, SPEC.dim)
        part[:, SPEC.observations], part[:, SPEC.next_observations] = state[:-1], state[1:]
        part[:, SPEC.rewards] = number + 1.0
        parts.append(part)
    return Transitions(SPEC, torch.cat(parts))


def stacked(*each: Transitions) -> Transitions:
    return Transitions(SPEC, torch.stack([one.rows for one in each]))


class TestReward:
    def test_scores_are_the_rewards(self):
        assert torch.equal(Reward().score(rows()), rows().rewards)
        assert isinstance(Reward(), Relevance)


class TestReturn:
    def test_every_row_has_the_return_of_its_episode(self):
        assert Return().score(episodes(3, 5, 2)).tolist() == [3.0] * 3 + [10.0] * 5 + [6.0] * 2

    def test_a_termination_ends_an_episode_even_if_the_next_one_starts_there(self):
        real = episodes(6)
        real.rows[2, SPEC.terminated] = 1
        assert Return().score(real).tolist() == [3.0] * 6
        real.rows[:3, SPEC.rewards] = 5.0
        assert Return().score(real).tolist() == [15.0] * 3 + [3.0] * 3

    @pytest.mark.parametrize("environments", [2, 3, 16])
    def test_environments_that_take_turns_are_told_apart(self, environments: int):
        each = [episodes(20, 30, environment=number) for number in range(environments)]
        turns = Transitions(SPEC, torch.stack([one.rows for one in each], 1).flatten(0, 1))
        assert Return().score(turns).tolist() == [20.0] * 20 * environments + [60.0] * 30 * environments

    def test_runs_of_a_stack_are_apart(self):
        scores = Return().score(stacked(episodes(3, 5), episodes(6, 2)))
        assert scores.tolist() == [[3.0] * 3 + [10.0] * 5, [6.0] * 6 + [4.0] * 2]

    def test_a_missing_row_splits_its_episode(self):
        real = episodes(30, 30)
        assert Return().score(real[[*range(10), *range(11, 60)]]).tolist() == [10.0] * 10 + [19.0] * 19 + [60.0] * 30

    def test_rows_without_order_are_refused(self):
        with pytest.raises(ValueError, match="order"):
            Return().score(episodes(100, 100)[torch.randperm(200, generator=torch.Generator().manual_seed(0))])

    def test_episodes_of_one_step_are_in_order(self):
        real = rows(10)
        real.rows[:, SPEC.terminated] = 1
        assert torch.equal(Return().score(real), real.rewards.double())


class TestCritics:
    def test_a_value_function(self):
        real = rows()
        assert torch.allclose(Value(lambda s: s[:, :1]).score(real), real.rows[:, 0].double())
        assert torch.allclose(Value(lambda s: s[:, 0].numpy()).score(real), real.rows[:, 0].double())

    def test_the_td_error(self):
        real = rows()
        real.rows[:100, SPEC.terminated] = 1
        q, v = (lambda s, a: s[:, 0] + a[:, 0]), (lambda s: s[:, 1])
        s, a, r, after = (real.rows[:, part].double() for part in (slice(2), slice(2, 3), slice(3, 4), slice(4, 6)))
        expected = (r[:, 0] + 0.9 * after[:, 1] * (torch.arange(200) >= 100) - s[:, 0] - a[:, 0]).abs()
        torch.testing.assert_close(TDError(q, v, gamma=0.9).score(real), expected, rtol=0, atol=1e-5)
        doubled = TDError(q, v, gamma=0.9, rewards=lambda r: 2 * r).score(real)
        assert not torch.allclose(doubled, expected)

    def test_rows_with_a_discount_use_it(self):
        spec = TransitionSpec.from_spaces(SPEC.observation_space, SPEC.action_space, discount=True)
        real = Transitions(spec, torch.cat((rows().rows, torch.full((200, 1), 0.5)), 1))
        score = TDError(lambda s, a: torch.zeros(len(s)), lambda s: torch.ones(len(s)), gamma=0.9).score(real)
        torch.testing.assert_close(score, (real.rewards.double() + 0.5).abs())

    @pytest.mark.parametrize("relevance", [Value(), TDError()])
    def test_functions_can_come_later(self, relevance: Any):
        with pytest.raises(ValueError, match="attach"):
            relevance.score(rows())
        functions: dict[str, Any] = {"q": lambda s, a: s[:, 0], "value": lambda s: s[:, 1], "gamma": 0.9}
        relevance.attach(**functions, rewards=None)
        assert relevance.score(rows()).shape == (200,)
        copied = pickle.loads(pickle.dumps(copy.deepcopy(relevance)))
        assert not copied.is_attached
        copied.take_functions(relevance)
        assert torch.equal(copied.score(rows()), relevance.score(rows()))

    def test_a_copy_remembers_whose_functions_it_has_lost(self):
        own, of_model = Value(lambda s: s[:, 0]), Value()
        of_model.attach(value=lambda s: s[:, 0], is_own=False)
        for relevance, is_own in ((own, True), (of_model, False)):
            copied = copy.deepcopy(relevance)
            assert (copied.is_attached, copied.is_own) == (False, is_own)
            copied.take_functions(relevance)
            assert (copied.is_attached, copied.is_own) == (True, is_own)

    def test_a_bad_attachment_changes_nothing(self):
        relevance = TDError(lambda s, a: a[:, 0], lambda s: s[:, 0])
        before = dict(vars(relevance))
        for bad in ({"q": 3}, {"gamma": 2}):
            with pytest.raises((TypeError, ValueError)):
                relevance.attach(**{"q": len, "value": len, **bad})  # type: ignore[arg-type]
        assert vars(relevance) == before

    def test_a_wrong_shape_is_named(self):
        with pytest.raises(ValueError, match="value"):
            Value(lambda s: s).score(rows())

    @pytest.mark.parametrize("make", [lambda: Value(3), lambda: TDError(q=3), lambda: TDError(gamma=2)])  # type: ignore[arg-type]
    def test_bad_arguments(self, make: Any):
        with pytest.raises((TypeError, ValueError)):
            make()


class TestCuriosity:
    def test_unpredictable_rows_are_relevant(self):
        real = rows(600)
        after = real.rows[:, SPEC.observations] + 0.5 * real.rows[:, SPEC.actions]
        noise = torch.randn(600, 2, generator=torch.Generator().manual_seed(1))
        real.rows[:, SPEC.next_observations] = after + noise * (torch.arange(600)[:, None] < 60)
        curiosity = Curiosity(hidden=64, batch_size=64, seed=1)
        curiosity.learn(real, 300)
        scores = curiosity.score(real)
        assert scores[:60].mean() > 5 * scores[60:].mean()

    def test_runs_of_a_stack_learn_apart(self):
        curiosity, alone = Curiosity(hidden=32), Curiosity(hidden=32)
        curiosity.learn(stacked(rows(), rows(seed=1)), 50)
        assert curiosity.score(stacked(rows(), rows(seed=1))).shape == (2, 200)
        alone.learn(rows(), 50)
        assert alone.score(rows()).shape == (200,)

    def test_updates_follow_the_new_rows_up_to_a_limit_and_to_a_new_model_all_are_new(self):
        curiosity = Curiosity(hidden=8, batch_size=8, most_updates=100)
        for new, updates in ((0, 100), (0, 100), (60, 175), (1_000, 275)):
            curiosity.learn(rows(), new)
            assert curiosity.state_dict()["model"]["updates"] == updates

    def test_gradients_are_those_of_the_squared_error(self):
        shape, draw = Shape(3, 8, 2), torch.Generator().manual_seed(0)
        model = Regression.of(shape, initial_weights(shape, 2, draw), batch_size=5)
        x, y = torch.randn(2, 5, 3, generator=draw), torch.randn(2, 5, 2, generator=draw)
        weights = model.weights.clone().requires_grad_()
        w1, b1, w2, b2, w3, b3 = shape.layers(weights)
        out = F.silu(F.silu(x @ w1 + b1) @ w2 + b2) @ w3 + b3
        (out - y).square().mean((1, 2)).sum().backward()
        model._step(x, y, torch.tensor(1e-3))
        torch.testing.assert_close(model.mean / 0.1, weights.grad)

    def test_a_restored_model_continues_exactly(self, same: Any):
        one, two = Curiosity(hidden=16), Curiosity(hidden=16, seed=5)
        one.learn(rows(), 50)
        two.load_state_dict(one.state_dict())
        three = pickle.loads(pickle.dumps(one))
        for curiosity in (one, two, three):
            curiosity.learn(rows(300, seed=2), 100)
        assert same(one.state_dict(), two.state_dict())
        assert same(one.state_dict(), three.state_dict())

    def test_one_that_diverges_starts_from_nothing(self):
        curiosity = Curiosity(hidden=16, learning_rate=1e30)
        with pytest.raises(DivergedError, match="nothing"):
            curiosity.learn(rows(), 50)
        assert curiosity.state_dict()["model"] is None
        curiosity.learning_rate = 1e-3
        curiosity.learn(rows(), 50)
        assert curiosity.score(rows()).isfinite().all()

    def test_errors_that_overflow_do_so_too(self):
        curiosity = Curiosity(hidden=16)
        curiosity.learn(rows(), 25)
        curiosity._model.weights.fill_(1e30)
        with pytest.raises(DivergedError):
            curiosity.score(rows())
        assert curiosity.state_dict()["model"] is None

    def test_constant_columns_and_outliers_do_no_harm(self):
        real = rows()
        real.rows[:, 0], real.rows[3, 1] = 7.0, 1e20
        curiosity = Curiosity(hidden=16)
        curiosity.learn(real, 50)
        assert curiosity.score(real).isfinite().all()

    def test_rows_of_inference_mode_and_autocast(self):
        with torch.inference_mode(), torch.autocast("cpu"):
            real = rows()
            curiosity = Curiosity(hidden=16)
            curiosity.learn(real, 25)
            assert curiosity.score(real).dtype == torch.float32

    @pytest.mark.parametrize("options", [{"hidden": 0}, {"learning_rate": 0}, {"most_updates": 0}, {"seed": -1}])
    def test_bad_arguments(self, options: Any):
        with pytest.raises(ValueError, match=next(iter(options))):
            Curiosity(**options)

    def test_a_state_that_does_not_fit_is_refused(self):
        curiosity = Curiosity(hidden=16)
        curiosity.learn(rows(), 25)
        state = curiosity.state_dict()
        del state["model"]["mean"]
        with pytest.raises(CheckpointError):
            Curiosity().load_state_dict(state)


class TestShortForms:
    def test_what_a_yaml_file_can_say(self):
        assert Guidance.of(None) is None
        assert Guidance.of("reward") == Guidance("reward", top=0.25, guidance=2.0, share=1.0)
        given = Guidance.of({"name": "curiosity", "top": "0.1", "guidance": 1, "share": 0.5})
        assert given == Guidance("curiosity", top=0.1, guidance=1.0, share=0.5)
        assert Guidance.of(given) is given
        assert Guidance.of(given.to_json()) == given

    def test_objects_and_functions(self):
        relevance = Reward()
        assert Guidance.of(relevance).new_relevance(0) is relevance
        assert Guidance.of({"name": relevance, "top": 0.5}) == Guidance(relevance, top=0.5)
        for given in (lambda transitions: transitions.rewards, {"name": lambda transitions: transitions.rewards}):
            assert torch.equal(Guidance.of(given).new_relevance(0).score(rows()), rows().rewards)

    @pytest.mark.parametrize(
        ("value", "match"),
        [
            ("curiosty", "did you mean 'curiosity'"),
            ({"name": "retrun"}, "did you mean 'return'"),
            ({"name": "reward", "tpo": 0.1}, "did you mean 'top'"),
            ({"top": 0.1}, "name"),
            ({"name": "reward", "top": 0}, "top"),
            ({"name": "reward", "top": 1.5}, "top"),
            ({"name": "reward", "share": "much"}, "share"),
            ({"name": "reward", "guidance": float("inf")}, "guidance"),
            ({"name": "reward", "relevance": "reward"}, "relevance"),
        ],
    )
    def test_bad_values_are_named(self, value: Any, match: str):
        with pytest.raises(ValueError, match=match):
            Guidance.of(value)

    def test_anything_else_is_refused(self):
        for value in (3, Curiosity):  # the class, not an object
            with pytest.raises(TypeError, match="relevance"):
                Guidance.of(value)
        with pytest.raises(TypeError, match="score"):
            Guidance.of({"name": 3})
