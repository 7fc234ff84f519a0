"""Noise, preconditioning and loss of EDM (Karras et al. 2022, table 1), for data of standard deviation 1.

    D(y; sigma) = c_skip * y + c_out * F(c_in * y; c_noise)
    c_skip = 1 / (sigma^2 + 1)            c_in = 1 / sqrt(sigma^2 + 1)
    c_out = sigma / sqrt(sigma^2 + 1)     c_noise = ln(sigma) / 4

EDM's loss weight ``(sigma^2 + 1) / sigma^2`` equals ``1 / c_out^2``. The weighted denoising loss is therefore the
squared error between the network F and ``(x - c_skip * y) / c_out = (sigma * x - noise) / sqrt(sigma^2 + 1)``. It is
computed in this form, which avoids a division by a small sigma.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from synther_replay.common.acceleration import by_kernel
from synther_replay.diffusion.network import NetworkShape, Weights, forward_at_one_level


class NoiseLevels(NamedTuple):
    """Distribution of the noise levels in training: ln(sigma) ~ N(mean, std^2). The defaults are EDM's."""

    mean: float = -1.2
    std: float = 1.2

    def draw(self, size: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """Draw noise levels, float32, on the device of `rng`."""
        normal = torch.randn(size, device=rng.device, generator=rng, dtype=torch.float32)
        return normal.mul(self.std).add(self.mean).exp()


def noise_features(c_noise: Tensor, frequencies: Tensor, width: int) -> Tensor:
    """Compute random Fourier features of the noise level.

    Args:
        c_noise: ``(..., 1)``.
        frequencies: ``(M, 1, fourier / 2)``, broadcast against `c_noise`.
        width: Padded width of the result.

    Returns:
        ``(..., width)``: the level itself, sines, cosines, zeros.
    """
    angle = 2 * math.pi * c_noise * frequencies
    used = torch.cat((c_noise, angle.sin(), angle.cos()), dim=-1)
    return F.pad(used, (0, width - used.shape[-1]))


@by_kernel
def corrupt(
    x: Tensor, sigma: Tensor, noise: Tensor, frequencies: Tensor, width: int, features: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Add noise to clean rows; return network inputs and regression targets.

    Args:
        x: Clean rows, ``(..., M, B, dim)``.
        sigma: Noise levels, ``(..., M, B, 1)``.
        noise: Standard normal, like `x`.
        frequencies: Frequencies of the noise features, ``(M, 1, fourier / 2)``.
        width: Padded row width.
        features: Padded feature width.
        dtype: Compute dtype of the network.

    Returns:
        Network input ``(..., M, B, width)``, noise features ``(..., M, B, features)``, target ``(..., M, B, dim)``.
    """
    c_in = (sigma * sigma + 1).rsqrt()
    inputs = F.pad((x + sigma * noise) * c_in, (0, width - x.shape[-1]))
    target = (sigma * x - noise) * c_in
    return inputs.to(dtype), noise_features(sigma.log() / 4, frequencies, features).to(dtype), target


@by_kernel
def squared_error(y: Tensor, target: Tensor, total: Tensor) -> Tensor:
    """Add the mean squared error of each model to `total`, ``(M,)``; return its gradient, ``(M, B, padded_dim)``."""
    dim = target.shape[-1]
    error = y[..., :dim].float() - target
    gradient = F.pad(error * (2 / (error.shape[1] * dim)), (0, y.shape[-1] - dim))
    total += error.square().mean((1, 2))
    return gradient.to(y.dtype)


@by_kernel
def _scaled_input(x: Tensor, sigma: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    return F.pad(x * (sigma * sigma + 1).rsqrt(), (0, width - x.shape[-1])).to(dtype)


@by_kernel
def _level_features(sigma: Tensor, frequencies: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    return noise_features((sigma.log() / 4).expand_as(frequencies[..., :1]), frequencies, width).to(dtype)


@by_kernel
def _denoised(x: Tensor, y: Tensor, sigma: Tensor) -> Tensor:
    variance = sigma * sigma + 1
    return x / variance + y[..., : x.shape[-1]].float() * (sigma * variance.rsqrt())


def denoise(
    w: Weights, shape: NetworkShape, frequencies: Tensor, x: Tensor, sigma: float, condition: Tensor | None = None
) -> Tensor:
    """Return ``D(x; sigma)`` for rows ``(M, B, dim)`` at one noise level, given conditions ``(M, B, C)`` if any."""
    level = x.new_full((1, 1, 1), sigma)  # a tensor: a Python float would cause a recompilation per noise level
    features = _level_features(level, frequencies, shape.padded_features, w.out.dtype)
    if condition is not None:
        features = features.expand(-1, x.shape[1], -1).clone()
        write_condition(features, shape, condition)
    y = forward_at_one_level(w, _scaled_input(x, level, shape.padded_dim, w.out.dtype), features)
    return _denoised(x, y, level)


def write_condition(features: Tensor, shape: NetworkShape, condition: Tensor, present: Tensor | None = None) -> None:
    """Write conditions ``(..., C)`` into features ``(..., padded_features)``, zeros where they are not `present`.

    The feature after the condition tells whether there is one.
    """
    start, stop = shape.noise_features, shape.features - 1
    features[..., start:stop] = condition if present is None else condition * present
    features[..., stop : stop + 1] = 1.0 if present is None else present
