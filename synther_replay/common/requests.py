"""Work that the learner's thread must do for a job in another thread."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from synther_replay.common.cancelling import check_cancelled

_LOOKS_EVERY = 0.1  # seconds, for a job that was dropped


class Requests:
    """Functions that a job asks the learner's thread to call, when that comes by; made in the learner's thread."""

    def __init__(self) -> None:
        """Start without any."""
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        _HERE.requests.add(self)

    def call(self, function: Callable[[], Any]) -> Any:
        """In the job's thread: wait until the function was called, and return its result or raise its error."""
        answer: Future[Any] = Future()
        self._asked.put((function, answer))
        while not answer.done():
            try:
                answer.result(_LOOKS_EVERY)
            except TimeoutError:
                check_cancelled()
            except BaseException:
                break  # raised below
        return answer.result()

    def serve(self) -> bool:
        """In the learner's thread: call what was asked for; return whether there was something."""
        served = False
        while not self._asked.empty():
            function, answer = self._asked.get()
            served = True
            try:
                answer.set_result(function())
            except BaseException as error:  # the job must not wait for ever, whatever stops the learner
                answer.set_exception(error)
                if not isinstance(error, Exception):
                    raise
        return served


class _Here(threading.local):
    """The requests of the jobs that this thread has started."""

    def __init__(self) -> None:
        self.requests: weakref.WeakSet[Requests] = weakref.WeakSet()


_HERE = _Here()


def serve_jobs() -> None:
    """Do what the jobs of this thread ask for; call it while waiting for something that a job may hold."""
    for requests in list(_HERE.requests):
        requests.serve()


_REQUESTS: ContextVar[Requests | None] = ContextVar("requests", default=None)


@contextmanager
def asking(requests: Requests) -> Iterator[None]:
    """Let `in_learners_thread` ask within."""
    token = _REQUESTS.set(requests)
    try:
        yield
    finally:
        _REQUESTS.reset(token)


def in_learners_thread(function: Callable[[], Any]) -> Any:
    """Call a function in the learner's thread; here, if this is no job of another thread."""
    requests = _REQUESTS.get()
    return function() if requests is None else requests.call(function)
