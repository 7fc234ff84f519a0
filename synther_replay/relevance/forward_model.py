"""ForwardModel: predicts next observations, for M runs at once; on a GPU a block of updates is one CUDA graph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from synther_replay.common.acceleration import capture
from synther_replay.common.checks import whole_number
from synther_replay.common.stacks import take_rows
from synther_replay.data.transitions import Transitions
from synther_replay.errors import CheckpointError

_BLOCK = 25  # updates per CUDA graph
_LARGEST = 10.0  # standardised values are clipped: one outlier must not carry the whole gradient
_ROWS_AT_ONCE = 65_536  # bounds the memory of the prediction
_BETAS, _EPS = (0.9, 0.999), 1e-8  # of Adam
_TENSORS = ("weights", "mean", "square")


@dataclass(frozen=True)
class Examples:
    """Rows as the model sees them, standardised over the real rows of now.

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


class Shape(NamedTuple):
    """Sizes of one network with two hidden layers."""

    inputs: int
    hidden: int
    outputs: int

    def sizes(self) -> list[tuple[int, int]]:
        """Shapes of weights and biases, layer by layer."""
        widths = (self.inputs, self.hidden, self.hidden, self.outputs)
        return [size for rows, columns in itertools.pairwise(widths) for size in ((rows, columns), (1, columns))]

    def layers(self, flat: Tensor) -> list[Tensor]:
        """Views ``(M, *size)`` of a matrix of parameters ``(M, P)``."""
        parts = flat.split([math.prod(size) for size in self.sizes()], dim=1)
        return [part.unflatten(1, size) for part, size in zip(parts, self.sizes(), strict=True)]


class ForwardModel:
    """M networks, trained by Adam on the squared error.

    Args:
        shape: Sizes of a network.
        tensors: Weights and moments ``(M, P)`` by name; updated in place.
        updates: Updates so far.
        batch_size: Rows per update.
        learning_rate: Learning rate.
    """

    def __init__(
        self, shape: Shape, tensors: dict[str, Tensor], updates: int, *, batch_size: int, learning_rate: float
    ) -> None:
        """Take the tensors as they are."""
        self.shape, self.updates, self.batch_size, self.learning_rate = shape, updates, batch_size, learning_rate
        self.weights, self.mean, self.square = (tensors[name] for name in _TENSORS)
        self.stack, self.device = len(self.weights), self.weights.device
        self._done = torch.zeros((), dtype=torch.float64, device=self.device)  # updates, read by CUDA graphs
        columns = shape.inputs + shape.outputs
        self._batch = torch.zeros(_BLOCK, self.stack, batch_size, columns, device=self.device)
        self._graph: Callable[[], None] | None = None

    @classmethod
    def new(cls, shape: Shape, stack: int, rng: torch.Generator, device: torch.device, **options: Any) -> ForwardModel:
        """Draw initial weights: Xavier uniform, biases of zero."""
        weights = torch.zeros(stack, sum(math.prod(size) for size in shape.sizes()))
        for layer in shape.layers(weights)[::2]:
            bound = math.sqrt(6 / (layer.shape[1] + layer.shape[2]))
            layer.uniform_(-bound, bound, generator=rng)
        tensors = {"weights": weights, "mean": torch.zeros_like(weights), "square": torch.zeros_like(weights)}
        return cls(shape, {name: tensor.to(device) for name, tensor in tensors.items()}, 0, **options)

    def fits(self, examples: Examples) -> bool:
        """Whether the model is one for such rows."""
        sizes = (len(examples.inputs), examples.inputs.shape[2], examples.targets.shape[2])
        return sizes == (self.stack, self.shape.inputs, self.shape.outputs)

    @torch.no_grad()
    def train(self, examples: Examples, updates: int, rng: torch.Generator) -> None:
        """Make at least this many updates, in whole blocks, on rows drawn with replacement."""
        rows = torch.cat((examples.inputs, examples.targets), dim=2)
        update = self._train_block if self.device.type != "cuda" else self._captured()
        self._done.fill_(self.updates)
        for _ in range(math.ceil(updates / _BLOCK)):
            size = (self.stack, _BLOCK * self.batch_size)
            drawn = take_rows(rows, torch.randint(rows.shape[1], size, generator=rng, device=self.device))
            self._batch.copy_(drawn.unflatten(1, (_BLOCK, self.batch_size)).transpose(0, 1))
            update()
            self.updates += _BLOCK

    @torch.no_grad()
    def errors(self, examples: Examples) -> Tensor:
        """Mean squared error of each row over its columns, ``(M, n)``."""
        layers = self.shape.layers(self.weights)
        parts = zip(examples.inputs.split(_ROWS_AT_ONCE, 1), examples.targets.split(_ROWS_AT_ONCE, 1), strict=True)
        return torch.cat([(_forward(layers, x)[-1] - y).square().mean(2) for x, y in parts], dim=1)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state."""
        tensors = {name: getattr(self, name).clone() for name in _TENSORS}
        return {"shape": list(self.shape), "updates": self.updates, **tensors}

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device, **options: Any) -> ForwardModel:
        """Inverse of `state_dict`; raises `CheckpointError` if names or shapes do not agree."""
        if set(state) != {"shape", "updates", *_TENSORS}:
            raise CheckpointError(f"state: forward model: got {sorted(state)}")
        shape = Shape(*(whole_number("shape", size) for size in state["shape"]))
        expected = (len(state["weights"]), sum(math.prod(size) for size in shape.sizes()))
        for name in _TENSORS:
            if tuple(state[name].shape) != expected:
                got = tuple(state[name].shape)
                raise CheckpointError(f"state: forward model: {name}: got shape {got}, expected {expected}")
        tensors = {name: state[name].to(device, torch.float32, copy=True) for name in _TENSORS}
        return cls(shape, tensors, whole_number("updates", state["updates"], least=0), **options)

    def _captured(self) -> Callable[[], None]:
        """The updates of one block as a CUDA graph; its capture does not change the state."""
        if self._graph is None:
            before = {name: getattr(self, name).clone() for name in _TENSORS}
            self._graph = capture(self._train_block, torch.Generator(self.device))
            for name, tensor in before.items():
                getattr(self, name).copy_(tensor)
        return self._graph

    def _train_block(self) -> None:
        for batch in self._batch:
            self._step(*batch.split((self.shape.inputs, self.shape.outputs), 2))

    def _step(self, x: Tensor, y: Tensor) -> None:
        """One step of Adam; explicit gradients launch a third of the kernels that automatic differentiation does."""
        layers = self.shape.layers(self.weights)
        *inner, out = _forward(layers, x)
        d_out = (out - y) * (2 / (y.shape[1] * y.shape[2]))
        gradients = []
        for weight, given in zip(layers[-2::-2], (*inner[::-1], x), strict=True):
            gradients += [d_out.sum(1), (given.mT @ d_out).flatten(1)]
            if given is not x:
                d_out = (d_out @ weight.mT) * (given > 0)
        gradient = torch.cat(gradients[::-1], dim=1)
        self._done += 1
        rate = (self.learning_rate / (1 - _BETAS[0] ** self._done)).float()
        scale = (1 - _BETAS[1] ** self._done).rsqrt().float()
        self.mean.lerp_(gradient, 1 - _BETAS[0])
        self.square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        self.weights.sub_(self.mean * rate / (self.square.sqrt() * scale + _EPS))


def _forward(layers: list[Tensor], x: Tensor) -> list[Tensor]:
    """Both hidden layers and the outputs ``(M, n, O)`` for inputs ``(M, n, I)``."""
    w1, b1, w2, b2, w3, b3 = layers
    first = torch.baddbmm(b1, x, w1).relu_()
    second = torch.baddbmm(b2, first, w2).relu_()
    return [first, second, torch.baddbmm(b3, second, w3)]


def _standardised(values: Tensor) -> Tensor:
    """Columns with mean 0 and variance 1 over the rows of each model; constant ones are 0."""
    scale, mean = torch.std_mean(values.double(), dim=1, keepdim=True, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    return ((values - mean.float()) / scale.float()).clamp(-_LARGEST, _LARGEST)
