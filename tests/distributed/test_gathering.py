"""Requests of several threads that are computed together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from synther_replay.distributed.gathering import Gathering


def test_requests_of_all_threads_are_one_call():
    calls = []

    def compute(numbers):
        calls.append(sorted(numbers))
        return [10 * number for number in numbers]

    gathering = Gathering(compute, size=4, wait=60.0)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(gathering.submit, range(4))) == [0, 10, 20, 30]
    assert calls == [[0, 1, 2, 3]]


def test_those_that_do_not_come_are_not_waited_for_for_ever():
    gathering = Gathering(lambda numbers: numbers, size=4, wait=0.01)
    assert gathering.submit("alone") == "alone"


def test_an_error_reaches_the_request_that_it_belongs_to():
    gathering = Gathering(lambda numbers: [ValueError("odd") if n % 2 else n for n in numbers], size=2, wait=60.0)
    with ThreadPoolExecutor(2) as pool:
        even, odd = pool.submit(gathering.submit, 2), pool.submit(gathering.submit, 3)
        assert even.result() == 2
        with pytest.raises(ValueError, match="odd"):
            odd.result()


def test_an_error_of_the_call_reaches_all():
    def compute(_):
        raise MemoryError("full")

    gathering = Gathering(compute, size=2, wait=60.0)
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(gathering.submit, 1) for _ in range(2)]:
            with pytest.raises(MemoryError, match="full"):
                future.result()


def test_requests_during_a_call_are_the_next_call():
    begun, may_end, calls = threading.Event(), threading.Event(), []

    def compute(numbers):
        calls.append(list(numbers))
        begun.set()
        may_end.wait(60.0)
        return numbers

    gathering = Gathering(compute, size=1, wait=0.0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(gathering.submit, 1)
        begun.wait(60.0)
        second = pool.submit(gathering.submit, 2)
        may_end.set()
        assert (first.result(), second.result()) == (1, 2)
    assert sorted(calls) == [[1], [2]]


def test_requests_that_nobody_waits_for_do_not_count():
    calls = []

    def compute(numbers):
        calls.append(sorted(numbers))
        return numbers

    gathering = Gathering(compute, size=2, wait=60.0, is_wanted=lambda number: number >= 0)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(gathering.submit, (-1, 2, 3)))
    assert calls == [[-1, 2, 3]]
