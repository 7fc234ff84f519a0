"""Regressions from some codes of real rows to others: which rows they are trained on, and how."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from synther_replay.common.mlp import Shape
from synther_replay.common.regression import Regression, in_blocks, initial_weights
from synther_replay.common.seeding import generator_for
from synther_replay.common.stacks import take_rows
from synther_replay.diffusion.stopping import BestModels
from synther_replay.errors import DivergedError

_BATCH = 256
_RATE, _REFIT_RATE = 5e-3, 3e-3  # initial learning rate; cosine annealing to zero
_EVALUATIONS = 8  # of the held-out loss per fit; the weights with the lowest are kept
_HELD_OUT, _MOST_HELD_OUT = 10, 4_096  # one row in this many if the fit itself holds out none; at most so many
_SAMPLE = 4_096  # rows that the scale of the targets is measured on
_LARGEST = 10.0  # targets are clipped: one outlier must not carry the whole gradient


def new_regression(shape: Shape, *, stack: int, device: torch.device) -> Regression:
    """What trains M regressions of a shape."""
    zeros = torch.zeros(stack, shape.parameters, dtype=torch.float32, device=device)
    return Regression.of(shape, zeros, batch_size=_BATCH)


class RealRows(NamedTuple):
    """Codes of real rows, some of them held out."""

    codes: Tensor  # (M, n, ...)
    order: Tensor | None  # row numbers (n,), held-out ones last; None: as they are
    held: int  # number of held-out rows

    @classmethod
    def of(cls, codes: Tensor, held_out: int, rng: torch.Generator) -> RealRows:
        """Hold out the last rows, or random ones if there are none."""
        count = codes.shape[1]
        if held_out:
            return cls(codes, None, held_out)
        return cls(codes, torch.randperm(count, device=codes.device, generator=rng), max(1, count // _HELD_OUT))

    @property
    def trained(self) -> int:
        """Number of the other rows."""
        return self.codes.shape[1] - self.held

    def take(self, numbers: Tensor) -> Tensor:
        """Codes of the rows with the given numbers, ``(M, k)`` out of ``0 .. trained - 1``."""
        return take_rows(self.codes, numbers if self.order is None else self.order[numbers])

    def held_out(self) -> Tensor:
        """Codes of held-out rows."""
        rows = self.codes.shape[1]
        last = torch.arange(rows - min(self.held, _MOST_HELD_OUT), rows, device=self.codes.device)
        return self.take(last.expand(len(self.codes), -1))


def fit_regression(
    rows: RealRows,
    examples: Callable[[Tensor], tuple[Tensor, Tensor]],
    shape: Shape,
    previous: Tensor | None,
    steps: int,
    rng: torch.Generator,
    regression: Callable[[Shape], Regression],
) -> Tensor:
    """Train a regression and return its weights ``(M, P)``.

    Args:
        rows: Real rows.
        examples: Returns inputs and targets of codes.
        shape: Sizes of the network.
        previous: Weights of the last fit, the start if they have the same shape.
        steps: Gradient steps, rounded up to multiples of 25.
        rng: Random generator of the batches.
        regression: See `Consistency.fit`.

    Raises:
        DivergedError: A weight became non-finite.
    """
    codes = rows.codes
    if not shape.outputs:
        return codes.new_zeros(len(codes), shape.parameters)
    some = torch.randint(rows.trained, (len(codes), _SAMPLE), generator=rng, device=codes.device)
    scale, mean = torch.std_mean(examples(rows.take(some))[1], dim=1, keepdim=True)
    scale = scale.clamp(min=1e-6)

    def standardised(part: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = examples(part)
        return inputs, ((targets - mean) / scale).clamp(-_LARGEST, _LARGEST)

    warm = previous is not None and previous.shape == (len(codes), shape.parameters)
    if previous is not None and warm:
        weights = previous.clone()
        *_, last, bias = shape.layers(weights)
        last /= scale
        bias.sub_(mean).div_(scale)
    else:
        weights = initial_weights(shape, len(codes), generator_for("cpu", rng.initial_seed())).to(codes.device)
    model = regression(shape)
    model.restart(weights)
    best = BestModels({"weights": model.weights}, patience=None)
    inputs, targets = standardised(rows.held_out())
    count = in_blocks(steps)
    progress = torch.arange(count, dtype=torch.float64, device=codes.device) / count
    rates = (_REFIT_RATE if warm else _RATE) * 0.5 * (1 + (progress * math.pi).cos())
    for part in rates.split(in_blocks(count // _EVALUATIONS) or count):
        model.train(lambda numbers: torch.cat(standardised(rows.take(numbers)), dim=-1), rows.trained, part, rng)
        best.measure((shape.predict(model.weights, inputs) - targets).square().mean((1, 2)))
    best.restore()
    weights = model.weights.clone()
    *_, last, bias = shape.layers(weights)
    last *= scale
    bias.mul_(scale).add_(mean)
    if not bool(weights.isfinite().all()):
        raise DivergedError("fit: the regressions of `consistent` diverged (non-finite weights); check the data")
    return weights
