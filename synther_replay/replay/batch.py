"""Batch: transitions that say which of them are synthetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.common.checks import device_or_cpu
from synther_replay.data.transitions import Transitions, TransitionSpec


def synthetic_mask(size: int, real_places: Tensor | None, device: torch.device) -> Tensor:
    """Return which rows of a batch are synthetic, bool ``(size,)``, given the places of the real ones (None: all)."""
    if real_places is None:
        return torch.zeros(size, dtype=torch.bool, device=device)
    return torch.ones(size, dtype=torch.bool, device=device).index_fill_(0, real_places, False)


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Transitions):
    """Transitions of which some are synthetic.

    Attributes:
        real_places: Numbers of the real rows; None: all are real. `is_synthetic` is computed from them when it is
            asked for: most code does not, and drawing a batch takes microseconds.
    """

    real_places: Tensor | None = None

    @property
    def is_synthetic(self) -> Tensor:
        """Which rows are synthetic, bool ``(n,)``."""
        return synthetic_mask(len(self), self.real_places, self.rows.device)

    # Not super(): a dataclass with slots is a new class, which its methods do not know.

    def __getitem__(self, index: slice | Sequence[int] | np.ndarray | Tensor) -> Batch:
        """Select transitions by a slice, indices or a mask."""
        chosen = Transitions.__getitem__(self, index).rows
        if self.real_places is None:
            return Batch(self.spec, chosen)
        if not isinstance(index, slice):
            index = torch.as_tensor(index, device=self.rows.device)
            index = index if index.numel() else index.long()
        return Batch(self.spec, chosen, (~self.is_synthetic[index]).nonzero()[:, 0])

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on another device."""
        places = self.real_places
        return Batch(self.spec, self.rows.to(device), None if places is None else places.to(device))

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle and deepcopy with the tensors on the CPU, so any machine can load them."""
        places = None if self.real_places is None else self.real_places.cpu()
        return _on_device, (self.spec, self.rows.cpu(), places, self.rows.device)


def _on_device(spec: TransitionSpec, rows: Tensor, real_places: Tensor | None, device: torch.device) -> Batch:
    """Restore a pickled batch; on the CPU if the device does not exist here."""
    return Batch(spec, rows, real_places).to(device_or_cpu(device))
