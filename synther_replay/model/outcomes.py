"""OutcomeModel: how generated transitions end, and which of a few rewards they get.

An outcome is a pair of reward and `terminated` if the rewards of the data have few values (see `data.levels`), else
`terminated` alone. Outcomes are rare, sharp functions of the rest of the row, for example a body that is too low. The
denoiser blurs them, so a small classifier that is trained on noise-free rows sets them, given all other columns. Reward
and `terminated` are drawn together and therefore agree. Where bounds tell which rows terminate (see
`termination_bounds`), they overrule it. Generated rows of the outcomes that came out too often are then
replaced by copies of rows whose outcome came out too rarely, so that every outcome has its share of the real rows.

The reward is no input of the classifier: where it changes at the end of an episode, it would identify all real
terminations but not the generated ones, whose rewards are only approximate.

Training has two phases. In the first, half of each batch is drawn from all rows and half from all outcomes equally
often. In the second, a third of each batch are hard rows, those that the classifier is least sure of. Weights correct
for both, so the predicted shares are calibrated. A tenth of the rows is held out; the weights with the lowest held-out
loss are kept, because few rows of a rare outcome are quickly memorised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from synther_replay.common.mlp import Layers, Shape
from synther_replay.common.seeding import generator_for
from synther_replay.common.stacks import prefix_sums
from synther_replay.data.levels import MAX_LEVELS, nearest_level
from synther_replay.diffusion.optimiser import StackAdam
from synther_replay.diffusion.stopping import BestModels
from synther_replay.errors import CheckpointError, DivergedError
from synther_replay.model.outcome_batches import OutcomeBatches
from synther_replay.model.outcome_inputs import Inputs
from synther_replay.model.share_matching import MOST_COPIES, copies_to_match
from synther_replay.model.termination_bounds import TerminationBounds

_WIDTH = 128
STEPS, _MOST_STEPS = 600, 2_000  # gradient steps from new weights: usual and most
_REFIT_SHARE = 4  # one in this many of them for a fit that starts from the weights of the last one
_BLOCK = 50  # steps between held-out evaluations, whose batches are drawn at once
_LEARNING_RATE, _REFIT_RATE = 1e-2, 3e-3  # initial value; cosine annealing to zero
_BETAS, _CLIP = (0.9, 0.999), 100.0  # of Adam
_INITIAL_SCALE = 0.03  # of the weights: small ones grow only for the few informative inputs
_NEGLIGIBLE = 1e-20  # smaller errors count as 0: products with denormal numbers take a CPU twenty times as long
_CHUNK = {"cpu": 4_096, "gpu": 16_384}  # rows classified at once, over all models: some 8 and 30 MB of activations
_MOST_OUTCOMES = 2 * MAX_LEVELS
_DOUBT = 0.1  # chance of a rare outcome from which on a row is in doubt ...
_MANY_TIMES = 10  # ... if it is so many times the share of these outcomes: some occur by chance, anywhere
_TENSORS = ("weights", "rewards", "terminated", "shares")


class Outcomes(NamedTuple):
    """The K outcomes that occur in the data of M models."""

    rewards: Tensor  # (M, K), NaN if rewards are not part of the outcome
    terminated: Tensor  # (M, K), 0 or 1
    shares: Tensor  # (M, K), of the real rows; 0 if a model's data lacks the outcome

    @classmethod
    def of(cls, rewards: Tensor, terminated: Tensor, levels: Tensor | None) -> tuple[Outcomes, Tensor]:
        """Find the outcomes of rows.

        Args:
            rewards: Rewards ``(M, n)``.
            terminated: Flags, 0 or 1, ``(M, n)``.
            levels: Levels of the rewards, ``(M, MAX_LEVELS)``, padded with NaN; None: the reward is no part of them.

        Returns:
            The outcomes, and the number of each row's outcome, ``(M, n)``.
        """
        key = terminated.long()
        if levels is None:
            levels = torch.full((len(rewards), 1), torch.nan, dtype=torch.float32, device=rewards.device)
        else:
            key += 2 * nearest_level(rewards, levels)
        counts = torch.zeros(len(key), 2 * levels.shape[1], dtype=torch.long, device=key.device)
        counts.scatter_add_(1, key, torch.ones_like(key))
        present = (counts > 0).any(0).nonzero().flatten()
        number = torch.empty(counts.shape[1], dtype=torch.long, device=key.device)
        number[present] = torch.arange(len(present), device=key.device)
        found = cls(
            levels[:, present // 2],
            (present % 2).float().expand(len(key), -1).clone(),
            counts[:, present].float() / key.shape[1],
        )
        return found, number[key]


class OutcomeModel(NamedTuple):
    """M classifiers, one per model of a stack, and their outcomes; immutable, `fit` makes a new one."""

    weights: Tensor  # (M, P), see `common.mlp.Shape`
    rewards: Tensor  # (M, K), see `Outcomes`
    terminated: Tensor
    shares: Tensor
    bounds: TerminationBounds

    @property
    def told(self) -> Tensor:
        """Outcomes that the bounds tell, bool ``(M, K)``; see `TerminationBounds`."""
        return (self.bounds.complete > 0) & (self.terminated > 0)

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        codes: Tensor,
        outcomes: Outcomes,
        number: Tensor,
        *,
        seed: int,
        steps: int = STEPS,
        previous: OutcomeModel | None = None,
        features: Callable[[Tensor], Tensor] = lambda codes: codes,
    ) -> OutcomeModel:
        """Train one classifier per model.

        Args:
            codes: Codes of the rows, ``(M, n, codes)``.
            outcomes: The outcomes.
            number: Number of each row's outcome, ``(M, n)``.
            seed: Random seed; results are deterministic per device.
            steps: Gradient steps from new weights, rounded up to blocks of 50, at most 2,000.
            previous: Model whose weights training starts from if it has the same outcomes, with a quarter of the steps.
            features: Maps codes to inputs of the classifier; it gets some rows at a time.

        Raises:
            DivergedError: A weight became non-finite.
        """
        rng = generator_for(codes.device, seed)
        inputs = Inputs(codes, features)
        warm = previous is not None and previous._has(outcomes)
        first = previous.weights if previous is not None and warm else _initial(inputs.width, outcomes, rng)
        steps = -(-min(steps, _MOST_STEPS) // (_REFIT_SHARE if warm else 1) // _BLOCK) * _BLOCK
        rate, find_hard_at = (_REFIT_RATE, 0) if warm else (_LEARNING_RATE, steps // 3 // _BLOCK * _BLOCK)
        blocks = inputs.split(_rows_at_once(number))
        bounds = TerminationBounds.find(blocks, number, outcomes.terminated > 0, inputs.of_model)
        model = cls(first.clone(), *outcomes, bounds)
        optimiser = StackAdam(model.weights, torch.float32, betas=_BETAS, clip=_CLIP)
        best = BestModels({"weights": model.weights}, patience=None)
        batches = OutcomeBatches(number, outcomes.shares, rng)
        held_out, importance = batches.held_out()
        with torch.autocast(codes.device.type, enabled=False):
            held_out_inputs, held_out_numbers = inputs.take(held_out), number.gather(1, held_out)
            for done in range(0, steps + 1, _BLOCK):
                log_p = model.logits(held_out_inputs).log_softmax(-1)
                loss = -(log_p.gather(-1, held_out_numbers[..., None])[..., 0] * importance).sum(1)
                # Also before training: the real shares are best if the features say nothing. Not before a warm start,
                # which has been trained on some of the rows that are held out now.
                if done or not warm:
                    best.measure(loss)
                if done == steps:
                    break
                if done == find_hard_at:
                    batches.find_hard(model._uncertainty(inputs, number))
                progress = torch.arange(done, done + _BLOCK, dtype=torch.float64, device=codes.device)
                annealed = rate * 0.5 * (1 + (progress * (math.pi / steps)).cos())
                rates = optimiser.bias_corrected(annealed, progress + 1)
                model._train_block(optimiser, rates, inputs, number, batches)
        if not bool(model.weights.isfinite().all()):
            raise DivergedError("fit: the outcome model diverged (non-finite weights); check the data")
        best.restore()
        return model

    def logits(self, inputs: Tensor) -> Tensor:
        """Return the log of each outcome's probability up to a constant, ``(M, n, inputs) -> (M, n, K)``."""
        return _layers(self.weights, self.shares.shape[1]).forward(inputs)[-1] + self.shares.log()[:, None]

    def assign(
        self,
        rows: Tensor,
        features: Callable[[Tensor], Tensor],
        columns: tuple[int, int],
        seed: int,
        *,
        match_shares: bool = True,
        rare: Tensor | None = None,
    ) -> Tensor:
        """Draw the outcomes of generated rows, match their shares to the real ones, and set reward and `terminated`.

        Args:
            rows: Generated rows ``(M, n, dim)``, changed in place.
            features: Maps rows to inputs of the classifier.
            columns: Columns of reward and `terminated`.
            seed: Random seed.
            match_shares: False for rows that are meant to be distributed otherwise, because they have conditions.
            rare: If shares are matched, how likely an outcome must be for a row to have it, ``(M, K)``; 0 for outcomes
                that are drawn. The others may come too rarely, and rows that may have one are replaced.

        Returns:
            The number of each row's outcome, ``(M, n)``.
        """
        rng = generator_for(rows.device, seed)
        rare = torch.zeros_like(self.shares) if rare is None else rare
        drawn = [self._draw(features(block), rng, rare) for block in rows.split(_rows_at_once(rows), dim=1)]
        (by_bounds, classified), chances = (torch.cat(parts, dim=-1) for parts in zip(*drawn, strict=True))
        number = self._chosen(by_bounds, classified) if match_shares else by_bounds
        if match_shares:
            wanted, shares = self._without_doubt(number, chances, rare)
            for model, own in enumerate(number):
                replaced, source = copies_to_match(wanted[model], shares[model], rng)
                rows[model, replaced] = rows[model, source]
                own.copy_(torch.where(wanted[model] < self.shares.shape[1], wanted[model], own))
                own[replaced] = own[source]
        reward, terminated = columns
        rewards = self.rewards.gather(1, number)
        rows[..., reward] = torch.where(rewards.isnan(), rows[..., reward], rewards)
        rows[..., terminated] = self.terminated.gather(1, number)
        return number

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all tensors."""
        tensors = {**self._asdict(), **self.bounds._asdict()}
        del tensors["bounds"]
        return {name: tensor.clone() for name, tensor in tensors.items()}

    @classmethod
    def from_state(cls, state: dict[str, Any], stack: int, inputs: int, device: torch.device) -> OutcomeModel:
        """Inverse of `state_dict`, also of versions without bounds; raises `CheckpointError` if something differs."""
        if not isinstance(state, dict) or not state.keys() >= set(_TENSORS):
            raise CheckpointError(f"state: outcomes: got {state and sorted(state)}, expected {_TENSORS} and bounds")
        state = dict(state)
        rest = {name: state.pop(name) for name in state.keys() - set(_TENSORS)}
        shares = state["shares"]
        if shares.ndim != 2 or not 0 < shares.shape[1] <= _MOST_OUTCOMES or len(shares) != stack:
            raise CheckpointError(
                f"state: outcomes: shares: got shape {tuple(shares.shape)}, expected ({stack}, K <= {_MOST_OUTCOMES})"
            )
        for name, tensor in state.items():
            columns = _weights(inputs, shares.shape[1]) if name == "weights" else shares.shape[1]
            if tuple(tensor.shape) != (stack, columns):
                raise CheckpointError(
                    f"state: outcomes: {name}: got shape {tuple(tensor.shape)}, expected ({stack}, {columns})"
                )
            if name != "rewards" and not bool(tensor.isfinite().all()):
                raise CheckpointError(f"state: outcomes: {name} is not finite")
        if bool((shares < 0).any()) or not bool((shares.sum(1) > 0).all()):
            raise CheckpointError("state: outcomes: shares are negative or all zero")
        bounds = TerminationBounds.from_state(rest, (stack, inputs, shares.shape[1]), device)
        tensors = {name: tensor.to(device, torch.float32, copy=True) for name, tensor in state.items()}
        return cls(**tensors, bounds=bounds)

    def _has(self, outcomes: Outcomes) -> bool:
        """Whether each model distinguishes exactly these outcomes."""
        known, given = ((o.rewards, o.terminated, (o.shares > 0).float()) for o in (self, outcomes))
        return all(
            a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
            for a, b in zip(known, given, strict=True)
        )

    def _train_block(
        self, optimiser: StackAdam, rates: Tensor, inputs: Inputs, number: Tensor, batches: OutcomeBatches
    ) -> None:
        """Take a gradient step for each of the `rates`, on batches that are drawn at once."""
        batch = batches.batch_size
        chosen, weight = batches.draw(len(rates) * batch)
        parts = (inputs.take(chosen), number.gather(1, chosen)[..., None], weight[..., None] / batch)
        layers = _layers(optimiser.working, self.shares.shape[1])
        gradient = _layers(optimiser.gradient, self.shares.shape[1])
        prior = self.shares.log()[:, None]
        for rate, x, own, importance in zip(rates, *(part.split(batch, dim=1) for part in parts), strict=True):
            activations = layers.forward(x)
            error = (activations[-1] + prior).softmax(-1)
            error.scatter_add_(-1, own, error.new_full((), -1.0).expand(own.shape))
            error = F.hardshrink(error * importance, _NEGLIGIBLE)
            layers.backward(x, activations, error, gradient)
            optimiser.step(rate)

    def _draw(self, inputs: Tensor, rng: torch.Generator, rare: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the number of each row's outcome, ``(M, n, inputs) -> (2, M, n)``: by bounds, and by the classifier.

        By bounds, rows within do not have the outcomes whose bounds are complete. Both times rows beyond one terminate.

        Returns:
            The numbers; and the chance of a row to have one of the outcomes `rare`, with the number of the one that is
            likely enough, or K, ``(2, M, n)``; see `assign`.
        """
        logits, beyond = self.logits(inputs), self.bounds.beyond(inputs)[..., None]
        ends, complete = self.terminated[:, None] > 0, self.bounds.complete[:, None] > 0
        classified = logits.masked_fill(beyond & ~ends, -math.inf)
        by_bounds = classified.masked_fill(~beyond & complete & ends, -math.inf)
        probability = torch.stack((by_bounds, classified)).softmax(-1)
        cumulative = prefix_sums(probability, -1)
        # float64: the product with a sum of 1 must stay below it, or an outcome that never occurs could be drawn
        chance = torch.rand(*inputs.shape[:2], 1, device=inputs.device, generator=rng, dtype=torch.float64)
        number = (chance * cumulative[..., -1:] >= cumulative[..., :-1]).sum(-1)
        likely = probability[1] * (rare > 0)[:, None]
        enough = (likely > 0) & (likely >= rare[:, None])
        found = torch.where(enough.any(-1), enough.float().argmax(-1), self.shares.shape[1])
        return number, torch.stack((likely.sum(-1), found.float()))

    def _without_doubt(self, number: Tensor, chances: Tensor, rare: Tensor) -> tuple[Tensor, Tensor]:
        """Outcomes ``(M, n)`` and their shares ``(M, K + 1)``; rows in doubt have one more outcome, K.

        Args:
            number: The outcomes that were drawn.
            chances: See `_draw`.
            rare: See `assign`.
        """
        kinds, is_rare, (likely, found) = self.shares.shape[1], rare > 0, chances
        share = (self.shares * is_rare).sum(1, keepdim=True)
        doubtful = likely > (_MANY_TIMES * share).clamp(min=_DOUBT)
        doubtful &= doubtful.float().mean(1, keepdim=True) < 0.5  # else it says nothing
        number = number.masked_fill(doubtful | is_rare.gather(1, number), kinds)
        number = torch.where(found < kinds, found.long(), number)
        have = torch.stack([torch.bincount(own, minlength=kinds + 1)[:kinds] for own in number])
        shares = torch.where(is_rare, self.shares.minimum(have / number.shape[1]), self.shares)
        return number, F.pad(shares, (0, 1))

    def _chosen(self, by_bounds: Tensor, classified: Tensor) -> Tensor:
        """The outcomes by bounds, unless far too few rows of a large draw lie beyond them; see `_draw`."""
        found = self.terminated.gather(1, by_bounds).sum(1)
        wanted = (self.shares * self.terminated).sum(1) * by_bounds.shape[1]
        too_few = (wanted >= MOST_COPIES) & (found * MOST_COPIES < wanted)
        return torch.where(too_few[:, None], classified, by_bounds)

    def _uncertainty(self, inputs: Inputs, number: Tensor) -> Tensor:
        """Loss plus entropy of each row, ``(M, n)``."""
        size = _rows_at_once(number)
        found = []
        for part, own in zip(inputs.split(size), number.split(size, dim=1), strict=True):
            log_p = self.logits(part).log_softmax(-1)
            entropy = -(log_p.exp() * log_p.clamp(min=-100)).sum(-1)
            found.append(entropy - log_p.gather(-1, own[..., None])[..., 0])
        return torch.cat(found, dim=1)


def _initial(inputs: int, outcomes: Outcomes, rng: torch.Generator) -> Tensor:
    """Draw small weights, ``(M, P)``; biases are zero."""
    stack, count = outcomes.shares.shape
    flat = torch.zeros(stack, _weights(inputs, count), device=rng.device, dtype=torch.float32)
    for weight in Shape(inputs, _WIDTH, count).layers(flat)[::2]:
        weight.normal_(0, _INITIAL_SCALE / math.sqrt(max(1, weight.shape[1])), generator=rng)
    return flat


def _rows_at_once(rows: Tensor) -> int:
    """How many rows ``(M, n, ...)`` of each model are classified at once."""
    return max(1, _CHUNK["cpu" if rows.device.type == "cpu" else "gpu"] // len(rows))


def _layers(flat: Tensor, outcomes: int) -> Layers:
    """Views of weights ``(M, P)``, or of a gradient of the same layout."""
    inputs = (flat.shape[1] - Shape(0, _WIDTH, outcomes).parameters) // _WIDTH
    return Shape(inputs, _WIDTH, outcomes).layers(flat)


def _weights(inputs: int, outcomes: int) -> int:
    """Number of weights of one model, padded with zeros to a multiple of 8 for the kernel of Adam."""
    return -(-Shape(inputs, _WIDTH, outcomes).parameters // 8) * 8
