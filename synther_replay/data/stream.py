"""Transitions that are read in blocks, because they need not fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from synther_replay.common.by_attributes import ByAttributes
from synther_replay.data.transitions import Transitions, TransitionSpec

_BLOCK_VALUES = 2**22


@runtime_checkable
class RowStream(Protocol, metaclass=ByAttributes):
    """Transitions on disk or elsewhere, which can be read again and again in the same order.

    `synther_replay.files.open_file` returns one for HDF5, Parquet, ``.npz`` and Minari; `ArrayRows` is one for arrays.
    """

    @property
    def spec(self) -> TransitionSpec:
        """Layout of the transitions."""

    def count(self) -> int:
        """Return the number of transitions."""

    def blocks(self) -> Iterator[Transitions]:
        """Yield all transitions in blocks ``(n, dim)``, from the first on."""


class ArrayRows:
    """Rows of an array, usually a memory-mapped one.

    >>> import gymnasium as gym
    >>> spec = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (1,)))
    >>> rows = ArrayRows(spec, np.zeros((100_000, spec.dim), np.float32))  # or np.load("rows.npy", mmap_mode="r")
    >>> rows.count(), sum(len(block) for block in rows.blocks())
    (100000, 100000)

    Args:
        spec: Layout of the transitions.
        array: Rows ``(n, dim)``; any type of numbers.

    Raises:
        ValueError: The array has another shape.
    """

    def __init__(self, spec: TransitionSpec, array: np.ndarray) -> None:
        """Check the shape."""
        if array.ndim != 2 or array.shape[1] != spec.dim:
            raise ValueError(f"array: expected shape (n, {spec.dim}), got {array.shape}")
        self.spec, self._array = spec, array

    def count(self) -> int:
        """Return the number of rows."""
        return len(self._array)

    def blocks(self) -> Iterator[Transitions]:
        """Yield the rows in blocks, which are copies."""
        size = max(1, _BLOCK_VALUES // self.spec.dim)
        for start in range(0, len(self._array), size):
            block = np.array(self._array[start : start + size], np.float32)
            yield Transitions(self.spec, torch.from_numpy(block))
