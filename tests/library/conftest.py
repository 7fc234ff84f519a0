"""Fixtures of the library's tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from synther_replay.model import outcomes


@pytest.fixture(autouse=True)
def outcome_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Trains outcome models briefly; tests that check their quality call it with more steps."""

    def set_steps(steps: int, batch_size: int = 256) -> None:
        block = min(50, steps // 3)
        for name, value in (("_MOST_STEPS", steps), ("_BLOCK", block), ("_BATCH", batch_size)):
            monkeypatch.setattr(outcomes, name, value)

    set_steps(15, batch_size=32)
    return set_steps
