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
from synther_replay.model.rare_outcomes import (
    FEWEST_EXAMPLES,
    FEWEST_ROWS,
    LARGEST_SHARE,
    MORE_LIKELY,
    RareOutcomes,
)

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


def is_rare(rare: RareOutcomes, kinds: int = 2) -> Tensor:
    return rare.least_chance(kinds) > 0


def insert(rare: RareOutcomes, rows: Tensor, number: Tensor | None = None, rng: torch.Generator | None = None) -> None:
    """Insert real rows; generated ones have outcome 0 unless said otherwise."""
    number = torch.zeros(rows.shape[:2], dtype=torch.long) if number is None else number
    rare.insert(rows, number, 2, rng or torch.Generator().manual_seed(0))


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
    assert is_rare(rare).tolist() == [[False, True]]


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
    assert rare is not None and is_rare(rare, 4).tolist() == [[False, True, True, False]]


def test_outcomes_that_bounds_tell_are_not_rare() -> None:
    few, _ = few_of(ends(1_000, 3, 700))
    assert few is not None and few.limited(torch.tensor([[False, True]])) is None


def test_each_model_of_a_stack_has_its_own() -> None:
    terminated = torch.zeros(3, 5_000)
    terminated[0, :3] = 1
    terminated[1, :500] = 1
    rare = rare_of(terminated)
    assert (rare.share > 0).sum(1).tolist() == [3, 0, 0]
    assert is_rare(rare).tolist() == [[False, True], [False, False], [False, False]]
    rows = torch.full((3, 10_000, 3), -1.0)
    insert(rare, rows)
    assert (rows[..., 0] >= 0).sum(1).tolist() == [6, 0, 0]


# --- copies


def test_copies_come_as_often_as_the_real_rows_and_all_of_them_in_turn() -> None:
    rare = rare_of(ends(1_000, *range(10, 17)))
    rows = torch.full((1, 50_000, 3), -1.0)
    insert(rare, rows)
    counts = torch.bincount(rows[0, rows[0, :, 0] >= 0, 0].long(), minlength=17)
    assert counts[10:].tolist() == [50] * 7 and counts.sum() == 350


def test_small_draws_have_them_as_often_on_average() -> None:
    rare, rng = rare_of(ends(1_000, 5, 6)), torch.Generator().manual_seed(0)
    found = 0
    for _ in range(400):
        rows = torch.full((1, 100, 3), -1.0)
        insert(rare, rows, rng=rng)
        found += int((rows[..., 0] >= 0).sum())
    assert found / 400 == pytest.approx(0.2, abs=0.07)


def test_copies_fill_up_what_generated_rows_lack_and_replace_none_of_them() -> None:
    rare = rare_of(ends(1_000, *range(10)))
    rows, number = torch.full((1, 1_000, 3), -1.0), torch.zeros(1, 1_000, dtype=torch.long)
    number[0, :7], rows[0, :7] = 1, -2.0
    insert(rare, rows, number)
    assert int((rows[0, :, 0] >= 0).sum()) == 3 and int((rows[0, :, 0] == -2).sum()) == 7


@pytest.mark.parametrize(("count", "least"), [(FEWEST_EXAMPLES - 1, torch.inf), (FEWEST_EXAMPLES, MORE_LIKELY)])
def test_hardly_any_rows_are_no_examples(count: int, least: float) -> None:
    assert rare_of(ends(5_000, *range(count))).least_chance(2).tolist() == [[0.0, least]]


# --- rows that are left out


def outcome_model(inputs: Tensor, ended: Tensor, steps: Callable[..., None]) -> OutcomeModel:
    steps(150)
    outcomes, number = Outcomes.of(torch.zeros_like(ended), ended, None)
    return OutcomeModel.fit(inputs, outcomes, number, seed=0)


def assigned(model: OutcomeModel, inputs: Tensor, least_chance: float) -> Tensor:
    """Rows of reward, `terminated` and inputs, ``(n, 2 + inputs)``."""
    rows = torch.cat((torch.zeros(*inputs.shape[:2], 2), inputs), dim=-1)
    rare = torch.tensor([[0.0, least_chance]])
    number = model.assign(rows, lambda block: block[..., 2:], (0, 1), seed=0, rare=rare)
    assert torch.equal(number[0].float(), rows[0, :, 1])
    return rows[0]


def corner(x: Tensor) -> Tensor:
    """1.4 % of the rows, which no single bound tells."""
    return (x[..., 0] + x[..., 1]) > 3.1


def test_rows_that_may_have_a_rare_outcome_are_left_out(outcome_steps: Callable[..., None]) -> None:
    rng = torch.Generator().manual_seed(0)
    inputs, new = torch.randn(1, 4_000, 3, generator=rng), torch.randn(1, 20_000, 3, generator=rng)
    model = outcome_model(inputs, corner(inputs).float(), outcome_steps)
    rows = assigned(model, new, torch.inf)
    assert rows[:, 1].sum() == 0
    assert corner(rows[:, 2:]).sum() < 0.3 * corner(new).sum()


def test_rows_that_more_likely_have_it_than_not_have_it(outcome_steps: Callable[..., None]) -> None:
    rng = torch.Generator().manual_seed(0)
    inputs, new = torch.randn(1, 4_000, 3, generator=rng), torch.randn(1, 20_000, 3, generator=rng)
    model = outcome_model(inputs, corner(inputs).float(), outcome_steps)
    rows = assigned(model, new, MORE_LIKELY)
    ended = rows[:, 1] > 0
    assert 0.5 * corner(inputs).float().mean() < ended.float().mean() <= corner(inputs).float().mean() + 1e-3
    assert corner(rows[ended, 2:]).float().mean() > 0.9
    assert corner(rows[~ended, 2:]).sum() < 0.3 * corner(new).sum()


def test_rows_are_kept_where_an_outcome_comes_by_chance(outcome_steps: Callable[..., None]) -> None:
    rng = torch.Generator().manual_seed(0)
    inputs, new = torch.randn(1, 1_000, 3, generator=rng), torch.randn(1, 5_000, 3, generator=rng)
    ended = (torch.rand(1, 1_000, generator=rng) < 0.04).float()
    rows = assigned(outcome_model(inputs, ended, outcome_steps), new, MORE_LIKELY)
    assert rows[:, 1].mean() < 0.02
    assert len(rows[:, 2:].unique(dim=0)) > 0.8 * new.shape[1]


# --- the generator


@pytest.mark.parametrize("hits", [1, FEWEST_EXAMPLES - 1, 30])
def test_rewards_are_at_the_goal_from_the_first_one_on(hits: int, outcome_steps: Callable[..., None]) -> None:
    outcome_steps(500)
    data = steps(hits)
    rows = fitted(data, steps=1_500).sample(20_000)
    rewarded = rows.rewards > 0.5
    assert int(rewarded.sum()) == pytest.approx(20_000 * hits / 2_000, abs=1)
    assert (rows.terminated == rewarded).all()
    if hits < FEWEST_EXAMPLES:
        assert are_among(rows.rows[rewarded], data.rows)
    else:
        assert len(rows.rows[rewarded].unique(dim=0)) > hits
        assert at_goal(rows.next_observations[rewarded]).float().mean() > 0.7


def test_bonuses_at_the_end_stay_as_they_are() -> None:
    data = steps(15, bonus=100.0)
    data.rows[:, SPEC.rewards.start] += 0.01 * torch.randn(2_000, generator=torch.Generator().manual_seed(1))
    rows = fitted(data).sample(5_000)
    ended = rows.terminated > 0
    assert ended.any() and (rows.rewards[ended] - 100).abs().max() < 0.1
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
