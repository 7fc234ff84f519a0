"""All settings of the diffusion generator, with presets."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

from synther_replay.diffusion.generation import SOLVERS, SamplerSettings
from synther_replay.diffusion.network import NetworkShape

# The paper trains on larger batches where there is as much data as this.
_LARGE_DATA_ROWS = 800_000
_MOST_CODES = 8_192  # of a row; the model grows with their square, here to 250 million parameters
_PRECISIONS = ("auto", "bf16", "fp32")
# What a field of each declared type may hold, NumPy's numbers included; a bool is no number, a whole number a float.
_KINDS: dict[str, tuple[type, ...]] = {
    "int": (Integral,),
    "bool": (bool,),
    "str": (str,),
    "float": (Real,),
    "int | None": (Integral, type(None)),
    "float | None": (Real, type(None)),
    "tuple[float, float]": (tuple,),
}


@dataclass(frozen=True)
class GeneratorConfig:
    """Settings of `DiffusionGenerator`; the defaults are those of `fast`.

    >>> GeneratorConfig.fast(sampling_steps=32).sampling_steps
    32
    """

    # -- network
    width: int = 512  # units of a hidden layer, a multiple of 8
    depth: int = 6  # residual blocks
    embedding: int = 128  # units in which the row and its noise level meet, a multiple of 8
    squeeze_rows: bool = False  # whether rows that are too long for `embedding` are squeezed into it, as published
    fourier: int = 16  # random Fourier features of the noise level, even

    # -- training
    steps: int = 10_000  # gradient steps of a fit from scratch; rounded up to a multiple of `average_every`
    refit_steps: int = 1_000  # gradient steps of a later fit when it starts from the last model
    warm_start: bool = True  # whether later fits start from the last model, or from nothing as in the paper
    batch_size: int = 1024
    large_batch_size: int = 1024  # batch size from 800K rows on
    learning_rate: float = 1e-3  # annealed to zero by a cosine in every fit
    betas: tuple[float, float] = (0.9, 0.99)  # Adam's
    gradient_clip: float = 1.0  # largest gradient norm
    average_decay: float = 0.995  # of the moving average of the weights, per update
    average_every: int = 10  # steps between its updates
    noise_mean: float = -1.2  # ln(noise level) of what it learns to denoise is normal, with this mean ...
    noise_std: float = 1.2  # ... and this standard deviation; both are EDM's
    held_out: float = 0.05  # share of the rows kept out of training to measure the loss on; 0: none
    evaluate_every: int = 500  # steps between two measurements of it, at most an eighth of the fit
    patience: int | None = 4  # stop after this many measurements without improvement; None: never. The best is kept
    max_seconds: float | None = None  # stop a fit after this long, annealed in time; None: no limit

    # -- data
    normalise_rewards: bool = True  # the paper: yes for Gym tasks, no for DMC
    unsquash_actions: bool = False  # whether bounded actions are modelled as they were before a policy's tanh
    find_limits: bool = False  # whether many rows with the least or largest observation or reward tell a limit
    predict_terminated: bool = False  # whether a classifier says what is `terminated`, for seconds more at every fit

    # -- sampling
    solver: str = "dpm_solver_2m"  # or "heun", the paper's
    sampling_steps: int = 12
    sigma_min: float = 0.005  # smallest noise level
    sigma_max: float = 20.0  # largest noise level
    rho: float = 9.0  # how much denser the small noise levels lie
    churn: float = 0.0  # S_churn of stochastic Heun; 0: deterministic
    churn_min: float = 0.05  # S_tmin
    churn_max: float = 50.0  # S_tmax
    churn_noise: float = 1.003  # S_noise
    eta: float = 0.0  # noise of dpm_solver_2m: 0 deterministic, 1 the SDE

    # -- machine
    precision: str = "auto"  # matrix products in "bf16" or "fp32"; auto: bf16 on a GPU, fp32 on a CPU
    chunk: int = 65_536  # rows generated at a time; bounds the memory of `sample`

    @classmethod
    def paper(cls, **changes: Any) -> GeneratorConfig:
        """As published: 100K steps from nothing at every refit, 128 steps of the stochastic Heun sampler."""
        published = cls(
            width=1024,
            squeeze_rows=True,
            steps=100_000,
            warm_start=False,
            batch_size=256,
            learning_rate=3e-4,
            held_out=0.0,
            patience=None,
            solver="heun",
            sampling_steps=128,
            sigma_min=0.002,
            sigma_max=80.0,
            rho=7.0,
            churn=80.0,
        )
        return replace(published, **changes)

    @classmethod
    def fast(cls, **changes: Any) -> GeneratorConfig:
        """Half the width with larger batches and steps, warm-started and stopped early, and a few-step sampler.

        For a GPU, where a batch of 1,024 takes hardly longer than one of 256. In the time of a refit a network of half
        the width takes so many more steps that it ends closer to the dynamics. The sampler's noise levels span less
        than the paper's, which leaves more steps where they count: for normal data of any standard deviation from
        0.03 to 2 (the whole has 1) the generated one is then at most 7 % off, against 14 % from 80 down.
        """
        return replace(cls(), **changes)

    @classmethod
    def offline(cls, **changes: Any) -> GeneratorConfig:
        """For a data set that is learnt once and then upsampled: the paper's network, trained and sampled for fidelity.

        It sees about as many rows as with `paper`, in larger batches, and takes a tenth of the network's evaluations
        to generate one.
        """
        thorough = cls(
            width=1024,
            steps=30_000,
            warm_start=False,
            held_out=0.0,
            patience=None,
            unsquash_actions=True,
            sampling_steps=24,
        )
        return replace(thorough, **changes)

    @classmethod
    def tiny(cls, **changes: Any) -> GeneratorConfig:
        """A network small enough that a refit takes seconds on a laptop's CPU."""
        small = cls(
            width=128,
            depth=3,
            embedding=64,
            steps=2_000,
            refit_steps=500,
            batch_size=256,
            large_batch_size=256,
            evaluate_every=250,
            sampling_steps=24,
            chunk=8_192,
        )
        return replace(small, **changes)

    def __post_init__(self) -> None:
        """Refuse what cannot work, by name and value."""
        for field in fields(self):
            kinds = _KINDS[str(field.type)]
            value = getattr(self, field.name)
            fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
            _require(self, field.name, fits, " or ".join(kind.__name__ for kind in kinds))
            if isinstance(value, Real) and not isinstance(value, bool):
                _require(self, field.name, math.isfinite(value), "a finite number")
                # as Python's own numbers, which JSON knows
                object.__setattr__(self, field.name, int(value) if isinstance(value, Integral) else float(value))
        counts = ("steps", "refit_steps", "batch_size", "large_batch_size", "average_every", "evaluate_every")
        for name in (*counts, "depth", "chunk", "sampling_steps"):
            _require(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("width", "embedding"):
            _require(self, name, getattr(self, name) >= 8 and getattr(self, name) % 8 == 0, "a multiple of 8")
        _require(self, "fourier", self.fourier >= 2 and self.fourier % 2 == 0, "an even number of at least 2")
        _require(self, "noise_mean", abs(self.noise_mean) <= 10, "a number from -10 to 10")
        _require(self, "noise_std", self.noise_std <= 5, "a positive number of at most 5")
        for name in ("noise_std", "learning_rate", "gradient_clip", "rho", "churn_noise", "sigma_max"):
            _require(self, name, getattr(self, name) > 0, "a positive number")
        in_range = len(self.betas) == 2 and all(isinstance(b, Real) and 0 <= b < 1 for b in self.betas)
        _require(self, "betas", in_range, "two numbers in [0, 1)")
        object.__setattr__(self, "betas", tuple(float(b) for b in self.betas))
        _require(self, "average_decay", 0 <= self.average_decay < 1, "a number in [0, 1)")
        _require(self, "held_out", 0 <= self.held_out <= 0.5, "a share from 0 to 0.5")
        _require(self, "patience", self.patience is None or self.patience >= 1, "at least 1, or None")
        _require(self, "max_seconds", self.max_seconds is None or self.max_seconds > 0, "a positive number, or None")
        _require(self, "solver", self.solver in SOLVERS, f"one of {SOLVERS}")
        _require(self, "sigma_min", 0 < self.sigma_min < self.sigma_max, "a number between 0 and sigma_max")
        for name in ("churn", "churn_min", "churn_max", "eta"):
            _require(self, name, getattr(self, name) >= 0, "a number of at least 0")
        _require(self, "precision", self.precision in _PRECISIONS, f"one of {_PRECISIONS}")

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> GeneratorConfig:
        """The inverse of `to_json`."""
        return cls(**{**values, "betas": tuple(values["betas"])})

    def network(self, dim: int) -> NetworkShape:
        """Sizes of a network for rows of `dim` codes.

        The row enters by one linear layer, and what is lost there cannot be denoised. So a row with more codes than
        `embedding` has units gets half as many units again as it has codes, unless it is to be squeezed.

        Raises:
            ValueError: That takes more memory than anybody wants to spend on it, as with images.
        """
        if dim > max(_MOST_CODES, self.embedding) and not self.squeeze_rows:
            raise ValueError(
                f"generator: a transition has {dim:,} values, for which the model would grow beyond bounds; it is for "
                f"those of at most {_MOST_CODES:,}, such as states or features of images. "
                "GeneratorConfig(squeeze_rows=True) takes longer ones, with a loss"
            )
        embedding = self.embedding if self.squeeze_rows or dim <= self.embedding else -(-3 * dim // 16) * 8
        return NetworkShape(dim, self.width, self.depth, embedding, self.fourier)

    def sampler(self) -> SamplerSettings:
        """The sampling part."""
        return SamplerSettings(
            solver=self.solver,
            steps=self.sampling_steps,
            sigma_min=self.sigma_min,
            sigma_max=self.sigma_max,
            rho=self.rho,
            churn=self.churn,
            churn_min=self.churn_min,
            churn_max=self.churn_max,
            churn_noise=self.churn_noise,
            eta=self.eta,
        )

    def batch_size_for(self, rows: int) -> int:
        """Batch size for a data set of so many rows."""
        return self.large_batch_size if rows >= _LARGE_DATA_ROWS else self.batch_size


def _require(config: GeneratorConfig, name: str, satisfied: bool, expected: str) -> None:
    if not satisfied:
        raise ValueError(f"{name}: expected {expected}, got {getattr(config, name)!r}")
