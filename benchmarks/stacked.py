"""Multi-layer perceptrons of many learners side by side, with their gradients written out, and Adam.

    h1 = relu(x @ w1)              the bias is the row of w1 that meets the column of ones in x
    h2 = relu(h1 @ w2 + b2)
    y  = h2 @ w3 + b3

All parameters of a network lie in one row of a matrix ``(S, P)``, so that Adam and target networks are one operation
on that matrix. Each product below is one kernel for all S networks; with automatic differentiation there would be
three times as many, and at these sizes a kernel costs its launch.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from synther_replay.acceleration import fused

_ALIGN = 4  # tensor cores want float32 rows to start at multiples of 16 bytes
BETAS, EPS = (0.9, 0.999), 1e-8


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


@dataclass(frozen=True)
class MlpShape:
    """Sizes of one network with two hidden layers."""

    inputs: int
    outputs: int
    hidden: int = 256

    @property
    def padded_inputs(self) -> int:
        """Columns of x: the inputs, a one, zeros."""
        return _aligned(self.inputs + 1)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Shape of each entry of `Layers` for one network."""
        return {
            "w1": (self.padded_inputs, self.hidden),
            "w2": (self.hidden, self.hidden),
            "w3": (self.hidden, self.outputs),
            "b2": (1, self.hidden),
            "b3": (1, self.outputs),
        }

    def starts(self) -> dict[str, int]:
        """Column of the parameter matrix at which each entry begins."""
        lengths = [math.prod(size) for size in self.sizes().values()]
        return dict(zip(self.sizes(), itertools.accumulate(lengths, initial=0), strict=False))

    @property
    def parameters(self) -> int:
        """Columns of the parameter matrix; the last few may be padding."""
        return _aligned(sum(math.prod(size) for size in self.sizes().values()))


class Layers(NamedTuple):
    """Views of a parameter matrix ``(S, P)``, or of a gradient of the same layout; shapes in `MlpShape.sizes`."""

    w1: Tensor
    w2: Tensor
    w3: Tensor
    b2: Tensor
    b3: Tensor

    @classmethod
    def of(cls, flat: Tensor, shape: MlpShape) -> Layers:
        """Cut the matrix into views ``(S, *size)``."""
        starts = shape.starts()
        views = {
            name: flat[:, starts[name] : starts[name] + math.prod(size)].unflatten(1, size)
            for name, size in shape.sizes().items()
        }
        return cls(**views)


class Kept(NamedTuple):
    """What `forward` keeps for `backward`."""

    x: Tensor
    h1: Tensor
    h2: Tensor

    def first(self, count: int) -> Kept:
        """Those of the first networks only."""
        return Kept(*(part[:count] for part in self))

    def first_rows(self, count: int) -> Kept:
        """Those of the first rows of the batch only."""
        return Kept(*(part[:, :count] for part in self))


def initialise(shape: MlpShape, stack: int, rng: torch.Generator) -> Tensor:
    """Weights as in the REDQ code base: Xavier uniform, biases of zero; ``(S, P)`` on the CPU."""
    flat = torch.zeros(stack, shape.parameters)
    layers = Layers.of(flat, shape)
    for weight, inputs in ((layers.w1[:, : shape.inputs], shape.inputs), *((w, shape.hidden) for w in layers[1:3])):
        bound = math.sqrt(6 / (inputs + weight.shape[2]))
        weight.uniform_(-bound, bound, generator=rng)
    return flat


def initialise_as_torch(shape: MlpShape, stack: int, rng: torch.Generator) -> Tensor:
    """Weights and biases as `torch.nn.Linear` draws them; ``(S, P)`` on the CPU."""
    flat = torch.zeros(stack, shape.parameters)
    layers = Layers.of(flat, shape)
    of_inputs, of_hidden = 1 / math.sqrt(shape.inputs), 1 / math.sqrt(shape.hidden)
    layers.w1[:, : shape.inputs + 1].uniform_(-of_inputs, of_inputs, generator=rng)
    for part in layers[1:]:
        part.uniform_(-of_hidden, of_hidden, generator=rng)
    return flat


def padded(*parts: Tensor, columns: int) -> Tensor:
    """Inputs of a network: the parts ``(..., n)`` side by side, a one, and zeros up to `columns`."""
    lead = parts[0].shape[:-1]
    used = sum(part.shape[-1] for part in parts)
    one, zeros = parts[0].new_ones(*lead, 1), parts[0].new_zeros(*lead, columns - used - 1)
    return torch.cat((*parts, one, zeros), -1)


fused_padded = fused(padded)


@fused
def _biased_relu(z: Tensor, bias: Tensor) -> Tensor:
    return (z + bias).relu()


@fused
def _outer_through_relu(d_y: Tensor, w3: Tensor, h2: Tensor) -> Tensor:
    return torch.where(h2 > 0, d_y * w3.mT, 0.0)


def forward(w: Layers, x: Tensor) -> tuple[Tensor, Kept]:
    """Inputs ``(S, B, padded_inputs)`` to outputs ``(S, B, outputs)``, and what `backward` needs."""
    h1 = torch.bmm(x, w.w1).relu_()
    h2 = _biased_relu(torch.bmm(h1, w.w2), w.b2)
    return torch.baddbmm(w.b3, h2, w.w3), Kept(x, h1, h2)


def backward(w: Layers, kept: Kept, d_y: Tensor, gradient: Layers) -> None:
    """Write the gradient of all parameters, given that of the outputs ``(S, B, outputs)``."""
    torch.bmm(kept.h2.mT, d_y, out=gradient.w3)
    torch.sum(d_y, 1, keepdim=True, out=gradient.b3)
    d_h2 = _into_h2(w, kept, d_y)
    torch.bmm(kept.h1.mT, d_h2, out=gradient.w2)
    torch.sum(d_h2, 1, keepdim=True, out=gradient.b2)
    torch.bmm(kept.x.mT, _into_h1(w, kept, d_h2), out=gradient.w1)


def backward_to_inputs(w: Layers, kept: Kept, d_y: Tensor) -> Tensor:
    """The gradient of the inputs, ``(S, B, padded_inputs)``; the parameters are taken as fixed."""
    return torch.bmm(_into_h1(w, kept, _into_h2(w, kept, d_y)), w.w1.mT)


def _into_h2(w: Layers, kept: Kept, d_y: Tensor) -> Tensor:
    if d_y.shape[-1] == 1:
        return _outer_through_relu(d_y, w.w3, kept.h2)
    return torch.ops.aten.threshold_backward(torch.bmm(d_y, w.w3.mT), kept.h2, 0)


def _into_h1(w: Layers, kept: Kept, d_h2: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(torch.bmm(d_h2, w.w2.mT), kept.h1, 0)


class Adam:
    """Adam's moments for a matrix of parameters that it changes in place.

    Attributes:
        parameters: What is learnt, ``(S, P)``.
        gradient: Where a step finds its gradient.
        mean: First moments.
        square: Second moments.
    """

    def __init__(self, parameters: Tensor, learning_rate: float) -> None:
        """Start with empty moments."""
        self.parameters = parameters
        self.learning_rate = learning_rate
        self.gradient, self.mean, self.square = (torch.zeros_like(parameters) for _ in range(3))

    def rates(self, done: Tensor, count: int) -> Tensor:
        """Bias-corrected rates ``(count, 2)`` of the next steps after `done`, a number on the device: see `_adam`."""
        return _rates(done, count, self.learning_rate, self.parameters.dtype)

    def step(self, rates: Tensor) -> None:
        """Take one step."""
        _adam(self.parameters, self.gradient, self.mean, self.square, rates)

    def step_and_follow(self, rates: Tensor, target: Tensor, speed: float) -> None:
        """Take one step, and move target parameters towards the result by `speed`: one pass over memory for both."""
        _adam_and_follow(self.parameters, self.gradient, self.mean, self.square, rates, target, speed)

    def tensors(self) -> dict[str, Tensor]:
        """What a run is continued from."""
        return {"parameters": self.parameters, "mean": self.mean, "square": self.square}


@fused
def _rates(done: Tensor, count: int, learning_rate: float, dtype: torch.dtype) -> Tensor:
    steps = done + torch.arange(1, count + 1, device=done.device)
    return torch.stack((learning_rate / (1 - BETAS[0] ** steps), (1 - BETAS[1] ** steps).rsqrt()), 1).to(dtype)


def _adam_step(parameters: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, rates: Tensor) -> None:
    mean.lerp_(gradient, 1 - BETAS[0])
    square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    parameters.sub_(mean * rates[0] / (square.sqrt() * rates[1] + EPS))


_adam = fused(_adam_step)


@fused
def _adam_and_follow(
    parameters: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, rates: Tensor, target: Tensor, speed: float
) -> None:
    _adam_step(parameters, gradient, mean, square, rates)
    target.lerp_(parameters, speed)
