"""Charts: measures as compact values that `draw.js` draws.

Histograms are counts, and correlations have three decimals: the size of the page does not depend on the rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from synther_replay.report.comparison import Comparison
from synther_replay.report.histograms import Histogram
from synther_replay.report.measures import Measures
from synther_replay.report.projection import Projection

HEAT_MAP_COLUMNS = 64  # more cells are neither readable nor small
_WIDTH, _HEIGHT = 160, 48  # of a sparkline, in its own units


def charts(measures: Measures) -> dict[str, Any]:
    """All charts by the name of their place on the page, as JSON values."""
    found = correlation_charts(measures)
    if measures.projection is not None:
        found |= projection_charts(measures.projection)
    if (closest := measures.nearest) is not None:
        compared = closest.compared()
        other = "held-out real rows" if closest.held_out else "other real rows"
        found["nearest"] = comparison_chart(compared, "distance to the nearest real row", real=other)
    if (dynamics := measures.dynamics) is not None:
        found["dynamics"] = comparison_chart(dynamics.next_observation, "squared error of the next observation")
        found["dynamics_reward"] = comparison_chart(dynamics.reward, "squared error of the reward")
    titles = {"value": "value of the observation", "td_error": "size of the TD error"}
    return found | {name: comparison_chart(compared, titles[name]) for name, compared in measures.critics.items()}


def column_chart(histogram: Histogram, name: str) -> dict[str, Any]:
    """Histogram of a column: two parts of the real rows, and the synthetic rows."""
    first, second, synthetic = histogram.counts
    return {"kind": "column", "axis": name, **_bins(histogram), "parts": [first, second], "synthetic": synthetic}


def comparison_chart(compared: Comparison, axis: str, *, real: str = "real") -> dict[str, Any]:
    """Histogram of one number per row."""
    one, two = compared.histogram.counts
    place = {"axis": axis, "log": compared.logarithmic, "label": real}
    return {"kind": "comparison", **place, **_bins(compared.histogram), "real": one, "synthetic": two}


def correlation_charts(measures: Measures) -> dict[str, Any]:
    """Heat maps of real and synthetic correlations, and their difference."""
    chosen = heat_map_columns(measures)
    if not chosen:
        return {}
    real, synthetic = (
        matrix[chosen][:, chosen] for matrix in (measures.correlation_real, measures.correlation_synthetic)
    )
    names = [measures.fidelity.columns[place].name for place in chosen]
    difference = synthetic - real
    largest = float(difference.nan_to_num().abs().max())
    return {
        "correlation_real": {"kind": "heatmap", "names": names, "cells": _cells(real), "limit": 1},
        "correlation_synthetic": {"kind": "heatmap", "names": names, "cells": _cells(synthetic), "limit": 1},
        "correlation_difference": {
            "kind": "heatmap",
            "names": names,
            "cells": _cells(difference),
            # a difference of 0.1 is small: shown pale, also where it is the largest
            "limit": max(0.25, math.ceil(20 * largest) / 20),
        },
    }


def heat_map_columns(measures: Measures) -> list[int]:
    """Columns of the heat maps in the order of the row: those that vary, at most those with the largest differences."""
    real, synthetic = measures.correlation_real, measures.correlation_synthetic
    varied = real.diagonal().isfinite().nonzero()[:, 0].tolist()
    if len(varied) < 2:
        return []
    worst = (real - synthetic).nan_to_num().abs().amax(1)
    return sorted(sorted(varied, key=lambda place: -float(worst[place]))[:HEAT_MAP_COLUMNS])


def projection_charts(projection: Projection) -> dict[str, Any]:
    """Points of both sets, and the share of rows in each cell of the plane."""
    axes = [f"component {k + 1} ({100 * share:.0f} % of the variance)" for k, share in enumerate(projection.explained)]
    x, y = ([_short(edge) for edge in edges] for edges in projection.edges)
    points = {
        "real": _points(projection.points_real),
        "synthetic": _points(projection.points_synthetic),
    }
    # A cell with a row or two of one set and none of the other is no difference: `few` rows are added to both.
    ratio = np.log2((projection.cells_synthetic + projection.few) / (projection.cells_real + projection.few))
    empty = (projection.cells_real == 0) & (projection.cells_synthetic == 0)
    cells = [
        [None if blank else round(float(value), 2) for value, blank in zip(*line, strict=True)]
        for line in zip(ratio, empty, strict=True)
    ]
    frame = {"axes": axes, "x": x, "y": y}
    return {
        "projection": {"kind": "points", **frame, **points},
        "coverage": {"kind": "coverage", **frame, "cells": cells},
    }


def sparkline(histogram: Histogram) -> str:
    """A small drawing of a column that needs no script: real rows as an area, synthetic ones as a line."""
    first, second, synthetic = (np.array(counts, dtype=float) for counts in histogram.counts)
    shares = [counts / max(counts.sum(), 1) for counts in (first + second, synthetic)]
    top = max(float(part.max()) for part in shares) or 1.0
    real, other = (_steps(part / top) for part in shares)
    return (
        f'<svg class="spark" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="area" d="M0,{_HEIGHT}{real}L{_WIDTH},{_HEIGHT}Z"/>'
        f'<path class="line" d="M0,{_HEIGHT}{other}"/></svg>'
    )


def _steps(heights: np.ndarray) -> str:
    """The outline of bars of these heights, at most 1, from left to right."""
    step, usable = _WIDTH / len(heights), _HEIGHT - 4
    points = [(k * step, (k + 1) * step, _HEIGHT - usable * float(height)) for k, height in enumerate(heights)]
    return "".join(f"L{left:.1f},{y:.1f}L{right:.1f},{y:.1f}" for left, right, y in points)


def _bins(histogram: Histogram) -> dict[str, Any]:
    if histogram.levels:
        return {"levels": [_short(level) for level in histogram.levels]}
    return {"start": _short(histogram.start), "width": _short(histogram.width)}


def _cells(matrix: Tensor) -> list[list[float | None]]:
    return [[None if math.isnan(value) else round(value, 3) for value in line] for line in matrix.tolist()]


def _points(points: np.ndarray) -> list[list[float]]:
    return [[_short(float(value)) for value in column] for column in points.T]


def _short(value: float) -> float:
    """Six digits: enough to draw."""
    return float(f"{value:.6g}")
