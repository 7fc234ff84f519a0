"""What generators with jobs check alike, wherever they compute."""

from __future__ import annotations

from typing import Any

from synther_replay.data.mismatch import mismatch
from synther_replay.data.transitions import Transitions, TransitionSpec


def check_transitions(transitions: Any, spec: TransitionSpec, expected: str = "Transitions") -> None:
    """Raise TypeError or ValueError unless these are transitions of a spec."""
    if not isinstance(transitions, Transitions):
        raise TypeError(f"transitions: expected {expected}, got {type(transitions).__name__}")
    check_spec(transitions.spec, spec)


def check_spec(got: TransitionSpec, expected: TransitionSpec) -> None:
    """Raise ValueError if the specs of transitions and generator differ."""
    if got != expected:
        raise ValueError(f"transitions: {mismatch(got, expected)}")


def check_base(job_base: object, now: object) -> None:
    """Raise ValueError unless a job was begun with what the generator has now."""
    if job_base is not now:
        raise ValueError("job: it was committed before, or another fit was committed or loaded since it began")
