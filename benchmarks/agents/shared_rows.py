"""The transitions that all seeds of an offline run learn from, scaled once, where a captured graph reads them."""

from __future__ import annotations

import torch
from torch import Tensor

from synther_replay import Transitions
from synther_replay.benchmarks.agents.augment import Augmentation
from synther_replay.benchmarks.agents.networks.mlp import Layers
from synther_replay.benchmarks.agents.replay import mixed_places
from synther_replay.common.acceleration import fused
from synther_replay.replay.mixing import check_real_ratio, split_batch

_LEAST_STD = 1e-3  # CORL's, which keeps constant columns from being divided by zero


_places = fused(mixed_places)


class SharedRows:
    """Real and synthetic transitions of one data set, with states and rewards as the learners want them.

    Args:
        real: Real transitions; None where all are synthetic.
        synthetic: Synthetic ones; None where all are real.
        real_ratio: Share of real rows in a batch, where there are both.
        scale_observations: Whether observations get a mean of 0 and a standard deviation of 1.
        scale_like: Transitions whose observations then have these; None: the rows themselves.
        reward_scale: What rewards are multiplied with.
        augmentation: Changes each batch, as the learner sees it.
        device: Where the rows live.

    Attributes:
        mean: What was subtracted from observations, ``(O,)``.
        std: What they were then divided by: their standard deviation, a little enlarged.
    """

    def __init__(
        self,
        real: Transitions | None,
        synthetic: Transitions | None = None,
        *,
        real_ratio: float = 0.5,
        scale_observations: bool = True,
        scale_like: Transitions | None = None,
        reward_scale: float = 1.0,
        augmentation: Augmentation | None = None,
        device: torch.device,
    ) -> None:
        """Copy and scale."""
        parts = [part for part in (real, synthetic) if part is not None and len(part)]
        if not parts:
            raise ValueError("rows: expected real or synthetic transitions, got neither")
        check_real_ratio(real_ratio)
        self.spec, self.device, self.augmentation = parts[0].spec, device, augmentation
        self.rows = torch.cat([part.rows.to(device) for part in parts])
        self.real = 0 if real is None else len(real)
        self.real_ratio = real_ratio if len(parts) == 2 else float(self.real > 0)
        observations = (self.rows if scale_like is None else scale_like.rows.to(device))[:, self.spec.observations]
        self.mean, self.std = torch.zeros_like(observations[0]), torch.ones_like(observations[0])
        if scale_observations:
            std, self.mean = torch.std_mean(observations, dim=0, correction=0)
            self.std = std + _LEAST_STD
        for columns in (self.spec.observations, self.spec.next_observations):
            self.rows[:, columns] = (self.rows[:, columns] - self.mean) / self.std
        self.rows[:, self.spec.rewards] *= reward_scale

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def fingerprint(self) -> list[float]:
        """A few numbers that other rows would not have."""
        weights = torch.arange(1, self.rows.shape[1] + 1, dtype=torch.float64, device=self.device)
        sums = torch.stack([part.double().sum(0) for part in self.rows.split(1_000_000)]).sum(0)
        return [float(len(self)), float(sums @ weights), float(self.rows[-1].double() @ weights)]

    def draw(self, *size: int, rng: torch.Generator) -> Tensor:
        """Batches of rows, the real ones first in each, ``(*size, dim)``; the last number is that of a batch."""
        from_real, _ = split_batch(size[-1], self.real_ratio, synthetic_available=len(self) > self.real)
        chance = torch.rand(size, generator=rng, device=self.device, dtype=torch.float64)
        place = _places(chance, from_real, self.real, self.real, len(self) - self.real)
        rows = self.rows.index_select(0, place.view(-1)).view(*size, -1)
        return self.augmentation(rows, self.spec, rng) if self.augmentation else rows

    def for_raw_observations(self, policy: Layers) -> Layers:
        """The same policies for observations as the task gives them: scaling becomes part of the first layer."""
        inputs, mean, std = len(self.mean), self.mean.cpu(), self.std.cpu()
        w1 = policy["w1"].clone()
        w1[:, :inputs] /= std[:, None]
        w1[:, inputs] -= torch.einsum("i,mih->mh", mean, w1[:, :inputs])
        return Layers(policy | {"w1": w1})
