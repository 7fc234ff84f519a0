"""Stable-Baselines3's batches as trees of tensors: fields may be dicts of them, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def map_tensors(function: Callable[..., Tensor], *batches: Any) -> Any:
    """A batch of the same type whose tensors are those of `function`, called with the tensors of all `batches`."""
    first = batches[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return function(*batches)
    if isinstance(first, dict):
        return {key: map_tensors(function, *(batch[key] for batch in batches)) for key in first}
    return type(first)(*(map_tensors(function, *fields) for fields in zip(*batches, strict=True)))


def tensors_of(batch: Any) -> list[Tensor]:
    """All tensors of a batch, in the order of its fields."""
    found: list[Tensor] = []
    map_tensors(lambda field: found.append(field) or field, batch)  # type: ignore[func-returns-value]
    return found


def rows_of(batch: Any, start: int, stop: int) -> Any:
    """Some rows of a batch, which share its memory."""
    return map_tensors(lambda field: field[start:stop], batch)


def join_batches(batches: list[Any]) -> Any:
    """One batch with the rows of all, one after another."""
    return batches[0] if len(batches) == 1 else map_tensors(lambda *fields: torch.cat(fields), *batches)
