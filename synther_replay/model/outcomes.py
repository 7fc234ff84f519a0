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
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from synther_replay.common.mlp import Layers, Shape
from synther_replay.common.seeding import generator_for
from synther_replay.common.stacks import take_rows
from synther_replay.data.levels import MAX_LEVELS, nearest_level
from synther_replay.diffusion.optimiser import StackAdam
from synther_replay.diffusion.stopping import BestModels
from synther_replay.errors import CheckpointError, DivergedError
from synther_replay.model.termination_bounds import TerminationBounds

_WIDTH = 128
_BATCH = 512  # or as many as there are rows
STEPS, _MOST_STEPS = 600, 2_000  # gradient steps from new weights: usual and most
_REFIT_SHARE = 4  # one in this many of them for a fit that starts from the weights of the last one
_BLOCK = 50  # steps between held-out evaluations, whose batches are drawn at once
_LEARNING_RATE, _REFIT_RATE = 1e-2, 3e-3  # initial value; cosine annealing to zero
_BETAS, _CLIP = (0.9, 0.999), 100.0  # of Adam
_INITIAL_SCALE = 0.03  # of the weights: small ones grow only for the few informative inputs
_HELD_OUT = 10  # one row in this many is held out
_EVALUATED = 4_096  # held-out rows per evaluation and model, over all outcomes
_HARD_SHARE = 0.1  # of all rows, at most half
_NEGLIGIBLE = 1e-20  # smaller errors count as 0: products with denormal numbers take a CPU twenty times as long
_CHUNK = {"cpu": 4_096, "gpu": 16_384}  # rows classified at once, over all models: some 8 and 30 MB of activations
_MOST_COPIES = 10  # of one generated row, to reach the share of its outcome
_MOST_OUTCOMES = 2 * MAX_LEVELS
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
        inputs = _Inputs(codes, features)
        warm = previous is not None and previous._has(outcomes)
        first = previous.weights if previous is not None and warm else _initial(inputs.width, outcomes, rng)
        steps = -(-min(steps, _MOST_STEPS) // (_REFIT_SHARE if warm else 1) // _BLOCK) * _BLOCK
        rate, find_hard_at = (_REFIT_RATE, 0) if warm else (_LEARNING_RATE, steps // 3 // _BLOCK * _BLOCK)
        blocks = inputs.split(_rows_at_once(number))
        bounds = TerminationBounds.find(blocks, number, outcomes.terminated > 0, inputs.of_model)
        model = cls(first.clone(), *outcomes, bounds)
        optimiser = StackAdam(model.weights, torch.float32, betas=_BETAS, clip=_CLIP)
        best = BestModels({"weights": model.weights}, patience=None)
        rows = _Rows(number, outcomes.shares, rng)
        held_out, importance = rows.held_out()
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
                    rows.find_hard(model._uncertainty(inputs, number))
                progress = torch.arange(done, done + _BLOCK, dtype=torch.float64, device=codes.device)
                annealed = rate * 0.5 * (1 + (progress * (math.pi / steps)).cos())
                rates = optimiser.bias_corrected(annealed, progress + 1)
                model._train_block(optimiser, rates, inputs, number, rows)
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
    ) -> None:
        """Draw the outcomes of generated rows, match their shares to the real ones, and set reward and `terminated`.

        Args:
            rows: Generated rows ``(M, n, dim)``, changed in place.
            features: Maps rows to inputs of the classifier.
            columns: Columns of reward and `terminated`.
            seed: Random seed.
            match_shares: False for rows that are meant to be distributed otherwise, because they have conditions.
        """
        rng = generator_for(rows.device, seed)
        drawn = [self._draw(features(block), rng) for block in rows.split(_rows_at_once(rows), dim=1)]
        by_bounds, classified = torch.cat(drawn, dim=-1)
        number = self._chosen(by_bounds, classified) if match_shares else by_bounds
        for model, own in enumerate(number if match_shares else ()):
            replaced, source = _to_match(own, self.shares[model], rng)
            rows[model, replaced] = rows[model, source]
            own[replaced] = own[source]
        reward, terminated = columns
        rewards = self.rewards.gather(1, number)
        rows[..., reward] = torch.where(rewards.isnan(), rows[..., reward], rewards)
        rows[..., terminated] = self.terminated.gather(1, number)

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

    def _train_block(self, optimiser: StackAdam, rates: Tensor, inputs: _Inputs, number: Tensor, rows: _Rows) -> None:
        """Take a gradient step for each of the `rates`, on batches that are drawn at once."""
        batch = rows.batch_size
        chosen, weight = rows.draw(len(rates) * batch)
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

    def _draw(self, inputs: Tensor, rng: torch.Generator) -> Tensor:
        """Draw the number of each row's outcome, ``(M, n, inputs) -> (2, M, n)``: by bounds, and by the classifier.

        By bounds, rows within do not have the outcomes whose bounds are complete. Both times rows beyond one terminate.
        """
        logits, beyond = self.logits(inputs), self.bounds.beyond(inputs)[..., None]
        ends, complete = self.terminated[:, None] > 0, self.bounds.complete[:, None] > 0
        classified = logits.masked_fill(beyond & ~ends, -math.inf)
        by_bounds = classified.masked_fill(~beyond & complete & ends, -math.inf)
        cumulative = torch.stack((by_bounds, classified)).softmax(-1).cumsum(-1)
        # float64: the product with a sum of 1 must stay below it, or an outcome that never occurs could be drawn
        chance = torch.rand(*inputs.shape[:2], 1, device=inputs.device, generator=rng, dtype=torch.float64)
        return (chance * cumulative[..., -1:] >= cumulative[..., :-1]).sum(-1)

    def _chosen(self, by_bounds: Tensor, classified: Tensor) -> Tensor:
        """The outcomes by bounds, unless far too few rows of a large draw lie beyond them; see `_draw`."""
        found = self.terminated.gather(1, by_bounds).sum(1)
        wanted = (self.shares * self.terminated).sum(1) * by_bounds.shape[1]
        too_few = (wanted >= _MOST_COPIES) & (found * _MOST_COPIES < wanted)
        return torch.where(too_few[:, None], classified, by_bounds)

    def _uncertainty(self, inputs: _Inputs, number: Tensor) -> Tensor:
        """Loss plus entropy of each row, ``(M, n)``."""
        size = _rows_at_once(number)
        found = []
        for part, own in zip(inputs.split(size), number.split(size, dim=1), strict=True):
            log_p = self.logits(part).log_softmax(-1)
            entropy = -(log_p.exp() * log_p.clamp(min=-100)).sum(-1)
            found.append(entropy - log_p.gather(-1, own[..., None])[..., 0])
        return torch.cat(found, dim=1)


class _Inputs(NamedTuple):
    """Inputs of the classifier, computed from some rows of codes at a time: all of them would be a second matrix."""

    codes: Tensor  # (M, n, codes)
    features: Callable[[Tensor], Tensor]

    @property
    def width(self) -> int:
        """Number of inputs."""
        return self.features(self.codes[:, :0]).shape[2]

    def take(self, rows: Tensor) -> Tensor:
        """Inputs of the rows ``(M, k)``."""
        return self.features(take_rows(self.codes, rows))

    def of_model(self, model: int, rows: Tensor) -> Tensor:
        """Inputs of the rows ``(k,)`` of a model, ``(k, inputs)``."""
        return self.features(self.codes[model : model + 1, rows])[0]

    def split(self, size: int) -> Iterator[Tensor]:
        """Inputs of all rows, `size` at a time."""
        return (self.features(part) for part in self.codes.split(size, dim=1))


class _Rows:
    """Random batches of rows by outcome; a tenth of each outcome's rows is held out."""

    def __init__(self, number: Tensor, shares: Tensor, rng: torch.Generator) -> None:
        """Sort the rows by outcome, in random order within each."""
        self._rng, self._number, self._shares = rng, number, shares
        self.batch_size = min(_BATCH, number.shape[1])
        chance = torch.rand(number.shape, device=rng.device, generator=rng, dtype=torch.float32)
        self._order = (number + chance / 2).argsort(dim=1, stable=True)
        self._counts = (shares.double() * number.shape[1]).round().long()
        self._first = self._counts.cumsum(1) - self._counts
        self._held = ((self._counts + _HELD_OUT - 1) // _HELD_OUT).minimum(self._counts - 1).clamp(min=0)
        present = (shares > 0).float()
        self._chance = (shares + present / present.sum(1, keepdim=True)) / 2  # of an outcome in a batch
        self._hard: Tensor | None = None

    def held_out(self) -> tuple[Tensor, Tensor]:
        """Held-out rows ``(M, B)`` and their weights, with which their losses add up to the mean of all rows."""
        each = max(1, _EVALUATED // self._shares.shape[1])
        outcome = torch.arange(self._shares.shape[1], device=self._shares.device).repeat_interleave(each)
        outcome = outcome.expand(len(self._shares), -1)
        rows = self._pick(outcome, self._first, self._held)
        return rows, (self._shares * (self._held > 0) / each).gather(1, outcome)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Training rows ``(M, count)`` in random order and the weights that correct for how often they are drawn."""
        trained = self._counts - self._held
        outcome = torch.multinomial(self._chance, count, replacement=True, generator=self._rng)
        rows = self._pick(outcome, self._first + self._held, trained)
        share = 0.0
        if self._hard is not None:  # a third of the rows are hard ones
            share = 1 / 3
            place = torch.randint(self._hard.shape[1], rows.shape, device=rows.device, generator=self._rng)
            chance = torch.rand(rows.shape, device=rows.device, generator=self._rng, dtype=torch.float32)
            rows = torch.where(chance < share, self._hard.gather(1, place), rows)
        density = (1 - share) * (self._chance / trained.clamp(min=1)).gather(1, self._number.gather(1, rows))
        if self._hard is not None:
            density += self._is_hard.gather(1, rows) * (share / self._hard.shape[1])
        return rows, 1 / (density * trained.sum(1, keepdim=True))

    def find_hard(self, uncertainty: Tensor) -> None:
        """Draw the training rows with the highest uncertainty, ``(M, n)``, more often from now on."""
        position = torch.arange(uncertainty.shape[1], device=uncertainty.device)
        number = self._number.gather(1, self._order)
        held = position - self._first.gather(1, number) < self._held.gather(1, number)
        uncertainty = uncertainty.masked_fill(torch.zeros_like(held).scatter_(1, self._order, held), -math.inf)
        count = max(1, min(uncertainty.shape[1] // 2, max(_BATCH, int(_HARD_SHARE * uncertainty.shape[1]))))
        self._hard = uncertainty.topk(count, dim=1).indices
        self._is_hard = torch.zeros_like(uncertainty).scatter_(1, self._hard, 1.0)

    def _pick(self, outcome: Tensor, first: Tensor, sizes: Tensor) -> Tensor:
        """Random rows with the given outcomes ``(M, B)``; another row if there is none, its weight must be zero."""
        # float64: float32 has too few values for uniform indices into a large buffer
        share = torch.rand(outcome.shape, device=outcome.device, generator=self._rng, dtype=torch.float64)
        size = sizes.gather(1, outcome)
        place = first.gather(1, outcome) + (share * size).long().minimum(size - 1)
        return self._order.gather(1, place.clamp(0, self._order.shape[1] - 1))


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


def _to_match(number: Tensor, shares: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows to replace and the rows to copy there, so that outcomes come as often as in the real data.

    Args:
        number: Outcome of each row, ``(n,)``.
        shares: Shares of the outcomes, ``(K,)``.
        rng: Random generator.

    Returns:
        Two index tensors. An outcome that was not generated at all stays missing; a row is copied at most ten times.
    """
    n, have = len(number), torch.bincount(number, minlength=len(shares))
    offset = torch.rand(1, device=rng.device, generator=rng, dtype=torch.float64)
    ends = shares.double().cumsum(0) / shares.double().sum() * n + offset
    ends = ends.floor().clamp(max=n)  # rounds without bias to a sum of n
    wanted = torch.diff(ends, prepend=offset.floor()).long()
    missing = (wanted.minimum(have * _MOST_COPIES) - have).clamp(min=0)
    total = int(missing.sum())
    shuffled = torch.randperm(n, device=rng.device, generator=rng)
    shuffled = shuffled[number[shuffled].argsort(stable=True)]  # by outcome, in random order within each
    first = have.cumsum(0) - have
    own = number[shuffled]
    surplus = shuffled[torch.arange(n, device=number.device) - first[own] >= wanted[own]]
    replaced = surplus[torch.randperm(len(surplus), device=rng.device, generator=rng)[:total]]
    outcome = torch.arange(len(shares), device=number.device).repeat_interleave(missing)
    turn = torch.arange(total, device=number.device) - (missing.cumsum(0) - missing)[outcome]
    return replaced, shuffled[first[outcome] + turn % have[outcome]]  # all rows of an outcome in turn
