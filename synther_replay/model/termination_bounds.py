"""TerminationBounds: values beyond which every real row terminates.

Most tasks end an episode because one value leaves its range: a body is too low, a pole leans too far. Such ends are
often rare, and a classifier that has seen fifty of them among 30,000 rows cannot tell which of sixty inputs they depend
on. Generated rows then terminate where the task goes on, and go on where it ends, in states that no real row continues
from. A bound says more from fewer rows: all real rows beyond it terminate, and there are too many of them for chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from synther_replay.errors import CheckpointError

_CHANCE = 1e-3  # that some bound of a model is found where there is none
_MOST_BOUNDS = 32  # per model
_MOST_ENDS = 10_000  # terminated rows of a model that bounds are chosen by; limits memory where most rows terminate
_LEFT_OVER = 0.1  # share of the rows of an outcome that may lie within bounds that are taken to be all it has


class TerminationBounds(NamedTuple):
    """Bounds of the inputs of M models with K outcomes; infinite where there is none."""

    low: Tensor  # (M, inputs)
    high: Tensor  # (M, inputs)
    complete: Tensor  # (M, K), 1 for outcomes that rows within the bounds do not have, else 0

    @classmethod
    def none(cls, stack: int, inputs: int, outcomes: int, device: torch.device) -> TerminationBounds:
        """No bounds."""
        high = torch.full((stack, inputs), math.inf, dtype=torch.float32, device=device)
        return cls(-high, high, high.new_zeros(stack, outcomes))

    @classmethod
    def find(
        cls, blocks: Iterable[Tensor], number: Tensor, ends: Tensor, rows_of: Callable[[int, Tensor], Tensor]
    ) -> TerminationBounds:
        """Find the bounds of real rows.

        Args:
            blocks: Inputs of all rows, ``(M, k, inputs)`` at a time.
            number: Outcome of each row, ``(M, n)``.
            ends: Which outcomes terminate, bool ``(M, K)``.
            rows_of: Returns the inputs of rows ``(k,)`` of a model, ``(k, inputs)``.
        """
        terminated, found, start = ends.gather(1, number), None, 0
        for block in blocks:
            if found is None:
                found = cls.none(len(block), block.shape[2], ends.shape[1], block.device)
                least, most = found.high, found.low  # of the rows that go on
            ended = terminated[:, start : start + block.shape[1], None]
            if block.shape[2]:
                least = least.minimum(block.masked_fill(ended, math.inf).amin(1))
                most = most.maximum(block.masked_fill(ended, -math.inf).amax(1))
            start += block.shape[1]
        assert found is not None  # there are rows
        for model, own in enumerate(terminated):
            rows = own.nonzero().flatten()
            if most.shape[1] and 0 < len(rows) < len(own):
                rate = len(rows) / len(own)
                rows = rows[:: -(-len(rows) // _MOST_ENDS)]
                found._choose(model, rows_of(model, rows), number[model, rows], least[model], most[model], rate)
        return found

    @classmethod
    def from_state(cls, state: dict[str, Any], shape: tuple[int, int, int], device: torch.device) -> TerminationBounds:
        """Bounds of tensors by name; none of an empty state, as versions without bounds wrote it.

        Args:
            state: The tensors.
            shape: Numbers of models, inputs and outcomes.
            device: Where they go.

        Raises:
            CheckpointError: Names, shapes or values are impossible.
        """
        stack, inputs, outcomes = shape
        if not state:
            return cls.none(stack, inputs, outcomes, device)
        if state.keys() != set(cls._fields):
            raise CheckpointError(f"state: outcomes: bounds: got {sorted(state)}, expected {list(cls._fields)}")
        for name, tensor in state.items():
            expected = (stack, outcomes if name == "complete" else inputs)
            if tuple(tensor.shape) != expected or bool(tensor.isnan().any()):
                got = tuple(tensor.shape)
                raise CheckpointError(f"state: outcomes: {name}: got shape {got}, expected {expected} without NaN")
        found = cls(**{name: tensor.to(device, torch.float32, copy=True) for name, tensor in state.items()})
        if bool((found.low > found.high).any()) or not bool(((found.complete == 0) | (found.complete == 1)).all()):
            raise CheckpointError("state: outcomes: bounds exclude each other, or complete is neither 0 nor 1")
        return found

    def beyond(self, inputs: Tensor) -> Tensor:
        """Which rows ``(M, n, inputs)`` lie beyond a bound, bool ``(M, n)``."""
        return ((inputs < self.low[:, None]) | (inputs > self.high[:, None])).any(-1)

    def _choose(self, model: int, ended: Tensor, number: Tensor, least: Tensor, most: Tensor, rate: float) -> None:
        """Add the bounds that tell most terminated rows ``(k, inputs)``, the best first, while it cannot be chance.

        Args:
            model: Number of the model; the bounds are written there.
            ended: Terminated rows.
            number: Their outcomes, ``(k,)``.
            least: Smallest inputs of the others.
            most: Their largest inputs.
            rate: Share of the rows that terminate. So many extreme rows terminate by chance with this power.
        """
        needed = max(2, math.ceil(math.log(2 * ended.shape[1] / _CHANCE) / -math.log(rate)))
        told = self._told(ended, least, most)
        distinct = self._told(ended.unique(dim=0), least, most)  # a repeated row is no more evidence than one
        left = torch.ones(len(distinct), dtype=torch.bool, device=ended.device)
        left_over = torch.ones(len(ended), dtype=torch.bool, device=ended.device)
        for _ in range(_MOST_BOUNDS):
            gained = distinct[left].sum(0)
            if int(gained.max()) < needed:
                break
            # Of equals the last: the next observation, on which the end depends, and not the one before.
            best = len(gained) - 1 - int(gained.flip(0).argmax())
            left, left_over = left & ~distinct[:, best], left_over & ~told[:, best]
            column, is_above = best // 2, best % 2
            values, side = ended[told[:, best], column], (self.low, self.high)[is_above]
            side[model, column] = _between((least, most)[is_above][column], (values.max(), values.min())[is_above])
        for outcome in number.unique().tolist():
            own = left_over[number == outcome]
            few = int(own.sum()) < needed and int(own.sum()) <= _LEFT_OVER * len(own)
            self.complete[model, outcome] = float(few)

    @staticmethod
    def _told(ended: Tensor, least: Tensor, most: Tensor) -> Tensor:
        """Which rows ``(k, inputs)`` lie below and above all that go on, by input, bool ``(k, 2 * inputs)``."""
        return torch.stack((ended < least, ended > most), dim=-1).flatten(1)


def _between(alive: Tensor, ended: Tensor) -> Tensor:
    """Half-way from a row that goes on to one that does not, but not on the latter."""
    middle = alive + (ended - alive) / 2
    return torch.where((middle == ended) | ~middle.isfinite(), alive, middle)
