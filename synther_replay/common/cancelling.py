"""Cancelling long work in a thread: the work asks from time to time whether it is still wanted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CANCELLED: ContextVar[threading.Event | None] = ContextVar("cancelled", default=None)


class CancelledError(BaseException):
    """The result of the work is not wanted any more; no `Exception`, so that nobody takes it for a failure."""


@contextmanager
def cancelled_by(event: threading.Event) -> Iterator[None]:
    """Let `check_cancelled` raise within, once the event is set."""
    token = _CANCELLED.set(event)
    try:
        yield
    finally:
        _CANCELLED.reset(token)


def check_cancelled() -> None:
    """Raise `CancelledError` if the work of this thread was cancelled."""
    event = _CANCELLED.get()
    if event is not None and event.is_set():
        raise CancelledError("the refit was dropped")
