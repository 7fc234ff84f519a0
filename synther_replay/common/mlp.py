"""MLPs with two hidden layers, M at once, whose weights are one matrix ``(M, P)``; gradients are explicit.

Explicit gradients launch a third of the kernels that automatic differentiation does. A silu bends less than a relu:
with small initial weights the function stays simple where the data do not say otherwise, and on generated rows, which
lie a little beside the real ones, it is right more often.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Shape(NamedTuple):
    """Sizes of one network."""

    inputs: int
    hidden: int
    outputs: int

    def sizes(self) -> list[tuple[int, int]]:
        """Shapes of weights and biases, layer by layer."""
        widths = (self.inputs, self.hidden, self.hidden, self.outputs)
        return [size for rows, columns in itertools.pairwise(widths) for size in ((rows, columns), (1, columns))]

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(math.prod(size) for size in self.sizes())

    def layers(self, flat: Tensor) -> Layers:
        """Views of a matrix ``(M, P)``; columns beyond the weights are left out."""
        counts = [math.prod(size) for size in self.sizes()]
        *parts, _ = flat.split([*counts, flat.shape[1] - sum(counts)], dim=1)
        return Layers(*(part.unflatten(1, size) for part, size in zip(parts, self.sizes(), strict=True)))

    def predict(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Outputs ``(M, n, outputs)`` for weights ``(M, P)`` and inputs ``(M, n, inputs)``."""
        return self.layers(weights).forward(inputs)[-1]


class Layers(NamedTuple):
    """Weights of M networks, or a gradient of the same layout."""

    w1: Tensor  # (M, inputs, hidden)
    b1: Tensor  # (M, 1, hidden)
    w2: Tensor
    b2: Tensor
    w3: Tensor  # (M, hidden, outputs)
    b3: Tensor  # (M, 1, outputs)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Hidden layers before and after their silu, and the output."""
        first = torch.baddbmm(self.b1, x, self.w1)
        first_out = F.silu(first)
        second = torch.baddbmm(self.b2, first_out, self.w2)
        second_out = F.silu(second)
        return first, first_out, second, second_out, torch.baddbmm(self.b3, second_out, self.w3)

    def backward(self, x: Tensor, activations: tuple[Tensor, ...], error: Tensor, gradient: Layers) -> None:
        """Write the gradient of all weights into `gradient`, given that of the output."""
        first, first_out, second, second_out, _ = activations
        torch.bmm(second_out.mT, error, out=gradient.w3)
        torch.sum(error, 1, keepdim=True, out=gradient.b3)
        error = torch.ops.aten.silu_backward(torch.bmm(error, self.w3.mT), second)
        torch.bmm(first_out.mT, error, out=gradient.w2)
        torch.sum(error, 1, keepdim=True, out=gradient.b2)
        error = torch.ops.aten.silu_backward(torch.bmm(error, self.w2.mT), first)
        torch.bmm(x.mT, error, out=gradient.w1)
        torch.sum(error, 1, keepdim=True, out=gradient.b1)
