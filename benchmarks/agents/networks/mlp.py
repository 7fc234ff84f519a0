"""Stacked multi-layer perceptrons with explicit forward and backward passes.

    h1 = relu(x @ w1)              the bias is the row of w1 that multiplies the column of ones in x
    h2 = relu(h1 @ w2 + b2)        likewise for further hidden layers
    y  = h2 @ w3 + b3

With `layer_norm`, each hidden layer is normalised before its relu, without gain and shift: ``h1 = relu(norm(x @ w1))``.
With `feature_norm`, the last hidden layer is divided by its root mean square.

All parameters of a network are one row of a matrix ``(S, P)``, so that Adam and target updates are one operation on
that matrix. Each matrix product is one kernel for all S networks. Automatic differentiation would launch three times as
many kernels, and at these sizes the time is that of the launches.

On a GPU, operands of products may be fp16, see `operands`. Activations and gradients of hidden layers are fp16 then;
these gradients are scaled by the batch size, to stay in range. Outputs and gradients of parameters and inputs are fp32.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.networks.matmul import (
    linear_relu,
    matmul_fp32,
    multiplied,
    outer_relu_mask,
    relu_mask,
    scaled,
    uses_fp16,
    write_product,
    write_sum,
)
from synther_replay.benchmarks.agents.networks.normalisation import (
    Norm,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
from synther_replay.common.acceleration import fused

_ALIGN = 4  # tensor cores need fp32 rows aligned to 16 bytes
_LINE = 64  # fp16 numbers per 128-byte cache line; networks start at a line, for the widest loads


def _aligned(size: int, to: int = _ALIGN) -> int:
    return -(-size // to) * to


@dataclass(frozen=True)
class MlpShape:
    """Shape of one network.

    Attributes:
        inputs: Number of inputs.
        outputs: Number of outputs.
        hidden: Width of the hidden layers.
        hidden_layers: Their number.
        layer_norm: Whether hidden layers are normalised before their relu.
        alternating: With `layer_norm`: whether only the first, third, ... network of a stack are.
        feature_norm: Whether the last hidden layer is normalised after its relu.
    """

    inputs: int
    outputs: int
    hidden: int = 256
    hidden_layers: int = 2
    layer_norm: bool = False
    feature_norm: bool = False
    alternating: bool = False

    @property
    def padded_inputs(self) -> int:
        """Columns of x: the inputs, a column of ones, and zeros for alignment."""
        return _aligned(self.inputs + 1)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Shape of each weight and bias of one network, by name."""
        last, hidden = self.hidden_layers + 1, range(2, self.hidden_layers + 1)
        return {
            "w1": (self.padded_inputs, self.hidden),
            **{f"w{k}": (self.hidden, self.hidden) for k in hidden},
            f"w{last}": (self.hidden, self.outputs),
            **{f"b{k}": (1, self.hidden) for k in hidden},
            f"b{last}": (1, self.outputs),
        }

    def starts(self) -> dict[str, int]:
        """First column of each weight and bias in the parameter matrix, by name."""
        lengths = [math.prod(size) for size in self.sizes().values()]
        return dict(zip(self.sizes(), itertools.accumulate(lengths, initial=0), strict=False))

    @property
    def parameters(self) -> int:
        """Columns of the parameter matrix, including padding at the end."""
        return _aligned(sum(math.prod(size) for size in self.sizes().values()), _LINE)


class Layers(dict[str, Tensor]):
    """Views of a parameter matrix ``(S, P)``, or of a gradient of the same layout, by the names of `MlpShape.sizes`.

    Attributes:
        layer_norm: See `MlpShape`.
        alternating: See `MlpShape`.
        feature_norm: See `MlpShape`.
    """

    layer_norm = alternating = feature_norm = False

    @classmethod
    def of(cls, flat: Tensor, shape: MlpShape) -> Layers:
        """Views ``(S, *size)`` of the matrix."""
        starts = shape.starts()
        layers = cls(
            (name, flat[:, starts[name] : starts[name] + math.prod(size)].unflatten(1, size))
            for name, size in shape.sizes().items()
        )
        return layers._like(shape)

    def first(self, count: int) -> Layers:
        """Views of the first `count` networks."""
        return self.replaced({name: part[:count] for name, part in self.items()})

    def replaced(self, parts: dict[str, Tensor]) -> Layers:
        """The same network with other tensors."""
        return Layers(parts)._like(self)

    @property
    def last(self) -> int:
        """Number of the output layer."""
        return (len(self) + 1) // 2

    def _like(self, other: MlpShape | Layers) -> Layers:
        self.layer_norm, self.alternating, self.feature_norm = other.layer_norm, other.alternating, other.feature_norm
        return self


def operands(parameters: Tensor, shape: MlpShape) -> Layers:
    """Layers of parameters ``(S, P)`` in the type of the matrix products: a copy in fp16 if `uses_fp16`.

    Tensor cores multiply fp16 twice as fast as TF32, with the same mantissa. The last bias stays as it is: it is added
    to fp32 outputs.
    """
    layers = Layers.of(parameters, shape)
    if not uses_fp16(parameters.device):
        return layers
    name = f"b{layers.last}"
    return layers.replaced({**Layers.of(parameters.half(), shape), name: layers[name]})


class Activations(NamedTuple):
    """Inputs, hidden layers and, where there are some, their normalisations, which `forward` keeps for `backward`."""

    x: Tensor
    hidden: tuple[Tensor, ...]
    norms: tuple[Norm, ...] = ()  # of each hidden layer, if those are normalised
    features: Norm | None = None  # of the last hidden layer after its relu

    def cut(self, rows: Any) -> Activations:
        """Those of some networks, or of some rows."""
        features = self.features and self.features.cut(rows)
        norms = tuple(norm.cut(rows) for norm in self.norms)
        return Activations(self.x[rows], tuple(part[rows] for part in self.hidden), norms, features)


def initialise(shape: MlpShape, stack: int, rng: torch.Generator) -> Tensor:
    """Weights as in the REDQ code base: Xavier uniform, biases of zero; ``(S, P)`` on the CPU."""
    flat = torch.zeros(stack, shape.parameters)
    layers = Layers.of(flat, shape)
    for k in range(1, layers.last + 1):
        weight = layers["w1"][:, : shape.inputs] if k == 1 else layers[f"w{k}"]
        bound = math.sqrt(6 / (weight.shape[1] + weight.shape[2]))
        weight.uniform_(-bound, bound, generator=rng)
    return flat


def initialise_like_torch(shape: MlpShape, stack: int, rng: torch.Generator) -> Tensor:
    """Weights and biases as `torch.nn.Linear` draws them; ``(S, P)`` on the CPU."""
    flat = torch.zeros(stack, shape.parameters)
    layers = Layers.of(flat, shape)
    of_inputs, of_hidden = 1 / math.sqrt(shape.inputs), 1 / math.sqrt(shape.hidden)
    layers["w1"][:, : shape.inputs + 1].uniform_(-of_inputs, of_inputs, generator=rng)
    for name in list(layers)[1:]:
        layers[name].uniform_(-of_hidden, of_hidden, generator=rng)
    return flat


def padded(*parts: Tensor, columns: int) -> Tensor:
    """Network inputs: the parts ``(..., n)`` concatenated, a one, and zeros up to `columns`."""
    lead = parts[0].shape[:-1]
    used = sum(part.shape[-1] for part in parts)
    one, zeros = parts[0].new_ones(*lead, 1), parts[0].new_zeros(*lead, columns - used - 1)
    return torch.cat((*parts, one, zeros), -1)


fused_padded = fused(padded)


def forward(w: Layers, x: Tensor) -> tuple[Tensor, Activations]:
    """Outputs ``(S, B, outputs)`` for inputs ``(S, B, padded_inputs)``, and the activations for `backward`."""
    if x.dtype != (dtype := w["w1"].dtype):
        x = scaled(x, 1.0, dtype)
    hidden, norms, features = [x], [], None
    for k in range(1, w.last):
        if w.layer_norm:
            norm, unit = layer_norm(matmul_fp32(hidden[-1], w[f"w{k}"], w.get(f"b{k}")), dtype, w.alternating)
            norms.append(norm)
        else:
            unit = linear_relu(hidden[-1], w[f"w{k}"], w.get(f"b{k}"))
        hidden.append(unit)
    top = hidden[-1]
    if w.feature_norm:
        features = rms_norm(top)
        top = features.normal
    y = matmul_fp32(top, w[f"w{w.last}"], w[f"b{w.last}"])
    return y, Activations(x, tuple(hidden[1:]), tuple(norms), features)


def backward(w: Layers, kept: Activations, d_y: Tensor, gradient: Layers, *, found: list[Tensor] | None = None) -> None:
    """Write the gradient by all parameters, given that by the outputs ``(S, B, outputs)``.

    With the result of `layer_gradients` as `found`, no product goes back through the layers: the gradients of a single
    output by the layers are multiples of it.
    """
    top, scale = scaled_gradient(d_y, w)
    d = top
    for k in range(w.last, 1, -1):
        below = kept.features.normal if kept.features and k == w.last else kept.hidden[k - 2]
        write_product(below.mT, d, 1 / scale, gradient[f"w{k}"])
        write_sum(d, 1 / scale, gradient[f"b{k}"])
        d = _back_to(w, kept, k, d) if found is None else multiplied(found[w.last - k], top)
    write_product(kept.x.mT, d, 1 / scale, gradient["w1"])


def backward_to_inputs(w: Layers, kept: Activations, d_y: Tensor) -> Tensor:
    """Gradient by the inputs, ``(S, B, padded_inputs)``, given that by the outputs."""
    d, scale = scaled_gradient(d_y, w)
    for k in range(w.last, 1, -1):
        d = _back_to(w, kept, k, d)
    return matmul_fp32(d, w["w1"].mT, factor=1 / scale)


def layer_gradients(w: Layers, kept: Activations) -> list[Tensor]:
    """Gradients of a single output by each hidden layer before its relu, last layer first, and by the inputs.

    Returns:
        ``(S, B, hidden)`` for each hidden layer, then ``(S, B, padded_inputs)`` in fp32.
    """
    found = []
    d = torch.ones_like(kept.x[..., :1])  # in the type of the matrix products
    for k in range(w.last, 1, -1):
        d = _back_through(w[f"w{k}"], kept.hidden[k - 2], d)
        found.append(d)
    return [*found, matmul_fp32(d, w["w1"].mT)]


def add_double_backward(
    w: Layers, kept: Activations, found: list[Tensor], d_input_gradient: Tensor, gradient: Layers
) -> None:
    """Add the gradient by all weights of a loss on the input gradients (double backward).

    The second derivative of relu is zero, so the input gradient is a product of masked weights, and the backward pass
    through it is a forward pass through the network.

    Args:
        w: Weights.
        kept: Activations of `forward`.
        found: Result of `layer_gradients`.
        d_input_gradient: Gradient of the loss by the last entry of `found`, ``(S, B, padded_inputs)``.
        gradient: Gradient to add to.
    """
    by_layer = found[-2::-1]  # first hidden layer first
    d, scale = scaled_gradient(d_input_gradient, w)
    write_product(d.mT, by_layer[0], 1 / scale, gradient["w1"], add=True)
    for k in range(2, w.last + 1):
        d = relu_mask(d, w[f"w{k - 1}"], kept.hidden[k - 2])
        if k == w.last:
            write_sum(d, 1 / scale, gradient[f"w{k}"].mT, add=True)
        else:
            write_product(d.mT, by_layer[k - 1], 1 / scale, gradient[f"w{k}"], add=True)


def scaled_gradient(d_y: Tensor, w: Layers) -> tuple[Tensor, int]:
    """Output gradients in the type of the matrix products, and the factor they were scaled by."""
    if (dtype := w["w1"].dtype) == d_y.dtype:
        return d_y, 1
    scale = d_y.shape[1]
    return scaled(d_y, scale, dtype), scale


def _back_to(w: Layers, kept: Activations, k: int, d: Tensor) -> Tensor:
    """Gradient by hidden layer ``k - 1`` before normalisation and relu, given that by layer `k` before them."""
    unit, features = kept.hidden[k - 2], kept.features if k == w.last else None
    if features is not None:
        d = rms_norm_backward(matmul_fp32(d, w[f"w{k}"].mT), features, unit)
    else:
        d = _back_through(w[f"w{k}"], unit, d)
    return layer_norm_backward(d, kept.norms[k - 2], w.alternating) if kept.norms else d


def _back_through(weight: Tensor, below: Tensor, d: Tensor) -> Tensor:
    """Gradient by the hidden layer `below` before its relu, given that by ``below @ weight``."""
    if d.shape[-1] == 1:
        return outer_relu_mask(d, weight.mT, below)
    return relu_mask(d, weight.mT, below)
