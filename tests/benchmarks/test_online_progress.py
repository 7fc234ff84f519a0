"""Progress and clocks of an online run."""

import contextlib
import json
import math

import numpy as np

from synther_replay.benchmarks.common import timing
from synther_replay.benchmarks.online.progress import CLOCKS, Progress


def test_lengths_are_those_of_the_running_episodes():
    progress, healthy = Progress(2), np.zeros(2, bool)
    for episodes in ([0, 0], [0, 1], [0, 1], [1, 1]):
        progress.advance(np.array(episodes), healthy)
    assert progress.step == 4
    assert progress.lengths.tolist() == [0, 2]


def test_a_seed_fails_once():
    progress, episodes = Progress(3), np.zeros(3, int)
    found = [progress.advance(episodes, np.array(failed)) for failed in ([0, 0, 0], [0, 1, 0], [0, 1, 1])]
    assert found == [[], [1], [2]]
    assert progress.failed_at == [None, 1, 2]


def test_returns_end_where_a_seed_failed():
    progress = Progress(4)
    progress.failed_at = [None, 10, 9, None]
    progress.curve = {10: [1.234, 2.0, 3.0, math.inf], 11: [math.nan, 2.0, 3.0, 4.0]}
    assert progress.returns(10) == [1.23, 2.0, None, None]
    assert progress.returns(11) == [None, None, None, 4.0]


def test_value_estimates_end_where_a_seed_failed():
    progress = Progress(3)
    progress.failed_at = [None, 9, None]
    progress.value_estimates = {10: {"value": [1.2345678, 2.0, math.nan], "reward": [0.0, 1.0, 2.0]}}
    assert progress.value_estimates_at(10) == {"value": [1.23457, None, None], "reward": [0.0, None, 2.0]}


def test_time_adds_up_over_stops_but_does_not_count_between_them(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])

    def spend(progress, clock, seconds):
        with progress.clock(clock):
            now[0] += seconds

    first = Progress(1)
    spend(first, "fit", 2.0)
    now[0] += 1.0  # on no clock
    state = json.loads(json.dumps(first.state_dict()))
    now[0] += 1000.0
    second = Progress(1)
    spend(second, "start", 4.0)
    second.load_state_dict(state)
    spend(second, "fit", 8.0)
    assert second.wall_seconds() == {**dict.fromkeys(CLOCKS, 0.0), "total": 15.0, "fit": 10.0, "start": 4.0}


def test_a_clock_counts_also_what_ends_in_an_error(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])
    progress = Progress(1)
    with contextlib.suppress(KeyError), progress.clock("env"):
        now[0] += 3.0
        raise KeyError
    assert progress.wall_seconds()["env"] == 3.0


def test_state_comes_back_through_json():
    progress = Progress(2)
    progress.advance(np.array([0, 1]), np.array([True, False]))
    progress.last_refit, progress.fits = 1, [{"step": 1}]
    progress.curve = {1: [1.0, math.nan]}
    progress.value_estimates = {1: {"value": [2.0, 3.0]}}
    fresh = Progress(2)
    fresh.load_state_dict(json.loads(json.dumps(progress.state_dict())))
    assert (fresh.step, fresh.last_refit, fresh.fits, fresh.failed_at) == (1, 1, [{"step": 1}], [0, None])
    assert (fresh.lengths.tolist(), fresh.episodes.tolist()) == ([1, 0], [0, 1])
    assert repr(fresh.curve) == repr(progress.curve)
    assert fresh.value_estimates == progress.value_estimates


def test_a_checkpoint_without_value_estimates_resumes():
    state = Progress(1).state_dict()
    del state["value_estimates"]
    fresh = Progress(1)
    fresh.load_state_dict(state)
    assert fresh.value_estimates == {}
