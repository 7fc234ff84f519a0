"""Metrics against SDMetrics, known answers and a real simulator."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.metrics import (
    correlation_similarity,
    distance_to_closest,
    dynamics_error,
    fidelity,
    ks_complement,
    memorisation,
    scores,
)

DIM = 6  # more than one block of columns


def _data(kind: str, n: int, seed: int) -> np.ndarray:
    """Correlated columns of one kind, float32 values."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=(n, DIM)) @ (np.eye(DIM) + 0.3 * seed * np.tri(DIM))
    made = {
        "random": normal,
        "tied": np.round(normal, 1),
        "integer": np.round(3 * normal),
        "flags": normal > 0.5 * seed,
        "heavy": normal**3 * rng.standard_cauchy(size=(n, 1)),
        "offset": 1e5 + normal,
    }[kind]
    return made.astype(np.float32).astype(np.float64)


def _gaussian(n: int, seed: int, dim: int = DIM) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def _numbers(memory: Any) -> dict[str, float]:
    return {name: value for name, value in vars(memory).items() if not name.endswith("_by_row")}


# --- against SDMetrics


@pytest.mark.parametrize("lengths", [(200, 200), (301, 150), (90, 400)])
@pytest.mark.parametrize("kind", ["random", "tied", "integer", "flags", "heavy", "offset"])
def test_scores_equal_sdmetrics(kind: str, lengths: tuple[int, int]) -> None:
    columns = pytest.importorskip("sdmetrics.single_column")
    pairs = pytest.importorskip("sdmetrics.column_pairs")
    real, synthetic = _data(kind, lengths[0], 1), _data(kind, lengths[1], 2)
    marginal = [columns.KSComplement.compute(real[:, i], synthetic[:, i]) for i in range(DIM)]
    correlation = [
        pairs.CorrelationSimilarity.compute(real[:, pair], synthetic[:, pair])
        for pair in map(list, combinations(range(DIM), 2))
    ]
    for dtype in (np.float32, np.float64):
        score = fidelity(real.astype(dtype), synthetic.astype(dtype))
        np.testing.assert_allclose(score.marginal_by_column, marginal, atol=1e-9)
        assert score.marginal == pytest.approx(np.mean(marginal), abs=1e-9)
        assert score.correlation == pytest.approx(np.mean(correlation), abs=1e-9)


def test_constant_columns_count_in_marginals_but_have_no_correlation() -> None:
    pairs = pytest.importorskip("sdmetrics.column_pairs")
    errors = pytest.importorskip("sdmetrics.errors")
    real, synthetic = _data("random", 50, 1), _data("random", 50, 2)
    real[:, 1] = 0.1
    synthetic[:, 4] = -7.3
    with pytest.raises(errors.ConstantInputError):
        pairs.CorrelationSimilarity.compute(real[:, [0, 1]], synthetic[:, [0, 1]])
    similarity = correlation_similarity(real, synthetic)
    assert similarity[[1, 4]].isnan().all()
    assert similarity[:, [1, 4]].isnan().all()
    kept = [0, 2, 3, 5]
    rest = fidelity(real[:, kept], synthetic[:, kept])
    score = fidelity(real, synthetic, warn=False)
    assert score.correlation == pytest.approx(rest.correlation)
    assert 0.5 < score.correlation < 1
    assert score.marginal_by_column[1] < 1


def test_no_pair_of_columns_gives_nan() -> None:
    real = np.column_stack([np.arange(5.0), np.ones(5)])
    assert math.isnan(fidelity(real, real).correlation)
    assert math.isnan(fidelity(real[:, :1], real[:, :1]).correlation)
    assert fidelity(real, real).marginal == 1


# --- known answers


def test_identical_sets_score_one() -> None:
    rows = _gaussian(100, 0)
    score = fidelity(rows, rows.flip(0))
    assert score.marginal == 1
    assert score.correlation == pytest.approx(1, abs=1e-12)


def test_disjoint_sets_score_zero() -> None:
    assert (ks_complement(_gaussian(100, 0).abs() + 1, -_gaussian(70, 1).abs()) == 0).all()


@pytest.mark.parametrize(
    ("real", "synthetic", "expected"),
    [
        ([1, 2, 3, 4], [3, 4], 0.5),
        ([3, 4], [1, 2, 3, 4], 0.5),
        ([0, 0, 0, 1], [0, 1, 1, 1], 0.5),  # all ties
        ([0.0, -0.0], [-0.0, 0.0], 1.0),
        ([1, 1, 2, 2, 3, 3], [2, 2], 1 - 1 / 3),
    ],
)
def test_ks_by_hand(real: list[float], synthetic: list[float], expected: float) -> None:
    columns = [np.array(values, dtype=np.float64)[:, None] for values in (real, synthetic)]
    assert ks_complement(*columns).item() == pytest.approx(expected, abs=1e-15)


def test_opposite_correlation_scores_zero_and_swapped_columns_score_lower() -> None:
    x = _gaussian(500, 0, dim=1)
    up, down = torch.cat([x, x], dim=1), torch.cat([x, -x], dim=1)
    assert correlation_similarity(up, down)[0, 1] == pytest.approx(0, abs=1e-12)
    real = torch.cat([x, x + 0.1 * _gaussian(500, 1, dim=1), _gaussian(500, 2, dim=1)], dim=1)
    same, swapped = fidelity(real, real), fidelity(real, real[:, [2, 1, 0]], warn=False)
    assert swapped.correlation < same.correlation - 0.2
    # Permuted columns of equal distribution change only the correlation, not the marginals.
    assert swapped.marginal > 0.9


def test_correlation_survives_large_offsets_and_block_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "_ROWS", 64)
    real, synthetic = (_data("random", 150, seed) for seed in (1, 2))
    scale = np.logspace(-200, 200, DIM)
    expected = 1 - np.abs(np.corrcoef(real.T) - np.corrcoef(synthetic.T)) / 2
    np.testing.assert_allclose(correlation_similarity(real, synthetic), expected, atol=1e-12)
    shifted = correlation_similarity(1e6 + real, 1e6 + synthetic)
    np.testing.assert_allclose(shifted, expected, atol=1e-8)
    np.testing.assert_allclose(correlation_similarity(real * scale, synthetic * scale), expected, atol=1e-12)


def test_the_same_numbers_in_two_precisions_are_the_same() -> None:
    rows = np.round(_data("random", 50, 1), 1) + 0.01
    assert fidelity(rows, rows.astype(np.float32)).marginal == 1
    assert fidelity(torch.arange(20).reshape(10, 2), torch.arange(20.0).reshape(10, 2)).marginal == 1


def test_inputs_are_left_alone() -> None:
    rows = _gaussian(50, 0, dim=1).requires_grad_()
    before = rows.detach().clone()
    score = fidelity(rows, rows.detach().numpy()[::-1])
    assert score.marginal == 1
    assert torch.equal(rows.detach(), before)
    frozen = before.numpy()
    frozen.flags.writeable = False
    assert fidelity(frozen, frozen).marginal == 1


# --- rows that are not finite


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_single_value_that_is_not_finite_rejects_its_row(value: float) -> None:
    rows = _gaussian(20, 0)
    rows[3, 2] = value
    assert fidelity(rows, _gaussian(20, 1)).rejected_real == 1


def test_rows_that_are_not_finite_are_counted_and_left_out() -> None:
    real, synthetic = _gaussian(60, 0), _gaussian(50, 1)
    expected = fidelity(real, synthetic)
    bad = torch.zeros(3, DIM)
    bad[0, 0], bad[1, 3], bad[2, 5] = torch.nan, torch.inf, -torch.inf
    score = fidelity(torch.cat([bad[:1], real]), torch.cat([synthetic[:9], bad, synthetic[9:]]))
    assert (score.rejected_real, score.rejected_synthetic) == (1, 3)
    assert (expected.rejected_real, expected.rejected_synthetic) == (0, 0)
    assert score.marginal == expected.marginal
    assert score.correlation == pytest.approx(expected.correlation, abs=1e-12)


def test_rows_whose_sum_overflows_are_not_rejected() -> None:
    rows = torch.full((4, 2), 3e38)
    rows[0] = 0
    score = fidelity(rows, rows)
    assert (score.rejected_real, score.marginal) == (0, 1)


@pytest.mark.parametrize("function", [ks_complement, correlation_similarity, distance_to_closest])
def test_building_blocks_refuse_rows_that_are_not_finite(function: Any) -> None:
    bad = _gaussian(5, 0)
    bad[2, 1] = torch.nan
    with pytest.raises(ValueError, match=r"^(synthetic|records): .* 4 finite and 1 non-finite"):
        function(_gaussian(5, 1), bad)


# --- nearest rows and memorisation


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_distance_to_closest_equals_brute_force(chunk: int) -> None:
    queries, records = _gaussian(20, 0) + 100, _gaussian(33, 1) + 100
    expected = (queries.double()[:, None] - records.double()).square().sum(-1).sqrt().amin(1)
    torch.testing.assert_close(distance_to_closest(queries, records, chunk=chunk), expected, atol=1e-12, rtol=0)
    assert (distance_to_closest(records[5:9], records, chunk=chunk) == 0).all()
    assert distance_to_closest(np.array([[3.0, 4.0]]), np.zeros((1, 2)), chunk=chunk).tolist() == [5.0]


def test_copies_are_recognised() -> None:
    training, held_out = _gaussian(300, 0), _gaussian(300, 1)
    report = memorisation(training.flip(0) + 1e-4 * _gaussian(300, 2), training, held_out)
    assert report.share_closer > 0.99
    assert report.ratio < 0.01
    exact = memorisation(training, training, held_out)
    assert (exact.synthetic_distance, exact.ratio, exact.share_closer) == (0, 0, 1)


def test_copies_are_recognised_among_more_training_rows_than_may_be_drawn() -> None:
    training = _gaussian(400, 0)
    report = memorisation(training, training, _gaussian(100, 1), max_rows=50)
    assert report.ratio == 0
    # Held-out rows are a quarter of the training rows: (1 + 1 / 4) / 2.
    assert report.share_closer == pytest.approx(0.625, abs=0.15)


def test_fresh_rows_are_no_copies() -> None:
    report = memorisation(_gaussian(1000, 0), _gaussian(600, 1), _gaussian(400, 2))
    assert report.share_closer == pytest.approx(0.5, abs=0.05)
    assert report.ratio == pytest.approx(1, abs=0.05)
    assert report.held_out_distance > 0.5


def test_memorisation_scales_columns_and_drops_constant_ones() -> None:
    sets = [_gaussian(80, seed) for seed in range(3)]
    expected = memorisation(*sets)
    scale = torch.tensor([1e-3, 1.0, 1e3, 10.0, 1.0, 1e6])
    wider = [torch.cat([rows * scale, torch.full((80, 1), 0.1 + 0.2 * i)], dim=1) for i, rows in enumerate(sets)]
    report = memorisation(*wider)
    assert report.synthetic_distance == pytest.approx(expected.synthetic_distance, rel=1e-4)
    assert report.share_closer == expected.share_closer
    with pytest.raises(ValueError, match=r"^training: every column is constant"):
        memorisation(sets[0], torch.full((9, DIM), 0.1), sets[2])


def test_ties_between_discrete_rows_count_half() -> None:
    rows = torch.tensor([[0.0], [1.0]]).repeat(20, 1)
    report = memorisation(rows, rows, rows)
    assert report.share_closer == 0.5
    assert math.isnan(report.ratio)


def test_memorisation_leaves_out_and_counts_rows_that_are_not_finite() -> None:
    synthetic, training, held_out = (_gaussian(40, seed) for seed in range(3))
    bad = torch.full((1, DIM), torch.nan)
    report = memorisation(torch.cat([bad, synthetic]), torch.cat([training, bad]), torch.cat([bad, held_out]))
    assert report.rejected == 3
    assert report.share_closer == memorisation(synthetic, training, held_out).share_closer


def test_memorisation_survives_a_row_that_overflows_when_scaled() -> None:
    training, held_out = 1e-3 * _gaussian(40, 1), 1e-3 * _gaussian(40, 2)
    synthetic = torch.cat([torch.full((1, DIM), 3e38), training])
    assert memorisation(synthetic, training, held_out).share_closer == pytest.approx(40 / 41, abs=1.01 / 41)


def test_same_seed_same_answer_other_seed_other_answer_and_global_state_untouched() -> None:
    sets = [_gaussian(300, seed) for seed in range(3)]
    state = torch.random.get_rng_state()
    first, again, other = (memorisation(*sets, max_rows=40, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert _numbers(first) == _numbers(again)
    assert torch.equal(first.synthetic_by_row, again.synthetic_by_row)
    assert first.synthetic_distance != other.synthetic_distance


def test_fidelity_fills_memorisation_only_with_held_out_rows() -> None:
    real, synthetic, held_out = (_gaussian(100, seed) for seed in range(3))
    plain, full = fidelity(real, synthetic), fidelity(real, synthetic, held_out=held_out, seed=3)
    assert plain.memorisation is None
    assert full.memorisation is not None
    assert _numbers(full.memorisation) == _numbers(memorisation(synthetic, real, held_out, seed=3))
    assert ["memorisation" in str(score) for score in (plain, full)] == [False, True]


# --- the simulator's verdict


@pytest.fixture(scope="module")
def pendulum() -> Any:
    return gym.make("Pendulum-v1").unwrapped


@pytest.fixture(scope="module")
def real_transitions(pendulum: Any) -> Transitions:
    pendulum.action_space.seed(0)
    observation, _ = pendulum.reset(seed=0)
    rows = []
    for _ in range(60):
        action = pendulum.action_space.sample()
        following, reward, terminated, _, _ = pendulum.step(action)
        rows.append((observation, action, reward, following, terminated))
        observation = following
    spec = TransitionSpec.from_spaces(pendulum.observation_space, pendulum.action_space)
    return Transitions.from_arrays(spec, *(np.stack(field) for field in zip(*rows, strict=True)))


@pytest.fixture
def step_fn(pendulum: Any) -> Any:
    def step(observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        answers = []
        for (cos, sin, speed), action in zip(observations, actions, strict=True):
            pendulum.state = np.array([np.arctan2(sin, cos), speed], dtype=np.float64)
            answers.append(pendulum.step(action)[:2])
        return np.stack([answer[0] for answer in answers]), np.array([answer[1] for answer in answers])

    return step


def test_real_rows_agree_with_the_simulator(real_transitions: Transitions, step_fn: Any) -> None:
    report = dynamics_error(real_transitions, step_fn)
    assert report.next_observation < 1e-6
    assert report.reward < 1e-6
    assert report.rejected == 0
    assert report.next_observation_by_row.shape == report.reward_by_row.shape == (60,)
    assert torch.equal(report.indices, torch.arange(60))


def test_noised_rows_disagree_by_the_noise(real_transitions: Transitions, step_fn: Any) -> None:
    spec, rows = real_transitions.spec, real_transitions.rows.clone()
    rows[:, spec.next_observations] += torch.tensor([0.1, 0.2, -0.3])
    rows[7, spec.rewards] += 3
    report = dynamics_error(Transitions(spec, rows), step_fn)
    assert report.next_observation == pytest.approx((0.01 + 0.04 + 0.09) / 3, rel=1e-3)
    assert report.reward == pytest.approx(9 / 60, rel=1e-3)
    assert report.reward_by_row.argmax() == 7
    assert report.next_observation_by_row.mean() == pytest.approx(report.next_observation)


def test_dynamics_rows_are_spread_and_those_not_finite_left_out(real_transitions: Transitions, step_fn: Any) -> None:
    spec, rows = real_transitions.spec, real_transitions.rows.clone()
    rows[15] = torch.nan

    def fails_at_first(observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert np.isfinite(observations).all()
        following, rewards = step_fn(observations, actions)
        rewards[0] = np.inf
        return following, rewards

    report = dynamics_error(Transitions(spec, rows), fails_at_first, max_rows=4)
    assert report.indices.tolist() == [30, 45]
    assert report.rejected == 2
    assert report.reward < 1e-6


def test_dynamics_input_errors(real_transitions: Transitions, step_fn: Any) -> None:
    spec, rows = real_transitions.spec, real_transitions.rows
    with pytest.raises(TypeError, match="transitions: expected Transitions, got Tensor"):
        dynamics_error(rows, step_fn)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"transitions: .* got \(1, 60, 9\)"):
        dynamics_error(Transitions(spec, rows[None]), step_fn)
    with pytest.raises(ValueError, match=r"transitions: .* got 60 non-finite rows"):
        dynamics_error(Transitions(spec, rows * torch.nan), step_fn)
    with pytest.raises(ValueError, match=r"step_fn: .*\(60, 3\), \(60,\).* got .*\(60, 1\)"):
        dynamics_error(real_transitions, lambda o, a: (o, a))
    with pytest.raises(ValueError, match=r"max_rows: .* got 0"):
        dynamics_error(real_transitions, step_fn, max_rows=0)


# --- what is refused


@pytest.mark.parametrize(
    ("real", "synthetic", "error", "message"),
    [
        ([[1.0, 2.0]], torch.ones(3, 2), TypeError, "^real: .* got list"),
        (torch.ones(3, 2), None, TypeError, "^synthetic: .* got NoneType"),
        (torch.ones(3, 2), np.array([["a", "b"]]), TypeError, "^synthetic: .* got ndarray of <U1"),
        (torch.ones(3, 2), torch.ones(3, 2, dtype=torch.complex64), TypeError, "synthetic: .*complex64"),
        (torch.ones(3), torch.ones(3, 2), ValueError, r"^real: .* got \(3,\)"),
        (torch.ones(3, 2), torch.ones(4, 3, 2), ValueError, r"^synthetic: .* one run.* got \(4, 3, 2\)"),
        (torch.ones(3, 2), torch.ones(0, 2), ValueError, r"^synthetic: .* got \(0, 2\)"),
        (torch.ones(3, 0), torch.ones(3, 0), ValueError, r"^real: .* got \(3, 0\)"),
        (torch.ones(3, 2), torch.ones(3, 4), ValueError, r"^real, synthetic: .* columns, got \[2, 4\]"),
        (torch.ones(1, 2), torch.ones(3, 2), ValueError, "^real: expected at least 2 finite rows.* got 1 finite"),
        (torch.ones(3, 2), torch.eye(2) / 0, ValueError, "^synthetic: .* got 0 finite and 2 non-finite"),
    ],
)
def test_bad_rows_are_refused_by_name(real: Any, synthetic: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fidelity(real, synthetic)
    with pytest.raises(error, match=message):
        ks_complement(real, synthetic)
    with pytest.raises(error, match=message):
        correlation_similarity(real, synthetic)


def test_transitions_are_rows_and_other_specs_are_refused() -> None:
    box, switch = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
    spec, other = TransitionSpec.from_spaces(box, switch), TransitionSpec.from_spaces(box, gym.spaces.Discrete(3))
    rows = _gaussian(30, 0, dim=spec.dim)
    score = fidelity(Transitions(spec, rows), Transitions(TransitionSpec.from_spaces(box, switch), rows[:20]))
    assert torch.equal(score.marginal_by_column, ks_complement(rows, rows[:20]))
    with pytest.raises(ValueError, match="real, synthetic: expected equal specs"):
        fidelity(Transitions(spec, rows), Transitions(other, rows))
    with pytest.raises(ValueError, match="real, synthetic, held_out: expected equal specs"):
        fidelity(Transitions(spec, rows), rows, held_out=Transitions(other, rows))
    with pytest.raises(ValueError, match=r"synthetic: .* got \(1, 30, 7\)"):
        fidelity(Transitions(spec, rows), Transitions(spec, rows[None]))


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), ("3", TypeError)])
def test_bad_counts_are_refused_by_name(value: Any, error: type[Exception]) -> None:
    rows = _gaussian(5, 0)
    with pytest.raises(error, match=f"chunk: .* got {value!r}"):
        distance_to_closest(rows, rows, chunk=value)
    with pytest.raises(error, match=f"max_rows: .* got {value!r}"):
        memorisation(rows, rows, rows, max_rows=value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_devices_agree_and_real_rows_decide() -> None:
    real, synthetic, held_out = (_gaussian(3000, seed) for seed in range(3))
    here, there = fidelity(real, synthetic, held_out=held_out), fidelity(real.cuda(), synthetic, held_out=held_out)
    assert there.marginal_by_column.is_cuda
    assert torch.equal(here.marginal_by_column, there.marginal_by_column.cpu())
    assert there.correlation == pytest.approx(here.correlation, abs=1e-9)
    assert there.marginal_baseline == here.marginal_baseline
    assert there.correlation_baseline == pytest.approx(here.correlation_baseline, abs=1e-9)
    assert _numbers(there.memorisation) == pytest.approx(_numbers(here.memorisation), rel=1e-3)
