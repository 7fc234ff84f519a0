"""Save and load of a buffer: a restored run continues exactly (guarantee 6)."""

import copy
import math
import pickle
from dataclasses import dataclass, replace

import pytest
import torch
from gymnasium import spaces

from synther_replay import (
    CheckpointError,
    DiffusionGenerator,
    DivergedError,
    GeneratorConfig,
    RetrainSchedule,
    RingBuffer,
    SyntheticReplayBuffer,
    Transitions,
    TransitionSpec,
)
from synther_replay.persistence import checkpoint
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint

TINY = GeneratorConfig.tiny(width=16, depth=1, embedding=8, steps=20, refit_steps=10, batch_size=32, sampling_steps=4)
SCHEDULE = RetrainSchedule(every=15, rows=64, start=40)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ckpt"


@pytest.fixture(scope="module")
def make(spec):
    """Makes a buffer whose random streams are all derived from the seed."""

    def build(seed=0, *, config=TINY, ring=70, capacity=100, schedule=SCHEDULE, real_ratio=0.5, layout=spec):
        generator = DiffusionGenerator(layout, config, device="cpu", seed=seed)
        real = RingBuffer(layout, ring, seed=seed + 10, device="cpu")
        return SyntheticReplayBuffer(
            real, generator, real_ratio=real_ratio, capacity=capacity, schedule=schedule, seed=seed + 20
        )

    return build


@pytest.fixture(scope="module")
def run(numbered):
    """Runs steps that add a transition and draw a batch, some of another size."""

    def go(buffer, start, stop):
        batches = []
        for k in range(start, stop):
            buffer.add(numbered(1, k))
            batches.append(buffer.sample(5 if k % 11 == 0 else 8).rows.clone())
        return batches

    return go


@pytest.fixture(scope="module")
def used(make, run):
    """Makes copies of a buffer with another seed and other contents."""
    buffer = make(seed=7, schedule=RetrainSchedule(every=3, rows=30, start=33), real_ratio=0.25)
    run(buffer, 500, 545)
    pickled = pickle.dumps(buffer)
    return lambda: pickle.loads(pickled)


# --- continuing -------------------------------------------------------------------------------------------------------

STOPS = [0, 1, 39, 40, 41, 47, 54, 55, 80, 100]


@pytest.fixture(scope="module")
def whole(make, run, tmp_path_factory):
    """A run that is never stopped: its batches, and copies of it and files by the number of steps."""
    folder, buffer, batches, pickled, files = tmp_path_factory.mktemp("whole"), make(), [], {}, {}
    for steps in sorted({stop + more for stop in STOPS for more in (0, 50)}):
        batches += run(buffer, len(batches), steps)
        files[steps] = folder / f"{steps}.ckpt"
        buffer.save(files[steps])
        pickled[steps] = pickle.dumps(buffer)
    return batches, lambda steps: pickle.loads(pickled[steps]), files


@pytest.mark.parametrize("target", ["fresh", "used", "itself"])
@pytest.mark.parametrize("stop", STOPS)
def test_6_saved_run_continues_as_if_it_had_not_stopped(make, run, used, whole, same, stop, target):
    """Before the first refit, at a refit, within batches gathered in advance, and after the ring has wrapped."""
    expected_batches, at, files = whole
    other = {"fresh": lambda: make(seed=1), "used": used, "itself": lambda: at(stop)}[target]()
    if target == "itself":
        run(other, stop, stop + 30)
    other.load(files[stop])
    assert same(other.state_dict(), at(stop).state_dict())
    assert same(run(other, stop, stop + 50), expected_batches[stop : stop + 50])
    expected = at(stop + 50)
    assert other.refits == expected.refits >= (stop >= 5)
    assert same(other.state_dict(), expected.state_dict())
    if len(other.store):
        assert torch.equal(other.generator.sample(100).rows, expected.generator.sample(100).rows)


def test_6_saving_changes_nothing(make, run, same, path):
    saving, plain = make(), make()
    for start in range(0, 90, 10):
        assert same(run(saving, start, start + 10), run(plain, start, start + 10))
        saving.save(path)


def test_6_everything_that_counts_is_in_the_file(make, run, path):
    buffer = make()
    run(buffer, 0, 60)
    buffer.save(path)
    other = make(seed=1, schedule=RetrainSchedule(every=99, rows=9, start=9), real_ratio=0.9)
    other.load(path)
    assert (other.real_ratio, other.schedule, other.steps, other.refits) == (0.5, SCHEDULE, 60, 2)
    assert len(other) == 60
    assert torch.equal(other.real.transitions().rows, buffer.real.transitions().rows)
    assert torch.equal(other.store.rows, buffer.store.rows)
    assert other.generator.rejected == buffer.generator.rejected


def test_6_time_of_a_failed_refit_is_kept(spec, fake, numbered, path):
    def build():
        return SyntheticReplayBuffer(
            RingBuffer(spec, 50, device="cpu"), fake, schedule=RetrainSchedule(every=10, rows=20, start=10)
        )

    def fail():
        raise DivergedError("nan")

    buffer = build()
    buffer.add(numbered(12))
    fake.during_fit = fail
    with pytest.warns(RuntimeWarning, match=r"refit .*failed"):
        buffer.sample(4)
    fake.during_fit = lambda: None
    buffer.save(path)
    other = build()
    other.load(path)
    tries = len(fake.learnt)
    other.add(numbered(9))
    other.sample(4)
    assert len(fake.learnt) == tries
    other.add(numbered(1))
    other.sample(4)
    assert len(fake.learnt) == tries + 1


def test_6_state_is_a_copy(make, run, same):
    buffer = make()
    run(buffer, 0, 60)
    state = buffer.state_dict()
    again = copy.deepcopy(state)
    run(buffer, 60, 80)
    assert same(state, again)
    other = make()
    other.load_state_dict(state)
    run(other, 60, 80)
    assert same(state, again)
    state["schedule"]["every"] = 1
    assert buffer.schedule.every == other.schedule.every == SCHEDULE.every


# --- files that are refused -------------------------------------------------------------------------------------------

OTHER_SPEC = TransitionSpec.from_spaces(spaces.Box(-1, 2, (2,)), spaces.Discrete(3))  # same width
CHANGED = {
    "another spec": {"layout": OTHER_SPEC},
    "another capacity of the real buffer": {"ring": 71},
    "another network": {"config": replace(TINY, width=32)},
}


@pytest.fixture
def target(used, run, same):
    """A buffer in use, and a check that it is unchanged and still works."""
    buffer, twin = used(), used()
    before = buffer.state_dict()

    def check():
        assert same(buffer.state_dict(), before)
        assert same(run(buffer, 600, 610), run(twin, 600, 610))

    return buffer, check


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_6_file_of_another_run_is_refused_and_changes_nothing(make, numbered, path, target, change):
    buffer, check = target
    other = make(**change)
    layout = change.get("layout", numbered(1).spec)
    other.add(Transitions(layout, numbered(45).rows))
    other.refit_or_warn()
    other.save(path)
    with pytest.raises(CheckpointError):
        buffer.load(path)
    check()


def test_6_file_with_more_rows_than_the_store_can_hold_is_refused_and_changes_nothing(make, run, path, target):
    buffer, check = target
    other = make(capacity=500, schedule=RetrainSchedule(every=15, rows=101, start=40))
    run(other, 0, 45)
    assert len(other.store) == 101
    other.save(path)
    with pytest.raises(CheckpointError, match=r"\(101, "):
        buffer.load(path)
    check()


def test_6_damaged_file_is_refused_and_changes_nothing(whole, path, target):
    buffer, check = target
    _, _, files = whole
    good = files[100].read_bytes()
    for share in (0.0, 0.1, 0.5, 0.9, 0.999):
        path.write_bytes(good[: int(share * len(good))])
        with pytest.raises(CheckpointError):
            buffer.load(path)
    for share in (0.3, 0.5, 0.7, 0.95):
        damaged = bytearray(good)
        damaged[int(share * len(good))] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            buffer.load(path)
    check()


def test_6_foreign_missing_and_newer_files_are_refused_and_change_nothing(whole, path, target, monkeypatch):
    buffer, check = target
    with pytest.raises(CheckpointError):
        buffer.load(path)
    _, at, _ = whole
    other = at(47)
    other.generator.save(path)
    with pytest.raises(CheckpointError, match="generator"):
        buffer.load(path)
    monkeypatch.setattr(checkpoint, "VERSION", checkpoint.VERSION + 1)
    other.save(path)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="version"):
        buffer.load(path)
    check()


def set_entry(state, where, value):
    *parents, last = where
    for key in parents:
        state = state[key]
    if value is ...:
        del state[last]
    else:
        state[last] = value


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("real_ratio",), 1.5),
        (("real_ratio",), math.nan),
        (("schedule",), {"every": 0, "rows": 1, "start": 1}),
        (("schedule",), {"often": 3}),
        (("shuffles",), {}),
        (("store", "indices"), {}),
        (("store", "rows"), torch.zeros(3, 2)),
        (("real", "rows"), torch.zeros(3, 2)),
        (("real",), {}),
        (("generator",), {"fits": 3}),
        (("generator", "trainer", "frequencies"), torch.zeros(1)),
        (("steps",), ...),
        (("spec",), ...),
        (("shuffles",), ...),
        (("generator",), ...),
        (("real",), ...),
    ],
)
def test_6_whole_file_with_unfit_contents_is_refused_and_changes_nothing(whole, path, target, where, value):
    buffer, check = target
    _, _, files = whole
    state = load_checkpoint(files[100], "synthetic replay buffer")
    set_entry(state, where, value)
    save_checkpoint(path, "synthetic replay buffer", state)
    with pytest.raises(CheckpointError):
        buffer.load(path)
    check()


def test_6_file_of_another_generator_is_refused_and_changes_nothing(spec, fake, numbered, path, target):
    buffer, check = target
    other = SyntheticReplayBuffer(RingBuffer(spec, 70, device="cpu"), fake)
    other.add(numbered(30))
    other.save(path)
    with pytest.raises(CheckpointError):
        buffer.load(path)
    check()


class Pausing(RetrainSchedule):
    """A schedule of a user: no refit at odd steps."""

    def is_due(self, steps, last_refit):
        return steps % 2 == 0 and super().is_due(steps, last_refit)


@dataclass(frozen=True)
class Counting(RetrainSchedule):
    """A schedule of a user with a field of its own."""

    most: int = 3


def test_6_schedule_of_a_user_keeps_its_class_and_gets_the_values_of_the_file(make, run, same, path):
    saved = Pausing(every=15, rows=64, start=41)
    buffer, other = make(schedule=saved), make(seed=1, schedule=Pausing(every=5, rows=6, start=7))
    run(buffer, 0, 30)
    buffer.save(path)
    other.load(path)
    assert (type(other.schedule), other.schedule) == (Pausing, saved)
    assert same(run(other, 30, 60), run(buffer, 30, 60))
    assert other.refits == buffer.refits == 2


def test_6_schedule_with_other_fields_is_refused_and_changes_nothing(make, run, path, target):
    buffer, check = target
    other = make(schedule=Counting(every=15, rows=64, start=40))
    run(other, 0, 45)
    other.save(path)
    with pytest.raises(CheckpointError, match=r"schedule.*most"):
        buffer.load(path)
    check()


def test_6_interrupt_in_a_load_changes_nothing(whole, target, monkeypatch):
    buffer, check = target
    _, _, files = whole
    for part in (buffer.generator, buffer.store, buffer._shuffles, buffer.real):
        genuine, calls = part.load_state_dict, []

        def interrupted(state, genuine=genuine, calls=calls):
            genuine(state)
            calls.append(state)
            if len(calls) == 1:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(part, "load_state_dict", interrupted)
            buffer.load(files[100])
    check()


# --- parts that are saved by their own means --------------------------------------------------------------------------


class ListBuffer:
    """A real buffer without `state_dict`."""

    def __init__(self, spec, rows=None):
        self.spec = spec
        self.rows = torch.empty(0, spec.dim) if rows is None else rows

    def add(self, transitions):
        self.rows = torch.cat([self.rows, transitions.rows])

    def sample(self, n):
        return Transitions(self.spec, self.rows[-n:].clone())

    def transitions(self):
        return Transitions(self.spec, self.rows)

    def __len__(self):
        return len(self.rows)


def around_list(spec, seed=0, rows=None):
    generator = DiffusionGenerator(spec, TINY, device="cpu", seed=seed)
    return SyntheticReplayBuffer(ListBuffer(spec, rows), generator, schedule=SCHEDULE, seed=seed)


def test_6_real_buffer_that_cannot_be_saved_is_named(spec, numbered, path):
    buffer = around_list(spec)
    buffer.add(numbered(10))
    with pytest.raises(TypeError, match=r"real: ListBuffer.*include_real=False"):
        buffer.save(path)
    assert not path.exists()


def test_6_run_continues_around_a_real_buffer_that_is_saved_by_its_own_means(spec, run, same, path):
    buffer = around_list(spec)
    run(buffer, 0, 60)
    buffer.save(path, include_real=False)
    other = around_list(spec, seed=1, rows=buffer.real.rows.clone())
    other.load(path)
    assert same(run(other, 60, 110), run(buffer, 60, 110))
    assert other.steps == buffer.steps == 110


def test_6_real_rows_stay_when_the_file_has_none(make, run, path):
    buffer, other = make(), make(seed=1)
    run(buffer, 0, 60)
    run(other, 200, 220)
    buffer.save(path, include_real=False)
    other.load(path)
    assert other.real.transitions().rewards.tolist() == list(range(200, 220))
    assert torch.equal(other.store.rows, buffer.store.rows)


def test_6_file_with_real_rows_is_refused_where_they_cannot_be_loaded(make, spec, run, same, path):
    buffer, other = make(), around_list(spec)
    run(buffer, 0, 60)
    run(other, 0, 50)
    buffer.save(path)
    before = other.state_dict(include_real=False)
    with pytest.raises(TypeError, match="real: ListBuffer"):
        other.load(path)
    assert same(other.state_dict(include_real=False), before)


def test_6_generator_that_cannot_be_saved_is_named(spec, numbered, path):
    class Generator:
        def fit(self, transitions): ...
        def sample(self, n):
            return numbered(n)

    buffer = SyntheticReplayBuffer(RingBuffer(spec, 50, device="cpu"), Generator(), schedule=SCHEDULE)
    buffer.add(numbered(45))
    buffer.sample(8)
    for include_real in (True, False):
        with pytest.raises(TypeError, match="generator: Generator"):
            buffer.save(path, include_real=include_real)
    assert not path.exists()
