"""Replay of many agents: real and synthetic transitions at fixed addresses, for captured CUDA graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from synther_replay import Transitions, TransitionSpec
from synther_replay.common.acceleration import fused
from synther_replay.replay.mixing import mixed_indices, split_batch


@fused
def _indices(uniform: Tensor, count: Tensor, from_real: int, capacity: int, synthetic: int) -> Tensor:
    """Indices of batches ``(M, K, B)`` into the rows of all agents, concatenated."""
    agent = torch.arange(uniform.shape[0], device=uniform.device)[:, None, None]
    return mixed_indices(uniform, from_real, count, capacity, synthetic) + agent * (capacity + synthetic)


class StackedReplay:
    """Real and synthetic rows of M agents in preallocated memory.

    A captured CUDA graph needs fixed addresses. So new synthetic rows are copied over the old ones, unlike in the
    library's store, which is replaced as a whole.

    Args:
        spec: Layout of a row.
        agents: M, the number of agents.
        capacity: Largest number of real rows per agent.
        synthetic: Synthetic rows per agent.
        real_ratio: Share of real rows in a batch once there are synthetic ones.
        device: Device of the rows.
    """

    def __init__(
        self,
        spec: TransitionSpec,
        agents: int,
        *,
        capacity: int,
        synthetic: int = 0,
        real_ratio: float = 1.0,
        device: torch.device,
    ) -> None:
        """Allocate all memory now."""
        self.spec, self.agents, self.real_ratio, self.device = spec, agents, real_ratio, device
        # Real and synthetic rows in one tensor, so that a mixed batch is one index_select.
        self._rows = torch.zeros(agents, capacity + synthetic, spec.dim, device=device)
        self.real, self.synthetic = self._rows.split((capacity, synthetic), 1)
        self.has_synthetic = False
        self.count = 0
        self._count = torch.zeros((), dtype=torch.float64, device=device)  # the same on the device, for graphs

    def add(self, rows: Tensor) -> None:
        """Append one row per agent, ``(M, dim)``; asynchronous from pinned memory to a GPU."""
        self.real[:, self.count].copy_(rows, non_blocking=True)
        self.count += 1
        self._count += 1

    def transitions(self) -> Transitions:
        """All real transitions, ``(M, count)``; for one agent ``(count,)``, as a generator without stack expects."""
        rows = self.real[:, : self.count]
        return Transitions(self.spec, rows[0] if self.agents == 1 else rows)

    def replace_synthetic(self, transitions: Transitions) -> None:
        """Replace the synthetic transitions of all agents."""
        self.synthetic.copy_(transitions.rows.view(self.synthetic.shape))
        self.has_synthetic = True

    def draw(self, batches: int, batch_size: int, rng: torch.Generator) -> Tensor:
        """Draw batches for each agent, ``(M, batches, batch_size, dim)``; real rows come first."""
        real, _ = split_batch(batch_size, self.real_ratio, synthetic_available=self.has_synthetic)
        size = (self.agents, batches, batch_size)
        uniform = torch.rand(size, generator=rng, device=self.device, dtype=torch.float64)
        index = _indices(uniform, self._count, real, self.real.shape[1], self.synthetic.shape[1])
        return self._rows.view(-1, self.spec.dim).index_select(0, index.view(-1)).view(*size, -1)

    def state_dict(self) -> dict[str, Any]:
        """A copy of the rows."""
        return {
            "real": self.real[:, : self.count].clone(),
            "synthetic": self.synthetic.clone() if self.has_synthetic else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""
        self.count = state["real"].shape[1]
        self._count.fill_(self.count)
        self.real[:, : self.count] = state["real"].to(self.device)
        self.has_synthetic = state["synthetic"] is not None
        if self.has_synthetic:
            self.synthetic.copy_(state["synthetic"])
