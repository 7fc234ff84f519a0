"""Projection: the first two principal components of the real rows, and both sets on that plane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from synther_replay.common.seeding import generator_for

CELLS = 32  # of the coverage map, in each direction
POINTS = 1_500  # of each set, drawn as points
_QUANTILES = (0.002, 0.998)  # the plane shows these of the real rows and a margin
_MARGIN = 0.1
_FEW = 4  # rows
_ROWS = 65_536  # bound on temporary memory: rows converted at once


@dataclass(frozen=True, eq=False)
class Projection:
    """Real and synthetic rows on a plane.

    Attributes:
        explained: Share of the variance of the standardised real rows along each axis.
        points_real: Some real rows, ``(n, 2)``.
        points_synthetic: Some synthetic rows, ``(m, 2)``.
        edges: Edges of the cells along each axis, ``(2, CELLS + 1)``.
        cells_real: Share of all real rows in each cell, ``(CELLS, CELLS)``, second axis first.
        cells_synthetic: Share of all synthetic rows in each cell.
        few: Share of the smaller set that a few rows are: differences of this size are chance.
        covered: Share of the real rows in cells that also have synthetic rows.
        covered_baseline: The same of one part of the real rows by another, which is as large as the synthetic set.
    """

    explained: tuple[float, float]
    points_real: np.ndarray
    points_synthetic: np.ndarray
    edges: np.ndarray
    cells_real: np.ndarray
    cells_synthetic: np.ndarray
    few: float
    covered: float
    covered_baseline: float


def project(
    parts: tuple[Tensor, Tensor], synthetic: Tensor, correlation: Tensor, *, seed: int = 0
) -> Projection | None:
    """Project rows onto the first two principal components of the real rows.

    Args:
        parts: Two parts of the real rows, ``(n, dim)`` and ``(k, dim)``.
        synthetic: Synthetic rows, ``(m, dim)``.
        correlation: Correlations of the real columns, NaN where a column is constant, ``(dim, dim)``.
        seed: Seed of the choice of the rows that are shown as points.

    Returns:
        None if fewer than two columns vary.
    """
    varied = correlation.diagonal().isfinite().nonzero()[:, 0]
    if len(varied) < 2:
        return None
    values, vectors = torch.linalg.eigh(correlation[varied][:, varied].double().cpu())
    axes = vectors[:, [-1, -2]]
    largest = axes.abs().argmax(0)
    axes = axes * axes[largest, [0, 1]].sign()  # the sign of an eigenvector is arbitrary: fixed by its largest value
    real = torch.cat(parts)[:, varied]
    scale, centre = torch.std_mean(real.double(), dim=0)
    planes = [_onto(part[:, varied], centre, scale, axes) for part in (*parts, synthetic)]
    both = np.concatenate(planes[:2])
    edges = np.stack([_edges(column) for column in both.T])
    cells = [_cells(plane, edges) for plane in (*planes, both)]
    return Projection(
        explained=(float(values[-1]) / len(varied), float(values[-2]) / len(varied)),
        points_real=_some(both, seed),
        points_synthetic=_some(planes[2], seed + 1),
        edges=edges,
        cells_real=cells[3],
        cells_synthetic=cells[2],
        few=_FEW / min(len(both), len(planes[2])),
        covered=_covered(cells[3], cells[2]),
        covered_baseline=_covered(cells[1], cells[0]),
    )


def _onto(rows: Tensor, centre: Tensor, scale: Tensor, axes: Tensor) -> np.ndarray:
    blocks = [((part.double() - centre) / scale).cpu() @ axes for part in torch.split(rows, _ROWS)]
    return np.asarray(torch.cat(blocks).numpy())


def _edges(values: np.ndarray) -> np.ndarray:
    low, high = np.quantile(values, _QUANTILES)
    margin = _MARGIN * (high - low) or 0.5
    return np.linspace(low - margin, high + margin, CELLS + 1)


def _cells(plane: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Share of the rows in each cell; those beyond the plane are in none."""
    counts = np.histogram2d(plane[:, 1], plane[:, 0], bins=[edges[1], edges[0]])[0]
    return np.asarray(counts / len(plane))


def _covered(real: np.ndarray, synthetic: np.ndarray) -> float:
    inside = float(real.sum())
    return min(1.0, float(real[synthetic > 0].sum()) / inside) if inside else float("nan")  # rounding


def _some(plane: np.ndarray, seed: int) -> np.ndarray:
    order = torch.randperm(len(plane), generator=generator_for("cpu", seed), device="cpu")[:POINTS]
    return np.asarray(plane[order.numpy()])
