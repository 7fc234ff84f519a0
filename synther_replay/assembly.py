"""How the adapters put their parts together: the same options under the same names in all of them."""

from __future__ import annotations

import torch

from synther_replay.checks import resolve_device, whole_number
from synther_replay.config import GeneratorConfig
from synther_replay.generator import DiffusionGenerator
from synther_replay.protocols import Generator, RealTransitions
from synther_replay.schedule import RetrainSchedule
from synther_replay.synthetic import SyntheticSource
from synther_replay.transitions import TransitionSpec


def assemble_source(
    real: RealTransitions,
    spec: TransitionSpec,
    *,
    device: torch.device | str,
    real_ratio: float,
    generator: GeneratorConfig | Generator | None,
    schedule: RetrainSchedule | None,
    synthetic_capacity: int,
    seed: int | None,
) -> SyntheticSource:
    """A source of synthetic rows from an adapter's options.

    Args:
        real: What the generator learns from.
        spec: Layout of the transitions.
        device: Where generator, synthetic rows and batches live.
        real_ratio: Share of each batch that is real; 1 is plain replay.
        generator: Settings of a diffusion model, or a generator of another kind; None as fits the device.
        schedule: When to refit and how many rows to generate; None as fits the device.
        synthetic_capacity: Most synthetic rows to hold.
        seed: Of generator and sampling order; None takes the one that `torch.manual_seed` was last called with.
    """
    seed = resolve_seed(seed)
    if generator is None or isinstance(generator, GeneratorConfig):
        generator = DiffusionGenerator(spec, generator, device=resolve_device(device), seed=seed)
    elif not isinstance(generator, Generator):
        raise TypeError(f"generator: expected a GeneratorConfig or an object with fit and sample, got {generator!r}")
    return SyntheticSource(
        real,
        generator,
        spec=spec,
        real_ratio=real_ratio,
        capacity=synthetic_capacity,
        schedule=schedule,
        device=device,
        seed=seed,
    )


def resolve_seed(seed: int | None) -> int:
    """A seed of at least 0; None takes the one that `torch.manual_seed` was last called with."""
    return torch.initial_seed() % 2**63 if seed is None else whole_number("seed", seed, least=0)
