"""Where episodes end: a classifier that tells from the rest of a row whether it is `terminated`.

A denoiser sees rare ends rarely, and then as one column among many; it learns how often they are, but not well where.
Nearly always they follow from the rest of the row, such as a body that is too low. So this small network looks at rows
without noise, and at as many that end as do not: what it says is then put right for how many end in truth.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from synther_replay.errors import CheckpointError, DivergedError
from synther_replay.seeding import generator_for

_WIDTH = 256
_STEPS = 1_000
_LEARNING_RATE = 3e-3  # annealed to zero by a cosine


class EndClassifier(NamedTuple):
    """M classifiers, one for each model of a stack; a fit makes a new one."""

    w1: Tensor  # (M, inputs, width)
    b1: Tensor  # (M, 1, width)
    w2: Tensor  # (M, width, width)
    b2: Tensor  # (M, 1, width)
    w3: Tensor  # (M, width, 1)
    b3: Tensor  # (M, 1, 1)
    base: Tensor  # (M, 1), the log-odds of an end before anything is known of the row

    @classmethod
    def fit(cls, inputs: Tensor, ends: Tensor, *, batch_size: int, seed: int) -> EndClassifier:
        """Learn which rows end.

        Args:
            inputs: Codes of each model's rows without their flags, ``(M, n, inputs)``.
            ends: The flags, 0 or 1, ``(M, n)``.
            batch_size: Rows per step, half of them with an end.
            seed: The same seed gives the same classifiers on the same device.

        Raises:
            DivergedError: A weight became NaN or infinite.
        """
        rng = generator_for(inputs.device, seed)
        in_order = ends.argsort(dim=1, stable=True)  # those without an end come first
        with_end = ends.sum(1, keepdim=True).long()
        without = ends.shape[1] - with_end
        half = -(-batch_size // 2)
        with torch.enable_grad(), torch.autocast(inputs.device.type, enabled=False):
            untrained = cls._initial(inputs.shape[0], inputs.shape[2], rng)
            weights = [w.requires_grad_() for w in untrained[:-1]]
            optimiser = torch.optim.Adam(weights, lr=_LEARNING_RATE)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _STEPS)
            for _ in range(_STEPS):
                places = torch.cat((_draw(without, half, rng), without + _draw(with_end, half, rng)), dim=1)
                # where all rows are of one kind, the other has no places: the last row stands in, as what it is
                chosen = in_order.gather(1, places.clamp(max=ends.shape[1] - 1))
                rows = inputs.gather(1, chosen[..., None].expand(-1, -1, inputs.shape[2]))
                loss = F.binary_cross_entropy_with_logits(untrained.log_odds(rows), ends.gather(1, chosen))
                optimiser.zero_grad()
                (loss * len(inputs)).backward()
                optimiser.step()
                schedule.step()
        base = with_end.double().log() - without.double().log()
        fitted = cls._make((*(w.detach() for w in weights), base.float()))
        if not all(bool(w.isfinite().all()) for w in fitted[:-1]):
            raise DivergedError("fit: the classifier of ends diverged; look at the data")
        return fitted

    def log_odds(self, inputs: Tensor) -> Tensor:
        """Of an end, for rows ``(M, n, inputs)``: ``(M, n)``."""
        hidden = F.silu(torch.baddbmm(self.b1, inputs, self.w1))
        hidden = F.silu(torch.baddbmm(self.b2, hidden, self.w2))
        return torch.baddbmm(self.b3, hidden, self.w3)[..., 0] + self.base

    def draw(self, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Flags, 0 or 1, for rows ``(M, n, inputs)``: ``(M, n)``."""
        chance = torch.rand(inputs.shape[:2], device=inputs.device, generator=rng)
        return (chance < self.log_odds(inputs).sigmoid()).float()

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of everything."""
        return {name: tensor.clone() for name, tensor in self._asdict().items()}

    @classmethod
    def from_state(cls, state: dict[str, Any], stack: int, inputs: int, device: torch.device) -> EndClassifier:
        """The inverse of `state_dict`; what is none of `stack` classifiers of so many inputs is refused."""
        expected = cls._initial(stack, inputs, torch.Generator())._asdict()
        if state.keys() != expected.keys():
            raise CheckpointError(f"state: {sorted(state)} is no classifier of ends")
        for name, tensor in expected.items():
            if not isinstance(state[name], Tensor) or state[name].shape != tensor.shape:
                raise CheckpointError(f"state: {name} of a classifier of ends has to be {tuple(tensor.shape)}")
        return cls(**{name: state[name].to(device, copy=True) for name in expected})

    @classmethod
    def _initial(cls, stack: int, inputs: int, rng: torch.Generator) -> EndClassifier:
        def layer(fan_in: int, fan_out: int) -> tuple[Tensor, Tensor]:
            weight = torch.randn(stack, fan_in, fan_out, device=rng.device, generator=rng) / math.sqrt(fan_in)
            return weight, torch.zeros(stack, 1, fan_out, device=rng.device)

        layers = (*layer(inputs, _WIDTH), *layer(_WIDTH, _WIDTH), *layer(_WIDTH, 1))
        return cls(*layers, torch.zeros(stack, 1, device=rng.device))


def _draw(sizes: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """`count` places below each of the sizes ``(M, 1)``: ``(M, count)``."""
    # float64: float32 has too few values to reach the rows of a large buffer evenly
    return (torch.rand(len(sizes), count, device=rng.device, generator=rng, dtype=torch.float64) * sizes).long()
