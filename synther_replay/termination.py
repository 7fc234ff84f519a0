"""Where episodes end: a classifier that tells from the rest of a row whether it is `terminated`.

A denoiser sees rare ends rarely, and then as one column among many: it learns how often they are, but not well where.
They nearly always follow from what happened, such as a body that is too low, so a small network that looks at rows
without noise finds them. Of the reward it knows nothing. Many tasks pay another reward with the end, by which all ends
of real rows are easily told; but a generated reward is only nearly right, and so would be the ends.

It learns in two rounds. In the first, half of the rows that it sees have an end; what it says then picks out those
without one that look most as if they had. In the second it sees rows of three kinds equally often, those with an end,
doubtful ones and others, each kind weighted by how many there are, so that it says how many end in truth. A tenth of
the rows is kept out of both, to keep the weights that do best there: few ends are soon learnt by heart.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from synther_replay.common.seeding import generator_for
from synther_replay.diffusion.stopping import BestModels
from synther_replay.errors import CheckpointError, DivergedError

_WIDTH = 256
_STEPS = (500, 1_500)  # of the two rounds
_LEARNING_RATE = 3e-3  # annealed to zero by a cosine over both
_FIRST_SCALE = 0.03  # of the weights: small ones grow only for the few inputs that tell the ends
_DOUBTFUL = 10  # so many rows without an end are picked out for each that has one
_TENTH = 10  # one row in so many is held out
_EXAMINE_EVERY = 50  # steps between two looks at these rows ...
_EXAMINED = 16_384  # ... or, of all models together, at so many of each kind, drawn once
_CHUNK = 65_536  # rows, of all models together, judged at a time
_SURE = 30.0  # log-odds of what is certain, as far as training needs a number for it


class TerminationClassifier(NamedTuple):
    """M classifiers, one for each model of a stack; a fit makes a new one."""

    w1: Tensor  # (M, inputs, width)
    b1: Tensor  # (M, 1, width)
    w2: Tensor  # (M, width, width)
    b2: Tensor  # (M, 1, width)
    w3: Tensor  # (M, width, 1)
    b3: Tensor  # (M, 1, 1)
    base: Tensor  # (M, 1), the log-odds of an end before anything is known of the row

    @classmethod
    def fit(cls, inputs: Tensor, ends: Tensor, *, batch_size: int, seed: int) -> TerminationClassifier:
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
        with_end = ends.sum(1, keepdim=True).long()
        kinds = torch.cat((ends.shape[1] - with_end, with_end), dim=1)  # how many are without an end, and with one
        held = ((kinds + _TENTH - 1) // _TENTH).minimum(kinds - 1).clamp(min=0)
        learnt = kinds - held
        base = with_end.double().log() - kinds[:, :1].double().log()  # infinite where there is but one kind
        # First those without an end, the held-out ones in front; then those with one, the held-out ones at the back.
        chance = torch.rand(ends.shape, device=rng.device, generator=rng, dtype=torch.float32)
        in_order = (ends + chance / 2).argsort(dim=1, stable=True)
        held_first = torch.cat((torch.zeros_like(with_end), ends.shape[1] - held[:, 1:]), dim=1)
        with torch.enable_grad(), torch.autocast(inputs.device.type, enabled=False):
            untrained = cls._initial(inputs.shape[0], inputs.shape[2], rng)
            optimiser = torch.optim.Adam([w.requires_grad_() for w in untrained[:-1]], lr=_LEARNING_RATE)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, sum(_STEPS))
            model = untrained._replace(base=base.clamp(-_SURE, _SURE).float())

            def losses(of: TerminationClassifier, chosen: Tensor, count: int) -> Tensor:
                """Of rows ``(M, K * count)``, the mean of each kind: ``(M, K)``."""
                rows = inputs.gather(1, chosen[..., None].expand(-1, -1, inputs.shape[2]))
                loss = F.binary_cross_entropy_with_logits(of.log_odds(rows), ends.gather(1, chosen), reduction="none")
                return loss.view(len(loss), -1, count).mean(2)

            count = max(1, min(int(held.max()), _EXAMINED // len(inputs)))
            examined = in_order.gather(1, _places(held_first, held, count, rng))
            weights = {name: getattr(model, name).detach() for name in cls._fields[:-1]}  # change as they are trained
            best = BestModels(weights, patience=None)

            @torch.no_grad()
            def examine() -> None:
                best.measure((losses(model, examined, count) * kinds * (held > 0)).sum(1))

            def learn(of: TerminationClassifier, steps: int, first: Tensor, sizes: Tensor, weight: Tensor) -> None:
                """Take steps with as many rows of each kind, which begin at `first` and are so many, ``(M, K)``."""
                share = -(-batch_size // sizes.shape[1])
                for step in range(1, steps + 1):
                    chosen = in_order.gather(1, _places(first, sizes, share, rng))
                    optimiser.zero_grad()
                    (losses(of, chosen, share) * weight).sum().backward()
                    optimiser.step()
                    schedule.step()
                    if step % _EXAMINE_EVERY == 0 or step == steps:
                        examine()

            examine()  # before anything is learnt: where nothing tells the ends, nothing does better
            first = torch.cat((held[:, :1], kinds[:, :1]), dim=1)
            learn(untrained, _STEPS[0], first, learnt, learnt.clamp(max=1))

            doubtful = torch.minimum(learnt[:, :1] // 2, _DOUBTFUL * learnt[:, 1:])
            in_order = _by_likeness(model, inputs, in_order, first[:, :1], first[:, 1:])
            sizes = torch.cat((learnt[:, :1] - doubtful, doubtful, learnt[:, 1:]), dim=1)
            first = torch.cat((held[:, :1], kinds[:, :1] - doubtful, kinds[:, :1]), dim=1)
            learn(model, _STEPS[1], first, sizes, sizes / learnt[:, 1:].clamp(min=1))
        if not all(bool(w.isfinite().all()) for w in model):
            raise DivergedError("fit: the classifier of ends diverged; look at the data")
        best.restore()
        return cls(**weights, base=base.float())

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
    def from_state(cls, state: dict[str, Any], stack: int, inputs: int, device: torch.device) -> TerminationClassifier:
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
    def _initial(cls, stack: int, inputs: int, rng: torch.Generator) -> TerminationClassifier:
        def layer(fan_in: int, fan_out: int) -> tuple[Tensor, Tensor]:
            weight = torch.randn(stack, fan_in, fan_out, device=rng.device, generator=rng, dtype=torch.float32)
            return weight * (_FIRST_SCALE / math.sqrt(fan_in)), weight.new_zeros(stack, 1, fan_out)

        layers = (*layer(inputs, _WIDTH), *layer(_WIDTH, _WIDTH), *layer(_WIDTH, 1))
        return cls(*layers, layers[0].new_zeros(stack, 1))


def _by_likeness(
    model: TerminationClassifier, inputs: Tensor, in_order: Tensor, first: Tensor, after: Tensor
) -> Tensor:
    """The order with the rows from `first` up to `after`, ``(M, 1)``, sorted by how much they look like an end."""
    with torch.no_grad():
        chunks = inputs.split(max(1, _CHUNK // len(inputs)), dim=1)
        likeness = torch.cat([model.log_odds(chunk) for chunk in chunks], dim=1).gather(1, in_order)
    place = torch.arange(in_order.shape[1], device=in_order.device)
    likeness = torch.where(place < first, -math.inf, torch.where(place < after, likeness, math.inf))
    return in_order.gather(1, likeness.argsort(dim=1, stable=True))


def _places(first: Tensor, sizes: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """`count` places of each kind, which begin at `first` and are so many, ``(M, K)``: ``(M, K * count)``.

    Where there is none of a kind, another row stands in, whose weight is to be zero.
    """
    # float64: float32 has too few values to reach the rows of a large buffer evenly
    share = torch.rand(*sizes.shape, count, device=rng.device, generator=rng, dtype=torch.float64)
    places = first[..., None] + (share * sizes[..., None]).long()
    return places.minimum((first + sizes - 1)[..., None]).clamp(min=0).flatten(1)
