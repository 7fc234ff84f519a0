"""The denoising network of M independent models: a residual MLP with a hand-written backward pass.

    s = silu(features @ time1 + b)                  noise level, as random Fourier features, and condition if any
    z = s @ time2 + x @ project + b                 noisy row
    h_0 = z @ widen + b_0
    h_{k+1} = h_k + relu(h_k) @ blocks[k] + b_{k+1}
    y = relu(h_depth) @ out + b

For rows of more codes than the embedding has units (`NetworkShape.direct`), the row enters the trunk directly, and
every column gets a linear path of its own, scaled by the noise level:

    z = s @ time2 + b
    h_0 = z @ widen + x @ project + b_0
    y = relu(h_depth) @ out + b + sum_k (s[:16] @ gain[k]) * clamp(x, -limit_k, limit_k)

The trunk can change at most `width` directions of a row. A column that the others determine needs more than that: EDM's
skip connection copies its noise, which F must remove for every such column. The gain does so at a cost per column that
does not depend on the width. The limits keep it harmless for outliers.

All parameters are one matrix ``(M, P)`` with one row per model, so clipping, Adam and EMA are a few operations on it.
The hand-written backward pass writes the gradient into a matrix of the same layout: nothing is zeroed, copied or
accumulated, and the weight gradients of all blocks are one matrix product.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from synther_replay.common.acceleration import by_kernel
from synther_replay.common.stacks import prefix_sums

# Tensor cores need bf16 rows aligned to 16 bytes.
_ALIGN = 8
# The gains of a column multiply its value clamped to these limits: two slopes, as a denoiser of values that are mostly
# close to zero needs. Units of the noise embedding that set them: they are smooth functions of one number.
LIMITS = (3.0, 1.0)
_GATES = 16


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of one model.

    Attributes:
        dim: Number of columns of a row.
        width: Units per hidden layer, a multiple of 8.
        depth: Number of residual blocks.
        embedding: Units of the embedding of the noise level, and of the row unless `direct`; a multiple of 8.
        fourier: Number of random Fourier features of the noise level, even.
        direct: Whether the row enters the trunk without the embedding, and each column has a gain.
        condition: Number of values that the rows are conditioned on; 0: none, and the network is as without this field.
    """

    dim: int
    width: int = 1024
    depth: int = 6
    embedding: int = 128
    fourier: int = 16
    direct: bool = False
    condition: int = 0

    @property
    def padded_dim(self) -> int:
        """`dim` padded to a multiple of 8; the padding is zero."""
        return _aligned(self.dim)

    @property
    def noise_features(self) -> int:
        """Number of features of the noise level: log sigma, sines, cosines."""
        return 1 + self.fourier

    @property
    def features(self) -> int:
        """Number of features: of the noise level, the condition, and whether there is one."""
        return self.noise_features + (self.condition + 1 if self.condition else 0)

    @property
    def padded_features(self) -> int:
        """`features` padded to a multiple of 8; the padding is zero."""
        return _aligned(self.features)

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each entry of `Weights` for one model."""
        return {
            "time1": (self.padded_features, self.embedding),
            "time2": (self.embedding, self.embedding),
            "project": (self.padded_dim, self.width if self.direct else self.embedding),
            "widen": (self.embedding, self.width),
            "blocks": (self.depth, self.width, self.width),
            "out": (self.width, self.padded_dim),
            "time1_bias": (1, self.embedding),
            "embedding_bias": (1, self.embedding),
            "trunk_bias": (self.depth + 1, self.width),
            "out_bias": (1, self.padded_dim),
            "gain": (self._gates, len(LIMITS) * self.padded_dim),
        }

    @property
    def _gates(self) -> int:
        """Units of the noise level that set the gains; none without gains."""
        return min(_GATES, self.embedding) if self.direct else 0

    @property
    def parameters(self) -> int:
        """Number of parameters of one model."""
        return sum(math.prod(size) for size in self.sizes().values())


class Weights(NamedTuple):
    """Views of a parameter matrix ``(M, P)``, or of a gradient of the same layout; shapes in `NetworkShape.sizes`."""

    time1: Tensor
    time2: Tensor
    project: Tensor
    widen: Tensor
    blocks: Tensor
    out: Tensor
    time1_bias: Tensor
    embedding_bias: Tensor
    trunk_bias: Tensor
    out_bias: Tensor
    gain: Tensor  # empty unless `NetworkShape.direct`

    @property
    def direct(self) -> bool:
        """`NetworkShape.direct`."""
        return self.gain.shape[1] > 0

    @classmethod
    def of(cls, flat: Tensor, shape: NetworkShape) -> Weights:
        """Split the matrix ``(M, P)`` into named views ``(M, *size)``."""
        sizes = shape.sizes()
        parts = flat.split([math.prod(size) for size in sizes.values()], dim=1)
        return cls(**{name: part.unflatten(1, sizes[name]) for part, name in zip(parts, sizes, strict=True)})


class Activations(NamedTuple):
    """Activations of `forward` that `backward` needs."""

    x: Tensor
    features: Tensor
    time: Tensor  # before the silu
    silu: Tensor  # after the silu
    z: Tensor
    relu: Tensor  # (depth + 1, M, B, width)


def initialise(shape: NetworkShape, stack: int, rng: torch.Generator) -> Tensor:
    """Draw the parameters of `stack` models, ``(M, P)``: uniform in +-1/sqrt(fan in), as in PyTorch's linear layers."""
    flat = torch.zeros(stack, shape.parameters, dtype=torch.float32, device=rng.device)
    w = Weights.of(flat, shape)
    fan_in = {
        "time1": shape.features,
        "time1_bias": shape.features,
        "time2": shape.embedding,
        "embedding_bias": shape.embedding,
        "project": shape.dim,
        "widen": shape.embedding,
    }
    for name, view in w._asdict().items():
        if name == "gain":  # starts at zero
            continue
        bound = 1 / math.sqrt(fan_in.get(name, shape.width))
        view.uniform_(-bound, bound, generator=rng)
    w.trunk_bias[:, 0] *= math.sqrt(shape.width / shape.embedding)  # the bias of `widen`
    # The padding has no effect and no gradient; zeros keep it out of the gradient norm.
    w.time1[:, shape.features :] = 0
    w.project[:, shape.dim :] = 0
    w.out[..., shape.dim :] = 0
    w.out_bias[..., shape.dim :] = 0
    return flat


@by_kernel
def _biased_silu(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    biased = x + bias
    return biased, F.silu(biased)


@by_kernel
def _running_sum(biases: Tensor) -> Tensor:
    return prefix_sums(biases.float(), 1).to(biases.dtype)


@by_kernel
def _shifted_relu(h: Tensor, shift: Tensor, out: Tensor) -> None:
    out.copy_((h + shift).relu())


@by_kernel
def _add_through_relu(g: Tensor, through: Tensor, relu: Tensor, out: Tensor) -> None:
    out.copy_(g + torch.ops.aten.threshold_backward(through, relu, 0))


@by_kernel
def _add_gained(y: Tensor, gains: Tensor, x: Tensor, limits: tuple[float, float]) -> None:
    """Add the columns of `x`, clamped to each limit and multiplied by its gains, to `y` in place."""
    for gain, limit in zip(gains.chunk(len(limits), -1), limits, strict=True):
        y += gain * x.clamp(-limit, limit)


@by_kernel
def _gained_gradient(d_y: Tensor, x: Tensor, limits: tuple[float, float]) -> Tensor:
    """Return the gradient of the gains, ``(M, B, limits * padded_dim)``."""
    return torch.cat([d_y * x.clamp(-limit, limit) for limit in limits], -1)


def _gates(w: Weights, silu: Tensor) -> Tensor:
    return silu[..., : w.gain.shape[1]]


def forward(w: Weights, x: Tensor, features: Tensor) -> tuple[Tensor, Activations]:
    """Run the network and return the activations for `backward`.

    Args:
        w: Weights of M models.
        x: Scaled noisy rows, ``(M, B, padded_dim)``.
        features: Noise features of each row, ``(M, B, padded_features)``.

    Returns:
        The output ``(M, B, padded_dim)`` and the activations.
    """
    time, silu = _biased_silu(torch.bmm(features, w.time1), w.time1_bias)
    z = torch.baddbmm(w.embedding_bias, silu, w.time2)
    if w.direct:
        h = torch.baddbmm(torch.bmm(z, w.widen), x, w.project)
    else:
        z = torch.baddbmm(z, x, w.project)
        h = torch.bmm(z, w.widen)
    relu = h.new_empty((w.blocks.shape[1] + 1, *h.shape))
    y = _trunk(w, h, _running_sum(w.trunk_bias), relu.unbind())
    if w.direct:
        _add_gained(y, torch.bmm(_gates(w, silu), w.gain), x, LIMITS)
    return y, Activations(x, features, time, silu, z, relu)


def forward_at_one_level(w: Weights, x: Tensor, features: Tensor) -> Tensor:
    """Return the output of `forward` without keeping activations.

    Features are those of one noise level for all rows, ``(M, 1, padded_features)``, or one line per row if rows have
    conditions. There is no relu between the first matrix products, so what is equal for all rows is added after them,
    with the biases.
    """
    _, silu = _biased_silu(torch.bmm(features, w.time1), w.time1_bias)
    level = torch.baddbmm(w.embedding_bias, silu, w.time2)
    shift, h = _running_sum(w.trunk_bias), torch.bmm(x, w.project)
    if features.shape[1] == 1:
        h = h if w.direct else torch.bmm(h, w.widen)
        shift = shift + torch.bmm(level, w.widen)
    else:
        h = h.baddbmm_(level, w.widen) if w.direct else torch.bmm(h + level, w.widen)
    y = _trunk(w, h, shift, [torch.empty_like(h)] * shift.shape[1])
    if w.direct:
        _add_gained(y, torch.bmm(_gates(w, silu), w.gain), x, LIMITS)
    return y


def _trunk(w: Weights, h: Tensor, shift: Tensor, relu: Sequence[Tensor]) -> Tensor:
    """Residual blocks and output layer; writes the input of each layer into `relu` and updates `h` in place.

    `h` excludes the biases. Their running sum `shift`, ``(M, depth + 1, width)``, is added in the relu, which saves one
    pass over memory per block.
    """
    for k, u in enumerate(relu):
        _shifted_relu(h, shift[:, k : k + 1], u)
        if k < w.blocks.shape[1]:
            h.baddbmm_(u, w.blocks[:, k])
    return torch.baddbmm(w.out_bias, relu[-1], w.out)


@functools.cache
def _ones(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(1, 1, n, dtype=dtype, device=device)


def backward(w: Weights, kept: Activations, d_y: Tensor, grad: Weights) -> None:
    """Write the gradient of all parameters into `grad`, given the output gradient ``(M, B, padded_dim)``."""
    relu, depth = kept.relu, w.blocks.shape[1]
    # Sums over the batch are matrix products with ones: twice as fast as a reduction at these sizes.
    ones = _ones(d_y.shape[1], d_y.dtype, d_y.device)
    row = ones.expand(d_y.shape[0], -1, -1)
    torch.bmm(relu[depth].mT, d_y, out=grad.out)
    torch.bmm(row, d_y, out=grad.out_bias)

    d_h = torch.empty_like(relu)  # d_h[k] is the gradient of h_k
    torch.ops.aten.threshold_backward(torch.bmm(d_y, w.out.mT), relu[depth], 0, grad_input=d_h[depth])
    for k in reversed(range(depth)):
        _add_through_relu(d_h[k + 1], torch.bmm(d_h[k + 1], w.blocks[:, k].mT), relu[k], d_h[k])
    for m in range(d_h.shape[1]):
        torch.bmm(relu[:depth, m].mT, d_h[1:, m], out=grad.blocks[m])
        torch.bmm(ones.expand(depth + 1, -1, -1), d_h[:, m], out=grad.trunk_bias[m].unsqueeze(1))

    torch.bmm(kept.z.mT, d_h[0], out=grad.widen)
    d_z = torch.bmm(d_h[0], w.widen.mT)
    torch.bmm(kept.x.mT, d_h[0] if w.direct else d_z, out=grad.project)
    torch.bmm(row, d_z, out=grad.embedding_bias)
    torch.bmm(kept.silu.mT, d_z, out=grad.time2)
    d_silu = torch.bmm(d_z, w.time2.mT)
    if w.direct:
        d_gains = _gained_gradient(d_y, kept.x, LIMITS)
        torch.bmm(_gates(w, kept.silu).mT, d_gains, out=grad.gain)
        _gates(w, d_silu).baddbmm_(d_gains, w.gain.mT)
    d_time = torch.ops.aten.silu_backward(d_silu, kept.time)
    torch.bmm(kept.features.mT, d_time, out=grad.time1)
    torch.bmm(row, d_time, out=grad.time1_bias)
