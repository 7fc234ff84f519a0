"""Split rows into a training and a held-out set by a hash of their contents.

With a random split at every fit, a warm-started model would be validated on rows that an earlier fit trained on.
Ranking rows by a hash keeps held-out rows held out while the buffer grows, on every device. The hash includes the seed
and the number of the copy: of a transition that occurs often, as in discrete tasks, the usual share of copies is held
out instead of all or none. A few rows near the threshold may change sides, because the held-out count is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from synther_replay.common.seeding import derive_seed

# With fewer rows the held-out loss is mostly noise.
MIN_HELD_OUT = 16
_BLOCK = 8_192  # rows hashed at once, few enough for the cache of a CPU
_FACTOR = 0x5851F42D4C957F2D  # odd, so that the product is invertible modulo 2^64


def held_out_last(rows: Tensor, share: float, seed: int) -> tuple[Tensor | None, int]:
    """Order rows so that the held-out ones come last.

    Args:
        rows: Rows ``(M, n, dim)``; their hash determines the split.
        share: Share of rows to hold out.
        seed: Another seed holds out other rows.

    Returns:
        Row numbers ``(M, n)``, training rows in their original order first, and the number of held-out rows; None and 0
        instead of fewer than 16 held-out rows.
    """
    count = round(share * rows.shape[1])
    if count < MIN_HELD_OUT:
        return None, 0
    ranked = _mixed(_with_copy_number(row_hash(rows)), torch.tensor(derive_seed(seed), device=rows.device))
    order = ranked.argsort(dim=1, stable=True)
    return torch.cat((order[:, count:].sort(dim=1).values, order[:, :count]), dim=1), count


def row_hash(rows: Tensor) -> Tensor:
    """Return a 62-bit hash of each float32 row, ``(..., dim) -> (...)``, identical on every device."""
    result = torch.zeros(rows.shape[:-1], dtype=torch.long, device=rows.device)
    blocks = rows.reshape(-1, rows.shape[-1]).split(_BLOCK)
    for block, hashes in zip(blocks, result.view(-1).split(_BLOCK), strict=True):
        words = block.contiguous().view(torch.int32).T.contiguous()
        for column in words:  # column by column: an int64 copy of the matrix would be large
            hashes.copy_(_mixed(hashes, column))
    return result & (2**62 - 1)


def _mixed(hashes: Tensor, value: Tensor) -> Tensor:
    result = (hashes ^ value) * _FACTOR
    return result ^ (result >> 29)


def _with_copy_number(hashes: Tensor) -> Tensor:
    """Mix into each hash ``(M, n)`` how many equal ones stand before it, so that copies get different hashes."""
    in_order, place = hashes.sort(dim=1, stable=True)
    position = torch.arange(hashes.shape[1], device=hashes.device).expand_as(hashes)
    is_first = torch.ones_like(in_order, dtype=torch.bool)
    is_first[:, 1:] = in_order[:, 1:] != in_order[:, :-1]
    copy = position - torch.where(is_first, position, 0).cummax(dim=1).values
    return _mixed(hashes, torch.empty_like(copy).scatter_(1, place, copy))
