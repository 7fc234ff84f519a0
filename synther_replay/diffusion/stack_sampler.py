"""StackSampler: samples rows from a stack of denoisers in chunks; on CUDA each chunk size is one CUDA graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from synther_replay.common.acceleration import capture
from synther_replay.common.seeding import derive_seed
from synther_replay.diffusion import edm, samplers
from synther_replay.diffusion.network import NetworkShape, Weights


@dataclass(frozen=True)
class SamplerSettings:
    """Solver and its constants; see `GeneratorConfig` for the fields."""

    solver: str
    steps: int
    sigma_min: float
    sigma_max: float
    rho: float
    churn: float
    churn_min: float
    churn_max: float
    churn_noise: float
    eta: float


SOLVERS = ("heun", "dpm_solver_2m")

# On CUDA a chunk has a fixed size: the full one, or a smaller one for what is left. Each that is used takes a capture
# and memory, so there are few.
_SMALLER = (1, 8, 64)


def solve(denoise: samplers.Denoiser, noise: Tensor, settings: SamplerSettings, rng: torch.Generator) -> Tensor:
    """Solve the reverse process: standard normal noise to samples of the data distribution."""
    sigmas = samplers.karras_sigmas(
        settings.steps, sigma_min=settings.sigma_min, sigma_max=settings.sigma_max, rho=settings.rho
    )
    x = noise * sigmas[0]
    if settings.solver == "dpm_solver_2m":
        return samplers.dpm_solver_2m(denoise, x, sigmas, rng=rng, eta=settings.eta)
    return samplers.heun(
        denoise,
        x,
        sigmas,
        rng=rng,
        S_churn=settings.churn,
        S_tmin=settings.churn_min,
        S_tmax=settings.churn_max,
        S_noise=settings.churn_noise,
    )


def fixed_size(count: int, largest: int) -> int:
    """Return the smallest of the fixed chunk sizes that holds `count` rows.

    >>> [fixed_size(count, 65_536) for count in (10, 1_025, 65_536)]
    [1024, 8192, 65536]
    """
    return min(size for share in _SMALLER if (size := -(-largest // share)) >= count)


class StackSampler:
    """Samples from M denoisers; holds a copy of their weights.

    Args:
        shape: Sizes of each network.
        stack: M.
        device: Compute device.
        dtype: Dtype of the matrix products.
        settings: Solver and constants.
        chunk: Rows computed at once, over all models.
    """

    def __init__(
        self,
        shape: NetworkShape,
        stack: int,
        device: torch.device,
        dtype: torch.dtype,
        settings: SamplerSettings,
        chunk: int,
    ) -> None:
        """Allocate the weights; `load` fills them."""
        self.shape, self.settings, self.device = shape, settings, device
        self.rows_per_chunk = max(1, chunk // stack)
        self.weights = torch.zeros(stack, shape.parameters, dtype=dtype, device=device)
        self.frequencies = torch.zeros(stack, 1, shape.fourier // 2, dtype=torch.float32, device=device)
        self.rng = torch.Generator(device)
        self._graphs: dict[int, tuple[Tensor, Callable[[], None]]] = {}  # by chunk size: its rows and its replay

    def load(self, weights: Tensor, frequencies: Tensor) -> None:
        """Copy EMA weights ``(M, P)`` and frequencies in place; CUDA graphs stay valid."""
        self.weights.copy_(weights)
        self.frequencies.copy_(frequencies)

    @torch.no_grad()
    def draw(self, n: int, seed: int, write: Callable[[int, Tensor], None]) -> None:
        """Generate `n` rows per model, chunk by chunk.

        Args:
            n: Rows per model.
            seed: Random seed; rows are deterministic per device.
            write: Called with the index of the first row of a chunk and the chunk ``(M, k, dim)``, whose memory is
                reused by the next chunk.
        """
        chunks = [(start, min(self.rows_per_chunk, n - start)) for start in range(0, n, self.rows_per_chunk)]
        solvers = {count: self._solver(count) for _, count in chunks}  # a capture draws random numbers
        self.rng.manual_seed(derive_seed(seed))
        for start, count in chunks:
            rows, solve_chunk = solvers[count]
            solve_chunk()
            write(start, rows[:, :count])

    def _solver(self, count: int) -> tuple[Tensor, Callable[[], None]]:
        """Return memory for at least `count` rows of each model and a function that fills it."""
        if self.device.type != "cuda":
            rows = self._empty(count)
            return rows, functools.partial(self._solve_into, rows)
        size = fixed_size(count, self.rows_per_chunk)
        if size not in self._graphs:
            rows = self._empty(size)
            self._graphs[size] = rows, capture(functools.partial(self._solve_into, rows), self.rng)
        return self._graphs[size]

    def _empty(self, rows: int) -> Tensor:
        return self.weights.new_empty(len(self.weights), rows, self.shape.dim, dtype=torch.float32)

    def _solve_into(self, out: Tensor) -> None:
        weights = Weights.of(self.weights, self.shape)

        def denoise(x: Tensor, sigma: float) -> Tensor:
            return edm.denoise(weights, self.shape, self.frequencies, x, sigma)

        noise = torch.randn(out.shape, dtype=out.dtype, device=out.device, generator=self.rng)
        out.copy_(solve(denoise, noise, self.settings, self.rng))
