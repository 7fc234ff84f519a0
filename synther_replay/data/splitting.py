"""Which rows are kept out of training: decided by the rows themselves.

A warm-started model has already learnt from the rows that earlier fits trained on. A random split at every fit would
hold out rows that it knows. So each row is ranked by a hash of its contents: a row that was once held out stays held
out while the buffer grows, on every device and with every seed, and copies of a row stay together; but for a few at
the edge, since the number of rows is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

# With fewer rows than this the held-out loss is mostly noise.
MIN_HELD_OUT = 16


def split_held_out(rows: Tensor, codes: Tensor, share: float) -> tuple[Tensor, Tensor | None]:
    """Split codes into those to train on and those to measure on.

    Args:
        rows: Rows ``(M, n, dim)``, whose contents decide.
        codes: Their codes ``(M, n, code_dim)``.
        share: Share of rows to hold out.

    Returns:
        ``(M, n - k, code_dim)`` and ``(M, k, code_dim)``; all codes and None when k would be less than 16.
    """
    count = round(share * rows.shape[1])
    if count < MIN_HELD_OUT:
        return codes, None
    order = row_hash(rows).argsort(dim=1, stable=True)
    held, kept = order[:, :count], order[:, count:].sort(dim=1).values
    return _take(codes, kept), _take(codes, held)


def row_hash(rows: Tensor) -> Tensor:
    """A 62-bit hash of each float32 row, ``(..., dim) -> (...)``, the same on every device."""
    words = rows.contiguous().view(torch.int32)
    result = torch.zeros(rows.shape[:-1], dtype=torch.long, device=rows.device)
    for column in words.unbind(-1):  # column by column: the whole matrix in int64 would double its memory
        result = (result ^ column) * 0x5851F42D4C957F2D  # odd, so that no bit is lost; wraps around
        result = result ^ (result >> 29)
    return result & (2**62 - 1)


def _take(codes: Tensor, index: Tensor) -> Tensor:
    return codes.gather(1, index[..., None].expand(-1, -1, codes.shape[-1]))
