"""When the generator is refitted."""

import dataclasses
import itertools
import math

import pytest

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
