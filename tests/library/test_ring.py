"""The ring of real transitions."""

import copy
import pickle
import sys
import threading

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chisquare

from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.errors import CheckpointError
from synther_replay.generator import DiffusionGenerator
from synther_replay.replay.buffer import SyntheticReplayBuffer
from synther_replay.replay.ring import RingBuffer

# Transitions added before a state is taken from, or given to, a ring of 10.
FILLS = {"empty": [], "part": [4], "full": [10], "wrapped": [7, 6], "overfull": [3, 25]}


@pytest.fixture
def filled(spec, numbered):
    """Makes a ring with batches of these sizes added, numbered through."""

    def make(sizes, capacity=10, seed=0):
        ring = RingBuffer(spec, capacity, seed=seed, device="cpu")
        total = 0
        for n in sizes:
            ring.add(numbered(n, total))
            total += n
        return ring

    return make


def numbers(transitions):
    return transitions.rewards.int().tolist()


# --- adding -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 7), st.lists(st.integers(0, 16), max_size=8))
@example(5, [5, 5])
@example(5, [3, 5])
@example(5, [3, 2, 1])
@example(5, [2, 13, 1])
@example(1, [1, 1, 3])
def test_ring_holds_the_last_transitions_oldest_first(numbered, spec, capacity, sizes):
    ring, added = RingBuffer(spec, capacity, device="cpu"), []
    for n in sizes:
        ring.add(numbered(n, len(added)))
        added += range(len(added), len(added) + n)
        held = added[-capacity:]
        assert len(ring) == len(held)
        assert numbers(ring.transitions()) == held
        if held:
            assert set(numbers(ring.sample(20))) <= set(held)


def test_a_space_in_place_of_a_spec_is_refused():
    with pytest.raises(TypeError, match=r"spec: expected a TransitionSpec, for example of .*, got Box"):
        RingBuffer(spaces.Box(-1, 1, (2,)), 10)


def test_whole_rows_are_kept_when_it_wraps(filled, numbered):
    assert torch.equal(filled([7, 6]).transitions().rows, numbered(10, first=3).rows)


def test_memory_grows_with_the_number_of_rows(filled):
    ring = filled([700, 700, 1_500, 400, 3, 900], capacity=4_000)
    assert numbers(ring.transitions()) == list(range(203, 4_203))
    filled([10], capacity=10**15)  # memory is allocated lazily


def test_single_transition_batch_and_several_runs_can_be_added(spec, numbered):
    ring = RingBuffer(spec, 20, device="cpu")
    ring.add(numbered(1))
    ring.add(numbered(3, 1))
    ring.add(Transitions(spec, numbered(6, 4).rows.view(2, 3, -1)))
    assert numbers(ring.transitions()) == list(range(10))


def test_ring_keeps_copies(spec, numbered):
    ring, some = RingBuffer(spec, 5, device="cpu"), numbered(3)
    ring.add(some)
    some.rows.fill_(99)
    assert numbers(ring.transitions()) == [0, 1, 2]


@pytest.mark.parametrize("fill", ["part", "full", "wrapped"])
def test_transitions_once_handed_out_stay_as_they_were(filled, numbered, fill):
    ring = filled(FILLS[fill])
    held = ring.transitions()
    before = held.rows.clone()
    ring.add(numbered(8, 100))
    assert torch.equal(held.rows, before)


def test_ring_can_be_filled_with_its_own_transitions(filled):
    ring = filled([7])
    ring.add(ring.transitions())
    assert numbers(ring.transitions()) == [4, 5, 6, 0, 1, 2, 3, 4, 5, 6]


def test_transitions_of_another_spec_are_refused(filled, same):
    ring = filled(FILLS["wrapped"])
    before = ring.state_dict()
    other = TransitionSpec.from_spaces(spaces.Box(-1, 2, (2,)), spaces.Discrete(3))  # as many columns, another spec
    with pytest.raises(ValueError, match=r"transitions: got spec .*, expected "):
        ring.add(Transitions(other, torch.zeros(2, other.dim)))
    assert same(ring.state_dict(), before)


@pytest.mark.parametrize("wrong", [None, np.zeros((2, 7))], ids=["None", "array"])
def test_what_is_not_transitions_is_refused(filled, spec, wrong):
    with pytest.raises(TypeError, match="transitions: expected Transitions, got"):
        filled([]).add(wrong)
    with pytest.raises(TypeError, match="rows: expected a tensor, got"):
        Transitions(spec, wrong)


def test_transitions_of_an_equal_spec_are_taken(filled, spec):
    ring = filled([])
    equal = TransitionSpec.from_spaces(spec.observation_space, spec.action_space)
    ring.add(Transitions(equal, torch.zeros(2, equal.dim)))
    assert len(ring) == 2


@pytest.mark.parametrize("capacity", [0, -1])
def test_capacity_below_one_is_refused(spec, capacity):
    with pytest.raises(ValueError, match=f"capacity.*{capacity}"):
        RingBuffer(spec, capacity, device="cpu")


def test_repr_shows_size_and_capacity(filled):
    assert repr(filled([4])) == "RingBuffer(4 of 10 transitions, device='cpu')"


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_empty_ring_cannot_be_sampled(filled):
    with pytest.raises(ValueError, match="empty"):
        filled([]).sample(1)
    assert len(filled([]).transitions()) == 0


@pytest.mark.parametrize("n", [0, -1])
def test_sample_of_nothing_is_refused(filled, n):
    ring = filled([4])
    before = ring.state_dict()["indices"]
    with pytest.raises(ValueError, match=f"n: .*{n}"):
        ring.sample(n)
    assert ring.state_dict()["indices"] == before


@pytest.mark.parametrize("fill", ["part", "full", "wrapped"])
def test_every_transition_is_equally_likely(filled, fill):
    ring = filled(FILLS[fill])
    drawn = torch.cat([ring.sample(50).rewards.long() for _ in range(100)])
    values, counts = drawn.unique(return_counts=True)
    assert values.tolist() == numbers(ring.transitions())
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_samples_are_whole_rows(filled, numbered):
    rows = filled([7, 6]).sample(50).rows
    assert torch.equal(rows, numbered(13).rows[rows[:, numbered(1).spec.rewards.start].long()])


def test_samples_may_be_changed_without_changing_the_ring(filled):
    ring = filled([7, 6])
    before = ring.transitions().rows.clone()
    ring.sample(20).rows.fill_(99)
    assert torch.equal(ring.transitions().rows, before)


def test_same_seed_gives_the_same_samples_and_another_seed_others(filled):
    first = filled([10], seed=1).sample(30).rows
    assert torch.equal(first, filled([10], seed=1).sample(30).rows)
    assert not torch.equal(first, filled([10], seed=2).sample(30).rows)


@pytest.mark.parametrize("sizes", [[4], [10], [7, 6]])
def test_rows_at_gives_the_transition_of_each_place(filled, spec, sizes):
    ring, held = filled(sizes), {}
    for number in range(sum(sizes)):
        held[number % 10] = number
    places = torch.tensor([3, 0, 2, 3])
    rows = ring.rows_at(places)
    assert rows[:, spec.rewards.start].tolist() == [held[place] for place in places.tolist()]
    rows.fill_(99)
    assert not (ring.transitions().rows == 99).any()


@pytest.mark.parametrize("place", [4, -1])
def test_rows_at_places_that_hold_nothing_are_refused(filled, place):
    with pytest.raises(IndexError):
        filled([4]).rows_at(torch.tensor([0, place]))


# --- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", FILLS)
@pytest.mark.parametrize("source", FILLS)
def test_ring_continues_from_a_state(filled, numbered, source, target):
    ring, other = filled(FILLS[source], seed=1), filled(FILLS[target], seed=2)
    for one in (ring, other):
        if len(one):
            one.sample(3)
    other.load_state_dict(ring.state_dict())
    for n in (0, 1, 4, 9):
        for one in (ring, other):
            one.add(numbered(n, 1_000))
        assert len(ring) == len(other)
        assert torch.equal(ring.transitions().rows, other.transitions().rows)
        if len(ring):
            assert torch.equal(ring.sample(40).rows, other.sample(40).rows)


def test_state_is_a_copy(filled, numbered, same):
    ring = filled([7])
    state = ring.state_dict()
    again = copy.deepcopy(state)
    ring.add(numbered(8, 100))
    ring.sample(5)
    assert same(state, again)
    other = filled([])
    other.load_state_dict(state)
    other.add(numbered(8, 100))
    assert same(state, again)


def test_state_that_does_not_fit_is_refused_and_changes_nothing(filled, same):
    ring = filled([7, 6])
    ring.sample(3)
    before = ring.state_dict()
    other = TransitionSpec.from_spaces(spaces.Box(-1, 2, (2,)), spaces.Discrete(3))
    with pytest.raises(CheckpointError, match="capacity 11"):
        ring.load_state_dict(filled([7, 6], capacity=11).state_dict())
    with pytest.raises(CheckpointError, match="spec"):
        ring.load_state_dict(RingBuffer(other, 10, device="cpu").state_dict())
    assert same(ring.state_dict(), before)


# --- threads and memory -----------------------------------------------------------------------------------------------


@pytest.fixture
def eager_switches():
    """Lets threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("wrapped", [False, True])
def test_rows_that_several_threads_add_are_all_there(eager_switches, numbered, spec, fake, wrapped):
    ring = RingBuffer(spec, 5_000, device="cpu")
    buffer = SyntheticReplayBuffer(ring, fake, real_ratio=1.0) if wrapped else ring
    rows = [numbered(1, first) for first in range(1_000)]
    failed = []

    def use(part):
        try:
            for one in part:
                buffer.add(one)
                ring.sample(2)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=use, args=(rows[k::2],)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(ring.transitions().rewards.tolist()) == list(range(1_000))
    assert not wrapped or buffer.steps == 1_000


def test_a_state_taken_while_a_thread_adds_is_whole(eager_switches, numbered, spec, fake):
    ring = RingBuffer(spec, 1_000_000, device="cpu")
    buffer, row, over = SyntheticReplayBuffer(ring, fake, real_ratio=1.0), numbered(1), threading.Event()

    def add():
        while not over.is_set():
            buffer.add(row)

    thread = threading.Thread(target=add)
    thread.start()
    try:
        for _ in range(200):
            state = buffer.state_dict()
            assert state["steps"] == state["real"]["next"] == len(state["real"]["rows"])
    finally:
        over.set()
        thread.join()


def test_rows_that_do_not_fit_on_the_device_are_kept_on_the_host(monkeypatch, numbered, spec):
    ring, twin = RingBuffer(spec, 5_000, device="cpu"), RingBuffer(spec, 5_000, device="cpu")
    ring._on_host = False  # as on a GPU
    empty, asked = torch.empty, []

    def scarce(*size, **options):
        asked.append(size[0])
        if len(asked) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty(*size, **options)

    for one in (ring, twin):
        one.add(numbered(1_000))
    monkeypatch.setattr(torch, "empty", scarce)
    with pytest.warns(RuntimeWarning, match="do not fit"):
        ring.add(numbered(110, 1_000))
    monkeypatch.undo()
    twin.add(numbered(110, 1_000))
    ring.add(numbered(3_000, 1_110))
    twin.add(numbered(3_000, 1_110))
    assert torch.equal(ring.transitions().rows, twin.transitions().rows)
    assert torch.equal(ring.sample(50).rows, twin.sample(50).rows)


def test_copies_have_locks_of_their_own(filled):
    for ring in (copy.deepcopy(filled([4])), pickle.loads(pickle.dumps(filled([4])))):
        with filled([4])._lock:
            assert len(ring.sample(3)) == 3


def test_pickle_made_on_a_gpu_is_read_without_one(filled, on_gpu, same):
    ring = filled([7, 6])
    expected = ring.state_dict()
    ring._rows = on_gpu(ring._rows)
    ring.device = torch.device("cuda", 99)
    for pickled in (pickle.loads(pickle.dumps(ring)), copy.deepcopy(ring)):
        assert pickled.device == torch.device("cpu")
        assert same(pickled.state_dict(), expected)
        pickled.add(pickled.sample(3))
        assert len(pickled) == 10


@pytest.mark.parametrize(("fill", "wrong"), [("part", 3), ("part", 5), ("empty", 1), ("full", 10), ("full", -1)])
def test_state_with_an_impossible_position_is_refused_and_changes_nothing(filled, same, fill, wrong):
    ring = filled([2])
    before = ring.state_dict()
    with pytest.raises(ValueError, match="next"):
        ring.load_state_dict({**filled(FILLS[fill]).state_dict(), "next": wrong})
    assert same(ring.state_dict(), before)


def test_failure_in_a_load_changes_nothing(filled, same):
    ring = filled([2])
    before, other = ring.state_dict(), filled([7, 6]).state_dict()
    for state in ({**other, "indices": {}}, {**other, "indices": {**other["indices"], "cursor": -1}}):
        with pytest.raises((KeyError, ValueError)):
            ring.load_state_dict(state)
        assert same(ring.state_dict(), before)


def test_rows_are_where_a_generator_is_by_default(spec):
    assert RingBuffer(spec, 5).device == DiffusionGenerator(spec).device
