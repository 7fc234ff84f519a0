"""Drawing rows from a stack of denoisers in chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from synther_replay.diffusion import edm, samplers, stack_sampler
from synther_replay.diffusion.network import NetworkShape, Weights, initialise
from synther_replay.diffusion.stack_sampler import SOLVERS, SamplerSettings, StackSampler, solve

Stream = Callable[[int], torch.Generator]
CPU = torch.device("cpu")
SHAPE = NetworkShape(dim=3, width=16, depth=1, embedding=8, fourier=4)
SETTINGS = SamplerSettings(
    solver="dpm_solver_2m",
    steps=4,
    sigma_min=0.002,
    sigma_max=80.0,
    rho=7.0,
    churn=0.0,
    churn_min=0.05,
    churn_max=50.0,
    churn_noise=1.003,
    eta=0.0,
)


def make(stack: int = 1, chunk: int = 10, settings: SamplerSettings = SETTINGS, seed: int = 0) -> StackSampler:
    rng = torch.Generator().manual_seed(seed)
    sampler = StackSampler(SHAPE, stack, CPU, torch.float32, settings, chunk)
    sampler.load(initialise(SHAPE, stack, rng), torch.randn(stack, 1, SHAPE.fourier // 2, generator=rng))
    return sampler


def draw(sampler: StackSampler, n: int, seed: int = 0) -> tuple[Tensor, list[tuple[int, int]]]:
    """The rows ``(M, n, dim)`` and the start and length of every chunk."""
    rows = torch.full((len(sampler.weights), n, SHAPE.dim), torch.nan)
    chunks: list[tuple[int, int]] = []

    def write(start: int, chunk: Tensor) -> None:
        assert chunk.shape[::2] == (len(sampler.weights), SHAPE.dim)
        chunks.append((start, chunk.shape[1]))
        rows[:, start : start + chunk.shape[1]] = chunk

    sampler.draw(n, seed, write)
    return rows, chunks


@pytest.mark.parametrize(
    ("n", "expected"),
    [(1, [(0, 1)]), (9, [(0, 9)]), (10, [(0, 10)]), (11, [(0, 10), (10, 1)]), (30, [(0, 10), (10, 10), (20, 10)])],
)
def test_chunks_are_bounded_and_cover_exactly_the_requested_rows(n: int, expected: list[tuple[int, int]]) -> None:
    rows, chunks = draw(make(), n)
    assert chunks == expected
    assert rows.isfinite().all()


def test_the_chunk_bounds_the_rows_of_all_models_together() -> None:
    rows, chunks = draw(make(stack=3, chunk=10), 8)
    assert chunks == [(0, 3), (3, 3), (6, 2)]
    assert rows.isfinite().all()


def test_more_models_than_rows_in_a_chunk_go_row_by_row() -> None:
    _, chunks = draw(make(stack=3, chunk=2), 2)
    assert chunks == [(0, 1), (1, 1)]


def test_the_network_never_sees_more_rows_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    denoise = edm.denoise

    def spy(w: Weights, shape: NetworkShape, frequencies: Tensor, x: Tensor, sigma: float) -> Tensor:
        seen.append(x.shape[0] * x.shape[1])
        return denoise(w, shape, frequencies, x, sigma)

    monkeypatch.setattr(stack_sampler.edm, "denoise", spy)
    draw(make(stack=2, chunk=10), 23)
    assert max(seen) == 10
    assert sum(seen) == 2 * 23 * SETTINGS.steps


def test_captured_chunks_have_few_sizes_and_small_draws_compute_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: on CUDA every draw computed a full chunk. Here the CPU plays a GPU whose graphs are plain calls."""
    computed: list[int] = []
    denoise = edm.denoise

    def spy(w: Weights, shape: NetworkShape, frequencies: Tensor, x: Tensor, sigma: float) -> Tensor:
        computed.append(x.shape[1])
        return denoise(w, shape, frequencies, x, sigma)

    def capture(function: Callable[[], None], rng: torch.Generator) -> Callable[[], None]:
        function()  # draws random numbers, like a warm-up
        captured.append(computed[-1])
        return function

    captured: list[int] = []
    monkeypatch.setattr(stack_sampler.edm, "denoise", spy)
    monkeypatch.setattr(stack_sampler, "capture", capture)

    def fresh() -> StackSampler:
        sampler = make(chunk=640)
        sampler.device = torch.device("cuda")
        return sampler

    sampler = fresh()
    first = draw(sampler, 7)[0]
    assert (captured, set(computed)) == ([10], {10})
    rows, chunks = draw(sampler, 1_300, seed=1)
    assert chunks == [(0, 640), (640, 640), (1_280, 20)]
    assert rows.isfinite().all()
    for n in (1, 9, 30, 80, 81, 640):
        draw(sampler, n)
    assert captured == [10, 640, 80]
    assert torch.equal(draw(sampler, 7)[0], first), "rows depend on earlier draws"
    assert torch.equal(draw(fresh(), 1_300, seed=1)[0], rows)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_same_seed_gives_the_same_rows_and_two_seeds_differ(solver: str) -> None:
    settings = replace(SETTINGS, solver=solver, churn=80.0, eta=1.0)
    sampler = make(settings=settings)
    first, again, other = (draw(sampler, 25, seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert torch.equal(first, draw(make(settings=settings), 25)[0])
    assert not torch.equal(first, other)


def test_rows_differ_between_chunks_and_between_models() -> None:
    sampler = make(stack=2, chunk=10)
    sampler.load(sampler.weights[:1].clone().expand(2, -1), sampler.frequencies[:1].clone().expand(2, -1, -1))
    rows, _ = draw(sampler, 10)
    assert len(rows.reshape(-1, SHAPE.dim).unique(dim=0)) == 20


def test_each_model_of_a_stack_uses_its_own_weights() -> None:
    sampler = make(stack=2, chunk=1000)
    before, _ = draw(sampler, 50)
    weights = sampler.weights.clone()
    weights[1] = initialise(SHAPE, 1, torch.Generator().manual_seed(9))
    sampler.load(weights, sampler.frequencies)
    after, _ = draw(sampler, 50)
    torch.testing.assert_close(before[0], after[0])
    assert not torch.allclose(before[1], after[1])


def test_the_sampler_holds_a_copy_of_the_weights() -> None:
    weights, frequencies = initialise(SHAPE, 1, torch.Generator().manual_seed(0)), torch.ones(1, 1, 2)
    sampler = make()
    sampler.load(weights, frequencies)
    before, _ = draw(sampler, 5)
    weights.zero_()
    frequencies.zero_()
    assert torch.equal(draw(sampler, 5)[0], before)


def test_drawing_touches_no_global_random_state() -> None:
    before = torch.get_rng_state()
    draw(make(settings=replace(SETTINGS, eta=1.0)), 25)
    assert torch.equal(torch.get_rng_state(), before)


def test_drawing_builds_no_graph_of_gradients() -> None:
    sampler = make()
    sampler.weights.requires_grad_()
    rows: list[Tensor] = []
    sampler.draw(3, 0, lambda _, chunk: rows.append(chunk))
    assert not rows[0].requires_grad


def _points(x: Tensor, sigma: float) -> Tensor:
    return x / (1 + sigma**2)  # the exact denoiser of a standard normal distribution


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"solver": "heun"}, lambda x, s, g: samplers.heun(_points, x, s)),
        (
            {"solver": "heun", "churn": 30.0, "churn_min": 0.1, "churn_max": 9.0, "churn_noise": 1.1},
            lambda x, s, g: samplers.heun(_points, x, s, rng=g, S_churn=30.0, S_tmin=0.1, S_tmax=9.0, S_noise=1.1),
        ),
        ({}, lambda x, s, g: samplers.dpm_solver_2m(_points, x, s)),
        ({"eta": 0.5}, lambda x, s, g: samplers.dpm_solver_2m(_points, x, s, rng=g, eta=0.5)),
    ],
    ids=["heun", "stochastic heun", "dpm_solver_2m", "stochastic dpm_solver_2m"],
)
def test_every_setting_reaches_its_solver(
    changes: dict[str, object], expected: Callable[[Tensor, list[float], torch.Generator], Tensor], stream: Stream
) -> None:
    settings = replace(SETTINGS, **changes, steps=7, sigma_min=0.01, sigma_max=20.0, rho=5.0)  # type: ignore[arg-type]
    noise = torch.randn(50, generator=stream(0))
    sigmas = samplers.karras_sigmas(7, sigma_min=0.01, sigma_max=20.0, rho=5.0)
    solved = solve(_points, noise, settings, stream(1))
    assert torch.equal(solved, expected(noise * sigmas[0], sigmas, stream(1)))
