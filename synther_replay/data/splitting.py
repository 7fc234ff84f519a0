"""Split rows into a training and a held-out set by a hash of their contents.

With a random split at every fit, a warm-started model would be validated on rows that an earlier fit trained on.
Ranking rows by a hash keeps held-out rows held out while the buffer grows, on every device and with every seed, and
keeps copies of a row together. A few rows near the threshold may change sides, because the held-out count is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

# With fewer rows the held-out loss is mostly noise.
MIN_HELD_OUT = 16


def split_held_out(rows: Tensor, codes: Tensor, share: float) -> tuple[Tensor, Tensor | None]:
    """Split codes into a training and a held-out set.

    Args:
        rows: Rows ``(M, n, dim)``; their hash determines the split.
        codes: Codes of the rows, ``(M, n, code_dim)``.
        share: Share of rows to hold out.

    Returns:
        Training codes ``(M, n - k, code_dim)`` and held-out codes ``(M, k, code_dim)``; None instead of fewer than 16
        held-out codes.
    """
    count = round(share * rows.shape[1])
    if count < MIN_HELD_OUT:
        return codes, None
    order = row_hash(rows).argsort(dim=1, stable=True)
    held, kept = order[:, :count], order[:, count:].sort(dim=1).values
    return _take(codes, kept), _take(codes, held)


def row_hash(rows: Tensor) -> Tensor:
    """Return a 62-bit hash of each float32 row, ``(..., dim) -> (...)``, identical on every device."""
    words = rows.contiguous().view(torch.int32)
    result = torch.zeros(rows.shape[:-1], dtype=torch.long, device=rows.device)
    for column in words.unbind(-1):  # column by column: an int64 copy of the matrix would be large
        result = (result ^ column) * 0x5851F42D4C957F2D  # an odd factor is invertible modulo 2^64
        result = result ^ (result >> 29)
    return result & (2**62 - 1)


def _take(codes: Tensor, index: Tensor) -> Tensor:
    return codes.gather(1, index[..., None].expand(-1, -1, codes.shape[-1]))
