"""Where episodes end: a classifier that tells from the rest of a row whether it is `terminated`.

A denoiser sees rare ends rarely, and then as one column among many: it learns how often they are, but not well where.
They nearly always follow from what happened, such as a body that is too low, so a small network that looks at rows
without noise finds them. Of the reward it knows nothing. Many tasks pay another reward with the end, by which all ends
of real rows are easily told; but a generated reward is only nearly right, and so would be the ends.

It learns in two rounds. In the first, half of the rows that it sees have an end; what it says then picks out those
without one that look most as if they had. In the second it sees rows of three kinds equally often, those with an end,
doubtful ones and others, each kind weighted by how many there are, so that it says how many end in truth. Where the
rest of a row only hints at an end, it is too sure of each: it learns its few ends by heart.
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
_STEPS = (250, 750)  # of the two rounds
_LEARNING_RATE = 3e-3  # annealed to zero by a cosine over both
_FIRST_SCALE = 0.03  # of the weights: small ones grow only for the few inputs that tell the ends
_DOUBTFUL = 10  # so many rows without an end are picked out for each that has one
_CHUNK = 65_536  # rows, of all models together, judged at a time
_SURE = 30.0  # log-odds of what is certain, as far as training needs a number for it


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
            inputs: What each model's rows are told by, ``(M, n, inputs)``.
            ends: Their flags, 0 or 1, ``(M, n)``.
            batch_size: Rows per step.
            seed: The same seed gives the same classifiers on the same device.

        Raises:
            DivergedError: A weight became NaN or infinite.
        """
        rng = generator_for(inputs.device, seed)
        with torch.enable_grad(), torch.autocast(inputs.device.type, enabled=False):
            model = cls._initial(inputs.shape[0], inputs.shape[2], rng)
            optimiser = torch.optim.Adam([w.requires_grad_() for w in model[:-1]], lr=_LEARNING_RATE)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, sum(_STEPS))

            def learn(model: EndClassifier, steps: int, in_order: Tensor, kinds: Tensor, weight: Tensor) -> None:
                """Take steps with as many rows of each kind; `kinds` are their sizes, ``(M, K)``, as they follow."""
                for _ in range(steps):
                    chosen = in_order.gather(1, _places(kinds, -(-batch_size // kinds.shape[1]), rng))
                    rows = inputs.gather(1, chosen[..., None].expand(-1, -1, inputs.shape[2]))
                    losses = F.binary_cross_entropy_with_logits(
                        model.log_odds(rows), ends.gather(1, chosen), reduction="none"
                    )
                    optimiser.zero_grad()
                    (losses.unflatten(1, (kinds.shape[1], -1)).mean(2) * weight).sum().backward()
                    optimiser.step()
                    schedule.step()

            with_end = ends.sum(1, keepdim=True).long()
            without = ends.shape[1] - with_end
            kinds = torch.cat((without, with_end), dim=1)
            learn(model, _STEPS[0], ends.argsort(dim=1, stable=True), kinds, kinds.clamp(max=1))

            chunk_size = max(1, _CHUNK // len(inputs))
            with torch.no_grad():
                likeness = torch.cat([model.log_odds(chunk) for chunk in inputs.split(chunk_size, dim=1)], dim=1)
                in_order = torch.where(ends > 0, math.inf, likeness).argsort(dim=1, stable=True)
            doubtful = torch.minimum(without // 2, _DOUBTFUL * with_end)
            kinds = torch.cat((without - doubtful, doubtful, with_end), dim=1)
            base = with_end.double().log() - without.double().log()  # infinite where there is but one kind
            model = model._replace(base=base.clamp(-_SURE, _SURE).float())
            learn(model, _STEPS[1], in_order, kinds, kinds / with_end.clamp(min=1))
        if not all(bool(w.isfinite().all()) for w in model):
            raise DivergedError("fit: the classifier of ends diverged; look at the data")
        return cls._make((*(w.detach() for w in model[:-1]), base.float()))

    def log_odds(self, inputs: Tensor) -> Tensor:
        """Of an end, for rows ``(M, n, inputs)``: ``(M, n)``."""
        hidden = F.silu(torch.baddbmm(self.b1, inputs, self.w1))
        hidden = F.silu(torch.baddbmm(self.b2, hidden, self.w2))
        return torch.baddbmm(self.b3, hidden, self.w3)[..., 0] + self.base

    def draw(self, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Flags, 0 or 1, for rows ``(M, n, inputs)``: ``(M, n)``."""
        chance = torch.rand(inputs.shape[:2], device=inputs.device, generator=rng, dtype=torch.float32)
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
            if bool(state[name].isnan().any()):
                raise CheckpointError(f"state: {name} of a classifier of ends is not a number")
        return cls(**{name: state[name].to(device, torch.float32, copy=True) for name in expected})

    @classmethod
    def _initial(cls, stack: int, inputs: int, rng: torch.Generator) -> EndClassifier:
        def layer(fan_in: int, fan_out: int) -> tuple[Tensor, Tensor]:
            weight = torch.randn(stack, fan_in, fan_out, device=rng.device, generator=rng, dtype=torch.float32)
            return weight * (_FIRST_SCALE / math.sqrt(fan_in)), weight.new_zeros(stack, 1, fan_out)

        layers = (*layer(inputs, _WIDTH), *layer(_WIDTH, _WIDTH), *layer(_WIDTH, 1))
        return cls(*layers, layers[0].new_zeros(stack, 1))


def _places(kinds: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """`count` places of each kind, where ``(M, K)`` rows of the kinds follow each other: ``(M, K * count)``.

    Where there is none of a kind, another row stands in, whose weight is to be zero.
    """
    # float64: float32 has too few values to reach the rows of a large buffer evenly
    share = torch.rand(*kinds.shape, count, device=rng.device, generator=rng, dtype=torch.float64)
    first = kinds.cumsum(1) - kinds
    places = (first[..., None] + (share * kinds[..., None]).long()).flatten(1)
    return torch.minimum(places, kinds.sum(1, keepdim=True) - 1)
