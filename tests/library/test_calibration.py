"""Calibration of generated observations: what it moves, how far, and what it leaves alone."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec
from synther_replay.data.calibration import Calibration, RealSample, copied
from synther_replay.data.codec import TransitionCodec
from synther_replay.distributed.stacking import member
from synther_replay.errors import CheckpointError

BOX = gym.spaces.Box
SPEC = TransitionSpec.from_spaces(BOX(-np.inf, np.inf, (2,), np.float64), BOX(-1, 1, (1,)))


def normal(n: int = 8_000, *, seed: int = 0, stack: int = 1) -> Tensor:
    return torch.randn(stack, n, 2, generator=torch.Generator().manual_seed(seed))


def rows_of(observations: Tensor, change: float = 0.5) -> Tensor:
    """Rows whose next observations differ from the observations by a constant."""
    rows = torch.zeros(*observations.shape[:2], SPEC.dim)
    rows[..., SPEC.observations], rows[..., SPEC.next_observations] = observations, observations + change
    return rows


def codec_of(rows: Tensor) -> TransitionCodec:
    codec = TransitionCodec(SPEC)
    codec.fit(rows)
    return codec


def compare(real: Tensor, generated: Tensor) -> Calibration | None:
    """Calibration of rows with real observations by rows with generated ones."""
    rows = rows_of(real)
    rows[..., SPEC.next_observations] += 0.1 * normal(len(real[0]), seed=9, stack=len(real))
    codec = codec_of(rows)
    return Calibration.of(RealSample.of(rows, codec), rows_of(generated), codec)


def apply(calibration: Calibration, rows: Tensor) -> Tensor:
    moved = rows.clone()
    calibration.apply(moved, codec_of(rows))
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
    assert compare(normal(seed=0), normal(seed=1)) is None


def test_a_pile_of_generated_values_moves_to_its_middle() -> None:
    real, generated = normal(seed=0), normal(seed=1).clamp(-1.5, 1.5)
    moved = apply(compare(real, generated), rows_of(generated))[..., SPEC.observations]
    ends = [float(moved[..., 0].min()), float(moved[..., 0].max())]
    assert ends[0] == pytest.approx(-ends[1], abs=0.1)


def test_copies_are_left_alone() -> None:
    four = TransitionSpec.from_spaces(BOX(-np.inf, np.inf, (4,), np.float64), BOX(-1, 1, (1,)))
    rows = torch.zeros(1, 8_000, four.dim)

    def which_are_copied(now: Tensor, following: Tensor) -> list[bool]:
        rows[..., four.observations], rows[..., four.next_observations] = now, following
        found = copied(rows, four)
        assert torch.equal(found[four.observations], found[four.next_observations])
        assert not found[four.actions].any() and not found[four.rewards].any()
        return found[four.observations].tolist()

    first = normal()
    stacked = torch.cat((first, first.roll(1, 1)), -1)  # frames of now and of before
    following = torch.cat((first.roll(-1, 1), first), -1)
    assert which_are_copied(stacked, following) == [True] * 4
    assert which_are_copied(stacked, following + 1) == [False] * 4
    repeated = torch.cat((first, first[..., :1], first[..., 1:] * 2), -1)  # a goal that repeats a part of the state
    assert which_are_copied(repeated, repeated + 1) == [True, False, True, False]


def test_spread_values_are_brought_together_again() -> None:
    real, generated = crowded(0, 0.001), rows_of(crowded(1, 0.05))
    calibration = compare(real, generated[..., SPEC.observations])
    assert calibration is not None and calibration.continuous.columns.tolist() == [0]
    moved = apply(calibration, generated)
    before, after = (largest_gap(real[0, :, 0], part[0, :, 0]) for part in (generated, moved))
    assert before > 0.2 and after < 0.02
    assert torch.equal(moved[..., 1], generated[..., 1])


def test_the_change_to_the_next_observation_stays() -> None:
    real, generated = crowded(0, 0.001), rows_of(crowded(1, 0.05), change=0.25)
    calibration = compare(real, generated[..., SPEC.observations])
    moved = apply(calibration, generated)
    change = moved[..., SPEC.next_observations] - moved[..., SPEC.observations]
    inside = moved[..., SPEC.next_observations] < real.amax(1)
    assert inside.float().mean() > 0.98
    assert change[inside] == pytest.approx(0.25, abs=1e-5)


def test_values_move_by_a_fifth_of_the_standard_deviation_at_most() -> None:
    real, generated = normal(seed=0), rows_of(normal(seed=1) + 3)
    calibration = compare(real, generated[..., SPEC.observations])
    distance = (apply(calibration, generated) - generated)[..., SPEC.observations]
    assert distance == pytest.approx(-0.2 * real.std(1, correction=0).expand_as(distance), abs=1e-4)


def test_next_observations_stay_in_the_real_range() -> None:
    real, generated = normal(seed=0), rows_of(normal(seed=1) - 0.5, change=1.0)
    calibration = compare(real, generated[..., SPEC.observations])
    moved = apply(calibration, generated)[..., SPEC.next_observations]
    highest = real.amax(1, keepdim=True).maximum(generated[..., SPEC.next_observations])
    assert bool((moved <= highest).all())


def test_each_model_of_a_stack_is_moved_by_its_own_error() -> None:
    real = normal(stack=2)
    generated = rows_of(normal(seed=1, stack=2))
    generated[1, :, SPEC.observations] += 0.1
    calibration = compare(real, generated[..., SPEC.observations])
    moved = apply(calibration, generated)
    assert torch.equal(moved[0], generated[0])
    assert largest_gap(real[1, :, 0], moved[1, :, 0]) < 0.02 < largest_gap(real[1, :, 0], generated[1, :, 0])


def test_repeated_generated_values_move_to_finite_ones() -> None:
    calibration = compare(normal(), torch.zeros(1, 100, 2))
    assert bool(apply(calibration, rows_of(torch.zeros(1, 10, 2))).isfinite().all())


def fitted(rows: int = 8_000, **changes: object) -> tuple[DiffusionGenerator, Transitions]:
    """A generator that was trained too briefly to keep crowded values together."""
    table = rows_of(crowded(0, 0.001))
    table[..., SPEC.actions] = normal(seed=2)[..., :1].clamp(-1, 1)
    table[..., SPEC.next_observations] += 0.1 * normal(seed=3)
    table[..., SPEC.rewards] = table[..., :1]
    real = Transitions(SPEC, table[0, :rows])
    config = GeneratorConfig.tiny(width=64, depth=1, steps=200, sampling_steps=8, patience=None, **changes)
    generator = DiffusionGenerator(SPEC, config, device="cpu")
    generator.fit(real)
    return generator, real


def test_generated_observations_are_calibrated_except_in_the_papers_way() -> None:
    assert fitted(exact=False)[0].model.calibration is None
    generator, real = fitted()
    state, drawn = generator.state_dict(), []
    for calibration in (None, state["calibration"]):
        generator.load_state_dict({**state, "calibration": calibration})
        drawn.append(generator.sample(8_000).rows[:, 0].sort().values)
    values = real.rows[:, 0].sort().values
    farthest = 0.2 * values.std()
    reachable = values.clamp(drawn[0] - farthest, drawn[0] + farthest)
    before, after = (largest_gap(part, reachable) for part in drawn)
    assert before > 0.08 and after < 0.03


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
    calibration, codec, device = compare(crowded(0, 0.001), crowded(1, 0.05)), codec_of(rows_of(normal())), "cpu"
    state = calibration.state_dict()
    assert Calibration.from_state(state, 1, codec, torch.device(device)).continuous.columns.tolist() == [0]
    for kind in ("continuous", "with_atoms"):
        damaged = {**state, kind: {**state["continuous"], name: value}}
        with pytest.raises(CheckpointError, match="calibration"):
            Calibration.from_state(damaged, 1, codec, torch.device(device))


def test_a_state_with_unknown_parts_is_refused() -> None:
    state = compare(crowded(0, 0.001), crowded(1, 0.05)).state_dict()["continuous"]
    with pytest.raises(CheckpointError, match="calibration"):
        Calibration.from_state(state, 1, codec_of(rows_of(normal())), torch.device("cpu"))


def with_zeros(values: Tensor, share: float, seed: int) -> Tensor:
    """The first column is exactly zero in a share of the rows."""
    values = values.clone()
    values[..., 0][torch.rand(values.shape[:2], generator=torch.Generator().manual_seed(seed)) < share] = 0.0
    return values


def rows_with_atoms(share: float, seed: int, stack: int = 1) -> Tensor:
    rows = rows_of(with_zeros(normal(seed=seed, stack=stack), share, seed))
    rows[..., SPEC.next_observations] = with_zeros(normal(seed=seed + 50, stack=stack), share, seed + 50)
    return rows


@pytest.mark.parametrize("generated_share", [0.2, 0.9])
def test_exact_values_come_as_often_as_in_the_data(generated_share: float) -> None:
    real, generated = rows_with_atoms(0.5, 0, stack=2), rows_with_atoms(generated_share, 1, stack=2)
    codec = codec_of(real)
    assert codec.observations_with_atoms.tolist() == [0, SPEC.next_observations.start]
    # A model does not hit the middle of a gap.
    opened = codec.open_gaps(generated.clone())
    noise = 0.1 * codec.widths_of_gaps(codec.observations_with_atoms)[:, None]
    opened[..., codec.observations_with_atoms] += noise * normal(seed=7, stack=2)
    calibration = Calibration.of(RealSample.of(real.clone(), codec), opened[:, :4_096], codec)
    assert calibration.with_atoms.columns.tolist() == [0, SPEC.next_observations.start]
    moved = opened.clone()
    calibration.apply(moved, codec)
    for column in (0, SPEC.next_observations.start):
        for model in range(2):
            before, after = (largest_gap(real[model, :, column], codec.close_gaps(part.clone())[model, :, column])
                             for part in (opened, moved))  # fmt: skip
            assert before > 0.1 and after < 0.05
            share = (codec.close_gaps(moved.clone())[model, :, column] == 0).float().mean()
            assert share == pytest.approx(0.5, abs=0.03)
    free = [1, SPEC.next_observations.start + 1]
    assert torch.equal(moved[..., free], opened[..., free])


@pytest.mark.parametrize("generated_share", [0.45, 0.65, 0.8])
def test_too_large_a_pile_at_an_atom_stays_there(generated_share: float) -> None:
    real, generated = rows_with_atoms(0.3, 0).abs(), rows_with_atoms(generated_share, 1).abs()
    codec = codec_of(real)
    moved = codec.open_gaps(generated.clone())  # equal values, as those that were clipped to a bound
    Calibration.of(RealSample.of(real, codec), moved, codec).apply(moved, codec)
    assert torch.equal(codec.close_gaps(moved)[..., 0] == 0, generated[..., 0] == 0)


def test_a_model_without_atoms_leaves_the_stack_of_one_with_them() -> None:
    rows, generated = rows_with_atoms(0.5, 0, stack=2), rows_with_atoms(0.2, 1, stack=2)
    rows[0] = rows_of(normal(seed=3))[0]
    both = codec_of(rows)
    calibration = Calibration.of(RealSample.of(rows.clone(), both), both.open_gaps(generated.clone()), both)
    assert calibration.with_atoms.farthest[0].eq(0).all() and calibration.with_atoms.farthest[1].gt(0).all()
    state, alone = member({"calibration": calibration.state_dict()}, 0)["calibration"], codec_of(rows[:1])
    assert not len(alone.observations_with_atoms)
    again, moved = Calibration.from_state(state, 1, alone, torch.device("cpu")), generated[:1].clone()
    again.apply(moved, alone)
    assert torch.equal(moved[..., again.with_atoms.columns], generated[:1, :, again.with_atoms.columns])


def test_right_shares_of_exact_values_are_left_alone() -> None:
    real = rows_with_atoms(0.5, 0)
    codec = codec_of(real)
    generated = rows_with_atoms(0.5, 1)
    opened = codec.open_gaps(generated.clone())
    noise = 0.1 * codec.widths_of_gaps(torch.tensor([0])) * normal(seed=7)[..., 0]
    opened[..., 0] += torch.where(generated[..., 0] == 0, noise, 0.0)  # within the gap
    assert Calibration.of(RealSample.of(real, codec), opened, codec) is None


def test_a_generator_keeps_the_shares_of_exact_values_and_saves_them(tmp_path) -> None:
    rows = rows_with_atoms(0.6, 0)[0]
    rows[:, [0, SPEC.next_observations.start]] **= 6  # many values close to the atom, as of light contacts
    real = Transitions(SPEC, rows)
    real.rows[:, SPEC.actions] = normal(seed=2)[0, :, :1].clamp(-1, 1)
    config = GeneratorConfig.tiny(width=64, depth=1, steps=300, sampling_steps=8, patience=None)
    generator = DiffusionGenerator(SPEC, config, device="cpu")
    generator.fit(real)
    assert generator.model.calibration.with_atoms is not None
    without = DiffusionGenerator(SPEC, config, device="cpu")
    without.load_state_dict({**generator.state_dict(), "calibration": None})
    wanted, calibrated, raw = (
        float((part.rows[:, 0] == 0).float().mean()) for part in (real, generator.sample(8_000), without.sample(8_000))
    )
    assert abs(calibrated - wanted) < 0.5 * abs(raw - wanted), (calibrated, raw)
    generator.save(tmp_path / "model")
    again = DiffusionGenerator.load(tmp_path / "model", device="cpu")
    assert torch.equal(again.sample(500).rows, generator.sample(500).rows)
