"""Cancelling long work in a thread: the work asks from time to time whether it is still wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CANCELLED: ContextVar[Callable[[], bool] | None] = ContextVar("cancelled", default=None)


class CancelledError(BaseException):
    """The result of the work is not wanted any more; no `Exception`, so that nobody takes it for a failure."""


@contextmanager
def cancelled_when(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Let `check_cancelled` raise within, once the function says so."""
    token = _CANCELLED.set(is_cancelled)
    try:
        yield
    finally:
        _CANCELLED.reset(token)


def check_cancelled() -> None:
    """Raise `CancelledError` if the work of this thread was cancelled."""
    is_cancelled = _CANCELLED.get()
    if is_cancelled is not None and is_cancelled():
        raise CancelledError("the refit was dropped")
