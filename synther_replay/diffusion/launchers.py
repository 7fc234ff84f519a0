"""Functions that start the Triton kernels, with the names and arguments of the PyTorch functions that they replace.

`common.acceleration.by_kernel` imports this module on a GPU only: PyTorch for CPUs has no Triton.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from synther_replay.diffusion import triton_kernels

_TILE = {"ROWS": 16, "COLUMNS": 64}
_BLOCK = 1024


def biased_silu(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """See `network`."""
    models, rows, width = x.shape
    biased, silu = torch.empty_like(x), torch.empty_like(x)
    grid = _grid(rows, width, models)
    triton_kernels.biased_silu[grid](x, bias, biased, silu, rows, width // 8, bias.stride(0) // 8, **_TILE)
    return biased, silu


def running_sum(biases: Tensor) -> Tensor:
    """See `network`."""
    models, count, width = biases.shape
    out = torch.empty(biases.shape, dtype=biases.dtype, device=biases.device)
    grid = (triton.cdiv(width, _TILE["COLUMNS"]), models)
    stride = biases.stride(0) // 8
    triton_kernels.running_sum[grid](biases, out, width // 8, stride, COUNT=count, COLUMNS=_TILE["COLUMNS"])
    return out


def shifted_relu(h: Tensor, shift: Tensor, out: Tensor) -> None:
    """See `network`."""
    models, rows, width = h.shape
    grid = _grid(rows, width, models)
    triton_kernels.shifted_relu[grid](h, shift, out, rows, width // 8, shift.stride(0) // 8, **_TILE)


def add_through_relu(g: Tensor, through: Tensor, relu: Tensor, out: Tensor) -> None:
    """See `network`."""
    size = g.numel()
    triton_kernels.add_through_relu[(triton.cdiv(size, _BLOCK),)](g, through, relu, out, size // 8, BLOCK=_BLOCK)


def add_gained(y: Tensor, gains: Tensor, x: Tensor, limits: tuple[float, float]) -> None:
    """See `network`."""
    models, rows, width = y.shape
    grid = _grid(rows, width, models)
    triton_kernels.add_gained[grid](y, gains, x, rows, width // 8, gains.shape[1], *limits, **_TILE)


def gained_gradient(d_y: Tensor, x: Tensor, limits: tuple[float, float]) -> Tensor:
    """See `network`."""
    width = x.shape[-1]
    rows = x.numel() // width
    out = torch.empty(*x.shape[:-1], 2 * width, dtype=d_y.dtype, device=d_y.device)
    triton_kernels.gained_gradient[_grid(rows, width)](d_y, x, out, rows, width // 8, *limits, **_TILE)
    return out


def corrupt(
    x: Tensor, sigma: Tensor, noise: Tensor, frequencies: Tensor, width: int, features: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """See `edm`."""
    dim = x.shape[-1]
    rows = sigma.numel()
    inputs = torch.empty(*x.shape[:-1], width, dtype=dtype, device=x.device)
    target = torch.empty_like(x)
    triton_kernels.corrupt[_grid(rows, width)](x, sigma, noise, inputs, target, rows, dim, width // 8, **_TILE)
    return inputs, _noise_features(sigma, frequencies, features, dtype), target


def level_features(sigma: Tensor, frequencies: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """See `edm`."""
    return _noise_features(sigma.expand(len(frequencies), 1, 1).contiguous(), frequencies, width, dtype)


def _noise_features(sigma: Tensor, frequencies: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    rows, (models, _, half) = sigma.numel(), frequencies.shape
    out = torch.empty(*sigma.shape[:-1], width, dtype=dtype, device=sigma.device)
    triton_kernels.noise_features[(triton.cdiv(rows, _TILE["ROWS"]),)](
        sigma, frequencies, out, rows, sigma.shape[-2], models, half, width // 8,
        ROWS=_TILE["ROWS"], COLUMNS=triton.next_power_of_2(width),
    )  # fmt: skip
    return out


def squared_error(y: Tensor, target: Tensor, total: Tensor) -> Tensor:
    """See `edm`. The sums are added in a fixed order, so that results repeat."""
    (models, rows, width), dim = y.shape, target.shape[-1]
    grid = _grid(rows, width, models)
    gradient = torch.empty_like(y)
    partial = torch.empty(models, grid[0] * grid[1], dtype=torch.float32, device=y.device)
    triton_kernels.squared_error[grid](
        y, target, gradient, partial, rows, dim, width // 8, 2 / (rows * dim), **_TILE
    )  # fmt: skip
    total.add_(partial.sum(1), alpha=1 / (rows * dim))
    return gradient


def scaled_input(x: Tensor, sigma: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """See `edm`."""
    dim = x.shape[-1]
    rows = x.numel() // dim
    out = torch.empty(*x.shape[:-1], width, dtype=dtype, device=x.device)
    triton_kernels.scaled_input[_grid(rows, width)](x, sigma, out, rows, dim, width // 8, **_TILE)
    return out


def denoised(x: Tensor, y: Tensor, sigma: Tensor) -> Tensor:
    """See `edm`."""
    dim, width = x.shape[-1], y.shape[-1]
    rows = x.numel() // dim
    out = torch.empty_like(x)
    triton_kernels.denoised[_grid(rows, dim)](x, y, sigma, out, rows, dim, width // 8, **_TILE)
    return out


def adam(
    parameters: Tensor,
    working: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    norm: Tensor,
    rates: Tensor,
    clip: float,
    beta1: float,
    beta2: float,
) -> None:
    """See `optimiser`."""
    models, size = parameters.shape
    grid = (triton.cdiv(size, _BLOCK), models)
    state = (parameters, working, gradient, mean, square)
    triton_kernels.adam[grid](*state, norm, rates, size // 8, clip, 1 - beta1, beta2, 1 - beta2, BLOCK=_BLOCK)


def _grid(rows: int, columns: int, models: int = 1) -> tuple[int, int, int]:
    """Tiles of a matrix; rows come first, because only that axis of a grid may be long."""
    return triton.cdiv(rows, _TILE["ROWS"]), triton.cdiv(columns, _TILE["COLUMNS"]), models
