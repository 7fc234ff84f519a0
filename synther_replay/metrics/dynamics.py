"""Dynamics error: generated transitions against a simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.common.checks import whole_number
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.metrics.rows import as_matrix

StepFunction = Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class DynamicsError:
    """Squared errors of transitions against the simulator; tensors ``(n,)`` on the CPU."""

    next_observation: float  # mean squared error over rows and columns
    reward: float  # mean squared error over rows
    next_observation_by_row: Tensor  # mean over columns, float64
    reward_by_row: Tensor  # float64
    indices: Tensor  # row numbers in `transitions`
    rejected: int  # rows excluded because they or the simulator's results are non-finite


def dynamics_error(transitions: Transitions, step_fn: StepFunction, *, max_rows: int | None = None) -> DynamicsError:
    """Compare next observations and rewards of `transitions` with those of a simulator.

    `step_fn` takes observations ``(n, obs_dim)`` and actions ``(n, act_dim)``, float32 arrays, and returns next
    observations ``(n, obs_dim)`` and rewards ``(n,)``. At most `max_rows` evenly spaced rows are evaluated. The means
    are NaN if no result is finite.
    """
    if not isinstance(transitions, Transitions):
        raise TypeError(f"transitions: expected Transitions, got {type(transitions).__name__}")
    matrix, spec = as_matrix("transitions", transitions), transitions.spec
    whole_number("max_rows", len(matrix) if max_rows is None else max_rows)
    count = min(max_rows or len(matrix), len(matrix))
    indices = torch.arange(count, device="cpu") * len(matrix) // count
    rows = matrix[indices.to(matrix.device)].cpu()
    finite = torch.isfinite(rows).all(1)
    rows, indices = rows[finite], indices[finite]
    if not len(rows):
        raise ValueError(f"transitions: expected at least one finite row, got {count} non-finite rows")
    error = _answer_errors(rows, spec, step_fn)
    answered = torch.isfinite(error).all(1)
    error, indices = error[answered], indices[answered]
    next_observation, reward = error.unbind(1)
    means = float(next_observation.mean()), float(reward.mean())
    return DynamicsError(*means, next_observation, reward, indices, count - len(indices))


def _answer_errors(rows: Tensor, spec: TransitionSpec, step_fn: StepFunction) -> Tensor:
    """Squared errors of next observation and reward, float64, ``(n, 2)``."""
    claims = rows[:, spec.next_observations], rows[:, spec.rewards.start]
    answers = step_fn(rows[:, spec.observations].numpy(), rows[:, spec.actions].numpy())
    truths = [torch.from_numpy(np.array(answer, dtype=np.float64)) for answer in answers]
    shapes, wanted = ([tuple(part.shape) for part in parts] for parts in (truths, claims))
    if shapes != wanted:
        raise ValueError(f"step_fn: expected next observations and rewards of shapes {wanted}, got {shapes}")
    return torch.stack([(claims[0] - truths[0]).square().mean(1), (claims[1] - truths[1]).square()], dim=1)
