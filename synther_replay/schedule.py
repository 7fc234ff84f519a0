"""When the generator is refitted and how many rows it then generates."""

from __future__ import annotations

from dataclasses import dataclass, fields

from synther_replay.checks import whole_number


@dataclass(frozen=True)
class RetrainSchedule:
    """Refit once ``steps >= start``, then whenever ``steps - steps at the last refit >= every``.

    Steps are environment steps, counted as transitions added. They are compared with ``>=``, because several
    environments add several transitions at a time.

    >>> schedule = RetrainSchedule(every=1_000, rows=50_000, start=2_000)
    >>> schedule.is_due(1_999, None), schedule.is_due(2_003, None), schedule.is_due(3_002, 2_003)
    (False, True, False)

    Attributes:
        every: Environment steps between two refits.
        rows: Rows to generate after each refit.
        start: Environment steps before the first refit.
    """

    every: int = 2_500
    rows: int = 250_000
    start: int = 2_500

    def __post_init__(self) -> None:
        """Refuse numbers that make no schedule."""
        for field in fields(self):
            object.__setattr__(self, field.name, whole_number(field.name, getattr(self, field.name)))

    @classmethod
    def paper(cls) -> RetrainSchedule:
        """As in the paper: rarely, and many rows."""
        return cls(every=10_000, rows=1_000_000, start=10_000)

    @classmethod
    def fast(cls) -> RetrainSchedule:
        """For a GPU: fresh rows four times as often."""
        return cls(every=2_500, rows=250_000, start=2_500)

    @classmethod
    def tiny(cls) -> RetrainSchedule:
        """For a CPU: as many rows as it generates in seconds."""
        return cls(every=5_000, rows=20_000, start=2_500)

    def is_due(self, steps: int, last_refit: int | None) -> bool:
        """Whether to refit now, given the steps so far and those at the last refit."""
        return steps >= self.start if last_refit is None else steps - last_refit >= self.every
