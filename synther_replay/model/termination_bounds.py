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
_LEFT_OVER = 0.1  # share of the terminated rows that may lie within bounds that are taken to be all there are


class TerminationBounds(NamedTuple):
    """Bounds of the inputs of M models; infinite where there is none."""

    low: Tensor  # (M, inputs)
    high: Tensor  # (M, inputs)
    complete: Tensor  # (M,), 1 if rows within the bounds do not terminate, else 0

    @classmethod
    def none(cls, stack: int, inputs: int, device: torch.device) -> TerminationBounds:
        """No bounds."""
        high = torch.full((stack, inputs), math.inf, dtype=torch.float32, device=device)
        return cls(-high, high, high.new_zeros(stack))

    @classmethod
    def find(
        cls, blocks: Callable[[], Iterable[Tensor]], terminated: Tensor, take: Callable[[Tensor], Tensor], inputs: int
    ) -> TerminationBounds:
        """Find the bounds of real rows.

        Args:
            blocks: Returns the inputs of all rows, ``(M, k, inputs)`` at a time.
            terminated: Which rows terminate, bool ``(M, n)``.
            take: Returns the inputs of the rows with given numbers, ``(M, k) -> (M, k, inputs)``.
            inputs: Number of inputs.
        """
        found = cls.none(len(terminated), inputs, terminated.device)
        ends = terminated.sum(1)
        if not inputs or not int(ends.max()):
            return found
        least, most = found.high.clone(), found.low.clone()  # of the rows that go on
        start = 0
        for block in blocks():
            ended = terminated[:, start : start + block.shape[1], None]
            least = least.minimum(block.masked_fill(ended, math.inf).amin(1))
            most = most.maximum(block.masked_fill(ended, -math.inf).amax(1))
            start += block.shape[1]
        rows = terminated.long().topk(int(ends.max()), dim=1).indices  # terminated ones first
        for model, values in enumerate(take(rows)):
            count = int(ends[model])
            if 0 < count < terminated.shape[1]:
                found._choose(model, values[:count], least[model], most[model], count / terminated.shape[1])
        return found

    @classmethod
    def from_state(cls, state: dict[str, Any], stack: int, inputs: int, device: torch.device) -> TerminationBounds:
        """Bounds of tensors by name; none of an empty state, as versions without bounds wrote it.

        Raises:
            CheckpointError: Names, shapes or values are impossible.
        """
        if not state:
            return cls.none(stack, inputs, device)
        if state.keys() != set(cls._fields):
            raise CheckpointError(f"state: outcomes: bounds: got {sorted(state)}, expected {list(cls._fields)}")
        for name, tensor in state.items():
            expected = (stack,) if name == "complete" else (stack, inputs)
            if tuple(tensor.shape) != expected or bool(tensor.isnan().any()):
                got = tuple(tensor.shape)
                raise CheckpointError(f"state: outcomes: {name}: got shape {got}, expected {expected} without NaN")
        return cls(**{name: tensor.to(device, torch.float32, copy=True) for name, tensor in state.items()})

    def beyond(self, inputs: Tensor) -> Tensor:
        """Which rows ``(M, n, inputs)`` lie beyond a bound, bool ``(M, n)``."""
        return ((inputs < self.low[:, None]) | (inputs > self.high[:, None])).any(-1)

    def _choose(self, model: int, ended: Tensor, least: Tensor, most: Tensor, rate: float) -> None:
        """Add the bounds that tell most terminated rows ``(k, inputs)``, the best first, while it cannot be chance.

        Args:
            model: Number of the model; the bounds are written there.
            ended: Terminated rows.
            least: Smallest inputs of the others.
            most: Their largest inputs.
            rate: Share of the rows that terminate. So many extreme rows terminate by chance with this power.
        """
        needed = max(2, math.ceil(math.log(2 * ended.shape[1] / _CHANCE) / -math.log(rate)))
        below, above = ended < least, ended > most
        told = torch.cat((below, above), dim=1)
        left = torch.ones(len(ended), dtype=torch.bool, device=ended.device)
        for _ in range(_MOST_BOUNDS):
            gained = told[left].sum(0)
            best = int(gained.argmax())
            if int(gained[best]) < needed:
                break
            left &= ~told[:, best]
            column = best % ended.shape[1]
            values = ended[told[:, best], column]
            # Half-way between the last row that goes on and the first one that does not.
            if best < ended.shape[1]:
                self.low[model, column] = (least[column] + values.max()) / 2
            else:
                self.high[model, column] = (most[column] + values.min()) / 2
        self.complete[model] = float(int(left.sum()) <= _LEFT_OVER * len(ended))
