"""SourceOptions: the options shared by all adapters, and the `SyntheticSource` built from them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from synther_replay.common.checks import resolve_device, whole_number
from synther_replay.config import GeneratorConfig
from synther_replay.data.transitions import TransitionSpec
from synther_replay.generator import DiffusionGenerator
from synther_replay.protocols import Generator, RealTransitions
from synther_replay.replay.mixing import check_real_ratio
from synther_replay.replay.schedule import RetrainSchedule
from synther_replay.replay.source import SyntheticSource


@dataclass(frozen=True)
class SourceOptions:
    """Validated options of the synthetic part of a buffer.

    Attributes:
        real_ratio: Share of real rows in each batch; 1 is plain replay.
        generator: A `GeneratorConfig`, or any object with `fit` and `sample`. None: the device's default preset.
        schedule: When to refit and how many rows to generate. None: the device's default.
        synthetic_capacity: Maximum number of synthetic rows.
        seed: Seed of generator and sampling order. None: the seed last passed to `torch.manual_seed`.
    """

    real_ratio: float = 0.5
    generator: GeneratorConfig | Generator | None = None
    schedule: RetrainSchedule | None = None
    synthetic_capacity: int = 1_000_000
    seed: int | None = None

    def __post_init__(self) -> None:
        """Validate all fields."""
        check_real_ratio(self.real_ratio)
        if not isinstance(self.generator, GeneratorConfig | Generator | None):
            raise TypeError(
                f"generator: expected a GeneratorConfig or an object with fit and sample, got {self.generator!r}"
            )
        if not isinstance(self.schedule, RetrainSchedule | None):
            raise TypeError(f"schedule: expected a RetrainSchedule, got {self.schedule!r}")
        whole_number("synthetic_capacity", self.synthetic_capacity)
        seed = torch.initial_seed() % 2**63 if self.seed is None else whole_number("seed", self.seed, least=0)
        object.__setattr__(self, "seed", seed)

    def check(self, spec: TransitionSpec) -> None:
        """Raise ValueError if `build` would refuse rows of this spec as too long, for example images."""
        if self.real_ratio < 1.0 and isinstance(self.generator, GeneratorConfig | None):
            (self.generator or GeneratorConfig.fast()).network(spec.dim)  # a column takes at least one code

    def build(
        self, real: RealTransitions, spec: TransitionSpec, device: torch.device | str | None = None
    ) -> SyntheticSource:
        """Build the source on a device; None: the device of the generator, or the CPU.

        Raises:
            ValueError: The rows are too long for the generator, for example images. With ``real_ratio=1`` any rows are
                accepted, because no generator is built.
        """
        assert self.seed is not None  # set in __post_init__
        generator: Generator | Callable[..., Generator]
        if self.generator is None or isinstance(self.generator, GeneratorConfig):
            generator = functools.partial(DiffusionGenerator, spec, self.generator, seed=self.seed)
            if self.real_ratio < 1.0:
                generator = generator(device=resolve_device(device or "cpu"))
        else:
            generator = self.generator
        return SyntheticSource(
            real,
            generator,
            spec=spec,
            real_ratio=self.real_ratio,
            capacity=self.synthetic_capacity,
            schedule=self.schedule,
            device=device,
            seed=self.seed,
        )
