"""Workers: processes that train the same models together, each on a part of every batch (data parallelism)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Workers:
    """The processes of a group of `torch.distributed`.

    All of them start from the same weights and hold the same data. Each draws rows of its own for its part of a batch,
    and the gradients are averaged, so that the weights stay the same everywhere. What depends on the clock, or on sums
    that another machine rounds differently, is decided by the first process.

    Args:
        group: The group; `torch.distributed.group.WORLD` holds all processes.
        device: Compute device.

    Raises:
        ValueError: `torch.distributed` is not initialised, or this process does not belong to the group.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        """Find the place of this process."""
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError("group: call torch.distributed.init_process_group first")
        self._group, self._device = group, device
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise ValueError("group: this process does not belong to it")
        self.size = dist.get_world_size(group)
        self.is_capturable = dist.get_backend(group) == "nccl"  # by a CUDA graph
        self._first = dist.get_global_rank(group, 0)

    def part_of(self, batch_size: int) -> int:
        """Number of rows of a batch that each process draws."""
        return -(-batch_size // self.size)

    def average(self, gradient: Tensor) -> None:
        """Average a tensor over all processes, in place."""
        dist.all_reduce(gradient, group=self._group)
        gradient.div_(self.size)

    def of_first(self, values: Tensor) -> Tensor:
        """Return the values of the first process."""
        dist.broadcast(values, self._first, group=self._group)
        return values

    def number_of_first(self, value: float) -> float:
        """Return a number of the first process."""
        return float(self.of_first(torch.tensor(value, dtype=torch.float64, device=self._device)))
