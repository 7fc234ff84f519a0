"""Loss and denoiser against EDM's formulas as Karras et al. (2022) print them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from synther_replay.diffusion import edm
from synther_replay.diffusion.network import NetworkShape, Weights, forward, initialise

Stream = Callable[[int], torch.Generator]
SHAPE = NetworkShape(dim=5, width=24, depth=2, embedding=16, fourier=6)
SIGMA_DATA = 1.0


class _Textbook:
    """EDM's table 1 around the network F, with sigma_data written out; rows ``(M, B, dim)``, sigma ``(M, B, 1)``."""

    def __init__(self, stack: int, rng: torch.Generator) -> None:
        self.flat = initialise(SHAPE, stack, rng).double()
        self.frequencies = torch.randn(stack, 1, SHAPE.fourier // 2, generator=rng).double()
        self.weights = Weights.of(self.flat, SHAPE)

    def network(self, x: Tensor, c_noise: Tensor) -> Tensor:
        angle = 2 * math.pi * c_noise * self.frequencies
        features = torch.cat((c_noise, angle.sin(), angle.cos()), dim=-1)
        features = F.pad(features, (0, SHAPE.padded_features - features.shape[-1]))
        x = F.pad(x, (0, SHAPE.padded_dim - SHAPE.dim))
        return forward(self.weights, x, features)[0][..., : SHAPE.dim]

    def denoise(self, y: Tensor, sigma: Tensor) -> Tensor:
        c_skip = SIGMA_DATA**2 / (sigma**2 + SIGMA_DATA**2)
        c_out = sigma * SIGMA_DATA / (sigma**2 + SIGMA_DATA**2).sqrt()
        c_in = 1 / (SIGMA_DATA**2 + sigma**2).sqrt()
        return c_skip * y + c_out * self.network(c_in * y, sigma.log() / 4)

    def loss(self, x: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
        weight = (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2
        return (weight * (self.denoise(x + sigma * noise, sigma) - x) ** 2).mean((1, 2))


def _problem(stack: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(stack, 40, SHAPE.dim, generator=rng).double()
    noise = torch.randn(x.shape, generator=rng).double()
    sigma = (torch.randn(stack, 40, 1, generator=rng).double() * 1.2 - 1.2).exp()
    sigma[:, 0], sigma[:, 1] = 0.002, 80.0
    return x, sigma, noise


def _our_output(model: _Textbook, x: Tensor, sigma: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    inputs, features, target = edm.corrupt(
        x, sigma, noise, model.frequencies, SHAPE.padded_dim, SHAPE.padded_features, torch.float64
    )
    return forward(model.weights, inputs, features)[0], target


def _loss(y: Tensor, target: Tensor) -> Tensor:
    total = torch.zeros(len(y), dtype=torch.float64)
    edm.squared_error(y, target, total)
    return total


@pytest.mark.parametrize("stack", [1, 3])
def test_the_simplified_loss_equals_the_weighted_denoising_loss(stack: int, stream: Stream) -> None:
    rng = stream(stack)
    model = _Textbook(stack, rng)
    x, sigma, noise = _problem(stack, rng)
    y, target = _our_output(model, x, sigma, noise)
    torch.testing.assert_close(_loss(y, target), model.loss(x, sigma, noise), rtol=1e-5, atol=0)


@pytest.mark.parametrize("level", [0.002, 0.3, 80.0])
def test_the_simplified_loss_is_right_at_each_end_of_the_noise_levels(level: float, stream: Stream) -> None:
    rng = stream(0)
    model = _Textbook(2, rng)
    x, sigma, noise = _problem(2, rng)
    sigma = torch.full_like(sigma, level)
    y, target = _our_output(model, x, sigma, noise)
    torch.testing.assert_close(_loss(y, target), model.loss(x, sigma, noise), rtol=1e-5, atol=0)


def test_a_training_block_of_several_steps_is_corrupted_step_by_step(stream: Stream) -> None:
    rng = stream(0)
    model = _Textbook(2, rng)
    problems = [_problem(2, rng) for _ in range(3)]
    x, sigma, noise = (torch.stack(parts) for parts in zip(*problems, strict=True))
    widths = (SHAPE.padded_dim, SHAPE.padded_features, torch.float64)
    together = edm.corrupt(x, sigma, noise, model.frequencies, *widths)
    for k, problem in enumerate(problems):
        for all_steps, one in zip(together, edm.corrupt(*problem, model.frequencies, *widths), strict=True):
            assert torch.equal(all_steps[k], one)


def test_the_gradient_of_the_loss_is_that_of_autograd_and_zero_on_padding(stream: Stream) -> None:
    rng = stream(0)
    y = torch.randn(3, 10, SHAPE.padded_dim, generator=rng).requires_grad_()
    target = torch.randn(3, 10, SHAPE.dim, generator=rng)
    expected = (y[..., : SHAPE.dim] - target).square().mean((1, 2))
    (expected_gradient,) = torch.autograd.grad(expected.sum(), y)
    total = torch.tensor([0.0, 1.0, 2.0])
    gradient = edm.squared_error(y.detach(), target, total)
    torch.testing.assert_close(gradient, expected_gradient)
    assert not gradient[..., SHAPE.dim :].any()
    torch.testing.assert_close(total, expected.detach() + torch.tensor([0.0, 1.0, 2.0]))  # losses accumulate


@pytest.mark.parametrize("sigma", [0.002, 0.05, 1.0, 7.0, 80.0])
def test_denoise_equals_the_textbook_denoiser(sigma: float, stream: Stream) -> None:
    rng = stream(0)
    model = _Textbook(3, rng)
    x = torch.randn(3, 20, SHAPE.dim, generator=rng).double() * math.hypot(1, sigma)
    denoised = edm.denoise(model.weights, SHAPE, model.frequencies, x, sigma)
    expected = model.denoise(x, torch.full((3, 20, 1), sigma, dtype=torch.float64))
    assert denoised.shape == x.shape
    torch.testing.assert_close(denoised, expected, rtol=1e-6, atol=1e-6)


def test_denoise_returns_float32_rows_from_a_bfloat16_network(stream: Stream) -> None:
    rng = stream(0)
    flat, frequencies = initialise(SHAPE, 1, rng), torch.randn(1, 1, SHAPE.fourier // 2, generator=rng)
    x = torch.randn(1, 200, SHAPE.dim, generator=rng)
    exact = edm.denoise(Weights.of(flat, SHAPE), SHAPE, frequencies, x, 0.01)
    rough = edm.denoise(Weights.of(flat.bfloat16(), SHAPE), SHAPE, frequencies, x, 0.01)
    assert rough.dtype == torch.float32
    # The preconditioning is not rounded: at a small noise level the network contributes little.
    assert (rough - exact).abs().max() < 1e-3


def test_noise_features_are_level_sines_cosines_and_zeros() -> None:
    features = edm.noise_features(torch.tensor([[[0.5]]]), torch.tensor([[[0.25, 1.5, 2.0]]]), 8)
    root = math.sqrt(0.5)
    expected = torch.tensor([[[0.5, root, -1.0, 0.0, root, 0.0, 1.0, 0.0]]])
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-6)


def test_training_noise_has_the_published_distribution() -> None:
    drawn = edm.NoiseLevels().draw((100_000,), torch.Generator().manual_seed(0)).log()
    assert drawn.mean().item() == pytest.approx(-1.2, abs=0.02)
    assert drawn.std().item() == pytest.approx(1.2, abs=0.02)
