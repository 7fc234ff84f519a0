"""RetrainSchedule: when to refit the generator and how many rows to generate."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Self

from synther_replay.common.checks import check_call, whole_number
from synther_replay.common.short_forms import from_short_form
from synther_replay.errors import CheckpointError
from synther_replay.protocols import Schedule

_LONGEST_GROWN = 10_000  # longest interval that `growth` produces; the paper's fixed interval
_PRESETS = ("fast", "tiny", "paper")


@dataclass(frozen=True)
class RetrainSchedule:
    """First refit at ``steps >= start``, next ones when ``steps - last_refit >= interval``.

    The interval is ``max(every, min(growth * last_refit, 10_000))``. With ``growth > 0`` refits become rarer as the
    run gets longer, because a few thousand new transitions change a large buffer little.

    Steps are environment steps, counted as transitions added. Parallel environments add several at a time, so a refit
    may start a few steps after the exact boundary.

    >>> schedule = RetrainSchedule(every=1_000, rows=50_000, start=2_000)
    >>> schedule.is_due(1_999, None), schedule.is_due(2_003, None), schedule.is_due(3_002, 2_003)
    (False, True, False)

    Attributes:
        every: Environment steps between two refits.
        rows: Rows to generate after each refit.
        start: Environment steps before the first refit.
        growth: Minimum relative growth of the step count between refits; 0 means constant intervals.
    """

    every: int = 2_500
    rows: int = 400_000
    start: int = 2_500
    growth: float = 0.0

    def __post_init__(self) -> None:
        """Validate the fields."""
        for name in ("every", "rows", "start"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        number = isinstance(self.growth, Real) and not isinstance(self.growth, bool)
        if not number or not 0 <= self.growth < math.inf:
            raise ValueError(f"growth: expected a finite number >= 0, got {self.growth!r}")
        object.__setattr__(self, "growth", float(self.growth))

    @classmethod
    def paper(cls) -> RetrainSchedule:
        """The paper's schedule: 1M rows every 10K steps."""
        return cls(every=10_000, rows=1_000_000, start=10_000)

    @classmethod
    def fast(cls) -> RetrainSchedule:
        """Default on a GPU: every 2.5K steps at first, up to every 10K steps in long runs."""
        return cls(growth=0.125)

    @classmethod
    def tiny(cls) -> RetrainSchedule:
        """Default on a CPU: few enough rows to generate in seconds."""
        return cls(every=5_000, rows=20_000, start=2_500)

    @classmethod
    def of(
        cls,
        value: RetrainSchedule | int | str | Mapping[str, Any] | None,
        *,
        default: str = "fast",
        name: str = "schedule",
    ) -> RetrainSchedule:
        """Return a schedule from a short form. With `every` and without `growth`, intervals are constant.

        >>> RetrainSchedule.of(5_000) == RetrainSchedule.of({"every": 5_000, "growth": 0})
        True

        Args:
            value: A schedule, the steps between two refits, the name of a preset, or a mapping of fields with an
                optional key ``"preset"``.
            default: The preset of None, of a number, and of a mapping without ``"preset"``.
            name: Name of the argument, for errors.

        Raises:
            TypeError: `value` is none of these.
            ValueError: An unknown preset or field, or a bad value.
        """
        if isinstance(value, Integral) and not isinstance(value, bool):
            value = {"every": whole_number(name, value)}
        if isinstance(value, Mapping) and "every" in value:
            value = {"growth": 0.0, **value}
        schedule: RetrainSchedule = from_short_form(cls, value, presets=_PRESETS, default=default, name=name)
        return schedule

    def is_due(self, steps: int, last_refit: int | None) -> bool:
        """Return whether a refit is due, given the current step and the step of the last refit (None: no refit yet)."""
        if last_refit is None:
            return steps >= self.start
        return steps - last_refit >= max(self.every, min(self.growth * last_refit, _LONGEST_GROWN))

    def state_dict(self) -> dict[str, Any]:
        """Return the values of the fields, also of those that a subclass adds."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def restored(self, state: dict[str, Any]) -> Self:
        """Return a schedule of the class of this one with the values of a `state_dict`.

        Raises:
            CheckpointError: The state has other fields.
        """
        own = self.state_dict()
        if set(state) != set(own):
            raise CheckpointError(
                f"state: schedule: got the fields {sorted(state)}, expected {sorted(own)} of {type(self).__name__}"
            )
        schedule = copy.copy(self)
        for name, value in state.items():  # a checkpoint has lists instead of tuples
            object.__setattr__(schedule, name, tuple(value) if isinstance(own[name], tuple) else value)
        schedule.__post_init__()
        return schedule


def as_schedule(value: Any, *, default: str = "fast") -> Schedule:
    """Return a schedule object as it is, after a check, and that of a short form of `RetrainSchedule.of`."""
    if not isinstance(value, Schedule):
        return RetrainSchedule.of(value, default=default)
    check_call("schedule: expected is_due(steps, last_refit)", value.is_due, 0, None)
    return value
