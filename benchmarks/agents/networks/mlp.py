"""Multi-layer perceptrons of many learners side by side, with their gradients written out, and Adam.

    h1 = relu(x @ w1)              the bias is the row of w1 that meets the column of ones in x
    h2 = relu(h1 @ w2 + b2)        and so on for further hidden layers
    y  = h2 @ w3 + b3

All parameters of a network lie in one row of a matrix ``(S, P)``, so that Adam and target networks are one operation
on that matrix. Each product below is one kernel for all S networks; with automatic differentiation there would be
three times as many, and at these sizes a kernel costs its launch.

On a GPU products may take halves, see `operands`: what is kept of a forward pass and gradients of hidden layers are
halves then, these scaled so that they are of a row by itself and not of one in a batch; outputs and gradients of
parameters and inputs stay floats.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.networks.matmul import (
    linear_relu,
    matmul_fp32,
    outer_relu_mask,
    relu_mask,
    scaled,
    uses_fp16,
    write_product,
    write_sum,
)
from synther_replay.common.acceleration import fused

_ALIGN = 4  # tensor cores want float32 rows to start at multiples of 16 bytes
_LINE = 64  # numbers in a cache line of halves: networks that begin with a line are read in the widest pieces


def _aligned(size: int, to: int = _ALIGN) -> int:
    return -(-size // to) * to


@dataclass(frozen=True)
class MlpShape:
    """Sizes of one network."""

    inputs: int
    outputs: int
    hidden: int = 256
    hidden_layers: int = 2

    @property
    def padded_inputs(self) -> int:
        """Columns of x: the inputs, a one, zeros."""
        return _aligned(self.inputs + 1)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Shape of each entry of `Layers` for one network."""
        last, hidden = self.hidden_layers + 1, range(2, self.hidden_layers + 1)
        return {
            "w1": (self.padded_inputs, self.hidden),
            **{f"w{k}": (self.hidden, self.hidden) for k in hidden},
            f"w{last}": (self.hidden, self.outputs),
            **{f"b{k}": (1, self.hidden) for k in hidden},
            f"b{last}": (1, self.outputs),
        }

    def starts(self) -> dict[str, int]:
        """Column of the parameter matrix at which each entry begins."""
        lengths = [math.prod(size) for size in self.sizes().values()]
        return dict(zip(self.sizes(), itertools.accumulate(lengths, initial=0), strict=False))

    @property
    def parameters(self) -> int:
        """Columns of the parameter matrix; the last few may be padding."""
        return _aligned(sum(math.prod(size) for size in self.sizes().values()), _LINE)


class Layers(dict[str, Tensor]):
    """Views of a parameter matrix ``(S, P)``, or of a gradient of the same layout, by the names of `MlpShape.sizes`."""

    @classmethod
    def of(cls, flat: Tensor, shape: MlpShape) -> Layers:
        """Cut the matrix into views ``(S, *size)``."""
        starts = shape.starts()
        return cls(
            (name, flat[:, starts[name] : starts[name] + math.prod(size)].unflatten(1, size))
            for name, size in shape.sizes().items()
        )

    def first(self, count: int) -> Layers:
        """Those of the first networks only."""
        return Layers((name, part[:count]) for name, part in self.items())

    @property
    def last(self) -> int:
        """Number of the layer that puts out."""
        return (len(self) + 1) // 2


def operands(parameters: Tensor, shape: MlpShape, dtype: torch.dtype | None = None) -> Layers:
    """Layers of parameters ``(S, P)`` as products take them: to be made anew when the parameters have changed.

    Args:
        parameters: Of the networks.
        shape: Of one network.
        dtype: Of all but the last bias, which is added to what stays float; None for halves where `uses_fp16`
            says so, which tensor cores multiply twice as fast as floats and with the same mantissa, and floats
            elsewhere.
    """
    layers = Layers.of(parameters, shape)
    dtype = dtype or (torch.half if uses_fp16(parameters.device) else parameters.dtype)
    if dtype == parameters.dtype:
        return layers
    name = f"b{layers.last}"
    return Layers({**Layers.of(parameters.to(dtype), shape), name: layers[name]})


class Activations(NamedTuple):
    """What `forward` keeps for `backward`: inputs, and each hidden layer."""

    x: Tensor
    hidden: tuple[Tensor, ...]

    def first(self, count: int) -> Activations:
        """Those of the first networks only."""
        return Activations(self.x[:count], tuple(part[:count] for part in self.hidden))

    def first_rows(self, count: int) -> Activations:
        """Those of the first rows of the batch only."""
        return Activations(self.x[:, :count], tuple(part[:, :count] for part in self.hidden))


def initialise(shape: MlpShape, stack: int, rng: torch.Generator) -> Tensor:
    """Weights as in the REDQ code base: Xavier uniform, biases of zero; ``(S, P)`` on the CPU."""
    flat = torch.zeros(stack, shape.parameters)
    layers = Layers.of(flat, shape)
    for k in range(1, layers.last + 1):
        weight = layers["w1"][:, : shape.inputs] if k == 1 else layers[f"w{k}"]
        bound = math.sqrt(6 / (weight.shape[1] + weight.shape[2]))
        weight.uniform_(-bound, bound, generator=rng)
    return flat


def initialise_as_torch(shape: MlpShape, stack: int, rng: torch.Generator) -> Tensor:
    """Weights and biases as `torch.nn.Linear` draws them; ``(S, P)`` on the CPU."""
    flat = torch.zeros(stack, shape.parameters)
    layers = Layers.of(flat, shape)
    of_inputs, of_hidden = 1 / math.sqrt(shape.inputs), 1 / math.sqrt(shape.hidden)
    layers["w1"][:, : shape.inputs + 1].uniform_(-of_inputs, of_inputs, generator=rng)
    for name in list(layers)[1:]:
        layers[name].uniform_(-of_hidden, of_hidden, generator=rng)
    return flat


def padded(*parts: Tensor, columns: int) -> Tensor:
    """Inputs of a network: the parts ``(..., n)`` side by side, a one, and zeros up to `columns`."""
    lead = parts[0].shape[:-1]
    used = sum(part.shape[-1] for part in parts)
    one, zeros = parts[0].new_ones(*lead, 1), parts[0].new_zeros(*lead, columns - used - 1)
    return torch.cat((*parts, one, zeros), -1)


fused_padded = fused(padded)


def forward(w: Layers, x: Tensor) -> tuple[Tensor, Activations]:
    """Inputs ``(S, B, padded_inputs)`` to outputs ``(S, B, outputs)``, and what `backward` needs."""
    if x.dtype != (dtype := w["w1"].dtype):
        x = scaled(x, 1.0, dtype)
    hidden = [linear_relu(x, w["w1"])]
    for k in range(2, w.last):
        hidden.append(linear_relu(hidden[-1], w[f"w{k}"], w[f"b{k}"]))
    return matmul_fp32(hidden[-1], w[f"w{w.last}"], w[f"b{w.last}"]), Activations(x, tuple(hidden))


def backward(w: Layers, kept: Activations, d_y: Tensor, gradient: Layers) -> None:
    """Write the gradient of all parameters, given that of the outputs ``(S, B, outputs)``."""
    d, scale = _scaled(d_y, w)
    for k in range(w.last, 1, -1):
        below = kept.hidden[k - 2]
        write_product(below.mT, d, 1 / scale, gradient[f"w{k}"])
        write_sum(d, 1 / scale, gradient[f"b{k}"])
        d = _back_through(w[f"w{k}"], below, d)
    write_product(kept.x.mT, d, 1 / scale, gradient["w1"])


def backward_to_inputs(w: Layers, kept: Activations, d_y: Tensor) -> Tensor:
    """The gradient of the inputs, ``(S, B, padded_inputs)``; the parameters are taken as fixed."""
    d, scale = _scaled(d_y, w)
    for k in range(w.last, 1, -1):
        d = _back_through(w[f"w{k}"], kept.hidden[k - 2], d)
    return matmul_fp32(d, w["w1"].mT, factor=1 / scale)


def slopes(w: Layers, kept: Activations) -> list[Tensor]:
    """How outputs (one per network) change with each hidden layer, the last first, and with the inputs at the end.

    Before the hidden layers' relu, that is: ``(S, B, hidden)`` each, then ``(S, B, padded_inputs)`` in floats.
    """
    found = []
    d = torch.ones_like(kept.x[..., :1])  # in the type of the products
    for k in range(w.last, 1, -1):
        d = _back_through(w[f"w{k}"], kept.hidden[k - 2], d)
        found.append(d)
    return [*found, matmul_fp32(d, w["w1"].mT)]


def add_backward_of_slopes(
    w: Layers, kept: Activations, found: list[Tensor], d_slope: Tensor, gradient: Layers
) -> None:
    """Add the gradient of all weights that the slope of the inputs depends on, given that of the slope.

    Where relu is open or closed does not change with a small step, so the slope is a product of weights: the way back
    through it leads forward through the network.

    Args:
        w: The weights.
        kept: By `forward`.
        found: By `slopes`.
        d_slope: Gradient of the last of them, ``(S, B, padded_inputs)``.
        gradient: To be added to.
    """
    by_layer = found[-2::-1]  # of the first hidden layer, the second, ...
    d, scale = _scaled(d_slope, w)
    write_product(d.mT, by_layer[0], 1 / scale, gradient["w1"], add=True)
    for k in range(2, w.last + 1):
        d = relu_mask(d, w[f"w{k - 1}"], kept.hidden[k - 2])
        if k == w.last:
            write_sum(d, 1 / scale, gradient[f"w{k}"].mT, add=True)
        else:
            write_product(d.mT, by_layer[k - 1], 1 / scale, gradient[f"w{k}"], add=True)


def _scaled(d_y: Tensor, w: Layers) -> tuple[Tensor, int]:
    """Gradients of outputs in the type of the products, and what they are multiplied with to fit its range."""
    if (dtype := w["w1"].dtype) == d_y.dtype:
        return d_y, 1
    scale = d_y.shape[1]
    return scaled(d_y, scale, dtype), scale


def _back_through(weight: Tensor, below: Tensor, d: Tensor) -> Tensor:
    """Gradient before the hidden layer `below`, given that after the product of it with `weight`."""
    if d.shape[-1] == 1:
        return outer_relu_mask(d, weight.mT, below)
    return relu_mask(d, weight.mT, below)
