"""Notices: warnings that are not repeated while nothing gets worse."""

from __future__ import annotations

import re
import warnings

_TIMES_WORSE = 10


class Notices:
    """Warns about a subject once, and again when it has become ten times as bad.

    >>> notices = Notices()
    >>> [notices.is_new("invalid rows", count) for count in (1, 9, 10, 11, 100)]
    [True, False, True, False, True]
    """

    def __init__(self) -> None:
        """Start without any notice given."""
        self._given: dict[str, int] = {}  # subject -> how bad it was at the last warning

    def is_new(self, subject: str, count: int) -> bool:
        """Return whether to warn, and remember it."""
        if count < 1 or count < _TIMES_WORSE * self._given.get(subject, 0):
            return False
        self._given[subject] = count
        return True

    def warn_of(self, error: Exception, count: int, message: str, *, stacklevel: int = 1) -> None:
        """Warn with the error and its notes at the end; errors that differ in numbers alone are one subject."""
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        cause = f"{type(error).__name__}: {error}{notes}"
        kind = re.sub(r"\d[\d,.]*", "", cause)  # amounts of memory differ, for example
        self.warn(kind, count, f"{message}. {cause}", stacklevel=stacklevel + 1)

    def warn(self, subject: str, count: int, message: str, *, stacklevel: int = 1) -> None:
        """Give a `RuntimeWarning` if it is new; `stacklevel` counts from the caller."""
        if self.is_new(subject, count):
            warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)
