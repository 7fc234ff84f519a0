"""Regression: networks that predict numbers from others, M at once; on a GPU a block of updates is a CUDA graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from synther_replay.common.acceleration import capture
from synther_replay.common.checks import whole_number
from synther_replay.common.mlp import Shape
from synther_replay.errors import CheckpointError

BLOCK = 25  # updates per CUDA graph
_BETAS, _EPS = (0.9, 0.999), 1e-8  # of Adam
_TENSORS = ("weights", "mean", "square")


class Regression:
    """M networks, trained by Adam on the squared error.

    Args:
        shape: Sizes of a network.
        tensors: Weights and moments ``(M, P)`` by name; updated in place.
        updates: Updates so far.
        batch_size: Rows per update.
    """

    def __init__(self, shape: Shape, tensors: dict[str, Tensor], updates: int, *, batch_size: int) -> None:
        """Take the tensors as they are."""
        self.shape, self.updates, self.batch_size = shape, updates, batch_size
        self.weights, self.mean, self.square = (tensors[name] for name in _TENSORS)
        self.stack, self.device = len(self.weights), self.weights.device
        self._gradient = torch.zeros_like(self.weights)
        # Read by CUDA graphs:
        self._done = torch.zeros((), dtype=torch.float64, device=self.device)  # updates
        self._rates = torch.zeros(BLOCK, dtype=torch.float64, device=self.device)  # learning rates of the block
        columns = shape.inputs + shape.outputs
        self._batch = torch.zeros(BLOCK, self.stack, batch_size, columns, dtype=torch.float32, device=self.device)
        self._graph: Callable[[], None] | None = None

    @classmethod
    def of(cls, shape: Shape, weights: Tensor, *, batch_size: int) -> Regression:
        """Start from a copy of weights ``(M, P)``, with zero moments."""
        tensors = {"weights": weights.clone(), "mean": torch.zeros_like(weights), "square": torch.zeros_like(weights)}
        return cls(shape, tensors, 0, batch_size=batch_size)

    def restart(self, weights: Tensor) -> None:
        """Set weights ``(M, P)`` and zero moments; the CUDA graph stays valid."""
        self.weights.copy_(weights)
        self.mean.zero_()
        self.square.zero_()
        self.updates = 0

    @torch.no_grad()
    def train(self, examples: Callable[[Tensor], Tensor], count: int, rates: Tensor, rng: torch.Generator) -> None:
        """Make an update for each learning rate, on rows drawn with replacement.

        Args:
            examples: Returns inputs and outputs ``(M, n, I + O)`` of the rows with given numbers ``(M, n)``.
            count: Number of rows.
            rates: Learning rates; as many as there are in whole blocks.
            rng: Random generator.
        """
        update = self._train_block if self.device.type != "cuda" else self._captured()
        self._done.fill_(self.updates)
        for block in rates.view(-1, BLOCK):
            size = (self.stack, BLOCK * self.batch_size)
            drawn = examples(torch.randint(count, size, generator=rng, device=self.device))
            self._batch.copy_(drawn.unflatten(1, (BLOCK, self.batch_size)).transpose(0, 1))
            self._rates.copy_(block)
            update()
            self.updates += BLOCK

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state."""
        tensors = {name: getattr(self, name).clone() for name in _TENSORS}
        return {"shape": list(self.shape), "updates": self.updates, **tensors}

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device, *, batch_size: int) -> Regression:
        """Inverse of `state_dict`; raises `CheckpointError` if names or shapes do not agree."""
        if set(state) != {"shape", "updates", *_TENSORS}:
            raise CheckpointError(f"state: forward model: got {sorted(state)}")
        shape = Shape(*(whole_number("shape", size) for size in state["shape"]))
        expected = (len(state["weights"]), shape.parameters)
        for name in _TENSORS:
            if tuple(state[name].shape) != expected:
                got = tuple(state[name].shape)
                raise CheckpointError(f"state: forward model: {name}: got shape {got}, expected {expected}")
        tensors = {name: state[name].to(device, torch.float32, copy=True) for name in _TENSORS}
        return cls(shape, tensors, whole_number("updates", state["updates"], least=0), batch_size=batch_size)

    def _captured(self) -> Callable[[], None]:
        """The updates of one block as a CUDA graph; its capture does not change the state."""
        if self._graph is None:
            before = {name: getattr(self, name).clone() for name in _TENSORS}
            self._graph = capture(self._train_block, torch.Generator(self.device))
            for name, tensor in before.items():
                getattr(self, name).copy_(tensor)
        return self._graph

    def _train_block(self) -> None:
        for batch, rate in zip(self._batch, self._rates, strict=True):
            x, y = batch.split((self.shape.inputs, self.shape.outputs), 2)
            self._step(x, y, rate)

    def _step(self, x: Tensor, y: Tensor, learning_rate: Tensor) -> None:
        """One step of Adam."""
        layers, gradient = self.shape.layers(self.weights), self._gradient
        activations = layers.forward(x)
        error = (activations[-1] - y) * (2 / (y.shape[1] * y.shape[2]))
        layers.backward(x, activations, error, self.shape.layers(gradient))
        self._done += 1
        rate = (learning_rate / (1 - _BETAS[0] ** self._done)).float()
        scale = (1 - _BETAS[1] ** self._done).rsqrt().float()
        self.mean.lerp_(gradient, 1 - _BETAS[0])
        self.square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        self.weights.sub_(self.mean * rate / (self.square.sqrt() * scale + _EPS))


def initial_weights(shape: Shape, stack: int, rng: torch.Generator) -> Tensor:
    """Draw weights ``(M, P)`` on the CPU: Xavier uniform, biases of zero."""
    weights = torch.zeros(stack, shape.parameters, device="cpu", dtype=torch.float32)
    for layer in shape.layers(weights)[::2]:
        bound = math.sqrt(6 / (layer.shape[1] + layer.shape[2]))
        layer.uniform_(-bound, bound, generator=rng)
    return weights


def in_blocks(updates: int) -> int:
    """The smallest number of updates in whole blocks that is at least as large."""
    return math.ceil(updates / BLOCK) * BLOCK
