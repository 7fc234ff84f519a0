"""Lock: a re-entrant lock that does not prevent pickling."""

from __future__ import annotations

import threading


class Lock:
    """A re-entrant lock for ``with``; a copied or unpickled one is new and free."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        """Make a free lock."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        """Wait until the lock is free and take it."""
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self._lock.release()

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        """Pickle and deepcopy as a new lock."""
        return Lock, ()
