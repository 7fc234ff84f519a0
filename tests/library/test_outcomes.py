"""Outcomes: rare ones are found where they belong, and all come as often as in the data, per model of a stack."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from synther_replay.data.levels import MAX_LEVELS
from synther_replay.errors import CheckpointError, DivergedError
from synther_replay.model import outcome_batches
from synther_replay.model import outcomes as outcomes_module
from synther_replay.model.outcomes import OutcomeModel, Outcomes, _initial, _layers
from synther_replay.model.share_matching import copies_to_match

CPU = torch.device("cpu")


def inputs_of(n: int, seed: int = 0, inputs: int = 6, stack: int = 1) -> Tensor:
    return torch.randn(stack, n, inputs, generator=torch.Generator().manual_seed(seed))


def too_low(inputs: Tensor) -> Tensor:
    """2.3 % of the rows are terminated, determined by two inputs together, so that bounds cannot tell them."""
    return (inputs[..., 2] + inputs[..., 4] < -2 * math.sqrt(2)).float()


def by_chance(share: float, n: int, stack: int = 1) -> Tensor:
    return (torch.rand(stack, n, generator=torch.Generator().manual_seed(2)) < share).float()


def fit(inputs: Tensor, terminated: Tensor, seed: int = 0, previous: OutcomeModel | None = None) -> OutcomeModel:
    found, number = Outcomes.of(torch.zeros_like(terminated), terminated, None)
    return OutcomeModel.fit(inputs, found, number, seed=seed, previous=previous)


def assigned(model: OutcomeModel, inputs: Tensor, seed: int = 0) -> Tensor:
    """Rows ``(M, n, 2 + inputs)`` of reward, `terminated` and inputs; rewards are row numbers until they are set."""
    rows = torch.cat((torch.zeros(*inputs.shape[:2], 2, dtype=torch.float32), inputs), dim=-1)
    rows[..., 0] = torch.arange(rows.shape[1])
    model.assign(rows, lambda block: block[..., 2:], (0, 1), seed)
    return rows


def terminated_by(model: OutcomeModel, inputs: Tensor) -> Tensor:
    """Probability of termination of each row."""
    return (model.logits(inputs).softmax(-1) * model.terminated[:, None]).sum(-1)


@pytest.fixture
def shorter(outcome_steps: Callable[..., None]) -> None:
    """Shorter training, sufficient for these tests."""
    outcome_steps(150)


# --- the outcomes of data


def test_without_levels_an_outcome_is_the_flag() -> None:
    found, number = Outcomes.of(inputs_of(4)[..., 0], torch.tensor([[0.0, 1.0, 1.0, 0.0]]), None)
    assert found.terminated.tolist() == [[0, 1]]
    assert found.shares.tolist() == [[0.5, 0.5]]
    assert found.rewards.isnan().all()
    assert number.tolist() == [[0, 1, 1, 0]]


def test_with_levels_an_outcome_is_a_pair_and_only_pairs_that_occur_count() -> None:
    levels = torch.full((2, MAX_LEVELS), math.nan)
    levels[0, :2], levels[1, :3] = torch.tensor([0.0, 1.0]), torch.tensor([-5.0, 0.0, 5.0])
    rewards = torch.tensor([[0.0, 1, 1, 0, 1], [-5, 5, 5, 0, 0]])
    terminated = torch.tensor([[0.0, 1, 1, 0, 1], [0, 0, 1, 0, 0]])
    found, number = Outcomes.of(rewards, terminated, levels)
    assert torch.equal(found.rewards.gather(1, number), rewards)
    assert torch.equal(found.terminated.gather(1, number), terminated)
    assert found.shares.shape == (2, 5)  # of six pairs, one occurs in neither model
    for model, shares in enumerate(found.shares):
        assert shares.tolist() == pytest.approx((number[model].bincount(minlength=5) / 5).tolist())


# --- matching the shares


def matched(number: Tensor, shares: list[float], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Outcomes after matching, and from which row each comes."""
    replaced, source = copies_to_match(number, torch.tensor(shares), torch.Generator().manual_seed(seed))
    assert len(replaced) == len(source) == len(replaced.unique())
    assert not torch.isin(source, replaced).any()
    origin = torch.arange(len(number))
    origin[replaced] = source
    return number[origin], origin


@pytest.mark.parametrize(
    "shares", [[0.7, 0.3], [0.95, 0.05], [0.2, 0.5, 0.3], [1e-3, 0.999], [0.0, 0.4, 0.6], [0.1, 0.0, 0.9]]
)
def test_outcomes_come_as_often_as_they_should(shares: list[float]) -> None:
    number = torch.arange(10_000) * len(shares) // 10_000  # equally often
    after, origin = matched(number, shares)
    counts = after.bincount(minlength=len(shares))
    assert all(abs(count - 10_000 * share) <= 1 for count, share in zip(counts.tolist(), shares, strict=True))
    few = [k for k, share in enumerate(shares) if share * len(shares) > 1]
    kept = origin == torch.arange(10_000)
    assert torch.isin(number[origin[~kept]], torch.tensor(few)).all()  # copies have outcomes that were too rare ...
    assert not torch.isin(number[~kept], torch.tensor(few)).any()  # ... and take the place of those that were not


def test_a_row_is_there_ten_times_at_most() -> None:
    number = torch.zeros(1_000, dtype=torch.long)
    number[:5] = 1
    after, origin = matched(number, [0.5, 0.5])
    assert int(after.sum()) == 50
    assert origin.bincount().max() == 10


def test_rows_are_copied_equally_often() -> None:
    number = torch.zeros(1_000, dtype=torch.long)
    number[:100] = 1
    _, origin = matched(number, [0.68, 0.32])
    assert set(origin.bincount(minlength=1_000)[:100].tolist()) == {3, 4}


@pytest.mark.parametrize("n", [1, 2, 100])
def test_an_outcome_that_was_not_generated_stays_missing(n: int) -> None:
    after, origin = matched(torch.zeros(n, dtype=torch.long), [0.1, 0.9])
    assert (after == 0).all()
    assert torch.equal(origin, torch.arange(n))


@pytest.mark.parametrize("number", [0, 1])
def test_a_single_row_is_kept(number: int) -> None:
    for seed in range(20):
        after, _ = matched(torch.tensor([number]), [0.5, 0.5], seed)
        assert after.tolist() == [number]


def test_the_rounding_of_counts_has_no_bias() -> None:
    number = torch.arange(10) % 2
    counts = [int(matched(number, [0.87, 0.13], seed)[0].sum()) for seed in range(300)]
    assert set(counts) == {1, 2}
    assert sum(counts) / 300 == pytest.approx(1.3, abs=0.1)


# --- the gradient


@pytest.mark.parametrize("stack", [1, 3])
def test_the_gradient_is_that_of_autograd(stack: int) -> None:
    found, number = Outcomes.of(torch.zeros(stack, 20), by_chance(0.5, 20, stack), None)
    flat = _initial(4, found, torch.Generator().manual_seed(0)).mul_(20).requires_grad_()
    x = inputs_of(20, inputs=4, stack=stack)
    logits = _layers(flat, 2).forward(x)[-1]
    F.cross_entropy(logits.flatten(0, 1), number.flatten(), reduction="sum").backward()
    with torch.no_grad():
        layers, gradient = _layers(flat, 2), torch.full_like(flat, math.nan)
        activations = layers.forward(x)
        error = activations[-1].softmax(-1) - F.one_hot(number, 2)
        layers.backward(x, activations, error, _layers(gradient, 2))
    assert flat.grad is not None
    torch.testing.assert_close(_layers(gradient, 2), _layers(flat.grad, 2))


# --- quality


@pytest.mark.usefixtures("shorter")
def test_rare_outcomes_are_found_in_rows_that_it_has_not_seen() -> None:
    known, new = inputs_of(10_000), inputs_of(10_000, seed=1)
    rows = assigned(fit(known, too_low(known)), new)
    found, true = rows[..., 1] > 0.5, too_low(rows[..., 2:]) > 0.5
    assert (found & true).sum() / found.sum() > 0.75
    assert (found & true).sum() / true.sum() > 0.75
    assert found.float().mean() == pytest.approx(float(too_low(known).mean()), abs=1e-3)


@pytest.mark.usefixtures("shorter")
@pytest.mark.parametrize("share", [0.02, 0.3])
def test_outcomes_by_chance_keep_their_rate_everywhere(share: float) -> None:
    known, new = inputs_of(10_000), inputs_of(10_000, seed=1)
    model = fit(known, by_chance(share, 10_000))
    told = terminated_by(model, new)
    for part in (new[..., 2] < 0, new[..., 2] > 0, new[..., 0] > 1):
        assert float(told[part].mean()) == pytest.approx(share, rel=0.3)
    assert told.std() < 0.5 * share


@pytest.mark.slow
def test_predicted_probabilities_are_calibrated(outcome_steps: Callable[..., None]) -> None:
    outcome_steps(600)
    known, new = inputs_of(20_000), inputs_of(20_000, seed=1)
    chance = torch.rand(1, 20_000, generator=torch.Generator().manual_seed(2))
    likely = lambda rows: (rows[..., 2] - 3).sigmoid()  # noqa: E731
    told = terminated_by(fit(known, (chance < likely(known)).float()), new)
    for part in (new[..., 2] < -1, new[..., 2] > 1):
        assert float(told[part].mean()) == pytest.approx(float(likely(new)[part].mean()), rel=0.4)


@pytest.mark.slow
def test_few_terminations_among_many_inputs_are_not_memorised(outcome_steps: Callable[..., None]) -> None:
    outcome_steps(600)
    known, new = (inputs_of(10_000, seed, inputs=40).expand(2, -1, -1) for seed in (0, 1))
    # one input is informative in the first model, none in the second
    chances = [torch.stack(((2 * rows[0, :, 2] - 5).sigmoid(), torch.full((10_000,), 0.02))) for rows in (known, new)]
    ends = (torch.rand(2, 10_000, generator=torch.Generator().manual_seed(2)) < chances[0]).float()
    told = terminated_by(fit(known, ends), new).logit()
    guess = ends.mean(1, keepdim=True).logit().expand(2, 10_000)
    loss, of_guess, least = (
        F.binary_cross_entropy_with_logits(one, chances[1], reduction="none").mean(1)
        for one in (told, guess, chances[1].logit())
    )
    assert loss[0] - least[0] < 0.5 * (of_guess[0] - least[0])
    assert loss[1] < 1.05 * of_guess[1]


@pytest.mark.usefixtures("shorter")
def test_each_model_of_a_stack_has_outcomes_of_its_own() -> None:
    inputs = inputs_of(4_000).expand(3, -1, -1)
    ends = torch.stack((torch.zeros(4_000), torch.ones(4_000), (inputs[2, :, 0] > 1).float()))
    model = fit(inputs, ends)
    assert model.shares[0].tolist() == [1, 0]
    assert model.shares[1].tolist() == [0, 1]
    rows = assigned(model, 100 * inputs)  # far outside
    assert (rows[0, :, 1] == 0).all()
    assert (rows[1, :, 1] == 1).all()
    right = assigned(model, inputs)[2]
    assert float((right[:, 1] == (right[:, 2] > 1)).float().mean()) > 0.98


@pytest.mark.usefixtures("shorter")
def test_reward_and_termination_agree() -> None:
    """A third of the goals end the episode; rewards elsewhere are 0 and never do."""
    known = inputs_of(8_000)
    levels = torch.full((1, MAX_LEVELS), math.nan)
    levels[0, :2] = torch.tensor([0.0, 1.0])
    rewards = (known[..., 1] > 0.8).float()
    terminated = rewards * by_chance(1 / 3, 8_000)
    found, number = Outcomes.of(rewards, terminated, levels)
    rows = assigned(OutcomeModel.fit(known, found, number, seed=0), inputs_of(8_000, seed=1))
    assert rows[..., 0].unique().tolist() == [0, 1]
    assert not ((rows[..., 1] == 1) & (rows[..., 0] == 0)).any()
    assert float(rows[..., 1][rows[..., 0] == 1].mean()) == pytest.approx(1 / 3, abs=0.02)
    assert float((rows[..., 0] == (rows[..., 3] > 0.8)).float().mean()) > 0.97


# --- assignment


def test_only_reward_and_termination_are_set_and_replaced_rows_are_whole_copies() -> None:
    inputs = inputs_of(2_000)
    model = fit(inputs, by_chance(0.3, 2_000))
    rows = assigned(model, inputs_of(1_000, seed=1))
    origin = rows[0, :, 0].long()  # rewards that are no part of the outcome are copied with their rows
    assert torch.equal(rows[0, :, 2:], inputs_of(1_000, seed=1)[0, origin])
    assert 0 < (origin != torch.arange(1_000)).sum() < 500
    assert rows[..., 1].sum() == pytest.approx(300, abs=16)


def test_rows_are_classified_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fit(inputs_of(400, stack=2), by_chance(0.3, 400, stack=2))
    monkeypatch.setitem(outcomes_module._CHUNK, "cpu", 64)
    seen: list[int] = []
    rows = torch.cat((torch.zeros(2, 100, 2), inputs_of(100, stack=2)), dim=-1)
    model.assign(rows, lambda block: (seen.append(block.shape[1]), block[..., 2:])[1], (0, 1), 0)
    assert seen == [32, 32, 32, 4]
    assert (rows[..., 1].sum(1) > 0).all()


def test_a_fit_computes_the_inputs_of_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch, shorter: None) -> None:
    """Regression: a fit held a second matrix of all rows, as large as the first."""
    codes, asked = inputs_of(20_000), []
    found, number = Outcomes.of(torch.zeros(1, 20_000), too_low(codes), None)
    monkeypatch.setitem(outcomes_module._CHUNK, "cpu", 1_000)
    monkeypatch.setattr(outcome_batches, "_BATCH", 8)
    monkeypatch.setattr(outcome_batches, "_EVALUATED", 500)

    def features(rows: Tensor) -> Tensor:
        asked.append(rows.shape[1])
        return rows[..., 1:]

    model = OutcomeModel.fit(codes, found, number, seed=0, features=features)
    twin = OutcomeModel.fit(codes[..., 1:].contiguous(), found, number, seed=0)
    assert torch.equal(model.weights, twin.weights)
    assert max(asked) <= 1_000


def test_errors_of_a_confident_model_do_not_become_denormal(monkeypatch: pytest.MonkeyPatch, shorter: None) -> None:
    """Regression: with 4,000 inputs, fits on a CPU took twenty times as long once the model was sure of most rows."""
    backward, errors = outcomes_module.Layers.backward, []

    def spy(layers: Any, x: Tensor, activations: tuple[Tensor, ...], error: Tensor, gradient: Any) -> None:
        errors.append(error)
        backward(layers, x, activations, error, gradient)

    monkeypatch.setattr(outcomes_module.Layers, "backward", spy)
    codes = 300 * inputs_of(500)
    fit(codes, too_low(codes / 300))
    found = torch.cat(errors, dim=1).abs()
    assert bool((found == 0).any())
    assert float(found[found > 0].min()) > 1e-21


# --- starts


def steps_taken(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Learning rates of the steps that are taken from now on."""
    rates: list[float] = []
    step = outcomes_module.StackAdam.step
    monkeypatch.setattr(
        outcomes_module.StackAdam, "step", lambda adam, rate: (rates.append(float(rate[0])), step(adam, rate))[1]
    )
    return rates


def test_a_warm_start_continues_with_fewer_and_smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = inputs_of(500)
    first = fit(inputs, too_low(inputs - 1))
    rates = steps_taken(monkeypatch)
    again = fit(inputs, too_low(inputs - 1), previous=first)
    warm = len(rates)
    fit(inputs, too_low(inputs - 1))
    assert (warm, len(rates) - warm) == (5, 15)
    assert max(rates[:warm]) < max(rates[warm:])
    assert (again.weights - first.weights).abs().max() < 0.1


@pytest.mark.parametrize(("steps", "taken"), [(1, 5), (13, 15), (15, 15), (99, 15)])
def test_steps_from_new_weights_are_whole_blocks_within_limits(
    steps: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = steps_taken(monkeypatch)
    found, number = Outcomes.of(torch.zeros(1, 200), by_chance(0.5, 200), None)
    OutcomeModel.fit(inputs_of(200), found, number, seed=0, steps=steps)
    assert len(rates) == taken


@pytest.mark.parametrize("change", ["outcomes", "levels", "absent"])
def test_other_outcomes_start_from_new_weights(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, ends = inputs_of(500, stack=2), by_chance(0.5, 500, stack=2)
    levels = torch.full((2, MAX_LEVELS), math.nan)
    levels[:, :2] = torch.tensor([0.0, 1.0])

    def fitted(rewards: Tensor, levels: Tensor, previous: OutcomeModel | None = None) -> OutcomeModel:
        found, number = Outcomes.of(rewards, ends, levels)
        return OutcomeModel.fit(inputs, found, number, seed=0, previous=previous)

    first = fitted(ends, levels)
    rewards = ends.clone()
    if change == "outcomes":
        rewards[:, 0] = 1 - rewards[:, 0]
    elif change == "levels":
        rewards, levels = rewards * 2, levels * 2
    else:
        ends[1] = rewards[1] = 1.0
    rates = steps_taken(monkeypatch)
    assert torch.equal(fitted(rewards, levels, first).weights, fitted(rewards, levels).weights)
    assert len(rates) == 30


# --- being well-behaved


def test_the_same_seed_gives_the_same_model_and_outcomes() -> None:
    inputs, ends = inputs_of(500), by_chance(0.5, 500)
    one, again, other = (fit(inputs, ends, seed) for seed in (0, 0, 1))
    assert torch.equal(one.weights, again.weights)
    assert not torch.equal(one.weights, other.weights)
    assert torch.equal(assigned(one, inputs), assigned(again, inputs))
    assert not torch.equal(assigned(one, inputs), assigned(one, inputs, seed=1))


def test_no_global_state_is_touched_and_no_gradient_is_left() -> None:
    inputs = inputs_of(200)
    before = torch.get_rng_state()
    model = fit(inputs, too_low(inputs - 1))
    assigned(model, inputs)
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.weights.requires_grad


def test_default_dtype_and_autocast_play_no_part() -> None:
    inputs, ends = inputs_of(500), by_chance(0.3, 500)
    usual = fit(inputs, ends)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fit(inputs, ends).weights, usual.weights)
    torch.set_default_dtype(torch.float64)
    try:
        model = fit(inputs, ends)
        assert all(tensor.dtype == torch.float32 for tensor in model.state_dict().values())
        assert torch.equal(model.weights, usual.weights)
        rows = assigned(model, inputs)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(rows, assigned(usual, inputs))


def test_rows_without_features_keep_their_shares() -> None:
    inputs = torch.empty(1, 500, 0)
    rows = assigned(fit(inputs, by_chance(0.3, 500)), torch.empty(1, 1_000, 0))
    assert rows[..., 1].mean() == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize("counts", [(31, 1), (1, 31), (2, 2), (1, 1)])
def test_a_single_row_of_an_outcome_is_enough(counts: tuple[int, int]) -> None:
    ends = torch.cat((torch.zeros(counts[0]), torch.ones(counts[1])))[None]
    model = fit(inputs_of(sum(counts)), ends)
    assert model.weights.isfinite().all()
    assert set(assigned(model, inputs_of(1_000, seed=1))[..., 1].unique().tolist()) <= {0.0, 1.0}


def test_divergence_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes_module, "_LEARNING_RATE", 1e30)
    with pytest.raises(DivergedError, match="outcome model"):
        fit(inputs_of(200), by_chance(0.5, 200))


def test_a_fit_that_only_gets_worse_keeps_the_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes_module, "_LEARNING_RATE", 3.0)
    inputs, ends = inputs_of(400), (torch.arange(400) % 4 == 0).float()[None]
    assert torch.allclose(terminated_by(fit(inputs, ends), inputs), torch.tensor(0.25), atol=1e-2)


# --- states


def test_a_state_comes_back_as_it_was() -> None:
    model = fit(inputs_of(200, stack=2), by_chance(0.5, 200, stack=2))
    state = model.state_dict()
    again = OutcomeModel.from_state(state, 2, 6, CPU)
    state["weights"].zero_()
    found = again.state_dict()
    assert found.keys() == state.keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.nan_to_num(), found[name].nan_to_num()), name


@pytest.mark.parametrize(
    "change",
    [
        lambda s: {},
        lambda s: {k: v for k, v in s.items() if k != "weights"},
        lambda s: {**s, "more": s["shares"]},
        lambda s: {**s, "weights": s["weights"][:, 1:]},
        lambda s: {**s, "weights": s["weights"] * math.inf},
        lambda s: {**s, "terminated": s["terminated"][:, 1:]},
        lambda s: {**s, "shares": s["shares"][0]},
        lambda s: {**s, "shares": s["shares"] * math.nan},
        lambda s: {**s, "shares": s["shares"] * 0},
        lambda s: {**s, "shares": -s["shares"]},
        lambda s: {**s, "rewards": s["rewards"][:1]},
        lambda s: {**s, **{k: s[k].repeat(1, 40) for k in ("shares", "rewards", "terminated")}},
    ],
)
def test_a_state_of_something_else_is_refused(change: Any) -> None:
    state = fit(inputs_of(100, stack=2), by_chance(0.5, 100, stack=2)).state_dict()
    with pytest.raises(CheckpointError, match="state: outcomes"):
        OutcomeModel.from_state(change(state), 2, 6, CPU)


@pytest.mark.parametrize(("stack", "inputs"), [(2, 6), (1, 5)])
def test_a_state_of_other_sizes_is_refused(stack: int, inputs: int) -> None:
    model = fit(inputs_of(100), by_chance(0.5, 100))
    with pytest.raises(CheckpointError, match="state: outcomes"):
        OutcomeModel.from_state(model.state_dict(), stack, inputs, CPU)
