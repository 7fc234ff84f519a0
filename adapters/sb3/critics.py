"""The Q networks of a Stable-Baselines3 critic computed as one: half the operations, the same parameters."""

from __future__ import annotations

import operator
from contextlib import nullcontext
from typing import Any

import torch
from stable_baselines3.common.policies import ContinuousCritic
from torch import Tensor, nn

# that work on each element by itself, whatever the shape
_ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.SiLU, nn.GELU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus, nn.Mish)


class Critics:
    """The Q values of a critic, and the gradients of its parameters.

    Networks of linear layers and activations are computed side by side, on matrices with a leading axis for the
    network: their parameters become parts of those matrices, which SB3, its optimisers and files do not notice. Any
    other critic is called as it is.

    Args:
        critic: SB3's `ContinuousCritic` or any other that returns a tuple of ``(batch, 1)``.
    """

    def __init__(self, critic: Any) -> None:
        """Stack what can be stacked."""
        self.critic = critic
        self._layers: list[Any] = []  # of the stacked networks: activations, and parameters of linear layers
        self._parts: dict[Tensor, list[nn.Parameter]] = {}  # the parameters that a stacked one consists of
        self._modules = list(critic.modules())
        if _can_be_stacked(critic):
            self._layers = [self._stacked(layers) for layers in zip(*critic.q_networks, strict=True)]

    def hold(self, critic: Any) -> bool:
        """Whether they are those of `critic`, as it is: someone may have given it other tensors, layers or hooks."""
        modules = list(critic.modules())
        same = len(modules) == len(self._modules) and all(map(operator.is_, modules, self._modules))
        return (
            same
            and bool(self._layers) == _can_be_stacked(critic)
            and all(
                part.requires_grad and part.data_ptr() == slot.data_ptr()
                for whole, parts in self._parts.items()
                for slot, part in zip(whole.detach(), parts, strict=True)
            )
        )

    def __call__(self, observations: Any, actions: Tensor) -> Tensor:
        """Q values ``(batch, networks)``."""
        if not self._layers:
            return torch.cat(self.critic(observations, actions), dim=1)
        with torch.no_grad() if self.critic.share_features_extractor else nullcontext():  # as in SB3
            features = self.critic.extract_features(observations, self.critic.features_extractor)
        # rows last, so that gradients of the weights are laid out as the weights are: Adam's kernels insist on it
        values = torch.cat([features, actions], dim=1).t().expand(len(self.critic.q_networks), -1, -1)
        for layer in self._layers:
            if isinstance(layer, nn.Module):
                values = layer(values)
            else:
                weight, bias = layer  # (networks, outputs, inputs) and (networks, outputs)
                values = torch.baddbmm(bias[:, :, None], weight, values)
        return values.squeeze(1).t()

    def gradients(
        self, loss: Tensor, parameters: list[nn.Parameter], gradient: Tensor | None = None
    ) -> list[Tensor | None]:
        """Of a loss, or of what has a `gradient` already, for some parameters of the critic or of others."""
        parts = {id(part) for parts in self._parts.values() for part in parts}
        alone = [parameter for parameter in parameters if id(parameter) not in parts]
        wholes = list(self._parts) if len(alone) < len(parameters) else []
        found = torch.autograd.grad(loss, [*alone, *wholes], gradient, allow_unused=True)
        by_id = {id(parameter): own for parameter, own in zip(alone, found, strict=False)}
        for whole, stacked in zip(wholes, found[len(alone) :], strict=True):
            by_id |= {id(part): own for part, own in zip(self._parts[whole], stacked, strict=True)}
        return [by_id[id(parameter)] for parameter in parameters]

    @torch.no_grad()
    def _stacked(self, layers: tuple[nn.Module, ...]) -> Any:
        """One layer for the same layer of all networks, whose parameters are parts of its own from now on."""
        if not isinstance(layers[0], nn.Linear):
            return layers[0]
        wholes = []
        for name in ("weight", "bias"):
            parts = [getattr(layer, name) for layer in layers]
            whole = torch.stack([part.detach() for part in parts])
            for part, slot in zip(parts, whole, strict=True):
                part.data = slot
            self._parts[whole.requires_grad_()] = parts
            wholes.append(whole)
        return wholes[0], wholes[1]


def _can_be_stacked(critic: Any) -> bool:
    """Whether it computes what `Critics` does: nothing is overridden, hooked, frozen or of another shape."""
    if type(critic) is not ContinuousCritic or any(m._forward_hooks or m._forward_pre_hooks for m in critic.modules()):
        return False
    networks = critic.q_networks
    kinds = {tuple((type(layer), repr(layer)) for layer in network) for network in networks}
    return (
        len(kinds) == 1
        and all(
            type(layer) in _ACTIVATIONS or (type(layer) is nn.Linear and layer.bias is not None)
            for network in networks
            for layer in network
        )
        and all(p.requires_grad for network in networks for p in network.parameters())
    )
