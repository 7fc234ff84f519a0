"""Numbers and tables as text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def mean_and_spread(values: Sequence[float], digits: int = 0) -> str:
    """Mean and standard deviation of a sample, by n - 1; of one value, which has no spread, the value alone."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} +- {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown; numbers are rounded to four digits."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
