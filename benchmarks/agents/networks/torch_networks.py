"""Networks of all agents side by side, as PyTorch operations, and the interface they share with the kernels."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.mlp import (
    Activations,
    Layers,
    MlpShape,
    backward,
    backward_to_inputs,
    forward,
    operands,
)


class Network(Protocol):
    """S networks."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs ``(S, R, outputs)`` for inputs ``(S, R, columns)``, as `stacked.padded` makes them."""

    def back_to_inputs(self, d_out: Tensor) -> Tensor:
        """Gradient of the inputs ``(S, B, columns)``, the parameters being fixed.

        Args:
            d_out: Gradient of the outputs that `forward` gave last for its first rows, ``(S, B, outputs)``.
        """


class LearningNetwork(Network, Protocol):
    """S networks that learn."""

    def learn(self, d_out: Tensor, rates: Tensor, *, follow: bool = False) -> None:
        """One step of Adam.

        Args:
            d_out: Gradient of the outputs that `forward` gave last for its first rows, ``(S, B, outputs)``.
            rates: Of Adam, ``(2,)``.
            follow: Whether targets move towards the networks.
        """

    def refresh(self) -> None:
        """Follow parameters that were changed from outside."""


class TorchNetwork:
    """See `Network`.

    Args:
        parameters: Of the networks, ``(S, P)``.
        shape: Of one network.
    """

    def __init__(self, parameters: Tensor, shape: MlpShape) -> None:
        """There is nothing to keep before `forward`."""
        self._parameters, self._shape = parameters, shape
        self._layers, self._kept = Layers(), Activations(parameters, ())

    def forward(self, inputs: Tensor) -> Tensor:
        """See `Network`."""
        self._layers = operands(self._parameters, self._shape)
        out, self._kept = forward(self._layers, inputs)
        return out

    def back_to_inputs(self, d_out: Tensor) -> Tensor:
        """See `Network`."""
        return backward_to_inputs(self._layers, self._kept_of(d_out), d_out)

    def _kept_of(self, d_out: Tensor) -> Activations:
        assert self._kept.hidden, "there is no way back before forward"
        return self._kept.first_rows(d_out.shape[1])


class LearningTorchNetwork(TorchNetwork):
    """See `LearningNetwork`, and for the arguments `make_network`."""

    def __init__(self, parameters: Tensor, adam: Adam, shape: MlpShape, *, target_speed: float = 0.0) -> None:
        """Cut the gradient into layers, too."""
        super().__init__(adam.parameters, shape)
        self.adam, self.target_speed = adam, target_speed
        self.target = parameters[len(adam.parameters) :]
        self._gradient = Layers.of(adam.gradient, shape)

    def refresh(self) -> None:
        """There is no copy to bring up to date."""

    def learn(self, d_out: Tensor, rates: Tensor, *, follow: bool = False) -> None:
        """See `LearningNetwork`."""
        backward(self._layers, self._kept_of(d_out), d_out, self._gradient)
        if follow:
            self.adam.step_and_follow(rates, self.target, self.target_speed)
        else:
            self.adam.step(rates)
