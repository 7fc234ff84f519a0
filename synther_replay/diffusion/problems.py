"""Regression problems for the denoiser: rows drawn at random, with noise."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from synther_replay.diffusion import edm
from synther_replay.diffusion.network import NetworkShape, Weights, forward

# Held-out loss: this many batches of fixed rows and fixed noise, so that two measurements differ by the model alone.
_HELD_OUT_BATCHES = 8


class Problems(NamedTuple):
    """K batches for M models: what the network sees, and what it should answer."""

    inputs: Tensor  # (K, M, B, padded_dim)
    features: Tensor  # (K, M, B, padded_features)
    targets: Tensor  # (K, M, B, dim)


def draw_problems(
    rows: Tensor,
    used: Tensor | int,
    size: tuple[int, int, int],
    *,
    shape: NetworkShape,
    frequencies: Tensor,
    dtype: torch.dtype,
    levels: edm.NoiseLevels,
    rng: torch.Generator,
) -> Problems:
    """Draw rows uniformly with repetition and corrupt them.

    Args:
        rows: Clean rows of each model, ``(M, capacity, dim)``.
        used: How many of them to draw from; a number on the device where a captured graph is to follow it.
        size: ``(K, M, B)``.
        shape: Sizes of the network.
        frequencies: Of the noise features, ``(M, 1, fourier / 2)``.
        dtype: Type in which the network computes.
        levels: Of the noise.
        rng: On the device of the rows.
    """
    stack, capacity, dim = rows.shape
    device = rows.device
    # float64: float32 has too few values to reach the rows of a large buffer evenly
    index = (torch.rand(size, device=device, generator=rng, dtype=torch.float64) * used).long()
    offset = torch.arange(stack, device=device)[:, None] * capacity
    x = rows.view(-1, dim)[index + offset]
    sigma = levels.draw((*size, 1), rng)
    noise = torch.randn(x.shape, device=device, generator=rng, dtype=torch.float32)
    return Problems(*edm.corrupt(x, sigma, noise, frequencies, shape.padded_dim, shape.padded_features, dtype))


class HeldOutProblems:
    """Fixed problems made from held-out rows, in batches of the training shape."""

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
        """Draw them from rows ``(M, n, dim)``."""
        self._shape = shape
        size = (_HELD_OUT_BATCHES, rows.shape[0], batch_size)
        self._problems = draw_problems(
            rows.contiguous(),
            rows.shape[1],
            size,
            shape=shape,
            frequencies=frequencies,
            dtype=dtype,
            levels=levels,
            rng=rng,
        )

    def loss(self, weights: Tensor) -> Tensor:
        """Mean loss of each model with these weights, ``(M, P) -> (M,)``."""
        views = Weights.of(weights, self._shape)
        total = torch.zeros(weights.shape[0], dtype=torch.float32, device=weights.device)
        for inputs, features, target in zip(*self._problems, strict=True):
            y, _ = forward(views, inputs, features)
            edm.squared_error(y, target, total)
        return total / _HELD_OUT_BATCHES
