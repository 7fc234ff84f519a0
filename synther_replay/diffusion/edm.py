"""Noise, preconditioning and loss of EDM (Karras et al. 2022, table 1), for data of standard deviation 1.

    D(y; sigma) = c_skip * y + c_out * F(c_in * y; c_noise)
    c_skip = 1 / (sigma^2 + 1)            c_in = 1 / sqrt(sigma^2 + 1)
    c_out = sigma / sqrt(sigma^2 + 1)     c_noise = ln(sigma) / 4

The paper's loss weight, ``(sigma^2 + 1) / sigma^2``, is ``1 / c_out^2``. So the weighted denoising loss is the plain
squared error between the network F and ``(x - c_skip * y) / c_out = (sigma * x - noise) / sqrt(sigma^2 + 1)``,
which is how it is computed here: no division by a small sigma, and no denoised row has to be formed.

The last columns of a row may be flags, 0 or 1, that are not denoised but predicted: the network does not see them, and
says with what probability they are 1 in the row whose noised rest it sees: its output is the log-odds, its loss the
cross-entropy. Of a generated row it is asked at a noise level that is low and yet common in training: below that, what
it says is a guess, which `c_out` makes harmless in all other columns.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from synther_replay.acceleration import fused
from synther_replay.diffusion.network import NetworkShape, Weights, forward_at_one_level

# A flag counts in the gradient as much as so many other columns: where it is rarely 1, hardly a row teaches anything
# about it. Tried on walker2d with a small network: with 10 most rare ends were missed, with 300 too many rows fell.
_FLAG_WEIGHT = 50.0


class NoiseLevels(NamedTuple):
    """How noise levels are drawn in training: ln(sigma) is normal, with EDM's mean and deviation."""

    mean: float = -1.2
    std: float = 1.2

    def draw(self, size: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """Levels, float32, on the device of `rng`."""
        normal = torch.randn(size, device=rng.device, generator=rng, dtype=torch.float32)
        return normal.mul(self.std).add(self.mean).exp()


def noise_features(c_noise: Tensor, frequencies: Tensor, width: int) -> Tensor:
    """Random Fourier features of the noise level.

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


@fused
def corrupt(
    x: Tensor,
    sigma: Tensor,
    noise: Tensor,
    frequencies: Tensor,
    width: int,
    features: int,
    dtype: torch.dtype,
    flags: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn clean rows into a regression problem for the network.

    Args:
        x: Clean rows, ``(..., M, B, dim)``.
        sigma: Noise levels, ``(..., M, B, 1)``.
        noise: Standard normal, like `x`.
        frequencies: Of the noise features, ``(M, 1, fourier / 2)``.
        width: Padded row width.
        features: Padded feature width.
        dtype: Type in which the network computes.
        flags: How many of the last columns are predicted.

    Returns:
        Network input ``(..., M, B, width)``, noise features ``(..., M, B, features)``, target ``(..., M, B, dim)``.
    """
    c_in = (sigma * sigma + 1).rsqrt()
    seen = x.shape[-1] - flags
    inputs = F.pad(((x + sigma * noise) * c_in)[..., :seen], (0, width - seen))
    target = (sigma * x - noise) * c_in
    if flags:
        target = torch.cat((target[..., :seen], x[..., seen:]), dim=-1)
    return inputs.to(dtype), noise_features(sigma.log() / 4, frequencies, features).to(dtype), target


@fused
def add_loss(y: Tensor, target: Tensor, total: Tensor, flags: int = 0) -> Tensor:
    """Add the mean loss of each model to `total`, ``(M,)``; return its gradient, ``(M, B, padded_dim)``.

    Flags weigh more in the gradient alone: the loss is what decides how long to train, for all columns.
    """
    dim = target.shape[-1]
    answer = y[..., :dim].float()
    error = answer - target
    share = 1 / (error.shape[1] * dim)
    loss, gradient = error.square(), error * (2 * share)
    if flags:
        log_odds, flag = answer[..., -flags:], target[..., -flags:]
        surprise = F.binary_cross_entropy_with_logits(log_odds, flag, reduction="none")
        loss = torch.cat((loss[..., :-flags], surprise), dim=-1)
        of_flags = (log_odds.sigmoid() - flag) * (_FLAG_WEIGHT * share)
        gradient = torch.cat((gradient[..., :-flags], of_flags), dim=-1)
    total += loss.mean((1, 2))
    return F.pad(gradient, (0, y.shape[-1] - dim)).to(y.dtype)


@fused
def draw_flags(log_odds: Tensor, noise: Tensor) -> Tensor:
    """Flags with these log-odds: 1 where standard normal `noise` lies in as large a lower part of its distribution.

    What is no number stays so, for the row to be thrown away.
    """
    chance = log_odds.sigmoid()
    return torch.where(chance.isnan(), chance, (torch.special.ndtr(noise) < chance).to(chance.dtype))


@fused
def _scaled_input(x: Tensor, sigma: Tensor, width: int, dtype: torch.dtype, flags: int) -> Tensor:
    seen = x.shape[-1] - flags
    return F.pad((x * (sigma * sigma + 1).rsqrt())[..., :seen], (0, width - seen)).to(dtype)


@fused
def _level_features(sigma: Tensor, frequencies: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    return noise_features((sigma.log() / 4).expand_as(frequencies[..., :1]), frequencies, width).to(dtype)


@fused
def _denoised(x: Tensor, y: Tensor, sigma: Tensor, flags: int) -> Tensor:
    variance = sigma * sigma + 1
    answer = y[..., : x.shape[-1]].float()
    row = x / variance + answer * (sigma * variance.rsqrt())
    return torch.cat((row[..., :-flags], answer[..., -flags:]), dim=-1) if flags else row


def denoise(w: Weights, shape: NetworkShape, frequencies: Tensor, x: Tensor, sigma: float) -> Tensor:
    """``D(x; sigma)`` for rows ``(M, B, dim)`` that share one noise level; in place of flags their log-odds."""
    level = x.new_full((1, 1, 1), sigma)  # on the device: a number would be compiled in, once for every noise level
    features = _level_features(level, frequencies, shape.padded_features, w.out.dtype)
    inputs = _scaled_input(x, level, shape.padded_dim, w.out.dtype, shape.flags)
    return _denoised(x, forward_at_one_level(w, inputs, features), level, shape.flags)
