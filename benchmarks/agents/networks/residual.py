"""Stacked residual networks with layer norm, with explicit forward and backward passes.

    h = x @ w1                                     the bias is in w1, as in `mlp`
    h = h + relu(norm(h) @ w2 + b2) @ w3 + b3      a block; further blocks likewise
    y = norm(h) @ w4 + b4

The same layout, operand types and scaling of gradients as in `mlp`; the sum that blocks add to is fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from synther_replay.benchmarks.agents.networks.matmul import (
    linear_relu,
    matmul_fp32,
    relu_mask,
    scaled,
    write_product,
    write_sum,
)
from synther_replay.benchmarks.agents.networks.mlp import Layers, MlpShape, scaled_gradient
from synther_replay.benchmarks.agents.networks.normalisation import Norm, layer_norm, layer_norm_backward

_EXPANSION = 4  # width of a block's inner layer, in widths of the network


@dataclass(frozen=True)
class ResidualShape(MlpShape):
    """Shape of one residual network; `hidden` is its width."""

    blocks: int = 1

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Shape of each weight and bias of one network, by name."""
        wide, last = _EXPANSION * self.hidden, 2 * self.blocks + 2
        inner = {k: (self.hidden, wide) if k % 2 == 0 else (wide, self.hidden) for k in range(2, last)}
        outer = {last: (self.hidden, self.outputs)}
        return {
            "w1": (self.padded_inputs, self.hidden),
            **{f"w{k}": size for k, size in (inner | outer).items()},
            **{f"b{k}": (1, size[1]) for k, size in (inner | outer).items()},
        }


class Activations(NamedTuple):
    """What `forward` keeps for `backward`: inputs, normalised sums before each block and at the end, inner layers."""

    x: Tensor
    norms: tuple[Norm, ...]
    inner: tuple[Tensor, ...]

    def cut(self, rows: Any) -> Activations:
        """Those of some networks, or of some rows."""
        inner = tuple(part[rows] for part in self.inner)
        return Activations(self.x[rows], tuple(norm.cut(rows) for norm in self.norms), inner)


def forward(w: Layers, x: Tensor) -> tuple[Tensor, Activations]:
    """See `mlp.forward`."""
    if x.dtype != (dtype := w["w1"].dtype):
        x = scaled(x, 1.0, dtype)
    h, norms, inner = matmul_fp32(x, w["w1"]), [], []
    for k in range(2, w.last, 2):
        norms.append(layer_norm(h, dtype)[0])
        inner.append(linear_relu(norms[-1].normal, w[f"w{k}"], w[f"b{k}"]))
        h = h + matmul_fp32(inner[-1], w[f"w{k + 1}"], w[f"b{k + 1}"])
    norms.append(layer_norm(h, dtype)[0])
    y = matmul_fp32(norms[-1].normal, w[f"w{w.last}"], w[f"b{w.last}"])
    return y, Activations(x, tuple(norms), tuple(inner))


def backward(w: Layers, kept: Activations, d_y: Tensor, gradient: Layers) -> None:
    """See `mlp.backward`."""
    _back(w, kept, d_y, gradient)


def backward_to_inputs(w: Layers, kept: Activations, d_y: Tensor) -> Tensor:
    """See `mlp.backward_to_inputs`."""
    d, scale = _back(w, kept, d_y, None)
    return matmul_fp32(d, w["w1"].mT, factor=1 / scale)


def _back(w: Layers, kept: Activations, d_y: Tensor, gradient: Layers | None) -> tuple[Tensor, int]:
    """Scaled gradient by the sum before the first block, and its factor; writes those by parameters if wanted."""
    d, scale = scaled_gradient(d_y, w)

    def write(k: int, below: Tensor, d_layer: Tensor) -> None:
        if gradient is not None:
            write_product(below.mT, d_layer, 1 / scale, gradient[f"w{k}"])
            if k > 1:
                write_sum(d_layer, 1 / scale, gradient[f"b{k}"])

    write(w.last, kept.norms[-1].normal, d)
    d_h = layer_norm_backward(matmul_fp32(d, w[f"w{w.last}"].mT), kept.norms[-1])
    for k in range(w.last - 2, 0, -2):
        norm, unit = kept.norms[k // 2 - 1], kept.inner[k // 2 - 1]
        d = scaled(d_h, 1.0, d.dtype)
        write(k + 1, unit, d)
        d_inner = relu_mask(d, w[f"w{k + 1}"].mT, unit)
        write(k, norm.normal, d_inner)
        d_h = d_h + layer_norm_backward(matmul_fp32(d_inner, w[f"w{k}"].mT), norm)
    d = scaled(d_h, 1.0, d.dtype)
    write(1, kept.x, d)
    return d, scale
