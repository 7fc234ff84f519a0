"""Data augmentation of batches, a baseline of the paper.

Applied to batches as the learner gets them; for all algorithms but EDAC, observations are standardised by then.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from synther_replay import TransitionSpec

Augmentation = Callable[[Tensor, TransitionSpec, torch.Generator], Tensor]


def additive(rows: Tensor, spec: TransitionSpec, rng: torch.Generator) -> Tensor:
    """Add the same normal noise, standard deviation 0.1, to state and next state (RAD)."""
    noise = 0.1 * torch.randn(*rows.shape[:-1], spec.observation_dim, generator=rng, device=rows.device)
    return _with_states(rows, spec, rows[..., spec.observations] + noise, rows[..., spec.next_observations] + noise)


def multiplicative(rows: Tensor, spec: TransitionSpec, rng: torch.Generator) -> Tensor:
    """Multiply state and next state by one random factor from 0.8 to 1.2 (RAD)."""
    factor = 0.8 + 0.4 * _uniform(rows, rng)
    return _with_states(rows, spec, rows[..., spec.observations] * factor, rows[..., spec.next_observations] * factor)


def dynamics(rows: Tensor, spec: TransitionSpec, rng: torch.Generator) -> Tensor:
    """Multiply the difference of state and next state by one random factor from 0.5 to 1.5 (AugWM)."""
    state, next_state = rows[..., spec.observations], rows[..., spec.next_observations]
    return _with_states(rows, spec, state, state + (0.5 + _uniform(rows, rng)) * (next_state - state))


AUGMENTATIONS: dict[str, Augmentation] = {
    "additive": additive,
    "multiplicative": multiplicative,
    "dynamics": dynamics,
}


def _uniform(rows: Tensor, rng: torch.Generator) -> Tensor:
    """One uniform number in [0, 1) per row, ``(..., 1)``."""
    return torch.rand(*rows.shape[:-1], 1, generator=rng, device=rows.device)


def _with_states(rows: Tensor, spec: TransitionSpec, states: Tensor, next_states: Tensor) -> Tensor:
    rows = rows.clone()
    rows[..., spec.observations], rows[..., spec.next_observations] = states, next_states
    return rows
