"""Progress bars: of fits and refits that take long, and of nothing else."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
import torch
from gymnasium import spaces

from synther_replay import DiffusionGenerator, RingBuffer, SyntheticReplayBuffer, Transitions, TransitionSpec
from synther_replay.common import progress

SPEC = TransitionSpec.from_spaces(spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (1,)))
QUICK = {"width": 16, "depth": 1, "steps": 20, "refit_steps": 20, "batch_size": 32, "sampling_steps": 4}


def rows() -> Transitions:
    x = torch.rand(200, SPEC.dim, generator=torch.Generator().manual_seed(0))
    x[:, SPEC.terminated] = 0
    return Transitions(SPEC, x)


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Settings and last count of all bars that could be seen in a terminal."""
    made: list[dict[str, Any]] = []

    class Seen(progress._Bar):
        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "disable": True})
            if options["disable"] is not True:
                made.append(options)

        def update(self, count: int = 1) -> None:
            if made:
                made[-1]["done"] = made[-1].get("done", 0) + count

    monkeypatch.setattr(progress, "_Bar", Seen)
    return made


def test_a_refit_shows_fitting_and_generating_if_they_take_long(bars: list[dict[str, Any]]):
    own = SyntheticReplayBuffer(RingBuffer(SPEC, 1_000, device="cpu"), QUICK, device="cpu")
    own.add(rows())
    own.refit(500)
    assert [bar["desc"] for bar in bars] == ["fitting", "generating"]
    assert all(bar["delay"] > 0 and bar["disable"] is None for bar in bars)
    assert (bars[1]["total"], bars[1]["done"]) == (500, 500)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("delay", "is_seen"), [(1_000.0, False), (0.0, True)])
def test_a_short_refit_shows_nothing(monkeypatch: pytest.MonkeyPatch, delay: float, is_seen: bool):
    monkeypatch.setattr(progress, "_DELAY", delay)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    own = SyntheticReplayBuffer(RingBuffer(SPEC, 1_000, device="cpu"), QUICK, device="cpu")
    own.add(rows())
    own.refit(500)
    assert ("fitting" in terminal.getvalue()) == ("generating" in terminal.getvalue()) == is_seen
    assert is_seen or not terminal.getvalue().strip()


@pytest.mark.parametrize(("shown", "seen"), [(True, 1), (False, 0)])
def test_a_fit_shows_what_it_is_told_to(bars: list[dict[str, Any]], shown: bool, seen: int):
    generator = DiffusionGenerator(SPEC, QUICK, device="cpu")
    generator.fit(rows(), progress=shown)
    generator.sample(100)  # whoever generates rows shows progress as they like
    assert [bar["delay"] for bar in bars] == [0] * seen
