"""Cleaning: the real transitions that a model can learn from, and what is wrong with the others.

Frameworks store whatever an environment returns, including NaN. A model learns from the valid rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from synther_replay.data.columns import column_names
from synther_replay.data.transitions import ROUNDING_OF_ACTIONS, Transitions, TransitionSpec
from synther_replay.data.validation import all_finite, wrong_values

_ROWS_AT_ONCE = 65_536  # bounds the memory of the masks
_MOST_NAMED = 4  # columns named in one description


@dataclass(frozen=True)
class Faults:
    """Faulty values of a set of rows.

    Attributes:
        rows: Number of rows with at least one faulty value.
        columns: Name, number of rows and first row number of each faulty column.
    """

    rows: int
    columns: tuple[tuple[str, int, int], ...]

    def __str__(self) -> str:
        """Name the first faulty columns: ``reward in 2 rows, first in row 17``."""
        named = [
            f"{name} in {count:,} row{'s' * (count > 1)}, first in row {first:,}"
            for name, count, first in self.columns[:_MOST_NAMED]
        ]
        more = len(self.columns) - _MOST_NAMED
        return "; ".join(named) + (f"; and {more} more column{'s' * (more > 1)}" if more > 0 else "")


@dataclass(frozen=True)
class Cleaned:
    """Result of `clean`.

    Attributes:
        transitions: The valid rows; actions are in their space.
        invalid: Values that their column cannot hold, such as NaN and unknown categories; their rows are left out.
        outside: Actions beyond the bounds of their space, which are clipped.
    """

    transitions: Transitions
    invalid: Faults
    outside: Faults


def clean(transitions: Transitions) -> Cleaned:
    """Leave out invalid rows of transitions ``(n, dim)`` and clip actions to their space.

    The given rows are not modified; without any fault they are returned as they are.
    """
    spec, rows = transitions.spec, transitions.rows
    names = column_names(spec)
    invalid, outside = _Count(names), _Count(names[spec.actions])
    valid = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        wrong = _wrong(spec, part)
        if wrong is not None:
            invalid.add(wrong, start)
            valid[start : start + len(part)] = ~wrong.any(1)
        beyond = spec.outside_action_space(part[:, spec.actions], ROUNDING_OF_ACTIONS)
        beyond &= valid[start : start + len(part), None]
        if bool(beyond.any()):
            outside.add(beyond, start)
    if invalid.rows:
        rows = rows[valid]
    if outside.rows:
        rows = rows.clone()
        rows[:, spec.actions] = spec.clipped_actions(rows[:, spec.actions])
    cleaned = Transitions(spec, rows) if invalid.rows or outside.rows else transitions
    return Cleaned(cleaned, invalid.faults(), outside.faults())


def _wrong(spec: TransitionSpec, rows: Tensor) -> Tensor | None:
    """Mask of the values that their column cannot hold, ``(n, dim)``; None if there are none."""
    wrong = None if all_finite(rows) else ~torch.isfinite(rows)
    for field in spec.fields:
        for leaf, columns in field.leaf_columns():
            found = wrong_values(rows[:, columns], leaf)
            if found is not None and bool(found.any()):
                wrong = torch.zeros_like(rows, dtype=torch.bool) if wrong is None else wrong
                wrong[:, columns] |= found
    return wrong


class _Count:
    """Counts faulty rows by column over several blocks of rows."""

    def __init__(self, names: Sequence[str]) -> None:
        self.rows = 0
        self._names = names
        self._columns: dict[int, tuple[int, int]] = {}  # number of rows and first row

    def add(self, mask: Tensor, start: int) -> None:
        """Count a block ``(n, columns)`` that begins at row `start`."""
        self.rows += int(mask.any(1).sum())
        counts, firsts = mask.sum(0).tolist(), mask.to(torch.uint8).argmax(0).tolist()
        for column, (count, first) in enumerate(zip(counts, firsts, strict=True)):
            if count:
                before, earliest = self._columns.get(column, (0, start + first))
                self._columns[column] = before + count, earliest

    def faults(self) -> Faults:
        """Return what was counted."""
        return Faults(self.rows, tuple((self._names[c], *found) for c, found in sorted(self._columns.items())))
