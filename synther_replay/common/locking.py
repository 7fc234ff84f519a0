"""Lock: a re-entrant lock that does not prevent pickling, and that a fork leaves free."""

from __future__ import annotations

import os
import threading
import weakref

from synther_replay.common.requests import serve_jobs

_LOOKS_EVERY = 0.01  # seconds, for what the holder of the lock asks of this thread


class Lock:
    """A re-entrant lock for ``with``; a copied or unpickled one is new and free.

    A forked process has only the thread that forked, so a lock that another one holds would never be released there.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        """Make a free lock."""
        self._lock = threading.RLock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        """Wait until the lock is free and take it."""
        if self._lock.acquire(blocking=False):
            return
        while not self._lock.acquire(timeout=_LOOKS_EVERY):
            serve_jobs()

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self._lock.release()

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        """Pickle and deepcopy as a new lock."""
        return Lock, ()

    def free_from_others(self) -> None:
        """Make the lock anew, unless this thread holds it."""
        if not self._lock._is_owned():  # type: ignore[attr-defined]
            self._lock = threading.RLock()


_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()


def _free_all() -> None:
    for lock in list(_LOCKS):
        lock.free_from_others()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_free_all)
