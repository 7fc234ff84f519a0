"""StackSampler: samples rows from a stack of denoisers in chunks; on CUDA each chunk size is one CUDA graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
Mode = Literal["plain", "given", "guided"]  # without condition, with it, and both evaluated and weighed

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


class _Chunk(NamedTuple):
    """Rows that are computed at once, ``(M, k, dim)``, their conditions, and the function that computes them."""

    rows: Tensor
    condition: Tensor
    solve: Callable[[], None]


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
        self.guidance = torch.zeros((), dtype=torch.float32, device=device)  # a tensor: CUDA graphs read its value
        self._graphs: dict[tuple[int, Mode], _Chunk] = {}

    def load(self, weights: Tensor, frequencies: Tensor) -> None:
        """Copy EMA weights ``(M, P)`` and frequencies in place; CUDA graphs stay valid."""
        self.weights.copy_(weights)
        self.frequencies.copy_(frequencies)

    @torch.no_grad()
    def draw(
        self,
        n: int,
        seed: int,
        write: Callable[[int, Tensor], None],
        condition: Tensor | None = None,
        guidance: float = 1.0,
    ) -> None:
        """Generate `n` rows per model, chunk by chunk.

        Args:
            n: Rows per model.
            seed: Random seed; rows are deterministic per device.
            write: Called with the index of the first row of a chunk and the chunk ``(M, k, dim)``, whose memory is
                reused by the next chunk.
            condition: Conditions of the rows, ``(M, n, C)``; None: none.
            guidance: Weight w of classifier-free guidance, ``D = D_without + w (D_with - D_without)``. 0 is without the
                condition and 1 with it, at one evaluation of the network; others take two.
        """
        mode: Mode = "plain" if condition is None or guidance == 0 else "given" if guidance == 1 else "guided"
        chunks = [(start, min(self.rows_per_chunk, n - start)) for start in range(0, n, self.rows_per_chunk)]
        solvers = {count: self._chunk(count, mode) for _, count in chunks}  # a capture draws random numbers
        self.rng.manual_seed(derive_seed(seed))
        self.guidance.fill_(guidance)
        for start, count in chunks:
            chunk = solvers[count]
            if condition is not None and mode != "plain":
                chunk.condition[:, :count] = condition[:, start : start + count]
            chunk.solve()
            write(start, chunk.rows[:, :count])

    def _chunk(self, count: int, mode: Mode) -> _Chunk:
        """Return memory for at least `count` rows of each model and a function that fills it."""
        if self.device.type != "cuda":
            return self._new_chunk(count, mode)
        size = fixed_size(count, self.rows_per_chunk)
        if (size, mode) not in self._graphs:
            chunk = self._new_chunk(size, mode)
            self._graphs[size, mode] = chunk._replace(solve=capture(chunk.solve, self.rng))
        return self._graphs[size, mode]

    def _new_chunk(self, size: int, mode: Mode) -> _Chunk:
        rows, condition = (
            self.weights.new_zeros(len(self.weights), size, columns, dtype=torch.float32)
            for columns in (self.shape.dim, self.shape.condition)
        )
        return _Chunk(rows, condition, functools.partial(self._solve_into, rows, condition, mode))

    def _solve_into(self, out: Tensor, condition: Tensor, mode: Mode) -> None:
        network = Weights.of(self.weights, self.shape), self.shape, self.frequencies

        def denoise(x: Tensor, sigma: float) -> Tensor:
            if mode == "plain":
                return edm.denoise(*network, x, sigma)
            given = edm.denoise(*network, x, sigma, condition)
            return given if mode == "given" else torch.lerp(edm.denoise(*network, x, sigma), given, self.guidance)

        noise = torch.randn(out.shape, dtype=out.dtype, device=out.device, generator=self.rng)
        out.copy_(solve(denoise, noise, self.settings, self.rng))
