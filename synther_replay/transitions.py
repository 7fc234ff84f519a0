"""Transitions and the spec of their layout.

A set of transitions is **one float32 matrix**, a row per transition, with the columns

    observation | action | reward | next observation | terminated

so that gathering, moving and concatenating are one operation each on any device. The named fields are views of it,
with the shapes, the nesting and the dtypes of the Gymnasium spaces. ``terminated`` means that the task ended the
episode; a time limit (`truncated`) is never mixed in, because the value of the next state still counts then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from synther_replay.spaces import (
    MAX_EXACT_INTEGER,
    Leaf,
    leaves_of,
    nest,
    pick,
    space_from_json,
    space_to_json,
)


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
        """Make the spec of an environment's transitions; an unsupported space is refused by name."""
        return cls(
            observation_space,
            action_space,
            leaves_of(observation_space, "observation_space"),
            leaves_of(action_space, "action_space"),
        )

    @cached_property
    def observation_dim(self) -> int:
        """Columns of an observation."""
        return sum(leaf.size for leaf in self.observation_leaves)

    @cached_property
    def action_dim(self) -> int:
        """Columns of an action."""
        return sum(leaf.size for leaf in self.action_leaves)

    @cached_property
    def dim(self) -> int:
        """Columns of a row."""
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
        """The reward's column."""
        return slice(self.actions.stop, self.actions.stop + 1)

    @cached_property
    def next_observations(self) -> slice:
        """Columns of the next observation."""
        return slice(self.rewards.stop, self.dim - 1)

    @cached_property
    def terminated(self) -> slice:
        """The column of the termination flag."""
        return slice(self.dim - 1, self.dim)

    def to_json(self) -> dict[str, Any]:
        """Describe the spec with JSON values only."""
        return {
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
        }

    @classmethod
    def from_json(cls, description: dict[str, Any]) -> TransitionSpec:
        """Rebuild a spec from `to_json`."""
        return cls.from_spaces(
            space_from_json(description["observation_space"]), space_from_json(description["action_space"])
        )

    def __eq__(self, other: object) -> bool:
        """Specs are equal when their spaces are described alike."""
        return self is other or (isinstance(other, TransitionSpec) and self.to_json() == other.to_json())

    def __hash__(self) -> int:
        """Equal specs hash alike."""
        return hash((self.observation_dim, self.action_dim))


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """Rows of transitions and the spec that says what their columns mean.

    The constructor trusts its rows; `from_arrays` checks what comes from outside. A leading axis, ``(M, n, dim)``,
    holds the rows of M independent runs side by side.

    >>> import gymnasium as gym
    >>> spec = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2))
    >>> one = Transitions.from_arrays(spec, [0.1, 0.2, 0.3], 1, -0.5, [0.2, 0.3, 0.4], False)
    >>> len(one), one.actions, one.terminated
    (1, tensor([1]), tensor([False]))
    """

    spec: TransitionSpec
    rows: Tensor

    def __post_init__(self) -> None:
        """Refuse a matrix of another width."""
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
        """Check and pack arrays, tensors or plain numbers.

        The shape of `rewards` says how many transitions there are: a number is one transition, ``(n,)`` a batch,
        ``(M, n)`` a batch for each of M runs. Dict and Tuple observations are given nested as the space is.

        Raises:
            TypeError: A field does not hold numbers.
            ValueError: A field has another shape than the spec says, holds NaN or infinity, or (discrete fields and
                `terminated`) a value that does not exist.
        """
        reward = _tensor(rewards, "rewards", device)
        lead = tuple(reward.shape)
        parts = [
            *_pack_leaves(observations, spec.observation_leaves, lead, "observations", device),
            *_pack_leaves(actions, spec.action_leaves, lead, "actions", device),
            _shaped(reward, lead, (), "rewards"),
            *_pack_leaves(next_observations, spec.observation_leaves, lead, "next_observations", device),
            _flags(_shaped(_tensor(terminated, "terminated", device), lead, (), "terminated")),
        ]
        rows = torch.cat([part.to(parts[0].device, torch.float32) for part in parts], dim=-1)
        transitions = cls(spec, rows.reshape(1, -1) if not lead else rows)
        refuse_non_finite(transitions)
        return transitions

    @property
    def observations(self) -> Any:
        """Observations, nested as the space is; leaves ``(..., n, *shape)``."""
        return self._unpack(self.spec.observations, self.spec.observation_leaves, self.spec.observation_space)

    @property
    def actions(self) -> Any:
        """Actions, nested as the space is; leaves ``(..., n, *shape)``."""
        return self._unpack(self.spec.actions, self.spec.action_leaves, self.spec.action_space)

    @property
    def rewards(self) -> Tensor:
        """Rewards, ``(..., n)``."""
        return self.rows[..., self.spec.rewards.start]

    @property
    def next_observations(self) -> Any:
        """Next observations, nested as the space is; leaves ``(..., n, *shape)``."""
        return self._unpack(self.spec.next_observations, self.spec.observation_leaves, self.spec.observation_space)

    @property
    def terminated(self) -> Tensor:
        """Whether the task ended the episode, bool, ``(..., n)``."""
        return self.rows[..., self.spec.terminated.start] > 0.5

    def __len__(self) -> int:
        """Number of transitions (per run, where rows of several runs are held)."""
        return self.rows.shape[-2]

    def __getitem__(self, index: slice | Sequence[int] | np.ndarray | Tensor) -> Transitions:
        """Some of the transitions: a slice, or indices, or a mask along the row axis."""
        if not isinstance(index, slice):
            index = torch.as_tensor(index, device=self.rows.device)
            index = index if index.numel() else index.long()  # an empty list would be an index of floats
        return Transitions(self.spec, self.rows[..., index, :])

    def to(self, device: torch.device | str) -> Transitions:
        """The same transitions on another device."""
        return Transitions(self.spec, self.rows.to(device))

    def _unpack(self, columns: slice, leaves: tuple[Leaf, ...], space: spaces.Space[Any]) -> Any:
        values, start = [], columns.start
        for leaf in leaves:
            flat = self.rows[..., start : start + leaf.size]
            start += leaf.size
            if len(leaf.shape) != 1:
                flat = flat.reshape(*flat.shape[:-1], *leaf.shape)
            values.append(flat.to(leaf.dtype))
        return nest(space, values)


def _tensor(value: Any, name: str, device: torch.device | str | None) -> Tensor:
    """Any array-like of numbers as a tensor."""
    if isinstance(value, Tensor):
        tensor = value.detach() if device is None else value.detach().to(device)
    else:
        try:
            # Through NumPy: torch is slow on lists of arrays and cannot read 0-d NumPy scalars of every type. Nor does
            # it take arrays that are reversed, read-only or of foreign byte order; those are copied.
            array = np.asarray(value)
            tensor = torch.as_tensor(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]), device=device)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name}: expected numbers, got {type(value).__name__}") from error
    if tensor.is_complex():
        raise TypeError(f"{name}: expected real numbers, got {tensor.dtype}")
    return tensor


def _shaped(tensor: Tensor, lead: tuple[int, ...], shape: tuple[int, ...], name: str) -> Tensor:
    """Flatten one value's axes into columns after checking them."""
    expected = (*lead, *shape)
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name}: expected shape {expected}, got {tuple(tensor.shape)}")
    return tensor.reshape(*lead, math.prod(shape))


def _pack_leaves(
    value: Any, leaves: tuple[Leaf, ...], lead: tuple[int, ...], name: str, device: torch.device | str | None
) -> list[Tensor]:
    """Columns of one nested field."""
    parts = []
    for leaf in leaves:
        where = name + "".join(f"[{key!r}]" for key in leaf.path)
        part = _shaped(_tensor(pick(value, leaf.path, name), where, device), lead, leaf.shape, where)
        if leaf.kind != "real":
            _check_integers(part, leaf, where)
        parts.append(part)
    return parts


def _check_integers(part: Tensor, leaf: Leaf, where: str) -> None:
    values = part.to(torch.float64)
    low, high = (torch.as_tensor(limit, device=part.device) for limit in _limits(leaf))
    wrong = (values != values.round()) | (values < low) | (values > high)
    if bool(wrong.any()):
        bad = part[wrong].flatten()[0].item()
        raise ValueError(f"{where}: expected integers from {int(low.min())} to {int(high.max())}, got {bad}")


def _limits(leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest integer that may enter, per column.

    Categories outside the space do not exist. The bounds of a Box are often loose, so an ordinal only has to fit its
    dtype: 300 would come back from uint8 as 44.
    """
    low, high = leaf.low, leaf.high
    if leaf.kind == "ordinal":
        is_bool = leaf.dtype == torch.bool
        limits = (0, 1) if is_bool else (torch.iinfo(leaf.dtype).min, torch.iinfo(leaf.dtype).max)
        low, high = (np.array([limit], dtype=np.float64) for limit in limits)
    return low.clip(-MAX_EXACT_INTEGER), high.clip(max=MAX_EXACT_INTEGER)


def _flags(part: Tensor) -> Tensor:
    if part.dtype != torch.bool and bool(((part != 0) & (part != 1)).any()):
        bad = part[(part != 0) & (part != 1)].flatten()[0].item()
        raise ValueError(f"terminated: expected True or False (or 1 and 0), got {bad}")
    return part


def refuse_non_finite(transitions: Transitions) -> None:
    """Raise a ValueError that names the first field with NaN or infinity, if there is one."""
    spec, rows = transitions.spec, transitions.rows
    if bool(torch.isfinite(rows).all()):
        return
    for name in ("observations", "actions", "rewards", "next_observations", "terminated"):
        values = rows[..., getattr(spec, name)]
        wrong = ~torch.isfinite(values)
        if bool(wrong.any()):
            count, bad = int(wrong.any(-1).sum()), values[wrong][0].item()
            raise ValueError(f"{name}: {count} of {wrong[..., 0].numel()} rows are not finite in float32 (found {bad})")
