"""Calibration of generated observations: what it moves, how far, and what it leaves alone."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec
from synther_replay.data.calibration import Calibration, without_copies
from synther_replay.errors import CheckpointError

BOX = gym.spaces.Box
SPEC = TransitionSpec.from_spaces(BOX(-np.inf, np.inf, (2,), np.float64), BOX(-1, 1, (1,)))
EVERY = torch.arange(2)


def normal(n: int = 8_000, *, seed: int = 0, stack: int = 1) -> Tensor:
    return torch.randn(stack, n, 2, generator=torch.Generator().manual_seed(seed))


def rows_of(observations: Tensor, change: float = 0.5) -> Tensor:
    """Rows whose next observations differ from the observations by a constant."""
    rows = torch.zeros(*observations.shape[:2], SPEC.dim)
    rows[..., SPEC.observations], rows[..., SPEC.next_observations] = observations, observations + change
    return rows


def apply(calibration: Calibration, rows: Tensor) -> Tensor:
    moved = rows.clone()
    calibration.apply(moved, SPEC.observations, SPEC.next_observations)
    return moved


def largest_gap(x: Tensor, y: Tensor) -> float:
    """Largest difference of two distribution functions."""
    x, y = x.sort().values, y.sort().values
    at = torch.cat((x, y))
    return float((torch.searchsorted(x, at) / len(x) - torch.searchsorted(y, at) / len(y)).abs().max())


def crowded(seed: int, width: float) -> Tensor:
    """Half of the values of the first column lie within `width` of 1."""
    values = normal(seed=seed)
    values[:, ::2, 0] = 1 + width * values[:, ::2, 0]
    return values


def test_equal_distributions_are_left_alone() -> None:
    assert Calibration.of(normal(seed=0), normal(seed=1), EVERY) is None


def test_a_pile_of_generated_values_moves_to_its_middle() -> None:
    real, generated = normal(seed=0), normal(seed=1).clamp(-1.5, 1.5)
    moved = apply(Calibration.of(real, generated, EVERY), rows_of(generated))[..., SPEC.observations]
    ends = [float(moved[..., 0].min()), float(moved[..., 0].max())]
    assert ends[0] == pytest.approx(-ends[1], abs=0.1)


def test_copies_are_left_alone() -> None:
    first = normal()
    stacked = torch.cat((first, first.roll(1, 1)), -1)  # frames of now and of before
    following = torch.cat((first.roll(-1, 1), first), -1)
    every = torch.arange(4)
    assert without_copies(every, stacked, following).tolist() == []
    assert without_copies(every, stacked, following + 1).tolist() == every.tolist()
    repeated = torch.cat((first, first[..., :1]), -1)  # a goal that repeats a part of the state
    assert without_copies(torch.arange(3), repeated, repeated + 1).tolist() == [1]


def test_spread_values_are_brought_together_again() -> None:
    real, generated = crowded(0, 0.001), rows_of(crowded(1, 0.05))
    calibration = Calibration.of(real, generated[..., SPEC.observations], EVERY)
    assert calibration is not None and calibration.columns.tolist() == [0]
    moved = apply(calibration, generated)
    before, after = (largest_gap(real[0, :, 0], part[0, :, 0]) for part in (generated, moved))
    assert before > 0.2 and after < 0.02
    assert torch.equal(moved[..., 1], generated[..., 1])


def test_the_change_to_the_next_observation_stays() -> None:
    real, generated = crowded(0, 0.001), rows_of(crowded(1, 0.05), change=0.25)
    calibration = Calibration.of(real, generated[..., SPEC.observations], EVERY)
    moved = apply(calibration, generated)
    change = moved[..., SPEC.next_observations] - moved[..., SPEC.observations]
    inside = moved[..., SPEC.next_observations] < real.amax(1)
    assert inside.float().mean() > 0.98
    assert change[inside] == pytest.approx(0.25, abs=1e-5)


def test_values_move_by_a_fifth_of_the_standard_deviation_at_most() -> None:
    real, generated = normal(seed=0), rows_of(normal(seed=1) + 3)
    calibration = Calibration.of(real, generated[..., SPEC.observations], EVERY)
    distance = (apply(calibration, generated) - generated)[..., SPEC.observations]
    assert distance == pytest.approx(-0.2 * real.std(1, correction=0).expand_as(distance), abs=1e-4)


def test_next_observations_stay_in_the_real_range() -> None:
    real, generated = normal(seed=0), rows_of(normal(seed=1) - 0.5, change=1.0)
    calibration = Calibration.of(real, generated[..., SPEC.observations], EVERY)
    moved = apply(calibration, generated)[..., SPEC.next_observations]
    highest = real.amax(1, keepdim=True).maximum(generated[..., SPEC.next_observations])
    assert bool((moved <= highest).all())


def test_each_model_of_a_stack_is_moved_by_its_own_error() -> None:
    real = normal(stack=2)
    generated = rows_of(normal(seed=1, stack=2))
    generated[1, :, SPEC.observations] += 0.1
    calibration = Calibration.of(real, generated[..., SPEC.observations], EVERY)
    moved = apply(calibration, generated)
    assert torch.equal(moved[0], generated[0])
    assert largest_gap(real[1, :, 0], moved[1, :, 0]) < 0.02 < largest_gap(real[1, :, 0], generated[1, :, 0])


def test_repeated_generated_values_move_to_finite_ones() -> None:
    calibration = Calibration.of(normal(), torch.zeros(1, 100, 2), EVERY)
    assert bool(apply(calibration, rows_of(torch.zeros(1, 10, 2))).isfinite().all())


def fitted(rows: int = 8_000, **changes: object) -> tuple[DiffusionGenerator, Transitions]:
    """A generator that was trained too briefly to keep crowded values together."""
    table = rows_of(crowded(0, 0.001))
    table[..., SPEC.actions] = normal(seed=2)[..., :1].clamp(-1, 1)
    table[..., SPEC.next_observations] += 0.1 * normal(seed=3)
    table[..., SPEC.rewards] = table[..., :1]
    real = Transitions(SPEC, table[0, :rows])
    config = GeneratorConfig.tiny(width=64, depth=1, steps=600, sampling_steps=8, patience=None, **changes)
    generator = DiffusionGenerator(SPEC, config, device="cpu")
    generator.fit(real)
    return generator, real


def test_generated_observations_are_calibrated_except_in_the_papers_way() -> None:
    gaps = []
    for exact in (True, False):
        generator, real = fitted(exact=exact)
        gaps.append(largest_gap(real.rows[:, 0], generator.sample(8_000).rows[:, 0]))
    assert gaps[0] < 0.5 * gaps[1]


def test_a_few_real_rows_are_not_imitated() -> None:
    generator, real = fitted(rows=900)
    assert generator.model.calibration is None
    copies = torch.isin(generator.sample(500).rows[:, :2], real.rows[:, :2])
    assert copies.float().mean() < 0.01  # a few are equal by chance


def test_a_time_limit_leaves_out_what_it_has_no_time_for() -> None:
    generator, real = fitted()
    assert generator.model.calibration is not None
    generator.fit(real, from_scratch=True, max_seconds=1e-3)
    assert generator.model.calibration is None


def test_a_saved_generator_continues_with_the_same_rows(tmp_path) -> None:
    generator, _ = fitted()
    generator.save(tmp_path / "model")
    again = DiffusionGenerator.load(tmp_path / "model", device="cpu")
    assert torch.equal(again.sample(500).rows, generator.sample(500).rows)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("columns", torch.tensor([7])),
        ("columns", torch.tensor([0.0])),
        ("generated", torch.zeros(1, 1, 3)),
        ("real", torch.full((1, 1, 128), torch.nan)),
        ("farthest", torch.full((1, 1, 1), -1.0)),
    ],
)
def test_a_damaged_state_is_refused(name: str, value: Tensor) -> None:
    calibration = Calibration.of(crowded(0, 0.001), crowded(1, 0.05), EVERY)
    state = calibration.state_dict()
    assert Calibration.from_state(dict(state), 1, 2, torch.device("cpu")).columns.tolist() == [0]
    with pytest.raises(CheckpointError, match="calibration"):
        Calibration.from_state({**state, name: value}, 1, 2, torch.device("cpu"))
