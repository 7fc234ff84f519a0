"""Progress bars of work that takes long, silent when not a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

from synther_replay.common.cancelling import check_cancelled

_DELAY = 5.0  # seconds of work before a bar appears
_IN_REFIT: ContextVar[bool] = ContextVar("in_refit", default=False)


@contextmanager
def in_refit() -> Iterator[None]:
    """Show progress of generation within; elsewhere whoever generates rows shows progress as they like."""
    token = _IN_REFIT.set(True)
    try:
        yield
    finally:
        _IN_REFIT.reset(token)


def is_in_refit() -> bool:
    """Whether a refit is running here."""
    return _IN_REFIT.get()


def progress_bar(total: int, what: str, unit: str, *, shown: bool | None = None) -> Any:
    """A bar with an estimate of the time left.

    Args:
        total: Number of units.
        what: Description.
        unit: Name of one unit.
        shown: True: at once. None: in a terminal, and only if the work takes longer than a few seconds. False: never.
    """
    return _Bar(
        total=total,
        desc=what,
        unit=unit,
        unit_scale=True,
        leave=False,
        disable=None if shown is None else not shown,
        delay=_DELAY if shown is None else 0.0,
    )


class _Bar(tqdm):  # type: ignore[misc]
    """Work that shows its progress can be cancelled there."""

    def update(self, n: float | None = 1) -> Any:
        check_cancelled()
        return super().update(n)
