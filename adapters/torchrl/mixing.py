"""A batch of real and synthetic rows as separate entries: on a GPU one kernel, because there the number counts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from synther_replay.common.acceleration import by_kernel


class Columns(NamedTuple):
    """Where the columns of a row lie in the memory of a batch, on the device of the rows.

    Attributes:
        starts: First column of the entry that a column belongs to, int32 ``(columns,)``.
        widths: Number of columns of that entry, likewise.
    """

    starts: Tensor
    widths: Tensor

    @classmethod
    def of(cls, widths: list[int], device: torch.device) -> Columns:
        """Columns of entries of these widths, one after the other."""
        each = torch.tensor(widths, dtype=torch.int32, device="cpu")
        starts = each.cumsum(0, dtype=torch.int32) - each
        return cls(starts.repeat_interleave(each).to(device), each.repeat_interleave(each).to(device))


@by_kernel
def mix(
    rows: Tensor, places: Tensor, index: Tensor, numbers: Tensor, flags: Tensor, terminated: int, columns: Columns
) -> tuple[Tensor, Tensor, Tensor]:
    """Put real rows at some places of a synthetic batch.

    Args:
        rows: Synthetic rows ``(size, columns + 1)``; the last column says whether they terminate.
        places: Distinct places of the real rows in the batch, ``(k,)``.
        index: Numbers of the real rows, ``(k,)``.
        numbers: All real rows without flags, ``(capacity, columns)``.
        flags: Their flags, bool ``(flags, capacity)``.
        terminated: The first flags, which say whether a row terminates; the others are False in synthetic rows.
        columns: Entries that the columns belong to.

    Returns:
        The numbers of one entry ``(size, width)`` after the other, in one tensor ``(columns * size,)``; the flags, and
        whether rows are synthetic, bool ``(flags + 1, size)``; the numbers of real rows, -1 for synthetic ones.
    """
    mixed = rows[:, :-1].index_copy(0, places, numbers.index_select(0, index))
    widths = columns.widths.tolist()
    entries, start = [], 0
    while start < len(widths):
        entries.append(mixed[:, start : start + widths[start]].flatten())
        start += widths[start]
    raised = torch.zeros(len(flags) + 1, len(rows), dtype=torch.bool, device=rows.device)
    raised[:terminated] = rows[:, -1] > 0.5
    raised[-1] = True
    real = torch.nn.functional.pad(flags.index_select(1, index), (0, 0, 0, 1))
    raised.index_copy_(1, places, real)
    row_numbers = torch.full((len(rows),), -1, dtype=torch.long, device=rows.device)
    return torch.cat(entries), raised, row_numbers.index_copy_(0, places, index)
