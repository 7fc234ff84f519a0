"""GeneratorConfig: the settings of the diffusion generator and their presets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

from synther_replay.common.short_forms import from_short_form
from synther_replay.diffusion.network import NetworkShape
from synther_replay.diffusion.stack_sampler import SOLVERS, SamplerSettings

# `large_batch_size` applies from this number of rows on, as in the paper.
_LARGE_DATA_ROWS = 800_000
# Row length limit: observations of about 2,000 values. Longer ones are images, whose structure a network without
# convolutions does not learn, and a replay buffer of 100,000 such rows would already take gigabytes.
_MOST_CODES = 4_096
_PRECISIONS = ("auto", "bf16", "fp32")
_PRESETS = ("fast", "tiny", "offline", "paper")
# Settings by what they change, see `GeneratorConfig.differences`. All others change the meaning of weights or rows.
_NETWORK = {"width", "depth", "embedding", "squeeze_rows", "direct_rows", "fourier"}
_TRAINING = {"steps", "refit_steps", "warm_start", "batch_size", "large_batch_size", "learning_rate", "betas"}
_TRAINING |= {"gradient_clip", "average_decay", "average_every", "noise_mean", "noise_std"}
_TRAINING |= {"held_out", "evaluate_every", "patience", "max_seconds"}
_MACHINE = {"precision", "chunk"}
# Accepted types per annotation. NumPy numbers are accepted, ints are accepted as floats, bools are not numbers.
_KINDS: dict[str, tuple[type, ...]] = {
    "int": (Integral,),
    "bool": (bool,),
    "str": (str,),
    "float": (Real,),
    "int | None": (Integral, type(None)),
    "float | None": (Real, type(None)),
    "tuple[float, float]": (tuple,),
}
_KIND_WORDS: dict[type, str] = {
    Integral: "a whole number",
    Real: "a number",
    bool: "True or False",
    str: "a name",
    tuple: "two numbers",
    type(None): "None",
}


@dataclass(frozen=True)
class GeneratorConfig:
    """Settings of `DiffusionGenerator`. The defaults are the preset `fast`; see also `tiny`, `offline` and `paper`.

    Every preset takes overrides as keyword arguments:

    >>> GeneratorConfig.fast(sampling_steps=32).sampling_steps
    32
    """

    # -- network
    width: int = 512  # units per hidden layer, a multiple of 8
    depth: int = 6  # residual blocks
    embedding: int = 128  # units of the joint embedding of row and noise level, a multiple of 8
    squeeze_rows: bool = False  # embed rows longer than `embedding`, too (lossy; as published)
    direct_rows: bool = True  # rows longer than `width` enter the trunk directly; False: embedded, as in version 0.2
    fourier: int = 16  # number of random Fourier features of the noise level, even

    # -- training
    steps: int = 10_000  # gradient steps of a fit from scratch, rounded up to a multiple of `average_every`
    refit_steps: int = 1_000  # gradient steps of a warm-started refit
    warm_start: bool = True  # refits start from the previous weights; False: from scratch, as in the paper
    batch_size: int = 1024  # below 800K rows
    large_batch_size: int = 1024  # from 800K rows on
    learning_rate: float = 1e-3  # initial value; cosine annealing to zero in every fit
    betas: tuple[float, float] = (0.9, 0.99)  # of Adam
    gradient_clip: float = 1.0  # maximum gradient norm
    average_decay: float = 0.995  # decay of the EMA of the weights, per EMA update
    average_every: int = 10  # gradient steps between EMA updates
    noise_mean: float = -1.2  # training noise levels: ln(sigma) is normal with this mean ...
    noise_std: float = 1.2  # ... and this standard deviation (EDM's values)
    held_out: float = 0.05  # share of rows held out for validation; 0: none
    evaluate_every: int = 500  # steps between held-out evaluations, at most an eighth of the fit
    patience: int | None = 4  # evaluations without improvement before early stopping; None: never
    max_seconds: float | None = None  # time limit of a fit; the annealing follows it. None: no limit. `tiny`: 60

    # -- data
    normalise_rewards: bool = True  # standardise rewards; the paper does for Gym tasks, not for DMC
    unsquash_actions: bool = False  # model bounded actions before the policy's tanh (atanh transform)
    find_limits: bool = False  # treat frequent extreme values of observations and rewards as clipping limits
    exact: bool = True  # keep discrete values, and how often outcomes (`terminated`, few rewards) occur; see `outcomes`
    consistent: bool = False  # next observations and rewards follow the rest of a row as closely as in the data

    # -- sampling
    solver: str = "dpm_solver_2m"  # or "heun", the paper's
    sampling_steps: int = 12
    sigma_min: float = 0.005  # smallest noise level
    sigma_max: float = 20.0  # largest noise level
    rho: float = 9.0  # spacing exponent; larger values put more steps at small noise levels
    churn: float = 0.0  # S_churn of stochastic Heun; 0: deterministic
    churn_min: float = 0.05  # S_tmin
    churn_max: float = 50.0  # S_tmax
    churn_noise: float = 1.003  # S_noise
    eta: float = 0.0  # stochasticity of dpm_solver_2m; 0: ODE, 1: SDE

    # -- machine
    precision: str = "auto"  # "bf16" or "fp32" matrix products; "auto": bf16 on a GPU, fp32 on a CPU
    chunk: int = 65_536  # rows generated at once; bounds the memory of `sample`

    @classmethod
    def paper(cls, **changes: Any) -> GeneratorConfig:
        """The published settings: 100K steps from scratch at every refit, 128 steps of stochastic Heun sampling."""
        published = cls(
            width=1024,
            squeeze_rows=True,
            exact=False,
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
        """Default on a GPU, for online training: half the paper's width, warm-started refits, early stopping, 12 steps.

        Batches are larger than the paper's: on a GPU, a batch of 1,024 takes hardly longer than one of 256. The sampler
        starts at sigma 20 instead of 80, which leaves more steps at small noise levels. For Gaussian data with standard
        deviations from 0.03 to 2, the generated standard deviation is within 7 % (from sigma 80: within 14 %).
        """
        return replace(cls(), **changes)

    @classmethod
    def offline(cls, **changes: Any) -> GeneratorConfig:
        """Default of CORL's adapter on a GPU, for a data set that is fitted once: the paper's network, high fidelity.

        Training processes about as many rows as `paper`, in larger batches. Sampling takes a tenth of the network
        evaluations.
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
        """Default on a CPU: a small network, so that the first fit takes at most a minute and later ones seconds.

        What so small a network gets wrong of the dynamics is corrected (`consistent`).
        """
        small = cls(
            width=128,
            depth=3,
            embedding=64,
            refit_steps=500,
            batch_size=256,
            large_batch_size=256,
            evaluate_every=250,
            max_seconds=60.0,
            consistent=True,
            sampling_steps=24,
            chunk=8_192,
        )
        return replace(small, **changes)

    @classmethod
    def of(
        cls, value: GeneratorConfig | str | Mapping[str, Any] | None, *, default: str = "fast", name: str = "generator"
    ) -> GeneratorConfig:
        """Return settings from a short form.

        >>> GeneratorConfig.of("paper").steps, GeneratorConfig.of({"preset": "tiny", "steps": 500}).steps
        (100000, 500)

        Args:
            value: Settings, the name of a preset, or a mapping of fields with an optional key ``"preset"``.
            default: The preset of None, and of a mapping without ``"preset"``.
            name: Name of the argument, for errors.

        Raises:
            TypeError: `value` is none of these.
            ValueError: An unknown preset or field, or a bad value.
        """
        config: GeneratorConfig = from_short_form(cls, value, presets=_PRESETS, default=default, name=name)
        return config

    def __post_init__(self) -> None:
        """Validate all fields."""
        for field in fields(self):
            kinds = _KINDS[str(field.type)]
            value = getattr(self, field.name)
            fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
            _require(self, field.name, fits, " or ".join(_KIND_WORDS[kind] for kind in kinds))
            if isinstance(value, Real) and not isinstance(value, bool):
                _require(self, field.name, math.isfinite(value), "a finite number")
                # NumPy numbers cannot be written to JSON
                object.__setattr__(self, field.name, int(value) if isinstance(value, Integral) else float(value))
        counts = ("steps", "refit_steps", "batch_size", "large_batch_size", "average_every", "evaluate_every")
        for name in (*counts, "depth", "chunk", "sampling_steps"):
            _require(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("width", "embedding"):
            _require(self, name, getattr(self, name) >= 8 and getattr(self, name) % 8 == 0, "a multiple of 8")
        _require(self, "fourier", self.fourier >= 2 and self.fourier % 2 == 0, "an even number >= 2")
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
        """Return the settings as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> GeneratorConfig:
        """Inverse of `to_json`; also reads settings of versions that lacked `exact` or `consistent`.

        Raises:
            ValueError: The settings are of a version with `predict_terminated`, and it was used.
        """
        values = {"exact": False, "direct_rows": False, "consistent": False, **values}
        if values.pop("predict_terminated", False):
            raise ValueError("predict_terminated: this version has `exact` instead; fit the generator again")
        return cls(**{**values, "betas": tuple(values["betas"])})

    def network(self, dim: int, condition: int = 0) -> NetworkShape:
        """Return the network sizes for rows of `dim` codes, given conditions of so many values.

        A row is embedded together with the noise level. Information lost there cannot be denoised: for rows longer than
        `embedding`, it gets ``1.5 * dim`` units, unless `squeeze_rows` is set. Its cost grows with the square of its
        units, so rows longer than `width` enter the trunk directly: the cost grows with codes times `width`.

        Raises:
            ValueError: The row is too long, for example an image.
        """
        if dim > _MOST_CODES:
            raise ValueError(
                f"generator: a transition has {dim:,} values, the limit is {_MOST_CODES:,}; encode long observations, "
                "such as images, into features before they are stored; with real_ratio=1 buffers do without a generator"
            )
        long = dim > self.embedding and not self.squeeze_rows
        direct = long and dim > self.width and self.direct_rows
        embedding = -(-3 * dim // 16) * 8 if long and not direct else self.embedding
        return NetworkShape(dim, self.width, self.depth, embedding, self.fourier, direct, condition)

    def differences(self, other: GeneratorConfig, dim: int) -> dict[str, tuple[Any, Any]]:
        """Return what differs in `other` and changes the meaning of weights and rows, as pairs: other, own.

        Args:
            other: Other settings.
            dim: Number of codes of a row. The network settings count as equal if they give the same network for it.
        """
        names = (field.name for field in fields(self) if field.name not in _NETWORK | _TRAINING | _MACHINE)
        pairs = {name: (getattr(other, name), getattr(self, name)) for name in names}
        pairs["network"] = vars(other.network(dim)), vars(self.network(dim))
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def sampler(self) -> SamplerSettings:
        """Return the sampler settings."""
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
        """Return the batch size for a data set with this number of rows."""
        return self.large_batch_size if rows >= _LARGE_DATA_ROWS else self.batch_size


def _require(config: GeneratorConfig, name: str, satisfied: bool, expected: str) -> None:
    if not satisfied:
        raise ValueError(f"{name}: expected {expected}, got {getattr(config, name)!r}")
