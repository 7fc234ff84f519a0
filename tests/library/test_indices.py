"""Streams of random indices and shuffles."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from synther_replay.replay.indices import IndexStream, ShuffleStream

CPU = torch.device("cpu")
BLOCK = 65_536  # block size of IndexStream
# Draws that come before a state is taken: none, within a block, up to its edge, over it, larger than a block.
POSITIONS = {
    "before the first draw": [],
    "within a block": [10, 300],
    "just before the edge": [BLOCK - 1],
    "at the edge": [BLOCK],
    "at the edge, in steps": [BLOCK // 2, BLOCK // 2],
    "after the edge": [BLOCK, 1],
    "after numbers left over": [BLOCK - 5, 10],
    "in a block of extra size": [3, BLOCK + 7],
    "after a block of extra size": [3 * BLOCK, 5],
}


def indices(seed=0):
    return IndexStream(seed, CPU)


def shuffles(seed=0):
    return ShuffleStream(seed, CPU)


def continue_drawing(stream):
    """Draws of changing size and range that extend beyond the current block."""
    sizes = [(5, 10), (5, 10), (700, 3), (1, 1), (BLOCK - 100, 1_000), (64, 2**30), (BLOCK + 1, 7), (64, 2**30)]
    return [stream.draw(count, high) for count, high in sizes]


def assert_same(draws, others):
    assert all(torch.equal(a, b) for a, b in zip(draws, others, strict=True))


# --- indices ----------------------------------------------------------------------------------------------------------


def test_same_seed_gives_the_same_indices_and_another_seed_others():
    first = indices(3).draw(100, 1_000)
    assert torch.equal(first, indices(3).draw(100, 1_000))
    assert not torch.equal(first, indices(4).draw(100, 1_000))


@pytest.mark.parametrize("high", [1, 2, 3, 1_000, 2**40 + 1])
def test_indices_are_whole_numbers_below_high(high):
    drawn = indices().draw(100_000, high)
    assert drawn.dtype == torch.long
    assert drawn.shape == (100_000,)
    assert drawn.min() >= 0
    assert drawn.max() < high
    assert drawn.max() >= 0.99 * (high - 1)


@pytest.mark.parametrize("high", [2, 7, 100])
@pytest.mark.parametrize("count", [13, 1_000, BLOCK + 5])
def test_indices_are_uniform(high, count):
    stream = indices()
    drawn = torch.cat([stream.draw(count, high) for _ in range(1 + 50_000 // count)])
    assert chisquare(drawn.bincount(minlength=high).numpy()).pvalue > 1e-3


def test_no_number_is_used_twice():
    stream = indices()
    drawn = torch.cat([stream.draw(count, 2**50) for _ in range(100) for count in (999, 1_500)])
    assert len(drawn.unique()) == len(drawn)


def test_following_draws_are_unrelated():
    stream = indices()
    pairs = torch.stack([torch.cat([stream.draw(1, 4), stream.draw(1, 4)]) for _ in range(8_000)])
    assert chisquare((pairs[:, 0] * 4 + pairs[:, 1]).bincount(minlength=16).numpy()).pvalue > 1e-3


def test_a_change_of_range_leaves_the_numbers_behind_it_alone():
    plain, changing = indices(), indices()
    for high in (10, 10, 11, 10, 5):
        plain.draw(20, 1_000)
        changing.draw(20, high)
    assert torch.equal(plain.draw(20, 1_000), changing.draw(20, 1_000))


def test_the_numbers_do_not_depend_on_how_they_are_drawn():
    one, many = indices(), indices()
    counts = [5, 5, 3, 5, 3, 5, 3, 3, 3, 3, 7, 1, 5, 5, 5, 5, 5, 5, 5]
    drawn = torch.cat([many.draw(count, 1_000) for count in counts])
    assert torch.equal(drawn, one.draw(sum(counts), 1_000))


def test_draw_larger_than_a_block_comes_whole():
    stream = indices()
    stream.draw(10, 5)
    assert stream.draw(3 * BLOCK, 5).shape == (3 * BLOCK,)
    assert stream.draw(10, 5).shape == (10,)


@pytest.mark.parametrize("before", POSITIONS.values(), ids=POSITIONS)
def test_indices_continue_from_a_state(before):
    stream = indices(seed=5)
    for count in before:
        stream.draw(count, 9)
    state = stream.state_dict()
    expected = continue_drawing(stream)
    fresh, used = indices(seed=6), indices(seed=7)
    used.draw(BLOCK + 77, 9)
    for other in (fresh, used, stream):
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert_same(continue_drawing(other), expected)


def test_indices_go_back_to_a_state():
    stream = indices()
    stream.draw(10, 9)
    state = stream.state_dict()
    expected = [stream.draw(10, 9) for _ in range(50)]
    stream.load_state_dict(state)
    assert_same([stream.draw(10, 9) for _ in range(50)], expected)


def test_state_of_indices_is_plain_integers():
    stream = indices()
    stream.draw(10, 5)
    assert all(type(value) is int for value in stream.state_dict().values())


def test_indices_continue_after_a_move():
    stream, moved = indices(), indices()
    for one in (stream, moved):
        one.draw(10, 5)
    moved.to(CPU)
    assert_same(continue_drawing(moved), continue_drawing(stream))


# --- shuffles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 7, 256, 70_000])
def test_shuffle_is_a_permutation(n):
    stream = shuffles()
    for _ in range(3):
        drawn = stream.draw(n, n)
        assert drawn.dtype == torch.long
        assert torch.equal(drawn.sort().values, torch.arange(n))


def test_same_seed_gives_the_same_shuffles_and_another_seed_others():
    assert torch.equal(shuffles(3).draw(50, 50), shuffles(3).draw(50, 50))
    assert not torch.equal(shuffles(3).draw(50, 50), shuffles(4).draw(50, 50))


def test_shuffles_differ_from_each_other():
    stream = shuffles()
    drawn = torch.stack([stream.draw(20, 20) for _ in range(300)])
    assert len(drawn.unique(dim=0)) == 300


def test_all_orders_are_equally_likely():
    stream = shuffles()
    drawn = torch.stack([stream.draw(4, 4) for _ in range(6_000)])
    counts = np.unique(drawn.numpy(), axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("before", [0, 1, 63, 64, 65, 128, 130])
def test_shuffles_continue_from_a_state(before):
    stream = shuffles(seed=5)
    for _ in range(before):
        stream.draw(6, 6)
    state = stream.state_dict()
    sizes = [6, 6, 9, *[6] * 70, 1, 6]
    expected = [stream.draw(n, n) for n in sizes]
    fresh, used = shuffles(seed=6), shuffles(seed=7)
    for _ in range(100):
        used.draw(6, 6)
    for other in (fresh, used, stream):
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert_same([other.draw(n, n) for n in sizes], expected)


def test_shuffles_of_several_sizes_continue_from_a_state():
    stream, other = shuffles(seed=5), shuffles(seed=6)
    for k in range(101):
        stream.draw(6 + k % 3, 4)
    other.load_state_dict(stream.state_dict())
    assert other.state_dict() == stream.state_dict()
    sizes = [6 + k % 5 for k in range(300)]
    assert_same([other.draw(n, 4) for n in sizes], [stream.draw(n, 4) for n in sizes])


@pytest.mark.parametrize("before", [0, 1, 4, 30, 68])
def test_state_of_shuffles_as_0_2_0_wrote_it_is_read(before):
    stream, other = shuffles(seed=5), shuffles(seed=6)
    for _ in range(before):
        stream.draw(6, 4)
    state = stream.state_dict()
    old = {"seed": 5, "number": -1, "size": [0, 0], "shuffles": 0, "left": 0, **dict(*state["blocks"])}
    other.load_state_dict(old)
    assert_same([other.draw(6, 4) for _ in range(200)], [stream.draw(6, 4) for _ in range(200)])


def test_loading_a_state_makes_no_permutation():
    stream = shuffles()
    huge = {"size": [2**50, 2**50], "number": 3, "shuffles": 1, "left": 1}
    stream.load_state_dict({"seed": 0, "number": 3, "blocks": [huge]})
    assert len(stream.draw(6, 6)) == 6


@pytest.mark.parametrize("sizes", [[6], [6, 9], list(range(6, 14))])
def test_permutations_of_sizes_that_alternate_are_made_as_rarely_as_of_one(monkeypatch, sizes):
    made, genuine = [], np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: made.append(seed) or genuine(seed))
    stream = shuffles()
    for _ in range(4 + 64):
        for n in sizes:
            stream.draw(n, 3)
    assert len(made) == 2 * len(sizes)
    assert len({tuple(seed) for seed in made}) == len(made), "no block twice"


def test_the_sizes_at_hand_are_few():
    stream = shuffles()
    for n in range(1, 60):
        stream.draw(n, 1)
    assert len(stream.state_dict()["blocks"]) == 8


def test_shuffles_continue_after_a_move():
    stream, moved = shuffles(), shuffles()
    for one in (stream, moved):
        one.draw(6, 6)
    moved.to(CPU)
    assert torch.equal(moved.draw(6, 6), stream.draw(6, 6))


# --- both -------------------------------------------------------------------------------------------------------------


def test_streams_leave_global_random_states_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    indices().draw(100, 5)
    shuffles().draw(5, 5)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


def test_places_are_the_beginnings_of_permutations_and_uniform():
    stream = shuffles()
    drawn = torch.stack([stream.draw(6, 2) for _ in range(6_000)])
    assert drawn.shape == (6_000, 2)
    assert (drawn[:, 0] != drawn[:, 1]).all()
    counts = drawn.flatten().bincount(minlength=6)
    assert counts.min() > 1_850
    assert counts.max() < 2_150


@pytest.mark.parametrize(
    "change",
    [
        {"seed": -1},
        {"size": 10**12, "cursor": 0},
        {"cursor": 65_537},
        {"cursor": -1},
        {"number": -2},
        {"number": -1},
        {"size": 1.5},
        {"seed": "0"},
    ],
    ids=str,
)
def test_impossible_position_of_indices_is_refused_and_changes_nothing(change):
    stream = indices()
    stream.draw(3, 10)
    before = stream.state_dict()
    with pytest.raises((TypeError, ValueError)):
        stream.load_state_dict({**before, **change})
    assert stream.state_dict() == before


@pytest.mark.parametrize(
    "change",
    [
        {"size": [10**10, 2], "shuffles": 64},
        {"size": [5, 6]},
        {"shuffles": 10**10},
        {"shuffles": 65},
        {"left": 5},
        {"left": -1},
        {"number": -1},
        {"size": [5]},
        {"size": 5},
    ],
    ids=str,
)
def test_impossible_position_of_shuffles_is_refused_and_changes_nothing(change):
    stream = shuffles()
    stream.draw(5, 2)
    before = stream.state_dict()
    forged = {**before, "blocks": [{**before["blocks"][0], **change}]}
    with pytest.raises((TypeError, ValueError)):
        stream.load_state_dict(forged)
    assert stream.state_dict() == before
