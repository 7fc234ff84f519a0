"""Curiosity: rows are relevant where a model of the dynamics is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from synther_replay.common.checks import whole_number
from synther_replay.common.mlp import Shape
from synther_replay.common.regression import Regression, in_blocks, initial_weights
from synther_replay.common.seeding import Stream, generator_for
from synther_replay.common.stacks import take_rows
from synther_replay.common.trees import on_cpu
from synther_replay.data.transitions import Transitions
from synther_replay.errors import DivergedError

_MOST_UPDATES = {"gpu": 10_000, "cpu": 1_000}
_LARGEST = 10.0  # standardised values are clipped: one outlier must not carry the whole gradient
_ROWS_AT_ONCE = 65_536  # bounds the memory of the prediction


@dataclass(frozen=True)
class Examples:
    """Rows as the forward model sees them, standardised over the real rows of now.

    Attributes:
        inputs: Observations and actions, ``(M, n, I)``.
        targets: Changes of the observations, ``(M, n, O)``. The change and not the next observation, which is nearly
            the observation itself where time steps are short.
    """

    inputs: Tensor
    targets: Tensor

    @classmethod
    def of(cls, transitions: Transitions) -> Examples:
        """Standardise transitions ``(M, n)`` or ``(n,)``."""
        spec, rows = transitions.spec, transitions.rows.detach().float()
        rows = rows[None] if rows.ndim == 2 else rows
        before, after = rows[..., spec.observations], rows[..., spec.next_observations]
        inputs = torch.cat((before, rows[..., spec.actions]), dim=-1)
        return cls(_standardised(inputs), _standardised(after - before))

    def errors(self, model: Regression) -> Tensor:
        """Mean squared error of each row over its columns, ``(M, n)``."""
        parts = zip(self.inputs.split(_ROWS_AT_ONCE, 1), self.targets.split(_ROWS_AT_ONCE, 1), strict=True)
        predicted = ((model.shape.predict(model.weights, x), y) for x, y in parts)
        return torch.cat([(out - y).square().mean(2) for out, y in predicted], dim=1)


class Curiosity:
    """The error of a forward model, which predicts the next observation from observation and action.

    The model is trained on the real rows before every refit, with as many updates as rows are new, so that it costs
    nothing between refits. If it diverges, it starts from nothing, and that refit is not guided.

    Args:
        hidden: Units of both hidden layers.
        batch_size: Rows per update.
        learning_rate: Learning rate of Adam.
        most_updates: Limit of the updates before one refit. None: 10,000 on a GPU, 1,000 on a CPU, some seconds each.
        seed: Seed of initial weights and batches.
    """

    is_self_contained = True

    def __init__(
        self,
        *,
        hidden: int = 256,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        most_updates: int | None = None,
        seed: int = 0,
    ) -> None:
        """Keep the settings; the model is made for the first rows."""
        self.hidden, self.batch_size = whole_number("hidden", hidden), whole_number("batch_size", batch_size)
        self.most_updates = None if most_updates is None else whole_number("most_updates", most_updates)
        self.seed = whole_number("seed", seed, least=0)
        if not isinstance(learning_rate, int | float) or not 0 < learning_rate < float("inf"):
            raise ValueError(f"learning_rate: expected a positive number, got {learning_rate!r}")
        self.learning_rate = float(learning_rate)
        self._model: Regression | None = None
        self._starts = 0  # models begun so far

    def reseed(self, seed: int) -> None:
        """Continue with another seed."""
        self.seed = whole_number("seed", seed, least=0)

    def reset(self) -> None:
        """Forget the model."""
        self._model = None

    @torch.inference_mode(mode=False)
    def learn(self, transitions: Transitions, new_rows: int) -> None:
        """Train on all real rows, with one update for each new one, up to the limit; to a new model all are new.

        Raises:
            DivergedError: A weight became non-finite; the model starts from nothing.
        """
        examples = Examples.of(transitions)
        model = self._model_for(examples)
        # A stream of its own for every call, so that the state needs no random state.
        rng = generator_for(model.device, self.seed, Stream.FORWARD_TRAINING, self._starts, model.updates)
        with torch.autocast(model.device.type, enabled=False):
            most = self.most_updates or _MOST_UPDATES["cpu" if model.device.type == "cpu" else "gpu"]
            updates = in_blocks(min(new_rows if model.updates else len(transitions), most))
            rows = torch.cat((examples.inputs, examples.targets), dim=2)
            rates = torch.full((updates,), self.learning_rate, dtype=torch.float64, device=model.device)
            model.train(lambda drawn: take_rows(rows, drawn), rows.shape[1], rates, rng)
        if not bool(model.weights.isfinite().all()):
            self.reset()
            raise DivergedError("relevance: the forward model of Curiosity became non-finite; it starts from nothing")

    @torch.inference_mode(mode=False)
    def score(self, transitions: Transitions) -> Tensor:
        """Return the error of each row."""
        examples = Examples.of(transitions)
        model = self._model_for(examples)
        with torch.autocast(model.device.type, enabled=False):
            errors = examples.errors(model)
        if not bool(errors.isfinite().all()):
            self.reset()
            raise DivergedError("relevance: the errors of Curiosity's forward model overflow; it starts from nothing")
        return errors[0] if transitions.rows.ndim == 2 else errors

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state."""
        model = None if self._model is None else self._model.state_dict()
        return {"seed": self.seed, "starts": self._starts, "model": model}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state; the model continues on the device of the rows."""
        model = state["model"]
        if model is not None:
            model = Regression.from_state(model, torch.device("cpu"), batch_size=self.batch_size)
        seed, starts = (whole_number(name, state[name], least=0) for name in ("seed", "starts"))
        self.seed, self._starts, self._model = seed, starts, model

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without CUDA graphs and on the CPU."""
        settings = {name: value for name, value in vars(self).items() if name != "_model"}
        return {"settings": settings, "state": on_cpu(self.state_dict())}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """Restore."""
        vars(self).update(pickled["settings"])
        self.load_state_dict(pickled["state"])

    def _model_for(self, examples: Examples) -> Regression:
        """The model on the device of the rows; a new one if there is none for such rows."""
        device = examples.inputs.device
        if self._model is not None and self._model.device != device:
            self._model = Regression.from_state(self._model.state_dict(), device, batch_size=self.batch_size)
        shape, stack = Shape(examples.inputs.shape[2], self.hidden, examples.targets.shape[2]), len(examples.inputs)
        if self._model is None or self._model.stack != stack or self._model.shape._replace(hidden=self.hidden) != shape:
            self._starts += 1
            rng = generator_for("cpu", self.seed, Stream.FORWARD_WEIGHTS, self._starts)
            weights = initial_weights(shape, stack, rng).to(device)
            self._model = Regression.of(shape, weights, batch_size=self.batch_size)
        return self._model


def _standardised(values: Tensor) -> Tensor:
    """Columns with mean 0 and variance 1 over the rows of each model; constant ones are 0."""
    scale, mean = torch.std_mean(values.double(), dim=1, keepdim=True, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    return ((values - mean.float()) / scale.float()).clamp(-_LARGEST, _LARGEST)
