"""Comparison: one number per row, of real and of synthetic rows, such as a distance, an error or a value."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from synther_replay.report.histograms import Histogram, histogram

_QUANTILES = {"p05": 0.05, "median": 0.5, "p95": 0.95}
_LEAST = 1e-12  # errors below are rounding; a logarithmic axis needs a smallest value


@dataclass(frozen=True, eq=False)
class Comparison:
    """Numbers of both sets.

    Attributes:
        real: Quantiles of the real rows by name: ``p05``, ``median``, ``p95``.
        synthetic: The same of the synthetic rows.
        histogram: Counts of real and synthetic rows; of logarithms to base 10 if `logarithmic`.
        logarithmic: Whether the histogram has a logarithmic axis.
        rows: Number of real and of synthetic rows.
    """

    real: dict[str, float]
    synthetic: dict[str, float]
    histogram: Histogram
    logarithmic: bool
    rows: tuple[int, int]


def compare(real: Tensor, synthetic: Tensor, *, logarithmic: bool = False) -> Comparison:
    """Compare finite numbers ``(n,)`` and ``(m,)``, at least one of each."""
    sets = [values.detach().cpu().double() for values in (real, synthetic)]
    shown = [values.clamp(min=_LEAST).log10() for values in sets] if logarithmic else sets
    # The bins span both sets: a synthetic set may be far from the real one, which is what is to be seen.
    both = torch.cat(shown)
    # A distance or the size of an error is shown from 0: there the copies are.
    least = 0.0 if not logarithmic and float(both.min()) >= 0 else None
    counts = histogram(shown, both, margin=0.0, least=least)
    return Comparison(_quantiles(sets[0]), _quantiles(sets[1]), counts, logarithmic, (len(sets[0]), len(sets[1])))


def _quantiles(values: Tensor) -> dict[str, float]:
    found = torch.quantile(
        values, torch.tensor([*_QUANTILES.values()], dtype=values.dtype, device=values.device)
    ).tolist()
    return dict(zip(_QUANTILES, found, strict=True))
