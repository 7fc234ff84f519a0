"""Replay of many agents: real and synthetic transitions at fixed addresses, for captured CUDA graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from synther_replay import Transitions, TransitionSpec
from synther_replay.replay.mixed_rows import MixedRows


class StackedReplay:
    """Real and synthetic rows of M agents in preallocated memory.

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
        self.spec, self.agents, self.device = spec, agents, device
        self.mixed = MixedRows(torch.zeros(agents, capacity + synthetic, spec.dim, device=device), capacity, real_ratio)
        self.real, self.synthetic = self.mixed.real, self.mixed.synthetic
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
        size = (self.agents, batches, batch_size)
        return self.mixed.draw(size, rng, count=self._count, has_synthetic=self.has_synthetic)

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
