"""The rows that all seeds of an offline run train on: scaled once, at fixed addresses for captured CUDA graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from synther_replay import Transitions
from synther_replay.benchmarks.agents.augment import Augmentation
from synther_replay.benchmarks.agents.networks.mlp import Layers
from synther_replay.replay.mixed_rows import MixedRows
from synther_replay.replay.mixing import check_real_ratio

_MIN_STD = 1e-3  # CORL's; avoids division by zero for constant columns


class SharedRows:
    """Real and synthetic transitions of one data set, with scaled observations and rewards.

    Args:
        real: Real transitions; None if all are synthetic.
        synthetic: Synthetic transitions; None if all are real.
        real_ratio: Share of real rows in a batch, if there are both kinds.
        scale_observations: Whether observations are standardised.
        scale_like: Transitions whose mean and standard deviation are used; None for the rows themselves.
        reward_shift: Added to the rewards, before they are scaled.
        reward_scale: Factor of the rewards.
        augmentation: Data augmentation of each batch.
        device: Device of the rows.

    Attributes:
        mean: Mean subtracted from observations, ``(O,)``.
        std: Divisor of observations, ``(O,)``: their standard deviation plus a small constant.
    """

    def __init__(
        self,
        real: Transitions | None,
        synthetic: Transitions | None = None,
        *,
        real_ratio: float = 0.5,
        scale_observations: bool = True,
        scale_like: Transitions | None = None,
        reward_shift: float = 0.0,
        reward_scale: float = 1.0,
        augmentation: Augmentation | None = None,
        device: torch.device,
    ) -> None:
        """Copy and scale."""
        parts = [part for part in (real, synthetic) if part is not None and len(part)]
        if not parts:
            raise ValueError("real, synthetic: expected transitions in at least one, got none")
        check_real_ratio(real_ratio)
        self.spec, self.device, self.augmentation = parts[0].spec, device, augmentation
        self.rows = torch.cat([part.rows.to(device) for part in parts])
        self.real = 0 if real is None else len(real)
        self._mixed = MixedRows(self.rows[None], self.real, real_ratio if len(parts) == 2 else float(self.real > 0))
        observations = (self.rows if scale_like is None else scale_like.rows.to(device))[:, self.spec.observations]
        self.mean, self.std = torch.zeros_like(observations[0]), torch.ones_like(observations[0])
        if scale_observations:
            std, self.mean = torch.std_mean(observations, dim=0, correction=0)
            self.std = std + _MIN_STD
        for columns in (self.spec.observations, self.spec.next_observations):
            self.rows[:, columns] = (self.rows[:, columns] - self.mean) / self.std
        self.rows[:, self.spec.rewards] += reward_shift
        self.rows[:, self.spec.rewards] *= reward_scale

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def fingerprint(self) -> list[float]:
        """Three numbers that identify the rows."""
        weights = torch.arange(1, self.rows.shape[1] + 1, dtype=torch.float64, device=self.device)
        sums = torch.stack([part.double().sum(0) for part in self.rows.split(1_000_000)]).sum(0)
        return [float(len(self)), float(sums @ weights), float(self.rows[-1].double() @ weights)]

    def draw(self, *size: int, rng: torch.Generator) -> Tensor:
        """Draw batches ``(*size, dim)``; the last of `size` is the batch size. Real rows come first in a batch."""
        rows = self._mixed.draw(size, rng)
        return self.augmentation(rows, self.spec, rng) if self.augmentation else rows

    def for_raw_observations(self, policy: Layers) -> Layers:
        """Policies for unscaled observations: the scaling is folded into the first layer."""
        inputs, mean, std = len(self.mean), self.mean.cpu(), self.std.cpu()
        w1 = policy["w1"].clone()
        w1[:, :inputs] /= std[:, None]
        w1[:, inputs] -= torch.einsum("i,mih->mh", mean, w1[:, :inputs])
        return Layers(policy | {"w1": w1})
