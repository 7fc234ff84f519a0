"""Interface of stacked networks, and their implementation by PyTorch operations."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol

from torch import Tensor

from synther_replay.benchmarks.agents.networks import mlp, residual
from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.mlp import Layers, MlpShape, operands
from synther_replay.benchmarks.agents.networks.residual import ResidualShape


class Network(Protocol):
    """S networks."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs ``(S, R, outputs)`` for inputs ``(S, R, columns)`` of `mlp.padded`."""

    def backward_to_inputs(self, d_out: Tensor) -> Tensor:
        """Gradient by the inputs, ``(S, B, columns)``.

        Args:
            d_out: Gradient by the outputs of the last `forward`, for its first B rows, ``(S, B, outputs)``.
        """


class LearningNetwork(Network, Protocol):
    """S trainable networks."""

    def learn(self, d_out: Tensor, rates: Tensor, *, update_targets: bool = False) -> None:
        """One step of Adam.

        Args:
            d_out: Gradient by the outputs of the last `forward`, for its first B rows, ``(S, B, outputs)``.
            rates: Factors of Adam, ``(2,)``; see `Adam.rates`.
            update_targets: Whether the targets are updated.
        """

    def refresh(self) -> None:
        """Update internal copies after the parameters were changed from outside."""


def passes_of(shape: MlpShape) -> ModuleType:
    """The module with the `forward` and `backward` passes of a shape."""
    return residual if isinstance(shape, ResidualShape) else mlp


class TorchNetwork:
    """PyTorch implementation of `Network`.

    Args:
        parameters: Parameters of the networks, ``(S, P)``.
        shape: Shape of one network.
    """

    def __init__(self, parameters: Tensor, shape: MlpShape) -> None:
        """No activations before `forward`."""
        self._parameters, self._shape, self._passes = parameters, shape, passes_of(shape)
        self._layers = Layers()
        self._kept: Any = None  # activations of the last `forward`

    def forward(self, inputs: Tensor) -> Tensor:
        """See `Network`."""
        self._layers = operands(self._parameters, self._shape)
        found: tuple[Tensor, Any] = self._passes.forward(self._layers, inputs)
        out, self._kept = found
        return out

    def backward_to_inputs(self, d_out: Tensor) -> Tensor:
        """See `Network`."""
        gradient: Tensor = self._passes.backward_to_inputs(self._layers, self._kept_of(d_out), d_out)
        return gradient

    def _kept_of(self, d_out: Tensor) -> Any:
        assert self._kept is not None, "call forward() before a backward pass"
        return self._kept.cut((slice(None), slice(d_out.shape[1])))


class LearningTorchNetwork(TorchNetwork):
    """PyTorch implementation of `LearningNetwork`; see `backend.make_network` for the arguments."""

    def __init__(self, parameters: Tensor, adam: Adam, shape: MlpShape, *, target_speed: float = 0.0) -> None:
        """Create views of the gradient by layer."""
        super().__init__(adam.parameters, shape)
        self.adam, self.target_speed = adam, target_speed
        self.target = parameters[len(adam.parameters) :]
        self._gradient = Layers.of(adam.gradient, shape)

    def refresh(self) -> None:
        """Nothing to do: there are no internal copies."""

    def learn(self, d_out: Tensor, rates: Tensor, *, update_targets: bool = False) -> None:
        """See `LearningNetwork`."""
        self._passes.backward(self._layers, self._kept_of(d_out), d_out, self._gradient)
        if update_targets:
            self.adam.step_with_target(rates, self.target, self.target_speed)
        else:
            self.adam.step(rates)
