"""Operations on Stable-Baselines3 batches; a field is a tensor, a dict of tensors or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def map_tensors(function: Callable[..., Tensor], *batches: Any) -> Any:
    """Apply `function` to corresponding tensors of the batches; return a batch of the same type."""
    first = batches[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return function(*batches)
    if isinstance(first, dict):
        return {key: map_tensors(function, *(batch[key] for batch in batches)) for key in first}
    return type(first)(*(map_tensors(function, *fields) for fields in zip(*batches, strict=True)))


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
    return batches[0] if len(batches) == 1 else map_tensors(lambda *fields: torch.cat(fields), *batches)
