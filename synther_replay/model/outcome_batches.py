"""OutcomeBatches: which rows the classifier of outcomes is trained and evaluated on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BATCH = 512  # or as many as there are rows
_HELD_OUT = 10  # one row in this many is held out
_EVALUATED = 4_096  # held-out rows per evaluation and model, over all outcomes
_HARD_SHARE = 0.1  # of all rows, at most half


class OutcomeBatches:
    """Random batches of rows by outcome; a tenth of each outcome's rows is held out."""

    def __init__(self, number: Tensor, shares: Tensor, rng: torch.Generator) -> None:
        """Sort the rows by outcome, in random order within each."""
        self._rng, self._number, self._shares = rng, number, shares
        self.batch_size = min(_BATCH, number.shape[1])
        chance = torch.rand(number.shape, device=rng.device, generator=rng, dtype=torch.float32)
        self._order = (number + chance / 2).argsort(dim=1, stable=True)
        self._counts = (shares.double() * number.shape[1]).round().long()
        self._first = self._counts.cumsum(1) - self._counts
        self._held = ((self._counts + _HELD_OUT - 1) // _HELD_OUT).minimum(self._counts - 1).clamp(min=0)
        present = (shares > 0).float()
        self._chance = (shares + present / present.sum(1, keepdim=True)) / 2  # of an outcome in a batch
        self._hard: Tensor | None = None

    def held_out(self) -> tuple[Tensor, Tensor]:
        """Held-out rows ``(M, B)`` and their weights, with which their losses add up to the mean of all rows."""
        each = max(1, _EVALUATED // self._shares.shape[1])
        outcome = torch.arange(self._shares.shape[1], device=self._shares.device).repeat_interleave(each)
        outcome = outcome.expand(len(self._shares), -1)
        rows = self._pick(outcome, self._first, self._held)
        return rows, (self._shares * (self._held > 0) / each).gather(1, outcome)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Training rows ``(M, count)`` in random order and the weights that correct for how often they are drawn."""
        trained = self._counts - self._held
        outcome = torch.multinomial(self._chance, count, replacement=True, generator=self._rng)
        rows = self._pick(outcome, self._first + self._held, trained)
        share = 0.0
        if self._hard is not None:  # a third of the rows are hard ones
            share = 1 / 3
            place = torch.randint(self._hard.shape[1], rows.shape, device=rows.device, generator=self._rng)
            chance = torch.rand(rows.shape, device=rows.device, generator=self._rng, dtype=torch.float32)
            rows = torch.where(chance < share, self._hard.gather(1, place), rows)
        density = (1 - share) * (self._chance / trained.clamp(min=1)).gather(1, self._number.gather(1, rows))
        if self._hard is not None:
            density += self._is_hard.gather(1, rows) * (share / self._hard.shape[1])
        return rows, 1 / (density * trained.sum(1, keepdim=True))

    def find_hard(self, uncertainty: Tensor) -> None:
        """Draw the training rows with the highest uncertainty, ``(M, n)``, more often from now on."""
        position = torch.arange(uncertainty.shape[1], device=uncertainty.device)
        number = self._number.gather(1, self._order)
        held = position - self._first.gather(1, number) < self._held.gather(1, number)
        uncertainty = uncertainty.masked_fill(torch.zeros_like(held).scatter_(1, self._order, held), -math.inf)
        count = max(1, min(uncertainty.shape[1] // 2, max(_BATCH, int(_HARD_SHARE * uncertainty.shape[1]))))
        self._hard = uncertainty.topk(count, dim=1).indices
        self._is_hard = torch.zeros_like(uncertainty).scatter_(1, self._hard, 1.0)

    def _pick(self, outcome: Tensor, first: Tensor, sizes: Tensor) -> Tensor:
        """Random rows with the given outcomes ``(M, B)``; another row if there is none, its weight must be zero."""
        # float64: float32 has too few values for uniform indices into a large buffer
        share = torch.rand(outcome.shape, device=outcome.device, generator=self._rng, dtype=torch.float64)
        size = sizes.gather(1, outcome)
        place = first.gather(1, outcome) + (share * size).long().minimum(size - 1)
        return self._order.gather(1, place.clamp(0, self._order.shape[1] - 1))
