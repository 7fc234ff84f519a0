"""Input of the metrics: rows of any accepted type as matrices of one width, dtype and device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from synther_replay.data.mismatch import mismatch
from synther_replay.data.transitions import Transitions
from synther_replay.data.validation import all_finite

Rows = Transitions | Tensor | np.ndarray


def clean(named: Mapping[str, Rows], *, least: int = 2, strict: bool = False) -> tuple[list[Tensor], list[int]]:
    """Return the finite rows as matrices of one width, dtype and device, and the non-finite count of each set."""
    matrices = [as_matrix(name, value) for name, value in named.items()]
    specs = {name: value.spec for name, value in named.items() if isinstance(value, Transitions)}
    first = next(iter(specs.values()), None)
    for name, spec in specs.items():
        if first is not None and spec != first:
            raise ValueError(f"{', '.join(named)}: expected equal specs; {name}: {mismatch(spec, first)}")
    if len({matrix.shape[1] for matrix in matrices}) > 1:
        raise ValueError(f"{', '.join(named)}: expected equal numbers of columns, got {[m.shape[1] for m in matrices]}")
    narrow = any(matrix.is_floating_point() and matrix.dtype != torch.float64 for matrix in matrices)
    kept, rejected = [], []
    for name, matrix in zip(named, matrices, strict=True):
        rows = matrix.to(matrices[0].device, torch.float32 if narrow else torch.float64)
        if not all_finite(rows):
            rows = rows[torch.isfinite(rows).all(1)]
        kept.append(rows)
        rejected.append(len(matrix) - len(rows))
        if len(rows) < least or (strict and rejected[-1]):
            wanted = f"at least {least} finite rows{' and no non-finite ones' if strict else ''}"
            raise ValueError(f"{name}: expected {wanted}, got {len(rows)} finite and {rejected[-1]} non-finite")
    return kept, rejected


def as_matrix(name: str, value: Rows) -> Tensor:
    """Return the rows of one run as a detached matrix."""
    matrix = value.rows if isinstance(value, Transitions) else value
    if isinstance(matrix, np.ndarray) and matrix.dtype.kind in "biuf":
        matrix = torch.from_numpy(np.require(matrix, requirements=["C", "W"]))
    if not isinstance(matrix, Tensor) or matrix.is_complex():
        kind = f"{type(value).__name__} of {getattr(value, 'dtype', 'no dtype')}"
        raise TypeError(f"{name}: expected Transitions, a tensor or an array of real numbers, got {kind}")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name}: expected the rows of one run, shape (n, dim), got {tuple(matrix.shape)}")
    return matrix.detach()
