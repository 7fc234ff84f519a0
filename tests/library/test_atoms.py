"""Tests of `data.atoms` and of their use by the codec."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from synther_replay import TransitionSpec
from synther_replay.data.atoms import MAX_ATOMS, close_gaps, find_atoms, gap_widths, open_gaps
from synther_replay.data.codec import TransitionCodec

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-1, 1, (1,)))


def forces(n=4_000, zero=0.9, limit=1.0, seed=0):
    """Values that are zero in most rows and clipped in some."""
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(n, generator=rng).clamp(-limit, limit)
    return torch.where(torch.rand(n, generator=rng) < zero, 0.0, values)


def transitions(stack=1, n=4_000):
    rng = torch.Generator().manual_seed(1)
    rows = torch.randn(stack, n, SPEC.dim, generator=rng)
    for model in range(stack):
        for column in (1, SPEC.next_observations.start + 1):
            rows[model, :, column] = forces(n, zero=0.5 + 0.1 * model, seed=column)
    rows[..., SPEC.actions] = rows[..., SPEC.actions].clamp(-1, 1)
    rows[..., SPEC.terminated] = 0.0
    return rows


def test_finds_the_frequent_values_of_each_column():
    columns = [forces(), torch.randn(4_000), torch.zeros(4_000), forces(zero=0.1, limit=9.0)]
    atoms = find_atoms(torch.stack(columns, 1)[None])
    assert atoms.shape == (1, MAX_ATOMS, 4)
    assert atoms[0].T.tolist() == [
        [-1.0, 0.0, 1.0],
        [torch.inf] * 3,
        [0.0, torch.inf, torch.inf],
        [torch.inf] * 3,  # zero in few rows
    ]


@pytest.mark.parametrize("rows", [1, 2, 3, 40])
def test_few_rows(rows):
    atoms = find_atoms(torch.arange(float(rows))[None, :, None])
    assert not atoms.isfinite().any()


def test_near_an_atom_becomes_the_atom_and_the_rest_keeps_its_order():
    values = forces()[None, :, None]
    atoms = find_atoms(values)
    width = gap_widths(values, atoms)
    opened = open_gaps(values, atoms, width)
    noisy = opened + 0.4 * width * torch.rand(opened.shape).sub(0.5)
    closed = close_gaps(noisy, atoms, width)
    for atom in (-1.0, 0.0, 1.0):
        assert torch.equal(closed[values == atom], values[values == atom])
    order = values.flatten().argsort(stable=True)
    assert (opened.flatten()[order].diff() >= 0).all()
    assert (opened[values > 0].min() - opened[values == 0].max()) > 0.4 * width


@settings(deadline=None)
@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30), st.integers(0, MAX_ATOMS), st.floats(0.01, 5))
def test_closing_undoes_opening(numbers, count, width):
    values = torch.tensor(numbers)[None, :, None]
    atoms = torch.full((1, MAX_ATOMS, 1), torch.inf)
    chosen = values.unique()[:count]
    atoms[0, : len(chosen), 0] = chosen
    gap = torch.full((1, 1, 1), width)
    restored = close_gaps(open_gaps(values, atoms, gap), atoms, gap)
    torch.testing.assert_close(restored, values, rtol=1e-5, atol=1e-4)
    for atom in chosen:
        assert torch.equal(restored[values == atom], values[values == atom])


@pytest.mark.parametrize("stack", [1, 2])
def test_the_codec_restores_atoms_exactly_from_inexact_codes(stack):
    rows = transitions(stack)
    codec = TransitionCodec(SPEC)
    codec.fit(rows)
    codes = codec.encode(rows)
    assert codes.std(1).max() < 1.5
    decoded, finite = codec.decode(codes)
    assert finite.all()
    torch.testing.assert_close(decoded, rows, rtol=1e-4, atol=1e-4)
    noisy, _ = codec.decode(codes + 0.1 * torch.randn(codes.shape, generator=torch.Generator().manual_seed(2)))
    for column in (1, SPEC.next_observations.start + 1):
        zero = rows[..., column] == 0
        assert (noisy[..., column][zero] == 0).float().mean() > 0.99
        assert (noisy[..., column][~zero] == 0).float().mean() < 0.05
        assert noisy[..., column].abs().max() <= 1.2
    without = TransitionCodec(SPEC, exact=False)
    without.fit(rows)
    assert (without.decode(without.encode(rows) + 0.1)[0][..., 1] == 0).sum() == 0, "only with `exact`"


def test_bounds_of_the_space_hold_on_both_sides():
    box = gym.spaces.Box(-2, 2, (3,))
    spec = TransitionSpec.from_spaces(box, gym.spaces.Box(-1, 1, (1,)))
    rows = transitions()
    rows[..., [0, 2, 5, 7]] = rows[..., [0, 2, 5, 7]].clamp(-2, 2)
    codec = TransitionCodec(spec)
    codec.fit(rows)
    for far in (-100.0, 100.0):
        decoded, _ = codec.decode(torch.full((1, 5, codec.code_dim), far))
        assert decoded[..., 1].unique().tolist() == [far / 50]


def test_a_state_keeps_the_atoms_and_old_states_have_none():
    rows = transitions()
    codec, other = TransitionCodec(SPEC), TransitionCodec(SPEC)
    codec.fit(rows)
    other.load_state_dict(codec.state_dict(), torch.device("cpu"))
    codes = codec.encode(rows)
    assert torch.equal(other.encode(rows), codes)
    assert torch.equal(other.decode(codes)[0], codec.decode(codes)[0])
    plain = TransitionCodec(SPEC, exact=False)
    plain.fit(rows)
    old = {name: value for name, value in plain.state_dict().items() if name not in ("atoms", "gap")}
    other.load_state_dict(old, torch.device("cpu"))
    assert torch.equal(other.encode(rows), plain.encode(rows))


@pytest.mark.parametrize("seed", range(12))
def test_no_value_is_rounded_beyond_its_bound(seed):
    rng = torch.Generator().manual_seed(seed)
    low, high = 0.1 * torch.rand(2, generator=rng) + torch.tensor([-1.0, 0.7])
    spec = TransitionSpec.from_spaces(gym.spaces.Box(float(low), float(high), (3,)), gym.spaces.Box(-1, 1, (1,)))
    rows = torch.randn(1, 4_000, spec.dim, generator=rng)
    rows[..., spec.terminated] = 0.0
    for part in (spec.observations, spec.next_observations):
        values = low + (high - low) * torch.rand(1, 4_000, 3, generator=rng)
        values[torch.rand(values.shape, generator=rng) < 0.4] = 0.3
        values[:, :5], values[:, 5:10] = low, high
        rows[..., part] = values
    codec = TransitionCodec(spec)
    codec.fit(rows)
    assert len(codec.observations_with_atoms) == 6
    decoded, _ = codec.decode(3 * torch.randn(1, 4_000, codec.code_dim, generator=rng))
    calibrated = codec.close_gaps(codec.open_gaps(rows.clone()))  # where a calibration may move values
    for found in (decoded, calibrated):
        for part in (spec.observations, spec.next_observations):
            assert found[..., part].min() >= low and found[..., part].max() <= high
