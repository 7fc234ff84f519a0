"""Data augmentation of batches, which the paper compares its generated rows with.

Rows are changed as a learner sees them: with all but EDAC, observations have a standard deviation of 1 by then.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from synther_replay import TransitionSpec

Augmentation = Callable[[Tensor, TransitionSpec, torch.Generator], Tensor]


def additive(rows: Tensor, spec: TransitionSpec, rng: torch.Generator) -> Tensor:
    """Add the same normal noise of 0.1 to state and next state (RAD)."""
    noise = 0.1 * torch.randn(*rows.shape[:-1], spec.observation_dim, generator=rng, device=rows.device)
    return _with_states(rows, spec, rows[..., spec.observations] + noise, rows[..., spec.next_observations] + noise)


def multiplicative(rows: Tensor, spec: TransitionSpec, rng: torch.Generator) -> Tensor:
    """Multiply state and next state with one number from 0.8 to 1.2 (RAD)."""
    factor = 0.8 + 0.4 * _chance(rows, rng)
    return _with_states(rows, spec, rows[..., spec.observations] * factor, rows[..., spec.next_observations] * factor)


def dynamics(rows: Tensor, spec: TransitionSpec, rng: torch.Generator) -> Tensor:
    """Multiply the way from state to next state with one number from 0.5 to 1.5 (AugWM)."""
    here, there = rows[..., spec.observations], rows[..., spec.next_observations]
    return _with_states(rows, spec, here, here + (0.5 + _chance(rows, rng)) * (there - here))


AUGMENTATIONS: dict[str, Augmentation] = {
    "additive": additive,
    "multiplicative": multiplicative,
    "dynamics": dynamics,
}


def _chance(rows: Tensor, rng: torch.Generator) -> Tensor:
    """One number from 0 to 1 for each row, ``(..., 1)``."""
    return torch.rand(*rows.shape[:-1], 1, generator=rng, device=rows.device)


def _with_states(rows: Tensor, spec: TransitionSpec, here: Tensor, there: Tensor) -> Tensor:
    rows = rows.clone()
    rows[..., spec.observations], rows[..., spec.next_observations] = here, there
    return rows
