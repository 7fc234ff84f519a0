"""Atoms: values that many rows of a continuous column have exactly, such as a contact force of zero.

A continuous model smears them: of a column that is zero in most rows, half of the generated values would be positive.
`open_gaps` moves the values beyond an atom away from it and leaves the atom in the middle of the gap. `close_gaps` is
the inverse and maps all of a gap to its atom, so that generated values near the atom are exact.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# A column has atoms if its most frequent value has at least the first share of the rows; the atoms are its most
# frequent values with at least the second share. Columns that are clipped in a few rows have none.
MAX_ATOMS = 3
_LARGEST_SHARE, _LEAST_SHARE = 0.2, 0.01
_SCREENED = 4_096  # rows that are searched for atoms
_GAP = 4.0  # width of a gap in standard deviations of the column, which a gap in turn increases


def find_atoms(values: Tensor) -> Tensor:
    """Return the sorted atoms of values ``(M, n, c)``: ``(M, MAX_ATOMS, c)``, padded with infinity."""
    columns = values[:, :: max(1, values.shape[1] // _SCREENED)].transpose(1, 2).sort(dim=-1).values
    number = F.pad((columns[..., 1:] != columns[..., :-1]).cumsum(-1), (1, 0))  # of each value among the distinct ones
    counts = torch.zeros_like(number).scatter_add_(-1, number, torch.ones_like(number))
    counts, places = counts.topk(min(MAX_ATOMS, counts.shape[-1]), dim=-1)
    frequent = torch.zeros_like(columns).scatter_(-1, number, columns).gather(-1, places)
    share = counts / columns.shape[-1]
    is_atom = (share >= _LEAST_SHARE) & (counts > 1) & (share[..., :1] >= _LARGEST_SHARE)
    atoms = torch.where(is_atom, frequent, torch.inf).sort(dim=-1).values
    return F.pad(atoms, (0, MAX_ATOMS - atoms.shape[-1]), value=torch.inf).transpose(1, 2).contiguous()


def gap_widths(values: Tensor, atoms: Tensor) -> Tensor:
    """Return the width of the gaps of each column, ``(M, 1, c)``; 0 without atoms."""
    return torch.where(atoms[:, :1].isfinite(), _GAP * values.std(1, correction=0, keepdim=True), 0.0)


def open_gaps(values: Tensor, atoms: Tensor, width: Tensor) -> Tensor:
    """Open a gap at every atom, for values ``(M, n, c)``."""
    opened = values.clone()
    for atom in atoms.split(1, dim=1):
        opened += ((values > atom).float() + (values >= atom).float()) * (width / 2)
    return opened


def close_gaps(values: Tensor, atoms: Tensor, width: Tensor) -> Tensor:
    """Inverse of `open_gaps`."""
    closed = values.clone()
    for k, atom in enumerate(atoms.split(1, dim=1)):
        beyond = values - (atom + k * width)
        closed -= beyond.clamp(min=0).minimum(width)
        closed = torch.where((beyond >= 0) & (beyond <= width), atom, closed)
    return closed
