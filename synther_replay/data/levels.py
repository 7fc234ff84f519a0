"""Levels: the few distinct values of a column that is discrete in the data, whatever its space declares.

Sparse rewards, switches and grid positions are often stored as floating-point numbers. A continuous model would return
values between them; `nearest_level` maps generated values back.
"""

from __future__ import annotations

import torch
from torch import Tensor

# A column has levels if it has at most MAX_LEVELS distinct values, on average at least ROWS_PER_LEVEL rows of each, and
# fewer rows of at most MOST_RARE of them. The second condition keeps a few rows of a continuous column from counting as
# levels, the third a column that is 0 or 1 in nearly all rows and lies between in a few: its 0 and 1 are atoms.
MAX_LEVELS, ROWS_PER_LEVEL, MOST_RARE = 32, 10, 8
_SCREENED = 2_048  # rows that exclude most continuous columns before the exact count


def find_levels(rows: Tensor, columns: Tensor) -> Tensor:
    """Return the sorted levels of some columns of rows ``(M, n, dim)``: ``(M, MAX_LEVELS, c)``, padded with NaN.

    A column with more values in any of the M models has NaN only. The level of a constant column is its value.
    """
    stack, count, _ = rows.shape
    most = min(MAX_LEVELS, max(1, count // ROWS_PER_LEVEL))
    levels = torch.full((stack, MAX_LEVELS, len(columns)), torch.nan, dtype=torch.float32, device=rows.device)
    some = rows[:, :: max(1, count // _SCREENED)][..., columns].sort(dim=1).values
    few = ((some[:, 1:] != some[:, :-1]).sum(1) < most).all(0)
    for place in few.nonzero().flatten().tolist():
        found = [torch.unique(model[:, columns[place]], return_counts=True) for model in rows]
        if all(len(values) <= most and (counts < ROWS_PER_LEVEL).sum() <= MOST_RARE for values, counts in found):
            for model, (values, _) in enumerate(found):
                levels[model, : len(values), place] = values
    return levels


def nearest_level(values: Tensor, levels: Tensor) -> Tensor:
    """Return the index of the level nearest to each value, ``(M, n), (M, MAX_LEVELS) -> (M, n)``."""
    exact = levels.double()  # in float32, the middle of neighbouring numbers is one of them
    middles = ((exact[:, 1:] + exact[:, :-1]) / 2).nan_to_num(nan=torch.inf)
    return torch.searchsorted(middles, values.double().contiguous())
