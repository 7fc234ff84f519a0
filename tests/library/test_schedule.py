"""When the generator is refitted."""

import dataclasses
import itertools
import json
import math

import pytest

from synther_replay.errors import CheckpointError
from synther_replay.replay.schedule import RetrainSchedule

SCHEDULE = RetrainSchedule(every=10, rows=5, start=20)


@pytest.mark.parametrize(("steps", "due"), [(0, False), (19, False), (20, True), (21, True), (1_000, True)])
def test_first_refit_is_due_from_start_on(steps, due):
    assert SCHEDULE.is_due(steps, None) is due


@pytest.mark.parametrize(("steps", "due"), [(23, False), (32, False), (33, True), (34, True), (1_000, True)])
def test_next_refit_is_due_every_so_many_steps_after_the_last(steps, due):
    assert SCHEDULE.is_due(steps, 23) is due


def test_refit_at_step_zero_counts_as_one():
    assert not RetrainSchedule(every=10, start=1).is_due(9, 0)
    assert RetrainSchedule(every=10, start=1).is_due(10, 0)


def test_no_refit_is_missed_when_seven_environments_step_together():
    refits = []
    for steps in range(0, 101, 7):
        if SCHEDULE.is_due(steps, refits[-1] if refits else None):
            refits.append(steps)
    assert refits == [21, 35, 49, 63, 77, 91]


def refits(schedule, until):
    """Steps of all refits of a run."""
    done = []
    for steps in range(until + 1):
        if schedule.is_due(steps, done[-1] if done else None):
            done.append(steps)
    return done


def test_with_growth_intervals_lengthen_with_the_run_but_never_beyond_the_papers():
    done = refits(RetrainSchedule(every=1_000, rows=5, start=4_000, growth=0.25), 150_000)
    intervals = [after - before for before, after in itertools.pairwise(done)]
    assert done[:4] == [4_000, 5_000, 6_250, 7_813]  # a quarter more each time, rounded up
    assert intervals == sorted(intervals)
    assert set(intervals[-5:]) == {10_000}


def test_growth_shortens_no_interval():
    assert refits(RetrainSchedule(every=20_000, start=5, growth=0.5), 70_000) == [5, 20_005, 40_005, 60_005]


def test_without_growth_intervals_are_even():
    assert refits(RetrainSchedule(every=30, start=50), 200) == [50, 80, 110, 140, 170, 200]


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "0.1", None, True])
def test_a_growth_that_is_no_share_is_refused(value):
    with pytest.raises(ValueError, match=f"growth.*{value!r}"):
        RetrainSchedule(growth=value)


@pytest.mark.parametrize("name", ["every", "rows", "start"])
@pytest.mark.parametrize("value", [0, -1, 2.5, 10.0, math.nan, "10", None])
def test_numbers_that_make_no_schedule_are_refused_by_name(name, value):
    with pytest.raises((TypeError, ValueError), match=f"{name}.*{value!r}"):
        RetrainSchedule(**{name: value})


def test_one_is_the_smallest_number_accepted():
    assert dataclasses.astuple(RetrainSchedule(every=1, rows=1, start=1)) == (1, 1, 1, 0.0)


def test_schedule_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SCHEDULE.every = 1


def test_presets():
    assert RetrainSchedule.paper() == RetrainSchedule(every=10_000, rows=1_000_000, start=10_000)
    assert RetrainSchedule.fast() == RetrainSchedule(every=2_500, rows=400_000, start=2_500, growth=0.125)
    assert RetrainSchedule() == RetrainSchedule(every=2_500, rows=400_000, start=2_500, growth=0.0)
    tiny, fast = RetrainSchedule.tiny(), RetrainSchedule.fast()
    assert tiny.every > fast.every
    assert tiny.rows < fast.rows


@dataclasses.dataclass(frozen=True)
class Pausing(RetrainSchedule):
    """A schedule of a user."""

    pauses: tuple[int, ...] = ()

    def is_due(self, steps, last_refit):
        return steps not in self.pauses and super().is_due(steps, last_refit)


class Lazy(RetrainSchedule):
    """Without fields of its own, and with another constructor."""

    def __init__(self):
        super().__init__(every=7, rows=8, start=9)

    def is_due(self, steps, last_refit):
        return False


def test_state_restores_the_fields_and_keeps_the_class():
    saved = json.loads(json.dumps(Pausing(every=3, rows=4, start=5, growth=0.5, pauses=(6, 7)).state_dict()))
    restored = Pausing(pauses=(1,)).restored(saved)
    assert restored == Pausing(every=3, rows=4, start=5, growth=0.5, pauses=(6, 7))
    assert type(restored) is Pausing
    lazy = Lazy().restored(SCHEDULE.state_dict())
    assert (type(lazy), lazy.state_dict()) == (Lazy, SCHEDULE.state_dict())


@pytest.mark.parametrize(
    ("into", "state"),
    [
        (Pausing(), RetrainSchedule().state_dict()),
        (RetrainSchedule(), Pausing().state_dict()),
        (RetrainSchedule(), {}),
        (RetrainSchedule(), {"every": 1, "rows": 1, "start": 1}),
    ],
)
def test_state_with_other_fields_is_refused_and_both_sides_are_named(into, state):
    with pytest.raises(CheckpointError) as caught:
        into.restored(state)
    for name in {*state, *into.state_dict()}:
        assert name in str(caught.value)


def test_state_with_invalid_values_is_refused():
    with pytest.raises(ValueError, match="every"):
        RetrainSchedule().restored({**RetrainSchedule().state_dict(), "every": 0})
