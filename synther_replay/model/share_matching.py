"""Copies of generated rows that give every outcome its share of the real rows."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_COPIES = 10  # of one generated row, to reach the share of its outcome


def copies_to_match(number: Tensor, shares: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows to replace and the rows to copy there, so that outcomes come as often as in the real data.

    Args:
        number: Outcome of each row, ``(n,)``.
        shares: Shares of the outcomes, ``(K,)``.
        rng: Random generator.

    Returns:
        Two index tensors. An outcome that was not generated at all stays missing; a row is copied at most ten times.
    """
    n, have = len(number), torch.bincount(number, minlength=len(shares))
    offset = torch.rand(1, device=rng.device, generator=rng, dtype=torch.float64)
    share = shares.cpu().double()  # on a GPU, sums of floats do not repeat
    ends = (share.cumsum(0) / share.sum() * n).to(offset.device) + offset
    ends = ends.floor().clamp(max=n)  # rounds without bias to a sum of n
    wanted = torch.diff(ends, prepend=offset.floor()).long()
    missing = (wanted.minimum(have * MOST_COPIES) - have).clamp(min=0)
    total = int(missing.sum())
    shuffled = torch.randperm(n, device=rng.device, generator=rng)
    shuffled = shuffled[number[shuffled].argsort(stable=True)]  # by outcome, in random order within each
    first = have.cumsum(0) - have
    own = number[shuffled]
    surplus = shuffled[torch.arange(n, device=number.device) - first[own] >= wanted[own]]
    replaced = surplus[torch.randperm(len(surplus), device=rng.device, generator=rng)[:total]]
    outcome = torch.arange(len(shares), device=number.device).repeat_interleave(missing)
    turn = torch.arange(total, device=number.device) - (missing.cumsum(0) - missing)[outcome]
    return replaced, shuffled[first[outcome] + turn % have[outcome]]  # all rows of an outcome in turn
