"""The store of generated transitions."""

import copy
import sys

import pytest
import torch
from gymnasium import spaces
from scipy.stats import chisquare

from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import CheckpointError
from synther_replay.replay.indices import IndexStream
from synther_replay.replay.store import SyntheticStore

CPU = torch.device("cpu")


@pytest.fixture
def holding(spec, numbered):
    """Makes a store that holds transitions numbered from `first` on."""

    def make(n, first=0, capacity=100, seed=0):
        store = SyntheticStore(spec, capacity, CPU, seed=seed)
        if n:
            store.replace(numbered(n, first))
        return store

    return make


@pytest.fixture
def numbers(spec):
    return lambda rows: rows[:, spec.rewards.start].int().tolist()


# --- replacing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 30, 50, 100])
def test_replace_throws_away_all_that_was_held(holding, numbered, numbers, n):
    store = holding(50)
    store.sample(8)  # also gathers the next batches
    store.replace(numbered(n, 1_000))
    assert len(store) == n
    drawn = {number for _ in range(200) for number in numbers(store.sample(8))}
    assert drawn == set(range(1_000, 1_000 + n))


def test_rows_beyond_the_capacity_are_refused_and_change_nothing(holding, numbered, same):
    store = holding(50)
    store.sample(3)
    before = store.state_dict()
    with pytest.raises(ValueError, match=r"transitions: expected at most 100 rows, got shape \(101, 7\)"):
        store.replace(numbered(101))
    assert same(store.state_dict(), before)
    store.replace(numbered(100))
    assert len(store) == 100


def test_rows_of_several_runs_are_refused_and_change_nothing(holding, numbered, spec, same):
    store = holding(50)
    before = store.state_dict()
    with pytest.raises(ValueError, match="transitions"):
        store.replace(Transitions(spec, numbered(6).rows.view(2, 3, -1)))
    assert same(store.state_dict(), before)


@pytest.mark.parametrize("held", [0, 50])
@pytest.mark.parametrize("width", [2, 5])
def test_rows_of_another_spec_are_refused_and_change_nothing(holding, same, held, width):
    store = holding(held)
    before = store.state_dict()
    other = TransitionSpec.from_spaces(spaces.Box(-1, 2, (width,)), spaces.Discrete(3))
    with pytest.raises(ValueError, match="transitions"):
        store.replace(Transitions(other, torch.zeros(5, other.dim)))
    assert same(store.state_dict(), before)


@pytest.mark.parametrize("capacity", [0, -1])
def test_capacity_below_one_is_refused(spec, capacity):
    with pytest.raises(ValueError, match=f"capacity.*{capacity}"):
        SyntheticStore(spec, capacity, CPU)


@pytest.mark.parametrize("size", [20, 50, 80])
def test_interrupted_replacement_leaves_the_old_rows_or_the_new_ones(holding, numbered, numbers, size):
    """An interrupt before any bytecode of `replace` must leave the old or the new contents."""

    class Interrupt(BaseException):
        pass

    def interrupt_at(step):
        steps = iter(range(step, -1, -1))

        def trace(frame, event, _):
            if frame.f_code is not SyntheticStore.replace.__code__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and next(steps) == 0:
                raise Interrupt
            return trace

        return trace

    previous, interrupted = sys.gettrace(), True
    sys._getframe().f_trace_opcodes = True  # Python >= 3.12 traces opcodes only if a frame asked for it before settrace
    step = 0
    while interrupted:
        store = holding(50)
        store.sample(8)
        sys.settrace(interrupt_at(step))
        try:
            store.replace(numbered(size, 1_000))
            interrupted = False
        except Interrupt:
            step += 1
        finally:
            sys.settrace(previous)
        first, held = (0, 50) if numbers(store.rows)[0] == 0 else (1_000, size)
        assert len(store) == held
        assert numbers(store.rows) == list(range(first, first + held))
        assert {number for _ in range(40) for number in numbers(store.sample(8))} <= set(range(first, first + held))
    assert step > 10
    assert first == 1_000


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_empty_store_cannot_be_sampled(holding, numbered):
    cleared, emptied = holding(50), holding(50)
    cleared.sample(3)
    cleared.clear()
    emptied.sample(3)
    emptied.replace(numbered(0))
    for store in (holding(0), cleared, emptied):
        assert len(store) == 0
        with pytest.raises(ValueError, match="empty"):
            store.sample(3)


def test_samples_are_whole_rows_of_the_store(holding, numbered, numbers):
    store, rows = holding(50), numbered(50).rows
    for n in (1, 8, 8, 300, 8, 70_000):
        drawn = store.sample(n)
        assert drawn.shape == (n, rows.shape[1])
        assert torch.equal(drawn, rows[numbers(drawn)])


def test_every_row_is_equally_likely(holding, numbers):
    store = holding(20)
    drawn = torch.tensor([number for _ in range(500) for number in numbers(store.sample(16))])
    assert chisquare(drawn.bincount(minlength=20).numpy()).pvalue > 1e-3


def test_samples_differ_from_each_other(holding):
    store = holding(50)
    drawn = torch.stack([store.sample(16) for _ in range(100)])
    assert len(drawn.unique(dim=0)) == 100


def test_samples_may_be_kept_and_changed(holding):
    spoilt, plain = holding(50), holding(50)
    kept = []
    for _ in range(80):
        rows, expected = spoilt.sample(8), plain.sample(8)
        assert torch.equal(rows, expected)
        kept.append((rows, rows.fill_(99).clone()))
    assert all(torch.equal(rows, then) for rows, then in kept)
    assert torch.equal(spoilt.rows, plain.rows)


def test_same_seed_gives_the_same_samples_and_another_seed_others(holding):
    first = holding(50, seed=1).sample(30)
    assert torch.equal(first, holding(50, seed=1).sample(30))
    assert not torch.equal(first, holding(50, seed=2).sample(30))


# --- state ------------------------------------------------------------------------------------------------------------


def draw(store, sizes):
    return [store.sample(n).clone() for n in sizes]


@pytest.mark.parametrize("target", [0, 20, 100])
@pytest.mark.parametrize("before", [[], [8], [8] * 31, [8] * 32, [8] * 33, [8, 5], [8, 5] * 20, [70_000]])
def test_store_continues_from_a_state(holding, numbered, before, target):
    store, other = holding(50, seed=1), holding(target, first=500, seed=2)
    if target:
        other.sample(8)
    for n in before:
        store.sample(n)
    other.load_state_dict(store.state_dict())
    assert len(other) == 50
    after = [8, 8, 3, *[8] * 70, 70_000, 8]
    for a, b in zip(draw(store, after), draw(other, after), strict=True):
        assert torch.equal(a, b)
    for one in (store, other):
        one.replace(numbered(30, 900))
    assert torch.equal(store.sample(8), other.sample(8))


def test_empty_store_continues_from_a_state(holding, numbered):
    store, other = holding(0, seed=1), holding(50, seed=2)
    other.load_state_dict(store.state_dict())
    assert len(other) == 0
    with pytest.raises(ValueError, match="empty"):
        other.sample(8)
    for one in (store, other):
        one.replace(numbered(30, 900))
    assert torch.equal(store.sample(8), other.sample(8))


def test_state_is_a_copy(holding, numbered, same):
    store = holding(50)
    store.sample(8)
    state = store.state_dict()
    again = copy.deepcopy(state)
    other = holding(0)
    other.load_state_dict(state)
    for one in (store, other):
        for _ in range(40):
            one.sample(8).fill_(99)
        one.replace(numbered(50, 900))
    assert same(state, again)


def test_state_that_does_not_fit_is_refused_and_changes_nothing(holding, same):
    store = holding(20, capacity=40)
    store.sample(8)
    before = store.state_dict()
    other = TransitionSpec.from_spaces(spaces.Box(-1, 1, (5,)), spaces.Discrete(3))
    with pytest.raises(CheckpointError, match="41, 7"):
        store.load_state_dict(holding(41).state_dict())
    with pytest.raises(CheckpointError, match=f"0, {other.dim}"):
        store.load_state_dict(SyntheticStore(other, 40, CPU).state_dict())
    assert same(store.state_dict(), before)


def test_store_continues_after_a_move(holding):
    store, moved = holding(50), holding(50)
    for one in (store, moved):
        one.sample(8)
    moved.to(CPU)
    assert torch.equal(store.sample(8), moved.sample(8))


def test_state_of_one_batch_size_as_0_2_0_wrote_it_is_read(holding):
    store, other = holding(50, seed=1), holding(0, seed=2)
    for _ in range(5):
        store.sample(8)
    state = store.state_dict()
    (size,) = state.pop("batch_sizes")
    other.load_state_dict({**state, "batch_size": size})
    assert all(torch.equal(a, b) for a, b in zip(draw(store, [8] * 80), draw(other, [8] * 80), strict=True))
    other.load_state_dict({**state, "ahead": [], "batch_size": 0})  # before the first batch
    assert len(other.sample(8)) == 8


# --- batches gathered in advance --------------------------------------------------------------------------------------


@pytest.fixture
def gathered(monkeypatch):
    """Records the number of rows of each gathering."""
    calls, genuine = [], IndexStream.draw
    monkeypatch.setattr(
        IndexStream, "draw", lambda self, count, high: calls.append(count) or genuine(self, count, high)
    )
    return calls


def test_look_ahead_is_short_for_a_new_size(holding, gathered):
    draw(holding(50), [8, 5, 3])
    assert gathered == [16, 10, 6]


@pytest.mark.parametrize("sizes", [[8], [8, 5], [8, 5, 3, 2]])
def test_sizes_that_alternate_are_gathered_as_rarely_as_one(holding, gathered, sizes):
    draw(holding(50), sizes * 34)
    assert len(gathered) == 2 * len(sizes)


def test_the_sizes_at_hand_are_few(holding):
    store = holding(50)
    draw(store, range(1, 40))
    assert len(store._held.ahead) == 4


def test_look_ahead_is_bounded_in_bytes():
    wide = TransitionSpec.from_spaces(spaces.Box(0, 255, (200_000,)), spaces.Discrete(3))
    store = SyntheticStore(wide, 4, CPU)
    store.replace(Transitions(wide, torch.zeros(4, wide.dim)))
    for _ in range(3):
        store.sample(16)
    assert not any(store._held.ahead.values())


@pytest.mark.parametrize("batch", [torch.zeros(8, 3), torch.zeros(8), torch.zeros(8, 7, dtype=torch.float64)])
def test_state_with_a_wrong_batch_is_refused_and_changes_nothing(holding, same, batch):
    store = holding(50)
    store.sample(8)
    before = store.state_dict()
    with pytest.raises(CheckpointError, match="batch"):
        store.load_state_dict({**before, "ahead": [batch]})
    assert same(store.state_dict(), before)
