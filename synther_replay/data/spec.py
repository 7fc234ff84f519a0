"""TransitionSpec: the named fields of a transition and their columns in a row."""

from __future__ import annotations

import copy
import keyword
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from synther_replay.data.spaces import Leaf, leaves_of, nest, pick, space_from_json, space_to_json
from synther_replay.data.validation import as_tensor, check_leaf

_NUMBER = spaces.Box(-np.inf, np.inf, ())
_FLAG = Leaf((), (), torch.bool, "flag", np.zeros(1), np.ones(1))
DISCOUNT = "discount"
_DISCOUNT_SPACE = spaces.Box(0.0, 1.0, ())


@dataclass(frozen=True, eq=False)
class Field:
    """One named part of a transition.

    Attributes:
        name: ``observations``, ``actions``, ``rewards``, ``next_observations``, ``terminated``, or an extra field.
        space: Space of one value; None for ``terminated``, which is a flag.
        leaves: The arrays of the space.
        columns: Columns in a row of transitions.
    """

    name: str
    space: spaces.Space[Any] | None
    leaves: tuple[Leaf, ...]
    columns: slice

    def leaf_columns(self) -> list[tuple[Leaf, slice]]:
        """Return each leaf with its columns in a row."""
        found, start = [], self.columns.start
        for leaf in self.leaves:
            found.append((leaf, slice(start, start + leaf.size)))
            start += leaf.size
        return found

    def lead(self, value: Any) -> tuple[int, ...] | None:
        """Return the leading axes of values; None if they have not the shapes of the leaves."""
        found: set[tuple[int, ...] | None] = set()
        for leaf in self.leaves:
            shape = tuple(as_tensor(pick(value, leaf.path, self.name), self.name + leaf.where, None).shape)
            axes = len(shape) - len(leaf.shape)
            found.add(shape[:axes] if axes >= 0 and shape[axes:] == leaf.shape else None)
        return found.pop() if len(found) == 1 else None

    def pack(self, value: Any, lead: tuple[int, ...], device: torch.device | str | None) -> list[Tensor]:
        """Validate values with the leading axes `lead` and return their columns, one tensor per leaf.

        Raises:
            TypeError: They are not numbers.
            ValueError: They have the wrong shape, or a value is outside its discrete set.
        """
        parts = []
        for leaf in self.leaves:
            where = self.name + leaf.where
            part, expected = as_tensor(pick(value, leaf.path, self.name), where, device), (*lead, *leaf.shape)
            if tuple(part.shape) != expected:
                raise ValueError(f"{where}: expected shape {expected}, got {tuple(part.shape)}")
            part = part.reshape(*lead, leaf.size)
            check_leaf(part, leaf, where)
            parts.append(part)
        return parts

    def unpack(self, rows: Tensor) -> Any:
        """Return the values of rows ``(..., dim)`` in the nesting, shape and dtype of the space."""
        values = []
        for leaf, columns in self.leaf_columns():
            flat = rows[..., columns]
            if len(leaf.shape) != 1:
                flat = flat.reshape(*flat.shape[:-1], *leaf.shape)
            values.append(flat > 0.5 if leaf.kind == "flag" else flat.to(leaf.dtype))
        return values[0] if self.space is None else nest(self.space, values)


@dataclass(frozen=True, eq=False)
class TransitionSpec:
    """The fields of a transition: shapes, dtypes, bounds, and their columns in a row.

    A row holds observation, action, reward, next observation, terminated, and any extra fields after them.

    >>> import gymnasium as gym
    >>> spec = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2))
    >>> spec.dim, spec.observations, spec.actions, spec.rewards
    (9, slice(0, 3, None), slice(3, 4, None), slice(4, 5, None))
    >>> [field.name for field in spec.fields][-2:]
    ['next_observations', 'terminated']

    Attributes:
        observation_space: Space of observations.
        action_space: Space of actions.
        extra: Spaces of further fields by name, for example ``discount`` of n-step transitions, or a cost.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    extra: Mapping[str, spaces.Space[Any]]

    @classmethod
    def from_spaces(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        discount: bool = False,
        extra: Mapping[str, spaces.Space[Any]] | None = None,
    ) -> TransitionSpec:
        """Make the spec for the spaces of an environment.

        Args:
            observation_space: Space of observations.
            action_space: Space of actions.
            discount: Whether rows have the field ``discount``, the factor of the bootstrapped value. n-step transitions
                need it, because fewer than n steps remain before the end of an episode.
            extra: Spaces of further fields by name; they are modelled and generated with the others.

        Raises:
            TypeError: A space is not supported.
            ValueError: The name of an extra field is taken or not an identifier.
        """
        spec = cls(
            observation_space, action_space, {**({DISCOUNT: _DISCOUNT_SPACE} if discount else {}), **(extra or {})}
        )
        _ = spec.fields  # validates the spaces
        return spec

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """All fields in the order of their columns."""
        observation = leaves_of(self.observation_space, "observation_space")
        given: list[tuple[str, spaces.Space[Any] | None, tuple[Leaf, ...]]] = [
            ("observations", self.observation_space, observation),
            ("actions", self.action_space, leaves_of(self.action_space, "action_space")),
            ("rewards", _NUMBER, leaves_of(_NUMBER, "rewards")),
            ("next_observations", self.observation_space, observation),
            ("terminated", None, (_FLAG,)),
        ]
        taken = {name for name, _, _ in given}
        for name, space in self.extra.items():
            if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name in taken:
                raise ValueError(f"extra: expected identifiers that no field has yet, got {name!r}")
            given.append((name, space, leaves_of(space, name)))
        fields, start = [], 0
        for name, own_space, leaves in given:
            stop = start + sum(leaf.size for leaf in leaves)
            fields.append(Field(name, own_space, leaves, slice(start, stop)))
            start = stop
        return tuple(fields)

    @cached_property
    def extra_fields(self) -> tuple[Field, ...]:
        """The fields after ``terminated``."""
        return self.fields[5:]

    def field(self, name: str) -> Field:
        """Return a field by name.

        Raises:
            KeyError: There is no such field.
        """
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"expected one of {[field.name for field in self.fields]}, got {name!r}")

    @cached_property
    def observation_dim(self) -> int:
        """Number of columns of an observation."""
        return int(self.observations.stop)

    @cached_property
    def action_dim(self) -> int:
        """Number of columns of an action."""
        return int(self.actions.stop - self.actions.start)

    @cached_property
    def dim(self) -> int:
        """Number of columns of a row."""
        return int(self.fields[-1].columns.stop)

    @cached_property
    def observations(self) -> slice:
        """Columns of the observation."""
        return self.fields[0].columns

    @cached_property
    def actions(self) -> slice:
        """Columns of the action."""
        return self.fields[1].columns

    @cached_property
    def rewards(self) -> slice:
        """Column of the reward."""
        return self.fields[2].columns

    @cached_property
    def next_observations(self) -> slice:
        """Columns of the next observation."""
        return self.fields[3].columns

    @cached_property
    def terminated(self) -> slice:
        """Column of the termination flag."""
        return self.fields[4].columns

    def outside_action_space(self, actions: Tensor, tolerance: float = 0.0) -> Tensor:
        """Return which values of actions ``(n, action_dim)`` exceed their bounds by more than `tolerance`."""
        low, high = self._action_bounds(actions.device)
        return (actions.double() < low - tolerance) | (actions.double() > high + tolerance)

    def clipped_actions(self, actions: Tensor) -> Tensor:
        """Return actions ``(n, action_dim)`` clipped to their bounds."""
        return actions.double().clamp(*self._action_bounds(actions.device)).to(actions.dtype)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the smallest and largest value of each column, float64 ``(dim,)``; infinite without a bound."""
        leaves = [leaf for field in self.fields for leaf in field.leaves]
        return np.concatenate([leaf.low for leaf in leaves]), np.concatenate([leaf.high for leaf in leaves])

    def _action_bounds(self, device: torch.device) -> tuple[Tensor, Tensor]:
        low, high = (torch.as_tensor(bound[self.actions], device=device) for bound in self.bounds())
        return low, high

    @cached_property
    def _description(self) -> dict[str, Any]:
        described = {
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
        }
        if self.extra:  # omitted otherwise: files of five fields stay readable for earlier versions
            described["extra"] = [[name, space_to_json(space)] for name, space in self.extra.items()]  # type: ignore[assignment]
        return described

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values."""
        return copy.deepcopy(self._description)

    @classmethod
    def from_json(cls, description: dict[str, Any]) -> TransitionSpec:
        """Inverse of `to_json`."""
        return cls.from_spaces(
            space_from_json(description["observation_space"]),
            space_from_json(description["action_space"]),
            extra={name: space_from_json(space) for name, space in description.get("extra", ())},
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from pickle or deepcopy; version 0.2 had no extra fields."""
        vars(self).update({"extra": {}, **state})

    def __eq__(self, other: object) -> bool:
        """Specs are equal if their spaces have the same `to_json`."""
        return self is other or (isinstance(other, TransitionSpec) and self._description == other._description)

    def __hash__(self) -> int:
        """Equal specs have equal hashes."""
        return hash((self.observation_dim, self.action_dim, *self.extra))
