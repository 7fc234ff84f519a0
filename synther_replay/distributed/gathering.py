"""Gathering: requests of several threads that are computed together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclass(eq=False)
class _Entry(Generic[Request, Result]):
    request: Request
    result: Result | BaseException | None = None
    is_done: threading.Event = field(default_factory=threading.Event)


class Gathering(Generic[Request, Result]):
    """Waits for `size` requests, or for `wait` seconds after the first, and computes them in one call.

    >>> Gathering(lambda numbers: [2 * number for number in numbers], size=1, wait=0.0).submit(3)
    6

    Args:
        compute: Returns a result for each request; one that is an exception is raised where the request came from.
        size: Number of requests that are not waited beyond.
        wait: Most seconds that the first request waits for the others.
        is_wanted: Whether somebody still waits for a request; others do not count for `size`.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Request]], Sequence[Result | BaseException]],
        *,
        size: int,
        wait: float,
        is_wanted: Callable[[Request], bool] = lambda _: True,
    ) -> None:
        """Start without requests."""
        self._compute, self._size, self._wait, self._is_wanted = compute, size, wait, is_wanted
        self._waiting: list[_Entry[Request, Result]] = []
        self._changed = threading.Condition()

    def submit(self, request: Request) -> Result:
        """Return the result of a request; the first of several computes for all."""
        entry: _Entry[Request, Result] = _Entry(request)
        with self._changed:
            self._waiting.append(entry)
            is_first = len(self._waiting) == 1
            self._changed.notify_all()
            if is_first:
                self._changed.wait_for(self._is_complete, self._wait)
                gathered, self._waiting = self._waiting, []
        if is_first:
            self._answer(gathered)
        entry.is_done.wait()
        if isinstance(entry.result, BaseException):
            raise entry.result
        assert entry.result is not None  # after the event
        return entry.result

    def _is_complete(self) -> bool:
        return sum(self._is_wanted(entry.request) for entry in self._waiting) >= self._size

    def _answer(self, gathered: list[_Entry[Request, Result]]) -> None:
        results: Sequence[Result | BaseException]
        try:
            results = self._compute([entry.request for entry in gathered])
        except BaseException as error:  # of all of them
            results = [error] * len(gathered)
        for entry, result in zip(gathered, results, strict=True):
            entry.result = result
            entry.is_done.set()
