"""Training and validation batches of the denoiser: random rows with noise."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from synther_replay.diffusion import edm
from synther_replay.diffusion.network import NetworkShape, Weights, forward

# Share of training rows whose condition is hidden, so that one network learns both distributions.
_HIDDEN_CONDITIONS = 0.2
# Number of held-out batches. Their rows and noise are fixed, so two losses differ only by the model.
_HELD_OUT_BATCHES = 8


class NoisyBatches(NamedTuple):
    """K batches for M models: network inputs, noise features and targets."""

    inputs: Tensor  # (K, M, B, padded_dim)
    features: Tensor  # (K, M, B, padded_features)
    targets: Tensor  # (K, M, B, dim)


def draw_batches(
    rows: Tensor,
    used: Tensor | int,
    size: tuple[int, int, int],
    *,
    shape: NetworkShape,
    frequencies: Tensor,
    dtype: torch.dtype,
    levels: edm.NoiseLevels,
    rng: torch.Generator,
    hidden: float = _HIDDEN_CONDITIONS,
) -> NoisyBatches:
    """Draw rows uniformly with replacement and add noise.

    Args:
        rows: Clean rows of each model and their conditions, ``(M, capacity, dim + condition)``.
        used: Number of rows to draw from; a tensor if a CUDA graph must read the current value.
        size: ``(K, M, B)``.
        shape: Sizes of the network.
        frequencies: Frequencies of the noise features, ``(M, 1, fourier / 2)``.
        dtype: Compute dtype of the network.
        levels: Distribution of the noise levels.
        rng: Random generator on the device of the rows.
        hidden: Share of rows whose condition is hidden.
    """
    stack, capacity, columns = rows.shape
    device = rows.device
    # float64: float32 has too few values for uniform indices into a large buffer
    index = (torch.rand(size, device=device, generator=rng, dtype=torch.float64) * used).long()
    offset = torch.arange(stack, device=device)[:, None] * capacity
    drawn = rows.view(-1, columns)[index + offset]
    x = drawn[..., : shape.dim].contiguous()  # kernels take no strides
    sigma = levels.draw((*size, 1), rng)
    noise = torch.randn(x.shape, device=device, generator=rng, dtype=torch.float32)
    batches = NoisyBatches(*edm.corrupt(x, sigma, noise, frequencies, shape.padded_dim, shape.padded_features, dtype))
    if shape.condition:
        present = (torch.rand((*size, 1), device=device, generator=rng, dtype=torch.float32) >= hidden).float()
        edm.write_condition(batches.features, shape, drawn[..., shape.dim :], present)
    return batches


class HeldOutBatches:
    """Fixed batches of held-out rows, in the shape of training batches."""

    def __init__(
        self,
        rows: Tensor,
        batch_size: int,
        *,
        shape: NetworkShape,
        frequencies: Tensor,
        dtype: torch.dtype,
        levels: edm.NoiseLevels,
        rng: torch.Generator,
    ) -> None:
        """Draw the batches from rows and conditions ``(M, n, dim + condition)``."""
        self._shape = shape
        size = (_HELD_OUT_BATCHES, rows.shape[0], batch_size)
        self._batches = draw_batches(
            rows.contiguous(),
            rows.shape[1],
            size,
            shape=shape,
            frequencies=frequencies,
            dtype=dtype,
            levels=levels,
            rng=rng,
            hidden=0.0,
        )

    def loss(self, weights: Tensor) -> Tensor:
        """Return the mean held-out loss of each model, ``(M, P) -> (M,)``."""
        views = Weights.of(weights, self._shape)
        total = torch.zeros(weights.shape[0], dtype=torch.float32, device=weights.device)
        for inputs, features, target in zip(*self._batches, strict=True):
            y, _ = forward(views, inputs, features)
            edm.squared_error(y, target, total)
        return total / _HELD_OUT_BATCHES
