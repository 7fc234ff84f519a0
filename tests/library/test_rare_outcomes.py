"""Outcomes with too few rows to be learned: their real rows are copied, and rows that may have them are left out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import Tensor

from synther_replay.config import GeneratorConfig
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import CheckpointError
from synther_replay.generator import DiffusionGenerator
from synther_replay.model.outcomes import OutcomeModel, Outcomes
from synther_replay.model.rare_outcomes import FEWEST_ROWS, LARGEST_SHARE, RareOutcomes

CPU = torch.device("cpu")
SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-2, 2, (2,)), gym.spaces.Box(-1, 1, (2,)))
CONFIG = GeneratorConfig.tiny(width=64, depth=2, embedding=32, steps=300, batch_size=128, sampling_steps=8)


def columns(rewards: Tensor, terminated: Tensor) -> Tensor:
    """Rows ``(M, n, 3)`` of their place, reward and `terminated`."""
    place = torch.arange(rewards.shape[1]).expand(len(rewards), -1)
    return torch.stack((place.float(), rewards, terminated), dim=-1)


def few_of(terminated: Tensor) -> tuple[RareOutcomes | None, Outcomes]:
    rewards = torch.zeros_like(terminated)
    outcomes, number = Outcomes.of(rewards, terminated, None)
    return RareOutcomes.of(columns(rewards, terminated), number, outcomes), outcomes


def rare_of(terminated: Tensor) -> RareOutcomes:
    few, outcomes = few_of(terminated)
    assert few is not None
    rare = few.limited(torch.zeros(outcomes.shares.shape, dtype=torch.bool))
    assert rare is not None
    return rare


def ends(n: int, *places: int) -> Tensor:
    terminated = torch.zeros(1, n)
    terminated[0, list(places)] = 1
    return terminated


def steps(hits: int, n: int = 2_000, seed: int = 0, bonus: float = 1.0) -> Transitions:
    """Steps of a point mass; `hits` of them reach a goal, which ends the episode."""
    rng = torch.Generator().manual_seed(seed)
    before, action = (torch.rand(40 * n, 2, generator=rng) * 2 - 1 for _ in range(2))
    after = (before + 0.2 * action).clamp(-1, 1)
    there = at_goal(after)
    chosen = torch.cat((there.nonzero().flatten()[:hits], (~there).nonzero().flatten()[: n - hits]))
    chosen = chosen[torch.randperm(n, generator=rng)]
    hit = there[chosen, None].float()
    return Transitions(SPEC, torch.cat((before[chosen], action[chosen], bonus * hit, after[chosen], hit), dim=-1))


def at_goal(positions: Tensor) -> Tensor:
    return (positions - 0.4).norm(dim=-1) < 0.25


def fitted(data: Transitions, **changes: Any) -> DiffusionGenerator:
    generator = DiffusionGenerator(SPEC, replace(CONFIG, **changes), device="cpu")
    generator.fit(data)
    return generator


def are_among(rows: Tensor, real: Tensor) -> bool:
    return bool((rows[:, None] == real[None]).all(-1).any(1).all())


# --- which outcomes are rare


def test_outcomes_with_few_rows_are_rare() -> None:
    rare = rare_of(ends(1_000, 3, 700))
    assert rare.rows[0, :, 0].tolist() == [3, 700]
    assert rare.share[0].tolist() == pytest.approx([0.001, 0.001])
    assert rare.outcomes(2).tolist() == [[False, True]]


@pytest.mark.parametrize(("count", "is_rare"), [(FEWEST_ROWS - 1, True), (FEWEST_ROWS, False)])
def test_outcomes_with_enough_rows_are_learned(count: int, is_rare: bool) -> None:
    few, _ = few_of(ends(100_000, *range(count)))
    assert (few is not None) == is_rare


def test_in_small_data_outcomes_are_learned_though_they_have_few_rows() -> None:
    n = 200
    few, outcomes = few_of(ends(n, *range(int(LARGEST_SHARE * n) + 1)))
    assert few is not None and few.limited(torch.zeros(outcomes.shares.shape, dtype=torch.bool)) is None


def test_the_rarest_outcomes_come_first_where_not_all_can_be_rare() -> None:
    rewards = torch.zeros(1, 1_000)
    rewards[0, :40], rewards[0, 40:43], rewards[0, 43:51] = 3.0, 1.0, 2.0
    levels = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    outcomes, number = Outcomes.of(rewards, torch.zeros_like(rewards), levels)
    few = RareOutcomes.of(columns(rewards, torch.zeros_like(rewards)), number, outcomes)
    assert few is not None
    rare = few.limited(torch.zeros(1, 4, dtype=torch.bool))
    assert rare is not None and rare.outcomes(4).tolist() == [[False, True, True, False]]


def test_outcomes_that_bounds_tell_are_not_rare() -> None:
    few, _ = few_of(ends(1_000, 3, 700))
    assert few is not None and few.limited(torch.tensor([[False, True]])) is None


def test_each_model_of_a_stack_has_its_own() -> None:
    terminated = torch.zeros(3, 5_000)
    terminated[0, :3] = 1
    terminated[1, :500] = 1
    rare = rare_of(terminated)
    assert (rare.share > 0).sum(1).tolist() == [3, 0, 0]
    assert rare.outcomes(2).tolist() == [[False, True], [False, False], [False, False]]
    rows = torch.full((3, 10_000, 3), -1.0)
    rare.insert(rows, torch.Generator().manual_seed(0))
    assert (rows[..., 0] >= 0).sum(1).tolist() == [6, 0, 0]


# --- copies


def test_copies_come_as_often_as_the_real_rows_and_all_of_them_in_turn() -> None:
    rare = rare_of(ends(1_000, *range(10, 17)))
    rows = torch.full((1, 50_000, 3), -1.0)
    rare.insert(rows, torch.Generator().manual_seed(0))
    counts = torch.bincount(rows[0, rows[0, :, 0] >= 0, 0].long(), minlength=17)
    assert counts[10:].tolist() == [50] * 7 and counts.sum() == 350


def test_small_draws_have_them_as_often_on_average() -> None:
    rare, rng = rare_of(ends(1_000, 5, 6)), torch.Generator().manual_seed(0)
    found = 0
    for _ in range(400):
        rows = torch.full((1, 100, 3), -1.0)
        rare.insert(rows, rng)
        found += int((rows[..., 0] >= 0).sum())
    assert found / 400 == pytest.approx(0.2, abs=0.07)


# --- rows that are left out


def outcome_model(inputs: Tensor, ended: Tensor, steps: Callable[..., None]) -> OutcomeModel:
    steps(150)
    outcomes, number = Outcomes.of(torch.zeros_like(ended), ended, None)
    return OutcomeModel.fit(inputs, outcomes, number, seed=0)


def assigned(model: OutcomeModel, inputs: Tensor, rare: Tensor | None) -> Tensor:
    rows = torch.cat((torch.zeros(*inputs.shape[:2], 2), inputs), dim=-1)
    model.assign(rows, lambda block: block[..., 2:], (0, 1), seed=0, rare=rare)
    return rows[0]


def test_no_generated_row_has_a_rare_outcome_and_rows_like_it_are_gone(outcome_steps: Callable[..., None]) -> None:
    rng = torch.Generator().manual_seed(0)
    inputs, new = torch.randn(1, 4_000, 3, generator=rng), torch.randn(1, 20_000, 3, generator=rng)
    is_end = lambda x: (x[..., 0] + x[..., 1]) > 3.1  # noqa: E731  # not told by one bound
    model = outcome_model(inputs, is_end(inputs).float(), outcome_steps)
    rows = assigned(model, new, torch.tensor([[False, True]]))
    assert rows[:, 1].sum() == 0
    assert is_end(rows[:, 2:]).sum() < 0.3 * is_end(new).sum()


def test_rows_are_kept_where_an_outcome_comes_by_chance(outcome_steps: Callable[..., None]) -> None:
    rng = torch.Generator().manual_seed(0)
    inputs, new = torch.randn(1, 1_000, 3, generator=rng), torch.randn(1, 5_000, 3, generator=rng)
    ended = (torch.rand(1, 1_000, generator=rng) < 0.04).float()
    rows = assigned(outcome_model(inputs, ended, outcome_steps), new, torch.tensor([[False, True]]))
    assert rows[:, 1].sum() == 0
    assert len(rows[:, 2:].unique(dim=0)) > 0.8 * new.shape[1]


# --- the generator


@pytest.mark.parametrize("hits", [1, 5, 20])
def test_every_reward_is_at_the_goal_from_the_first_one_on(hits: int) -> None:
    data = steps(hits)
    rows = fitted(data).sample(20_000)
    rewarded = rows.rewards > 0.5
    assert int(rewarded.sum()) == pytest.approx(20_000 * hits / 2_000, abs=1)
    assert at_goal(rows.next_observations[rewarded]).all()
    assert (rows.terminated == rewarded).all()
    assert are_among(rows.rows[rewarded], data.rows)


def test_bonuses_at_the_end_stay_as_they_are() -> None:
    data = steps(15, bonus=100.0)
    data.rows[:, SPEC.rewards.start] += 0.01 * torch.randn(2_000, generator=torch.Generator().manual_seed(1))
    rows = fitted(data).sample(5_000)
    ended = rows.terminated > 0
    assert ended.any() and are_among(rows.rows[ended], data.rows)
    assert rows.rewards[~ended].max() < 1


def test_without_exact_nothing_is_copied() -> None:
    data = steps(5)
    assert not are_among(fitted(data, exact=False).sample(5_000).rows[:100], data.rows)


def test_a_state_keeps_them() -> None:
    one, two = fitted(steps(5)), DiffusionGenerator(SPEC, CONFIG, device="cpu", seed=9)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    assert torch.equal(one.sample(3_000).rows, two.sample(3_000).rows)


def test_a_state_of_a_version_without_them_is_loaded() -> None:
    state = fitted(steps(5)).state_dict()
    del state["rare"]
    generator = DiffusionGenerator(SPEC, CONFIG, device="cpu")
    generator.load_state_dict(state)
    assert len(generator.sample(100)) == 100


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rows", lambda rows: rows[..., :-1]),
        ("rows", lambda rows: rows * torch.nan),
        ("share", lambda share: -share),
        ("share", lambda share: share + 1),
        ("number", lambda number: number + 5),
        ("number", lambda number: number[:, :0]),
    ],
)
def test_an_impossible_state_is_refused(name: str, change: Callable[[Tensor], Tensor]) -> None:
    state = fitted(steps(5)).state_dict()
    state["rare"][name] = change(state["rare"][name])
    generator = DiffusionGenerator(SPEC, CONFIG, device="cpu")
    with pytest.raises(CheckpointError, match="rare outcomes"):
        generator.load_state_dict(state)
    del state["rare"][name]
    with pytest.raises(CheckpointError, match="rare outcomes"):
        generator.load_state_dict(state)
