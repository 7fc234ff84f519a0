"""Transitions and TransitionSpec.

A set of transitions is one float32 matrix with one row per transition and the columns

    observation | action | reward | next observation | terminated

Gathering, moving and concatenating transitions are therefore single tensor operations. The named fields are read from
the matrix with the shapes, nesting and dtypes of the Gymnasium spaces. ``terminated`` means that the task ended the
episode. It excludes time limits (`truncated`), after which the critic still bootstraps from the next state.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from synther_replay.common.checks import device_or_cpu
from synther_replay.data.spaces import Leaf, leaves_of, nest, pick, space_from_json, space_to_json
from synther_replay.data.validation import check_finite, check_flags, check_leaf

ROUNDING_OF_ACTIONS = 1e-5  # tolerance for real actions at their bounds, for example after scaling to [-1, 1]


@dataclass(frozen=True, eq=False)
class TransitionSpec:
    """Shapes, dtypes and bounds of the five fields of a transition.

    >>> import gymnasium as gym
    >>> spec = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2))
    >>> spec.dim, spec.observations, spec.actions, spec.rewards
    (9, slice(0, 3, None), slice(3, 4, None), slice(4, 5, None))
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    observation_leaves: tuple[Leaf, ...]
    action_leaves: tuple[Leaf, ...]

    @classmethod
    def from_spaces(cls, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> TransitionSpec:
        """Make the spec for the spaces of an environment; raises TypeError for unsupported spaces."""
        return cls(
            observation_space,
            action_space,
            leaves_of(observation_space, "observation_space"),
            leaves_of(action_space, "action_space"),
        )

    @cached_property
    def observation_dim(self) -> int:
        """Number of columns of an observation."""
        return sum(leaf.size for leaf in self.observation_leaves)

    @cached_property
    def action_dim(self) -> int:
        """Number of columns of an action."""
        return sum(leaf.size for leaf in self.action_leaves)

    @cached_property
    def dim(self) -> int:
        """Number of columns of a row."""
        return 2 * self.observation_dim + self.action_dim + 2

    @cached_property
    def observations(self) -> slice:
        """Columns of the observation."""
        return slice(0, self.observation_dim)

    @cached_property
    def actions(self) -> slice:
        """Columns of the action."""
        return slice(self.observation_dim, self.observation_dim + self.action_dim)

    @cached_property
    def rewards(self) -> slice:
        """Column of the reward."""
        return slice(self.actions.stop, self.actions.stop + 1)

    @cached_property
    def next_observations(self) -> slice:
        """Columns of the next observation."""
        return slice(self.rewards.stop, self.dim - 1)

    @cached_property
    def terminated(self) -> slice:
        """Column of the termination flag."""
        return slice(self.dim - 1, self.dim)

    def outside_action_space(self, actions: Tensor, tolerance: float = 0.0) -> Tensor:
        """Return which values of actions ``(n, action_dim)`` exceed their bounds by more than `tolerance`."""
        low, high = self._action_bounds(actions.device)
        return (actions.double() < low - tolerance) | (actions.double() > high + tolerance)

    def clipped_actions(self, actions: Tensor) -> Tensor:
        """Return actions ``(n, action_dim)`` clipped to their bounds."""
        return actions.double().clamp(*self._action_bounds(actions.device)).to(actions.dtype)

    def _action_bounds(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Bounds of the columns of an action, float64 ``(action_dim,)``."""
        low, high = (
            torch.as_tensor(np.concatenate([getattr(leaf, bound) for leaf in self.action_leaves]), device=device)
            for bound in ("low", "high")
        )
        return low, high

    def fields(self) -> dict[str, tuple[Leaf, ...]]:
        """The leaves of each field that has a space (reward and terminated have none)."""
        return {
            "observations": self.observation_leaves,
            "actions": self.action_leaves,
            "next_observations": self.observation_leaves,
        }

    @cached_property
    def _description(self) -> dict[str, Any]:
        return {
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values."""
        return copy.deepcopy(self._description)

    @classmethod
    def from_json(cls, description: dict[str, Any]) -> TransitionSpec:
        """Inverse of `to_json`."""
        return cls.from_spaces(
            space_from_json(description["observation_space"]), space_from_json(description["action_space"])
        )

    def __eq__(self, other: object) -> bool:
        """Specs are equal if their spaces have the same `to_json`."""
        return self is other or (isinstance(other, TransitionSpec) and self._description == other._description)

    def __hash__(self) -> int:
        """Equal specs have equal hashes."""
        return hash((self.observation_dim, self.action_dim))


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
        """Check the shape."""
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
    ) -> Transitions:
        """Validate and pack arrays, tensors or plain numbers.

        The shape of `rewards` determines the number of transitions: a number is one transition, ``(n,)`` a batch,
        ``(M, n)`` a batch for each of M runs. Dict and Tuple observations have the nesting of their space.

        Raises:
            TypeError: A field does not hold numbers.
            ValueError: A field has the wrong shape, holds NaN or infinity, or has a value outside its discrete set.
        """
        reward = _tensor(rewards, "rewards", device)
        lead = tuple(reward.shape)
        parts = [
            *_pack_leaves(observations, spec.observation_leaves, lead, "observations", device),
            *_pack_leaves(actions, spec.action_leaves, lead, "actions", device),
            _shaped(reward, lead, (), "rewards"),
            *_pack_leaves(next_observations, spec.observation_leaves, lead, "next_observations", device),
            _shaped(_tensor(terminated, "terminated", device), lead, (), "terminated"),
        ]
        check_flags(parts[-1])
        rows = torch.cat([part.to(parts[0].device, torch.float32) for part in parts], dim=-1)
        transitions = cls(spec, rows.reshape(1, -1) if not lead else rows)
        transitions._check_finite()
        return transitions

    @property
    def observations(self) -> Any:
        """Observations in the nesting of their space; leaves ``(..., n, *shape)``."""
        return self._unpack(self.spec.observations, self.spec.observation_leaves, self.spec.observation_space)

    @property
    def actions(self) -> Any:
        """Actions in the nesting of their space; leaves ``(..., n, *shape)``."""
        return self._unpack(self.spec.actions, self.spec.action_leaves, self.spec.action_space)

    @property
    def rewards(self) -> Tensor:
        """Rewards, ``(..., n)``."""
        return self.rows[..., self.spec.rewards.start]

    @property
    def next_observations(self) -> Any:
        """Next observations in the nesting of their space; leaves ``(..., n, *shape)``."""
        return self._unpack(self.spec.next_observations, self.spec.observation_leaves, self.spec.observation_space)

    @property
    def terminated(self) -> Tensor:
        """Whether the task ended the episode, bool, ``(..., n)``."""
        return self.rows[..., self.spec.terminated.start] > 0.5

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
        for name, leaves in self.spec.fields().items():
            start = getattr(self.spec, name).start
            for leaf in leaves:
                check_leaf(self.rows[..., start : start + leaf.size], leaf, name + leaf.where)
                start += leaf.size
        check_flags(self.rows[..., self.spec.terminated])

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle and deepcopy with the rows on the CPU, so any machine can load them."""
        return _on_device, (self.spec, self.rows.cpu(), self.rows.device)

    def to(self, device: torch.device | str) -> Transitions:
        """Return the transitions on another device."""
        return Transitions(self.spec, self.rows.to(device))

    def _check_finite(self) -> None:
        if not bool(torch.isfinite(self.rows).all()):
            for name in (*self.spec.fields(), "rewards", "terminated"):
                check_finite(self.rows[..., getattr(self.spec, name)], name)

    def _unpack(self, columns: slice, leaves: tuple[Leaf, ...], space: spaces.Space[Any]) -> Any:
        values, start = [], columns.start
        for leaf in leaves:
            flat = self.rows[..., start : start + leaf.size]
            start += leaf.size
            if len(leaf.shape) != 1:
                flat = flat.reshape(*flat.shape[:-1], *leaf.shape)
            values.append(flat.to(leaf.dtype))
        return nest(space, values)


def _on_device(spec: TransitionSpec, rows: Tensor, device: torch.device) -> Transitions:
    """Restore pickled transitions; on the CPU if the device does not exist here."""
    return Transitions(spec, rows.to(device_or_cpu(device)))


def _tensor(value: Any, name: str, device: torch.device | str | None) -> Tensor:
    """Convert an array-like of numbers to a tensor."""
    if isinstance(value, Tensor):
        tensor = value.detach() if device is None else value.detach().to(device)
    else:
        try:
            # Via NumPy: torch is slow on lists of arrays and cannot read every NumPy scalar type. It also rejects
            # arrays with negative strides, read-only arrays and foreign byte order; those are copied.
            array = np.asarray(value)
            tensor = torch.as_tensor(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]), device=device)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name}: expected numbers, got {type(value).__name__}") from error
    if tensor.is_complex():
        raise TypeError(f"{name}: expected real numbers, got {tensor.dtype}")
    return tensor


def _shaped(tensor: Tensor, lead: tuple[int, ...], shape: tuple[int, ...], name: str) -> Tensor:
    """Check the shape of a field and flatten its axes into columns."""
    expected = (*lead, *shape)
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name}: expected shape {expected}, got {tuple(tensor.shape)}")
    return tensor.reshape(*lead, math.prod(shape))


def _pack_leaves(
    value: Any, leaves: tuple[Leaf, ...], lead: tuple[int, ...], name: str, device: torch.device | str | None
) -> list[Tensor]:
    """Columns of one nested field, one tensor per leaf."""
    parts = []
    for leaf in leaves:
        where = name + leaf.where
        part = _shaped(_tensor(pick(value, leaf.path, name), where, device), lead, leaf.shape, where)
        check_leaf(part, leaf, where)
        parts.append(part)
    return parts
