"""Value and TD error of real and synthetic rows under the critics of an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from synther_replay.data.transitions import Transitions
from synther_replay.relevance.critics import TDError, Value
from synther_replay.report.comparison import Comparison, compare

_ROWS = 10_000  # evenly spaced rows of each set


def compare_critics(
    real: Transitions,
    synthetic: Transitions,
    *,
    q: Callable[[Any, Any], Any] | None,
    value: Callable[[Any], Any] | None,
    gamma: float,
) -> dict[str, Comparison]:
    """Compare values of observations if `value` is given, and sizes of TD errors if `q` is given, too.

    Raises:
        ValueError: `q` without `value`, or the functions return no finite number.
    """
    if q is not None and value is None:
        raise ValueError("q: the TD error needs `value`, too; for example value=lambda s: q(s, actor(s))")
    if value is None:
        return {}
    scores = {"value": Value(value).score}
    if q is not None:
        scores["td_error"] = TDError(q, value, gamma=gamma).score
    sets = [
        rows[torch.arange(min(_ROWS, len(rows)), device="cpu") * len(rows) // min(_ROWS, len(rows))]
        for rows in (real, synthetic)
    ]
    return {name: compare(*(_finite(score(rows), name) for rows in sets)) for name, score in scores.items()}


def _finite(scores: Tensor, name: str) -> Tensor:
    kept = scores[torch.isfinite(scores)]
    if not len(kept):
        raise ValueError(f"{name}: expected finite numbers, got {scores[:3].tolist()}")
    return kept
