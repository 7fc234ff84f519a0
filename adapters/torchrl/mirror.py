"""PackedMirror: a copy of a storage's entries in two tensors, from which one kernel makes a batch.

On a GPU the number of operations determines the time of a batch. There, a copy pays.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from synther_replay.errors import is_out_of_memory

_MOST_NOTES = 256  # writes that are remembered between two reads; after more of them, everything is copied


class _Notes:
    """Remembers which rows were written; attached to a storage, which calls `mark_update` at every write.

    It holds nothing else, so that a storage which outlives the mirror keeps no memory of it.
    """

    def __init__(self) -> None:
        self.indices: list[Tensor] = []

    def mark_update(self, index: Any) -> None:
        """Note the rows of one write."""
        if len(self.indices) < _MOST_NOTES:
            self.indices.append(torch.as_tensor(index).reshape(-1))


class PackedMirror:
    """Numbers ``(rows, columns)`` and flags ``(flags, rows)`` of the tensors of a storage.

    Every write increments the version counter of the tensors. Where versions and notes agree, the noted rows are copied
    again; otherwise, for example after an assignment to rows or a load, all rows are.

    Args:
        storage: The storage, to which the notes are attached.
        numbers: Its tensors of numbers, ``(capacity, width)`` each.
        flags: Its flags, ``(capacity,)`` each.
    """

    def __init__(self, storage: Any, numbers: list[Tensor], flags: list[Tensor]) -> None:
        """Allocate memory; the first read fills it."""
        first = numbers[0]
        self._sources, self._flag_sources = numbers, flags
        self._numbers = first.new_empty(len(first), sum(part.shape[1] for part in numbers))
        self._flags = torch.empty(len(flags), len(first), dtype=torch.bool, device=first.device)
        self._notes, self._versions = _Notes(), [-1] * (len(numbers) + len(flags))
        storage.attach(self._notes)

    @classmethod
    def or_none(cls, storage: Any, numbers: list[Tensor], flags: list[Tensor]) -> PackedMirror | None:
        """Make a mirror; None, with a warning, if it does not fit into memory."""
        try:
            return cls(storage, numbers, flags)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            warnings.warn(
                f"a copy of the {len(numbers[0])} real rows does not fit into the memory of {numbers[0].device}; "
                f"batches take longer without it ({error})",
                RuntimeWarning,
                stacklevel=5,
            )
            return None

    def mirrors(self, numbers: list[Tensor]) -> bool:
        """Return whether these are the tensors that are mirrored."""
        return self._sources is numbers

    def current(self, size: int) -> tuple[Tensor, Tensor]:
        """Return numbers ``(capacity, columns)`` and flags ``(flags, capacity)``; the storage holds `size` rows."""
        versions = [part._version for part in (*self._sources, *self._flag_sources)]
        if versions != self._versions:
            self._update(versions, size)
        return self._numbers, self._flags

    @torch.inference_mode(mode=False)  # an inference tensor could not be written to later
    def _update(self, versions: list[int], size: int) -> None:
        notes, self._notes.indices = self._notes.indices, []
        if all(new - old == len(notes) for new, old in zip(versions, self._versions, strict=True)):
            rows = torch.cat(notes).to(self._numbers.device)
            self._numbers.index_copy_(0, rows, torch.cat([part.index_select(0, rows) for part in self._sources], 1))
            self._flags.index_copy_(1, rows, torch.stack([flag.index_select(0, rows) for flag in self._flag_sources]))
        else:
            torch.cat([part[:size] for part in self._sources], 1, out=self._numbers[:size])
            for mirrored, flag in zip(self._flags, self._flag_sources, strict=True):
                mirrored[:size] = flag[:size]
        self._versions = versions
