"""Real rows made worse in one way: which rows are left, and how large the noise is."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("h5py")
from synther_replay.benchmarks.data.registry import Dataset
from synther_replay.benchmarks.offline.worsened import parse, worsened

LENGTHS = (30, 5, 25, 40)  # of episodes; the second and the last have a time limit, the others terminate
STARTS = np.repeat(np.cumsum((0, *LENGTHS[:-1])), LENGTHS)


def dataset():
    n = sum(LENGTHS)
    last = np.cumsum(LENGTHS) - 1
    terminals, timeouts = np.isin(np.arange(n), last[[0, 2]]), np.isin(np.arange(n), last[[1, 3]])
    rng = np.random.default_rng(1)
    vectors = (rng.standard_normal((3, n, 2)) * (1, 10)).astype(np.float32)
    fields = {"observations": vectors[0], "actions": vectors[1], "next_observations": vectors[0] + vectors[2]}
    rewards = np.arange(n, dtype=np.float32)
    flags = {"terminals": terminals, "timeouts": timeouts, "rewards": rewards}
    return Dataset(
        "hopper-medium-regen", "regenerated", Path("x"), **fields, **flags, attributes={}, episode_returns=None
    )


def rows_left(how, seed=0):
    """Numbers of the rows that are left: rewards count them."""
    return worsened(dataset(), how, seed).rewards.astype(int)


def test_first_steps_are_removed():
    assert rows_left("starts=10").tolist() == [k for k in range(100) if k - STARTS[k] >= 10]


def test_steps_before_a_termination_are_removed_and_those_before_a_time_limit_are_not():
    assert rows_left("ends=10").tolist() == [*range(20), *range(30, 35), *range(35, 50), *range(60, 100)]


def test_a_share_of_the_steps_before_a_termination_is_kept():
    near = {*range(10, 30), *range(40, 60)}
    left = [set(rows_left("rare-ends=0.3", seed)) for seed in range(20)]
    assert all(set(range(100)) - near <= rows for rows in left)
    assert np.mean([len(rows & near) / len(near) for rows in left]) == pytest.approx(0.3, abs=0.06)
    assert left[0] != left[1]


def test_the_row_before_a_gap_does_not_continue():
    found = worsened(dataset(), "ends=10", 0)
    assert np.flatnonzero(found.timeouts).tolist() == [19, 24, 39, 79]
    assert not found.terminals.any()
    assert np.diff(found.episodes(), axis=1).ravel().tolist() == [20, 5, 15, 40]


@pytest.mark.parametrize("size", [0.1, 0.5])
def test_noise_is_a_share_of_the_change_per_step(size):
    plain, found = dataset(), worsened(dataset(), f"blur={size}", 0)
    change = (plain.next_observations - plain.observations).std(0)
    noise = {name: getattr(found, name) - getattr(plain, name) for name in ("observations", "next_observations")}
    for added in noise.values():
        np.testing.assert_allclose(added.std(0), size * change, rtol=0.3)
    assert abs(np.corrcoef(noise["observations"][:, 0], noise["next_observations"][:, 0])[0, 1]) < 0.4
    assert (found.rewards - plain.rewards).std() == pytest.approx(size * plain.rewards.std(), rel=0.3)
    for name in ("actions", "terminals", "timeouts"):
        assert np.array_equal(getattr(found, name), getattr(plain, name))
    assert found.observations.dtype == found.rewards.dtype == np.float32


def test_copies_are_whole_sets_that_differ_a_little():
    plain, found = dataset(), worsened(dataset(), "copies=3", 0)
    assert len(found) == 300
    assert np.array_equal(found.actions, np.tile(plain.actions, (3, 1)))
    assert len(found.episodes()) == 12
    one, other = found.observations[:100], found.observations[100:200]
    assert not np.array_equal(one, other)
    np.testing.assert_allclose(one, other, atol=0.1 * plain.observations.std())


def test_a_seed_repeats():
    one, again, other = (worsened(dataset(), "blur=0.1", seed).observations for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    "how",
    ["", "ends", "ends=", "ends=0", "ends=2.5", "starts=-1", "blur=nan", "blur=0", "rare-ends=1", "copies=1.5", "x=1"],
)
def test_other_ways_are_refused(how):
    with pytest.raises(ValueError, match="worsen: "):
        parse(how)


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="no row of hopper-medium-regen is left"):
        worsened(dataset(), "starts=100", 0)
