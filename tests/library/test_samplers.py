"""The samplers on distributions whose exact denoiser is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from synther_replay.config import GeneratorConfig
from synther_replay.diffusion.samplers import dpm_solver_2m, heun, karras_sigmas

Stream = Callable[[int], torch.Generator]
Solver = Callable[..., Tensor]

MU, S = 1.5, 0.7
PUBLISHED = {"S_churn": 80.0, "S_tmin": 0.05, "S_tmax": 50.0, "S_noise": 1.003}
STOCHASTIC = [partial(heun, **PUBLISHED), partial(dpm_solver_2m, eta=1.0)]
SOLVERS = [partial(heun), partial(dpm_solver_2m), *STOCHASTIC]
NAMES = ["heun", "dpm_solver_2m", "stochastic heun", "stochastic dpm_solver_2m"]


def gaussian(x: Tensor, sigma: float) -> Tensor:
    """The exact denoiser of N(MU, S^2)."""
    return (x * S**2 + MU * sigma**2) / (S**2 + sigma**2)


def mixture(x: Tensor, sigma: float) -> Tensor:
    """The exact denoiser of 0.3 N(-2, 0.2^2) + 0.7 N(1, 0.5^2)."""
    weight, mean, deviation = torch.tensor([0.3, 0.7]), torch.tensor([-2.0, 1.0]), torch.tensor([0.2, 0.5])
    variance = deviation**2 + sigma**2
    belief = (weight.log() - 0.5 * variance.log() - (x[..., None] - mean) ** 2 / (2 * variance)).softmax(-1)
    return (belief * (x[..., None] * deviation**2 + mean * sigma**2) / variance).sum(-1)


class Recorder:
    """A denoiser that records the noise levels of its calls."""

    def __init__(self) -> None:
        self.levels: list[float] = []

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        self.levels.append(sigma)
        return gaussian(x, sigma)


# --- noise levels


@pytest.mark.parametrize("steps", [2, 18, 128])
def test_noise_levels_fall_from_the_largest_over_the_smallest_to_zero(steps: int) -> None:
    sigmas = karras_sigmas(steps, sigma_min=0.002, sigma_max=80.0, rho=7.0)
    assert len(sigmas) == steps + 1
    assert sigmas[0] == pytest.approx(80.0)
    assert sigmas[-2] == pytest.approx(0.002)
    assert sigmas[-1] == 0.0
    assert all(high > low for high, low in pairwise(sigmas))


def test_noise_levels_are_even_in_their_root() -> None:
    roots = [s ** (1 / 3) for s in karras_sigmas(11, sigma_min=0.01, sigma_max=10.0, rho=3.0)[:-1]]
    gaps = [a - b for a, b in pairwise(roots)]
    assert gaps == pytest.approx([gaps[0]] * 10)


def test_one_step_starts_at_the_largest_noise_level() -> None:
    assert karras_sigmas(1) == pytest.approx([80.0, 0.0])


def test_no_steps_are_refused() -> None:
    with pytest.raises(ValueError, match=r"steps: .*0"):
        karras_sigmas(0)


# --- known answers


@pytest.mark.parametrize("solver", SOLVERS, ids=NAMES)
def test_a_gaussian_is_sampled_with_its_mean_and_deviation(solver: Solver, stream: Stream) -> None:
    rng = stream(0)
    x = torch.randn(40_000, generator=rng) * 80
    rows = solver(gaussian, x, karras_sigmas(128), rng=rng)
    assert rows.mean().item() == pytest.approx(MU, abs=0.02)
    assert rows.std().item() == pytest.approx(S, abs=0.02)


@pytest.mark.parametrize("solver", SOLVERS, ids=NAMES)
def test_a_mixture_is_sampled_with_its_weights(solver: Solver, stream: Stream) -> None:
    rng = stream(1)
    x = torch.randn(20_000, generator=rng) * 80
    rows = solver(mixture, x, karras_sigmas(64), rng=rng)
    left = rows < -1
    assert left.double().mean().item() == pytest.approx(0.3, abs=0.02)
    assert rows[left].mean().item() == pytest.approx(-2.0, abs=0.03)
    assert rows[~left].mean().item() == pytest.approx(1.0, abs=0.03)
    assert rows[left].std().item() == pytest.approx(0.2, abs=0.03)
    assert rows[~left].std().item() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("solver", [heun, dpm_solver_2m])
def test_the_error_falls_fourfold_when_the_steps_double(solver: Solver, stream: Stream) -> None:
    x = torch.randn(200, generator=stream(0), dtype=torch.float64) * 80
    exact = MU + (x - MU) * S / math.hypot(S, 80)  # where the probability-flow ODE ends
    errors = [
        (solver(gaussian, x, karras_sigmas(n, sigma_min=1e-4)) - exact).abs().max().item() for n in (64, 128, 256)
    ]
    assert errors[-1] < 1e-3
    for coarse, fine in pairwise(errors):
        assert 3.8 < coarse / fine < 4.5


def test_dpm_solver_extrapolates_over_steps_of_uneven_length() -> None:
    """Two steps by hand; the second is twice as long in ln(sigma), so it extrapolates by the full first change."""
    seen: list[float] = []

    def denoiser(x: Tensor, sigma: float) -> Tensor:
        seen.append(x.item())
        return torch.tensor({4.0: 10.0, 2.0: 20.0, 0.5: 0.0}[sigma], dtype=torch.float64)

    dpm_solver_2m(denoiser, torch.tensor(8.0, dtype=torch.float64), [4.0, 2.0, 0.5, 0.0])
    first = 8.0 * 2 / 4 + 10.0 * (1 - 2 / 4)
    second = first * 0.5 / 2 + (20.0 + 10.0) * (1 - 0.5 / 2)
    assert seen == pytest.approx([8.0, first, second])


# --- cost and noise


def test_heun_asks_the_denoiser_twice_per_step_but_once_in_the_last() -> None:
    denoiser, sigmas = Recorder(), karras_sigmas(10)
    heun(denoiser, torch.ones(3), sigmas)
    assert len(denoiser.levels) == 2 * 10 - 1
    assert denoiser.levels[0::2] == sigmas[:-1]
    assert denoiser.levels[1::2] == sigmas[1:-1]


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_dpm_solver_asks_the_denoiser_once_per_step(eta: float, stream: Stream) -> None:
    denoiser, sigmas = Recorder(), karras_sigmas(10)
    dpm_solver_2m(denoiser, torch.ones(3), sigmas, rng=stream(0), eta=eta)
    assert denoiser.levels == sigmas[:-1]


@pytest.mark.parametrize(("steps", "raised"), [(128, math.sqrt(2)), (400, 1.2)])
def test_stochastic_heun_raises_the_noise_as_published(steps: int, raised: float, stream: Stream) -> None:
    denoiser, sigmas = Recorder(), karras_sigmas(steps)
    heun(denoiser, torch.ones(3), sigmas, rng=stream(0), **PUBLISHED)
    expected = [s * raised if 0.05 <= s <= 50 else s for s in sigmas[:-1]]
    assert denoiser.levels[0::2] == pytest.approx(expected)
    assert denoiser.levels[1::2] == sigmas[1:-1]


def test_the_added_noise_has_the_variance_that_raises_the_level(stream: Stream) -> None:
    seen: list[Tensor] = []

    def nothing(x: Tensor, sigma: float) -> Tensor:
        seen.append(x)
        return torch.zeros_like(x)

    settings: dict[str, Any] = {**PUBLISHED, "S_noise": 2.0}
    heun(nothing, torch.zeros(100_000), [1.0, 0.0], rng=stream(0), **settings)
    assert seen[0].std().item() == pytest.approx(2.0 * 1.0, rel=0.01)  # gamma = sqrt(2) - 1: from 1 to sqrt(2)


@pytest.mark.parametrize("solver", STOCHASTIC, ids=NAMES[2:])
def test_the_same_random_stream_agrees_and_two_differ(solver: Solver, stream: Stream) -> None:
    x, sigmas = torch.ones(50), karras_sigmas(8)
    first, again, other = (solver(gaussian, x, sigmas, rng=stream(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("solver", SOLVERS[:2], ids=NAMES[:2])
def test_deterministic_solvers_draw_nothing(solver: Solver, stream: Stream) -> None:
    rng = stream(0)
    before = rng.get_state()
    solver(gaussian, torch.ones(50), karras_sigmas(8), rng=rng)
    assert torch.equal(rng.get_state(), before)


@pytest.mark.parametrize("solver", SOLVERS, ids=NAMES)
def test_the_starting_noise_is_left_as_it_was(solver: Solver, stream: Stream) -> None:
    x = torch.ones(50)
    solver(gaussian, x, karras_sigmas(8), rng=stream(0))
    assert torch.equal(x, torch.ones(50))


def _worst_deviation(config: GeneratorConfig, sigma_min: float, sigma_max: float, rho: float) -> float:
    """Largest relative error of the standard deviation that the solver gives normal data of several ones.

    With the exact denoiser of N(0, S^2) the solver is linear, so its factor on one number says it all.
    """
    sigmas = karras_sigmas(config.sampling_steps, sigma_min=sigma_min, sigma_max=sigma_max, rho=rho)
    worst = 0.0
    for std in (2.0, 1.0, 0.3, 0.1, 0.03):

        def denoise(x: Tensor, sigma: float, variance: float = std * std) -> Tensor:
            return x * (variance / (variance + sigma * sigma))

        drawn = dpm_solver_2m(denoise, torch.tensor([sigmas[0]], dtype=torch.float64), sigmas).item()
        worst = max(worst, abs(drawn / std - 1))
    return worst


def test_the_noise_levels_of_fast_distort_normal_data_by_seven_percent_and_the_published_ones_by_fourteen() -> None:
    fast, paper = GeneratorConfig.fast(), GeneratorConfig.paper()
    assert _worst_deviation(fast, fast.sigma_min, fast.sigma_max, fast.rho) < 0.07
    assert 0.13 < _worst_deviation(fast, paper.sigma_min, paper.sigma_max, paper.rho) < 0.14
