"""Numbers and Markdown tables as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any


def mean_and_spread(values: Sequence[float], digits: int = 0) -> str:
    """Mean and sample standard deviation (n - 1) as text; the mean alone for one value."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} +- {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def finite(value: float, digits: str) -> float | None:
    """A number rounded to a format such as ``.2f``, for JSON; None if it is not finite."""
    return float(format(value, digits)) if math.isfinite(value) else None


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; floats have four significant digits, None is a dash."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
