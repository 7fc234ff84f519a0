"""Transitions: rows and the spec of their columns.

A set of transitions is one float32 matrix with one row per transition and the columns

    observation | action | reward | next observation | terminated | extra fields

Gathering, moving and concatenating transitions are therefore single tensor operations. The named fields are read from
the matrix with the shapes, nesting and dtypes of the Gymnasium spaces. ``terminated`` means that the task ended the
episode. It excludes time limits (`truncated`), after which the critic still bootstraps from the next state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.common.checks import device_or_cpu
from synther_replay.data.spec import TransitionSpec
from synther_replay.data.validation import all_finite, as_tensor, check_finite, check_leaf

__all__ = ["ROUNDING_OF_ACTIONS", "TransitionSpec", "Transitions"]

ROUNDING_OF_ACTIONS = 1e-5  # tolerance for real actions at their bounds, for example after scaling to [-1, 1]


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """Rows of transitions, ``(n, dim)``, and the spec of their columns.

    The constructor checks only the shape; `from_arrays` and `check` validate the values. Rows ``(M, n, dim)`` hold the
    transitions of M independent runs.

    >>> import gymnasium as gym
    >>> spec = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2))
    >>> one = Transitions.from_arrays(spec, [0.1, 0.2, 0.3], 1, -0.5, [0.2, 0.3, 0.4], False)
    >>> len(one), one.actions, one.terminated
    (1, tensor([1]), tensor([False]))
    """

    spec: TransitionSpec
    rows: Tensor

    def __post_init__(self) -> None:
        """Check type and shape."""
        if not isinstance(self.rows, Tensor):
            raise TypeError(f"rows: expected a tensor, got {type(self.rows).__name__}; for arrays use `from_arrays`")
        if self.rows.ndim < 2 or self.rows.shape[-1] != self.spec.dim:
            raise ValueError(f"rows: expected shape (..., n, {self.spec.dim}), got {tuple(self.rows.shape)}")

    @classmethod
    def from_arrays(
        cls,
        spec: TransitionSpec,
        observations: Any,
        actions: Any,
        rewards: Any,
        next_observations: Any,
        terminated: Any,
        *,
        device: torch.device | str | None = None,
        **extra: Any,
    ) -> Transitions:
        """Validate and pack arrays, tensors or plain numbers.

        The shape of `rewards` determines the number of transitions: a number is one transition, ``(n,)`` a batch,
        ``(M, n)`` a batch for each of M runs. Dict and Tuple observations have the nesting of their space. Extra fields
        of the spec are passed by name.

        Raises:
            TypeError: A field does not hold numbers, or an extra field is missing or unknown.
            ValueError: A field has the wrong shape, holds NaN or infinity, or has a value outside its discrete set.
        """
        if extra.keys() != spec.extra.keys():
            raise TypeError(f"extra fields: expected {sorted(spec.extra)}, got {sorted(extra)}")
        rewards = as_tensor(rewards, "rewards", device)
        lead = tuple(rewards.shape)
        terminated = as_tensor(terminated, "terminated", device)
        if tuple(terminated.shape) != lead or lead[-1:] == (1,):
            _check_lead(spec, observations, next_observations, {"rewards": rewards, "terminated": terminated})
        if tuple(terminated.shape) != lead:
            raise ValueError(f"rewards and terminated: expected equal shapes, got {lead} and {tuple(terminated.shape)}")
        values = (observations, actions, rewards, next_observations, terminated, *(extra[name] for name in spec.extra))
        parts = [
            part for field, value in zip(spec.fields, values, strict=True) for part in field.pack(value, lead, device)
        ]
        rows = torch.cat([part.to(parts[0].device, torch.float32) for part in parts], dim=-1)
        transitions = cls(spec, rows.reshape(1, -1) if not lead else rows)
        transitions._check_finite()
        return transitions

    @property
    def observations(self) -> Any:
        """Observations in the nesting of their space; leaves ``(..., n, *shape)``."""
        return self.field("observations")

    @property
    def actions(self) -> Any:
        """Actions in the nesting of their space; leaves ``(..., n, *shape)``."""
        return self.field("actions")

    @property
    def rewards(self) -> Tensor:
        """Rewards, ``(..., n)``."""
        return self.rows[..., self.spec.rewards.start]

    @property
    def next_observations(self) -> Any:
        """Next observations in the nesting of their space; leaves ``(..., n, *shape)``."""
        return self.field("next_observations")

    @property
    def terminated(self) -> Tensor:
        """Whether the task ended the episode, bool, ``(..., n)``."""
        return self.rows[..., self.spec.terminated.start] > 0.5

    def field(self, name: str) -> Any:
        """Values of any field of the spec, for example ``discount``; leaves ``(..., n, *shape)``.

        Raises:
            KeyError: The spec has no such field.
        """
        return self.spec.field(name).unpack(self.rows)

    def __len__(self) -> int:
        """Number of transitions (per run)."""
        return self.rows.shape[-2]

    def __getitem__(self, index: slice | Sequence[int] | np.ndarray | Tensor) -> Transitions:
        """Select transitions by a slice, indices or a mask along the row axis."""
        if not isinstance(index, slice):
            index = torch.as_tensor(index, device=self.rows.device)
            index = index if index.numel() else index.long()  # an empty list becomes a float tensor
        return Transitions(self.spec, self.rows[..., index, :])

    def check(self) -> None:
        """Raise ValueError for rows with NaN, infinity, or discrete values and flags outside their sets.

        `from_arrays` includes this check; call it for rows from any other origin.
        """
        if self.rows.dtype != torch.float32:
            raise TypeError(f"rows: expected float32, got {self.rows.dtype}")
        self._check_finite()
        for field in self.spec.fields:
            for leaf, columns in field.leaf_columns():
                check_leaf(self.rows[..., columns], leaf, field.name + leaf.where)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle and deepcopy with the rows on the CPU, so any machine can load them."""
        return _on_device, (self.spec, self.rows.cpu(), self.rows.device)

    def to(self, device: torch.device | str) -> Transitions:
        """Return the transitions on another device."""
        return Transitions(self.spec, self.rows.to(device))

    def _check_finite(self) -> None:
        if not all_finite(self.rows):
            for field in self.spec.fields:
                check_finite(self.rows[..., field.columns], field.name)


def _check_lead(spec: TransitionSpec, observations: Any, following: Any, numbers: Mapping[str, Tensor]) -> None:
    """Raise ValueError for numbers that are not one per observation, such as ``(n, 1)`` in place of ``(n,)``."""
    lead = spec.field("observations").lead(observations)
    if lead is None or lead != spec.field("next_observations").lead(following):
        return
    for name, values in numbers.items():
        if tuple(values.shape) != lead:
            raise ValueError(f"{name}: expected shape {lead}, got {tuple(values.shape)}")


def _on_device(spec: TransitionSpec, rows: Tensor, device: torch.device) -> Transitions:
    """Restore pickled transitions; on the CPU if the device does not exist here."""
    return Transitions(spec, rows.to(device_or_cpu(device)))
