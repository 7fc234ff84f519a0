"""The transitions of many agents, real and synthetic, where a captured graph reads them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from synther_replay import Transitions, TransitionSpec
from synther_replay.common.acceleration import fused
from synther_replay.replay.mixing import split_batch


def mixed_places(chance: Tensor, from_real: int, real: Tensor | int, begin: int, synthetic: int) -> Tensor:
    """Where the rows of batches lie: the first ones of each among the real rows, the others among the synthetic.

    Args:
        chance: A number from 0 to 1 for each row, ``(..., B)``; float64, as float32 has too few values to reach all of
            millions of rows evenly.
        from_real: Real rows of a batch.
        real: Number of real rows, which come first.
        begin: Where the synthetic rows begin.
        synthetic: Their number.
    """
    column = torch.arange(chance.shape[-1], device=chance.device)
    return torch.where(column < from_real, (chance * real).long(), begin + (chance * synthetic).long())


@fused
def _places(chance: Tensor, count: Tensor, from_real: int, capacity: int, synthetic: int) -> Tensor:
    """Those of batches ``(M, K, B)``, where the rows of one agent follow those of another."""
    agent = torch.arange(chance.shape[0], device=chance.device)[:, None, None]
    return mixed_places(chance, from_real, count, capacity, synthetic) + agent * (capacity + synthetic)


class StackedReplay:
    """Real and synthetic rows of M agents in memory that keeps its place.

    The library's own store is replaced as a whole; a captured graph needs addresses that stay, so here the new rows
    are copied over the old ones instead.

    Args:
        spec: Layout of a row.
        agents: M.
        capacity: Most real rows per agent.
        synthetic: Synthetic rows per agent.
        real_ratio: Share of real rows in a batch once there are synthetic ones.
        device: Where the rows live.
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
        # Side by side, so that a mixed batch is one gather.
        self._rows = torch.zeros(agents, capacity + synthetic, spec.dim, device=device)
        self.real, self.synthetic = self._rows.split((capacity, synthetic), 1)
        self.has_synthetic = False
        self.count = 0
        self._count = torch.zeros((), dtype=torch.float64, device=device)  # the same for a captured graph

    def add(self, rows: Tensor) -> None:
        """Append one row per agent, ``(M, dim)``; on a GPU from pinned memory this waits for nothing."""
        self.real[:, self.count].copy_(rows, non_blocking=True)
        self.count += 1
        self._count += 1

    def transitions(self) -> Transitions:
        """All real transitions, ``(M, count)``; one agent alone has no axis of its own, as a stack of one has none."""
        rows = self.real[:, : self.count]
        return Transitions(self.spec, rows[0] if self.agents == 1 else rows)

    def replace_synthetic(self, transitions: Transitions) -> None:
        """Take over new synthetic transitions for all agents."""
        self.synthetic.copy_(transitions.rows.view(self.synthetic.shape))
        self.has_synthetic = True

    def draw(self, batches: int, batch_size: int, rng: torch.Generator) -> Tensor:
        """Batches for each agent, the real rows first, ``(M, batches, batch_size, dim)``."""
        real, _ = split_batch(batch_size, self.real_ratio, synthetic_available=self.has_synthetic)
        size = (self.agents, batches, batch_size)
        chance = torch.rand(size, generator=rng, device=self.device, dtype=torch.float64)
        place = _places(chance, self._count, real, self.real.shape[1], self.synthetic.shape[1])
        return self._rows.view(-1, self.spec.dim).index_select(0, place.view(-1)).view(*size, -1)

    def state_dict(self) -> dict[str, Any]:
        """A copy of the rows."""
        return {
            "real": self.real[:, : self.count].clone(),
            "synthetic": self.synthetic.clone() if self.has_synthetic else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.count = state["real"].shape[1]
        self._count.fill_(self.count)
        self.real[:, : self.count] = state["real"].to(self.device)
        self.has_synthetic = state["synthetic"] is not None
        if self.has_synthetic:
            self.synthetic.copy_(state["synthetic"])
