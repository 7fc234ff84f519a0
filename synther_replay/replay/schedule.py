"""When the generator is refitted and how many rows it then generates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from synther_replay.common.checks import whole_number

_LONGEST_GROWN = 10_000  # the paper's interval; `growth` makes none longer than this


@dataclass(frozen=True)
class RetrainSchedule:
    """Refit once ``steps >= start``, then whenever ``every`` steps have gone by since the last refit.

    A long run can do with fewer: what a few thousand steps add to a large buffer changes little. With `growth`, a refit
    also waits until the run is longer by that share, though never for more than 10,000 steps.

    Steps are environment steps, counted as transitions added. They are compared with ``>=``, because several
    environments add several transitions at a time.

    >>> schedule = RetrainSchedule(every=1_000, rows=50_000, start=2_000)
    >>> schedule.is_due(1_999, None), schedule.is_due(2_003, None), schedule.is_due(3_002, 2_003)
    (False, True, False)

    Attributes:
        every: Environment steps between two refits.
        rows: Rows to generate after each refit.
        start: Environment steps before the first refit.
        growth: Share of the steps at the last refit that must have been added to them; 0 for even intervals.
    """

    every: int = 2_500
    rows: int = 400_000
    start: int = 2_500
    growth: float = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers that make no schedule."""
        for name in ("every", "rows", "start"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        number = isinstance(self.growth, Real) and not isinstance(self.growth, bool)
        if not number or not 0 <= self.growth < math.inf:
            raise ValueError(f"growth: expected a share of at least 0, got {self.growth!r}")
        object.__setattr__(self, "growth", float(self.growth))

    @classmethod
    def paper(cls) -> RetrainSchedule:
        """As in the paper: rarely, and many rows."""
        return cls(every=10_000, rows=1_000_000, start=10_000)

    @classmethod
    def fast(cls) -> RetrainSchedule:
        """For a GPU: fresh rows four times as often at first, when they matter most."""
        return cls(growth=0.125)

    @classmethod
    def tiny(cls) -> RetrainSchedule:
        """For a CPU: as many rows as it generates in seconds."""
        return cls(every=5_000, rows=20_000, start=2_500)

    def is_due(self, steps: int, last_refit: int | None) -> bool:
        """Whether to refit now, given the steps so far and those at the last refit."""
        if last_refit is None:
            return steps >= self.start
        return steps - last_refit >= max(self.every, min(self.growth * last_refit, _LONGEST_GROWN))
