"""Stable-Baselines3 batches that say which rows are synthetic, and operations on them.

A field of a batch is a tensor, a dict of tensors or None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from torch import Tensor

from synther_replay.replay.batch import synthetic_mask


class _Marked:
    """Adds `is_synthetic` to a named tuple, whose fields, length and order stay SB3's."""

    rewards: Tensor
    real_places: Tensor | None = None  # numbers of the real rows; None: all are real

    @property
    def is_synthetic(self) -> Tensor:
        """Which rows are synthetic, bool ``(batch,)``; computed when it is asked for."""
        return synthetic_mask(len(self.rewards), self.real_places, self.rewards.device)

    def _replace(self, **fields: Any) -> Any:
        changed = super()._replace(**fields)  # type: ignore[misc]
        changed.real_places = self.real_places
        return changed


class SynthERSamples(_Marked, ReplayBufferSamples):
    """SB3's `ReplayBufferSamples` with `is_synthetic`."""


class SynthERDictSamples(_Marked, DictReplayBufferSamples):
    """SB3's `DictReplayBufferSamples` with `is_synthetic`."""


_UNMARKED = {SynthERSamples: ReplayBufferSamples, SynthERDictSamples: DictReplayBufferSamples}


def map_tensors(function: Callable[..., Tensor], *batches: Any) -> Any:
    """Apply `function` to corresponding tensors of the batches; return a batch of the same type, without marks."""
    first = batches[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return function(*batches)
    if isinstance(first, dict):
        return {key: map_tensors(function, *(batch[key] for batch in batches)) for key in first}
    fields = (map_tensors(function, *fields) for fields in zip(*batches, strict=True))
    return _UNMARKED.get(type(first), type(first))(*fields)


def tensors_of(batch: Any) -> list[Tensor]:
    """Return all tensors of a batch in the order of its fields."""
    found: list[Tensor] = []
    map_tensors(lambda field: found.append(field) or field, batch)  # type: ignore[func-returns-value]
    return found


def rows_of(batch: Any, start: int, stop: int) -> Any:
    """Return the rows from `start` to `stop` as views."""
    return map_tensors(lambda field: field[start:stop], batch)


def join_batches(batches: list[Any]) -> Any:
    """Concatenate batches."""
    first = batches[0]
    if len(batches) == 1:
        return first
    joined = map_tensors(lambda *fields: torch.cat(fields), *batches)
    if not all(isinstance(batch, _Marked) for batch in batches):
        return joined
    joined = type(first)._make(joined)
    if any(batch.real_places is not None for batch in batches):
        joined.real_places = (~torch.cat([batch.is_synthetic for batch in batches])).nonzero()[:, 0]
    return joined
