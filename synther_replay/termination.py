"""TerminationClassifier: predicts `terminated` from observation, action and next observation.

Terminations are rare and only one column among many, so the denoiser learns their rate but not their location well.
They nearly always follow from the state (for example a body that is too low), so a small classifier on noise-free rows
finds them. The reward is not an input: many tasks change it at termination, which would identify all real terminations
but not the generated ones, whose rewards are only approximate.

Training has two phases. In the first, half of each batch is terminated. The classifier then ranks the rows that are not
terminated, and the most similar ones become hard negatives. In the second phase, terminated rows, hard negatives and
other rows are drawn equally often and weighted by their true frequency, so that the predicted termination rate is
calibrated. A tenth of the rows is held out; the weights with the lowest held-out loss are kept, because few
terminations are quickly memorised.
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
_STEPS = (500, 1_500)  # gradient steps of the two phases
_LEARNING_RATE = 3e-3  # initial value; cosine annealing to zero over both phases
_INITIAL_SCALE = 0.03  # of the weights: small ones grow only for the few informative inputs
_HARD_NEGATIVES = 10  # per terminated row
_HELD_OUT = 10  # one row in this many is held out
_EVALUATE_EVERY = 50  # steps between held-out evaluations
_EVALUATED = 16_384  # maximum number of held-out rows of each class, over all models
_CHUNK = 65_536  # rows classified at once, over all models
_MAX_LOG_ODDS = 30.0  # finite log-odds in training if a class is empty


class TerminationClassifier(NamedTuple):
    """M classifiers, one per model of a stack; immutable, `fit` makes a new one."""

    w1: Tensor  # (M, inputs, width)
    b1: Tensor  # (M, 1, width)
    w2: Tensor  # (M, width, width)
    b2: Tensor  # (M, 1, width)
    w3: Tensor  # (M, width, 1)
    b3: Tensor  # (M, 1, 1)
    base: Tensor  # (M, 1), log-odds of the termination rate in the data

    @classmethod
    def fit(cls, inputs: Tensor, terminated: Tensor, *, batch_size: int, seed: int) -> TerminationClassifier:
        """Train one classifier per model.

        Args:
            inputs: Features of the rows, ``(M, n, inputs)``.
            terminated: Flags of the rows, 0 or 1, ``(M, n)``.
            batch_size: Rows per step.
            seed: Random seed; results are deterministic per device.

        Raises:
            DivergedError: A weight became non-finite.
        """
        rng = generator_for(inputs.device, seed)
        positives = terminated.sum(1, keepdim=True).long()
        counts = torch.cat((terminated.shape[1] - positives, positives), dim=1)  # (M, 2): negatives, positives
        held = ((counts + _HELD_OUT - 1) // _HELD_OUT).minimum(counts - 1).clamp(min=0)
        trained = counts - held
        base = positives.double().log() - counts[:, :1].double().log()  # infinite if a class is empty
        # Order of the rows: held-out negatives, training negatives, training positives, held-out positives.
        chance = torch.rand(terminated.shape, device=rng.device, generator=rng, dtype=torch.float32)
        in_order = (terminated + chance / 2).argsort(dim=1, stable=True)
        held_first = torch.cat((torch.zeros_like(positives), terminated.shape[1] - held[:, 1:]), dim=1)
        with torch.enable_grad(), torch.autocast(inputs.device.type, enabled=False):
            untrained = cls._initial(inputs.shape[0], inputs.shape[2], rng)
            optimiser = torch.optim.Adam([w.requires_grad_() for w in untrained[:-1]], lr=_LEARNING_RATE)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, sum(_STEPS))
            model = untrained._replace(base=base.clamp(-_MAX_LOG_ODDS, _MAX_LOG_ODDS).float())

            def losses(of: TerminationClassifier, chosen: Tensor, count: int) -> Tensor:
                """Mean loss of each of K classes with `count` rows each: indices ``(M, K * count)`` to ``(M, K)``."""
                rows = inputs.gather(1, chosen[..., None].expand(-1, -1, inputs.shape[2]))
                loss = F.binary_cross_entropy_with_logits(
                    of.log_odds(rows), terminated.gather(1, chosen), reduction="none"
                )
                return loss.view(len(loss), -1, count).mean(2)

            count = max(1, min(int(held.max()), _EVALUATED // len(inputs)))
            held_out = in_order.gather(1, _draw(held_first, held, count, rng))
            weights = {name: getattr(model, name).detach() for name in cls._fields[:-1]}  # share memory with the model
            best = BestModels(weights, patience=None)

            @torch.no_grad()
            def evaluate() -> None:
                best.measure((losses(model, held_out, count) * counts * (held > 0)).sum(1))

            def train(of: TerminationClassifier, steps: int, first: Tensor, sizes: Tensor, weight: Tensor) -> None:
                """Train on equal shares of K classes, given by first position, size and weight, ``(M, K)`` each."""
                share = -(-batch_size // sizes.shape[1])
                for step in range(1, steps + 1):
                    chosen = in_order.gather(1, _draw(first, sizes, share, rng))
                    optimiser.zero_grad()
                    (losses(of, chosen, share) * weight).sum().backward()
                    optimiser.step()
                    schedule.step()
                    if step % _EVALUATE_EVERY == 0 or step == steps:
                        evaluate()

            evaluate()  # before training: the base rate is best if the features are uninformative
            first = torch.cat((held[:, :1], counts[:, :1]), dim=1)
            train(untrained, _STEPS[0], first, trained, trained.clamp(max=1))

            hard = torch.minimum(trained[:, :1] // 2, _HARD_NEGATIVES * trained[:, 1:])
            in_order = _sort_by_log_odds(model, inputs, in_order, first[:, :1], first[:, 1:])
            sizes = torch.cat((trained[:, :1] - hard, hard, trained[:, 1:]), dim=1)
            first = torch.cat((held[:, :1], counts[:, :1] - hard, counts[:, :1]), dim=1)
            train(model, _STEPS[1], first, sizes, sizes / trained[:, 1:].clamp(min=1))
        if not all(bool(w.isfinite().all()) for w in model):
            raise DivergedError("fit: the termination classifier diverged (non-finite weights); check the data")
        best.restore()
        return cls(**weights, base=base.float())

    def log_odds(self, inputs: Tensor) -> Tensor:
        """Return the log-odds of termination, ``(M, n, inputs) -> (M, n)``."""
        hidden = F.silu(torch.baddbmm(self.b1, inputs, self.w1))
        hidden = F.silu(torch.baddbmm(self.b2, hidden, self.w2))
        return torch.baddbmm(self.b3, hidden, self.w3)[..., 0] + self.base

    def draw(self, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Draw termination flags, 0 or 1, ``(M, n, inputs) -> (M, n)``."""
        chance = torch.rand(inputs.shape[:2], device=inputs.device, generator=rng, dtype=torch.float32)
        return (chance < self.log_odds(inputs).sigmoid()).float()

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all tensors."""
        return {name: tensor.clone() for name, tensor in self._asdict().items()}

    @classmethod
    def from_state(cls, state: dict[str, Any], stack: int, inputs: int, device: torch.device) -> TerminationClassifier:
        """Inverse of `state_dict`; raises `CheckpointError` if names or shapes differ."""
        expected = cls._initial(stack, inputs, torch.Generator())._asdict()
        if state.keys() != expected.keys():
            raise CheckpointError(f"state: termination classifier: got {sorted(state)}, expected {sorted(expected)}")
        for name, tensor in expected.items():
            if not isinstance(state[name], Tensor) or state[name].shape != tensor.shape:
                got = tuple(getattr(state[name], "shape", ()))
                raise CheckpointError(
                    f"state: termination classifier: {name}: got shape {got}, expected {tuple(tensor.shape)}"
                )
            if bool(state[name].isnan().any()):
                raise CheckpointError(f"state: termination classifier: {name} holds NaN")
        return cls(**{name: state[name].to(device, torch.float32, copy=True) for name in expected})

    @classmethod
    def _initial(cls, stack: int, inputs: int, rng: torch.Generator) -> TerminationClassifier:
        def layer(fan_in: int, fan_out: int) -> tuple[Tensor, Tensor]:
            weight = torch.randn(stack, fan_in, fan_out, device=rng.device, generator=rng, dtype=torch.float32)
            return weight * (_INITIAL_SCALE / math.sqrt(fan_in)), weight.new_zeros(stack, 1, fan_out)

        layers = (*layer(inputs, _WIDTH), *layer(_WIDTH, _WIDTH), *layer(_WIDTH, 1))
        return cls(*layers, layers[0].new_zeros(stack, 1))


def _sort_by_log_odds(
    model: TerminationClassifier, inputs: Tensor, in_order: Tensor, first: Tensor, after: Tensor
) -> Tensor:
    """Sort the positions from `first` up to `after`, ``(M, 1)`` each, of the order by log-odds of termination."""
    with torch.no_grad():
        chunks = inputs.split(max(1, _CHUNK // len(inputs)), dim=1)
        log_odds = torch.cat([model.log_odds(chunk) for chunk in chunks], dim=1).gather(1, in_order)
    position = torch.arange(in_order.shape[1], device=in_order.device)
    log_odds = torch.where(position < first, -math.inf, torch.where(position < after, log_odds, math.inf))
    return in_order.gather(1, log_odds.argsort(dim=1, stable=True))


def _draw(first: Tensor, sizes: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Draw `count` positions of each class, given by first position and size, ``(M, K)`` each: ``(M, K * count)``.

    For an empty class another row is returned; its weight must be zero.
    """
    # float64: float32 has too few values for uniform indices into a large buffer
    share = torch.rand(*sizes.shape, count, device=rng.device, generator=rng, dtype=torch.float64)
    positions = first[..., None] + (share * sizes[..., None]).long()
    return positions.minimum((first + sizes - 1)[..., None]).clamp(min=0).flatten(1)
