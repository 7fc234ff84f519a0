"""Samplers of EDM's probability-flow ODE and SDE, as free functions.

Each takes a denoiser ``D(x, sigma) -> x``, initial noise of standard deviation ``sigmas[0]``, and a decreasing list of
noise levels that ends with 0. Noise levels are plain floats, shared by all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

Denoiser = Callable[[Tensor, float], Tensor]


def karras_sigmas(steps: int, *, sigma_min: float = 0.002, sigma_max: float = 80.0, rho: float = 7.0) -> list[float]:
    """Return the noise levels of Karras et al. (2022), eq. 5: `steps` levels, then 0.

    >>> [round(s, 3) for s in karras_sigmas(3)]
    [80.0, 2.515, 0.002, 0.0]
    """
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    high, low = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    return [(high + i / max(steps - 1, 1) * (low - high)) ** rho for i in range(steps)] + [0.0]


def heun(
    denoise: Denoiser,
    x: Tensor,
    sigmas: Sequence[float],
    *,
    rng: torch.Generator | None = None,
    S_churn: float = 0.0,
    S_tmin: float = 0.05,
    S_tmax: float = 50.0,
    S_noise: float = 1.003,
) -> Tensor:
    """Karras et al. (2022), algorithm 2: stochastic Heun; with ``S_churn = 0`` algorithm 1, deterministic Heun.

    It evaluates the denoiser twice per step, and once in the last step.
    """
    most = min(S_churn / (len(sigmas) - 1), math.sqrt(2) - 1)
    for sigma, sigma_next in pairwise(sigmas):
        gamma = most if S_tmin <= sigma <= S_tmax else 0.0
        sigma_hat = sigma * (1 + gamma)
        if gamma > 0:
            noise = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=rng)
            x = x.add(noise, alpha=S_noise * math.sqrt(sigma_hat**2 - sigma**2))
        # Each line of the algorithm is written as one linear interpolation, that is one pass over memory.
        # Euler: x + (sigma_next - sigma_hat) d with d = (x - D) / sigma_hat
        euler = torch.lerp(denoise(x, sigma_hat), x, sigma_next / sigma_hat)
        if sigma_next == 0:
            return euler
        # Slope at sigma_next: euler + (sigma_next - sigma_hat) d' with d' = (euler - D') / sigma_next
        beyond = torch.lerp(denoise(euler, sigma_next), euler, 2 - sigma_hat / sigma_next)
        # Heun: x + (sigma_next - sigma_hat) (d + d') / 2
        x = torch.lerp(x, beyond, 0.5)
    return x


def dpm_solver_2m(
    denoise: Denoiser, x: Tensor, sigmas: Sequence[float], *, rng: torch.Generator | None = None, eta: float = 0.0
) -> Tensor:
    """DPM-Solver++(2M), Lu et al. (2022), algorithm 2, in EDM's variables: one evaluation of the denoiser per step.

    A linear multistep method in ``t = -ln(sigma)``: each step extrapolates from the last two denoised rows. With
    ``eta > 0`` it is the stochastic variant SDE-DPM-Solver++(2M), which removes more noise in every step and adds the
    same amount of new noise.
    """
    before: Tensor | None = None
    h_before = 0.0
    for sigma, sigma_next in pairwise(sigmas):
        now = denoise(x, sigma)
        if sigma_next == 0:
            return now
        h = math.log(sigma / sigma_next)
        guess = now if before is None else torch.lerp(before, now, 1 + 0.5 * h / h_before)
        x = torch.lerp(guess, x, math.exp(-(1 + eta) * h))
        if eta > 0:
            noise = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=rng)
            x = x.add(noise, alpha=sigma_next * math.sqrt(-math.expm1(-2 * eta * h)))
        before, h_before = now, h
    return x
