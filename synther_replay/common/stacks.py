"""Rows of tensors taken and added by number, and sums that repeat."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def take_rows(rows: Tensor, chosen: Tensor) -> Tensor:
    """Return the rows ``(M, n, columns)`` of each model at its row numbers ``(M, k)``, as ``(M, k, columns)``.

    One `index_select` per model: faster than `gather`, whose index would need the columns, too.
    """
    return torch.stack([own.index_select(0, place) for own, place in zip(rows, chosen, strict=True)])


def prefix_sums(x: Tensor, dim: int) -> Tensor:
    """As `cumsum`, for few entries; on a GPU PyTorch refuses that for floats where only repeatable results are allowed.

    >>> prefix_sums(torch.tensor([[1.0, 2.0, 4.0]]), 1).tolist()
    [[1.0, 3.0, 7.0]]
    """
    return torch.stack(list(itertools.accumulate(x.unbind(dim))), dim)


def add_rows(out: Tensor, number: Tensor, rows: Tensor) -> None:
    """Add each row of `rows` ``(n, ...)`` to that of `out` with its number ``(n,)``, in an order that repeats.

    On a GPU `index_add_` adds by atomics in any order, and sums of floats then differ between runs. `index_put_` sorts
    there; on a CPU it is the one that adds in any order.
    """
    if out.is_cuda:
        out.index_put_((number,), rows, accumulate=True)
    else:
        out.index_add_(0, number, rows)
