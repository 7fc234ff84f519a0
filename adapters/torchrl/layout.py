"""Layout: conversion between the entries of a TensorDict and rows of transitions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from tensordict.utils import unravel_key
from torch import Tensor
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)

from synther_replay.adapters.torchrl.n_step import STEPS, STEPS_SPACE, StepEntries
from synther_replay.common.checks import received
from synther_replay.data.transitions import TransitionSpec

Key = str | tuple[str, ...]
_FLAGS = ("done", "terminated", "truncated")


def next_of(key: Key) -> tuple[str, ...]:
    """Return the key after the step: ``("next", key)``."""
    return ("next", *((key,) if isinstance(key, str) else key))


@dataclass(frozen=True)
class TransitionKeys:
    """Keys of a transition. Reward, terminated and the next observation are under ``"next"``."""

    observations: tuple[Key, ...]
    action: Key
    reward: Key
    terminated: Key

    @classmethod
    def of(cls, observations: Key | Iterable[Key], action: Key, reward: Key, terminated: Key) -> TransitionKeys:
        """Make the keys from user input: one key or a list of keys for the observations."""
        if not isinstance(observations, Iterable):
            raise TypeError(f"observation_keys: expected a key or several, {received(observations)}")
        listed = [observations] if isinstance(observations, str | tuple) else list(observations)
        if not listed:
            raise ValueError(f"observation_keys: expected at least one key, got {observations!r}")
        return cls(
            tuple(unravel_key(k) for k in listed), unravel_key(action), unravel_key(reward), unravel_key(terminated)
        )

    def columns(self) -> tuple[Key, ...]:
        """Return the keys in the order of the row's columns."""
        following = tuple(next_of(key) for key in self.observations)
        return (*self.observations, self.action, next_of(self.reward), *following, next_of(self.terminated))

    def check(self, data: Any) -> None:
        """Raise an error unless the data hold all keys."""
        if not isinstance(data, TensorDictBase):
            raise TypeError(f"data: expected a TensorDict, got {type(data).__name__}")
        missing = [key for key in self.columns() if data.get(key, None) is None]
        if missing:
            hint = ""
            if next_of(self.terminated) in missing and data.get(next_of("done"), None) is not None:
                hint = "; 'done' cannot replace 'terminated', because it includes time limits"
            raise ValueError(
                f"data: missing entries {missing}, got {sorted(map(str, data.keys(True, True)))}; set "
                f"observation_keys, action_key, reward_key and terminated_key to your names{hint}"
            )


@dataclass(frozen=True)
class _Entry:
    """One entry and its columns in a row."""

    key: Key
    columns: slice
    shape: tuple[int, ...]
    dtype: torch.dtype
    classes: int  # length of a one-hot vector, which becomes one column; 0: not one-hot


class Layout:
    """Converts the entries of one buffer to rows and back.

    Args:
        keys: Keys of a transition.
        example: Stored data, ``(n,)``.
        action_spec: TorchRL spec of the action.
        observation_spec: TorchRL spec of the observation; None: unbounded floating-point observations.
    """

    def __init__(
        self, keys: TransitionKeys, example: TensorDictBase, action_spec: Any, observation_spec: Any = None
    ) -> None:
        """Read shapes and dtypes from the example."""
        keys.check(example)
        if example.ndim != 1:
            raise ValueError(f"data: expected single transitions, got items of shape {tuple(example.shape[1:])}")
        for name, key, kind in (("reward", keys.reward, "number"), ("terminated", keys.terminated, "flag")):
            shape = tuple(example.get(next_of(key)).shape[1:])
            if math.prod(shape) != 1:
                raise ValueError(f"{name}: expected one {kind} per transition, got shape {shape}")
        self.keys = keys
        specs = {key: _entry_spec(observation_spec, key, "observation_spec") for key in keys.observations}
        specs[keys.action] = _entry_spec(action_spec, keys.action, "action_spec")
        spaces_of = {
            key: _space(spec, example.get(key), "action_spec" if key == keys.action else f"observation_spec[{key!r}]")
            for key, spec in specs.items()
        }
        named = {key if isinstance(key, str) else ".".join(key): spaces_of[key] for key in keys.observations}
        observation_space = spaces.Dict(named) if len(named) > 1 else next(iter(named.values()))
        self._steps = None if example.get(STEPS, None) is None else StepEntries(example)
        extra = {} if self._steps is None else {STEPS: STEPS_SPACE}
        self.spec = TransitionSpec.from_spaces(observation_space, spaces_of[keys.action], extra=extra)
        one_hot = {key for key, spec in specs.items() if type(spec) is OneHot}
        one_hot |= {next_of(key) for key in one_hot}
        self.entries: list[_Entry] = []
        start = 0
        for key in (*keys.columns(), *extra):
            value = example.get(key)
            shape = tuple(value.shape[1:])
            classes = shape[-1] if key in one_hot else 0
            width = 1 if classes else math.prod(shape)
            self.entries.append(_Entry(key, slice(start, start + width), shape, value.dtype, classes))
            start += width
        if start != self.spec.dim:
            raise ValueError(f"data: expected {self.spec.dim} numbers per transition from the specs, got {start}")
        self._flags = [
            (key if len(key) > 1 else name, tuple(example.get(key).shape[1:]))
            for name in _FLAGS
            for key in ((name,), next_of(name))
            if key != next_of(keys.terminated) and example.get(key, None) is not None
        ]

        # Plain data, which nearly all are, can be mixed as one matrix of numbers and one of flags.
        *numbers, terminated = self.entries[: len(keys.columns())]
        self.number_keys = [entry.key for entry in numbers]
        self.number_widths = [entry.columns.stop - entry.columns.start for entry in numbers]
        terminations = [key for key, _ in self._flags if key in (next_of("done"), next_of("terminated"))]
        self.terminated_flags = 1 + len(terminations)
        self.flag_keys = [terminated.key, *terminations, *(key for key, _ in self._flags if key not in terminations)]
        self.is_packed = (
            self._steps is None
            and all(entry.dtype == torch.float32 and len(entry.shape) == 1 and not entry.classes for entry in numbers)
            and (terminated.dtype, terminated.shape) == (torch.bool, (1,))
            and all(shape == (1,) and example.get(key).dtype == torch.bool for key, shape in self._flags)
        )

    def rows(self, data: TensorDictBase) -> Tensor:
        """Convert the entries of ``(n,)`` transitions to rows ``(n, dim)``."""
        parts = []
        for entry in self.entries:
            value = data.get(entry.key)
            value = value.to(torch.uint8).argmax(-1, keepdim=True) if entry.classes else value
            parts.append(value.reshape(len(value), -1).to(torch.float32))
        return torch.cat(parts, 1)

    def unpack(self, rows: Tensor) -> dict[Key, Tensor]:
        """Convert rows ``(n, dim)`` to entries, including all flags of the data."""
        found: dict[Key, Tensor] = {}
        for entry in self.entries:
            value = rows[:, entry.columns]
            if entry.classes:
                value = torch.nn.functional.one_hot(value[:, 0].long(), entry.classes)
            elif len(entry.shape) != 1:
                value = value.reshape(-1, *entry.shape)
            found[entry.key] = value.to(entry.dtype)
        # Synthetic rows have no time limits: `done` equals `terminated`, all other flags are False.
        flags = torch.zeros(len(self._flags), len(rows), dtype=torch.bool, device=rows.device)
        for flag, (key, shape) in zip(flags.unbind(), self._flags, strict=True):
            if key in (next_of("done"), next_of("terminated")):
                flag.copy_(rows[:, self.spec.terminated.start])
            found[key] = flag.view(-1, *shape)
        if self._steps is not None:
            found |= self._steps.of(rows[:, self.spec.field(STEPS).columns.start].long())
        return found


def check_specs(action_spec: Any, observation_spec: Any) -> None:
    """Raise an error unless these can be specs of actions and observations; data that come later tell the rest."""
    if action_spec is None:
        raise ValueError("action_spec: required for the bounds of generated actions, pass env.action_spec")
    for name, spec in (("action_spec", action_spec), ("observation_spec", observation_spec)):
        if not isinstance(spec, TensorSpec | None):
            raise TypeError(f"{name}: expected a spec of TorchRL such as env.{name}, {received(spec)}")


def _entry_spec(spec: Any, key: Key, name: str) -> Any:
    """Return the spec of one entry of a composite spec."""
    if not isinstance(spec, Composite):
        return spec
    if key not in spec.keys(True, True):
        raise ValueError(
            f"{name}: expected a spec with the entry {key!r}, got {sorted(map(str, spec.keys(True, True)))}"
        )
    return spec[key]


def _space(spec: Any, example: Tensor, name: str) -> spaces.Space[Any]:
    """Return the Gymnasium space of one entry ``(n, *shape)``; without a spec, the full range of its dtype."""
    shape = tuple(example.shape[1:])
    if spec is None:
        if example.dtype.is_floating_point:
            return spaces.Box(-np.inf, np.inf, shape, np.float32)
        if example.dtype in (torch.bool, torch.uint8):
            return spaces.MultiBinary(shape) if example.dtype == torch.bool else spaces.Box(0, 255, shape, np.uint8)
        raise ValueError(f"{name}: required for the bounds of {example.dtype} values, pass env.observation_spec")
    if shape != tuple(spec.shape)[len(spec.shape) - len(shape) :]:  # the spec of a batched environment has leading axes
        raise ValueError(f"{name}: got shape {tuple(spec.shape)}, expected {shape} as in the data")
    if type(spec) is OneHot:
        return spaces.Discrete(int(spec.space.n))
    if isinstance(spec, MultiOneHot):
        raise TypeError(f"{name}: MultiOneHot specs are not supported, got {spec}")
    if isinstance(spec, MultiCategorical):
        return spaces.MultiDiscrete(spec.nvec.reshape(-1, spec.nvec.shape[-1])[0].cpu().numpy())
    if isinstance(spec, Binary):
        return spaces.MultiBinary(shape)
    if isinstance(spec, Categorical):
        return spaces.Discrete(int(spec.space.n)) if math.prod(shape) == 1 else _categories(int(spec.space.n), shape)
    if isinstance(spec, Bounded | Unbounded):
        low, high = (bound.expand(*spec.shape).cpu().numpy() for bound in (spec.space.low, spec.space.high))
        # bounds are equal along the leading axes
        low, high = (bound.reshape(-1, *shape)[0] for bound in (low, high))
        if isinstance(spec, Unbounded) and example.dtype.is_floating_point:
            low, high = np.full(shape, -np.inf), np.full(shape, np.inf)
        dtype = np.float32 if example.dtype.is_floating_point else low.dtype
        return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype)
    raise TypeError(f"{name}: expected a Bounded, Unbounded, Categorical, OneHot or Binary spec, got {spec!r}")


def _categories(n: int, shape: tuple[int, ...]) -> spaces.MultiDiscrete:
    return spaces.MultiDiscrete(np.full(shape, n))
