"""Critics: evaluates all Q networks of a Stable-Baselines3 critic in one batched pass."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from stable_baselines3.common.policies import ContinuousCritic
from torch import Tensor, nn

# element-wise activations, which apply to stacked values unchanged
_ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.SiLU, nn.GELU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus, nn.Mish)


class Critics:
    """Q values of a critic and gradients of its parameters.

    Q networks of linear layers, layer norms and activations are stacked along a leading axis and evaluated by batched
    matrix products. Their parameters become views of the stacked tensors, which is transparent to SB3, its optimisers
    and its files. Any other critic is called unchanged.

    Args:
        critic: SB3's `ContinuousCritic`, or any module that returns a tuple of ``(batch, 1)`` tensors.
    """

    def __init__(self, critic: Any) -> None:
        """Stack the networks if possible."""
        self.critic = critic
        self._layers: list[Callable[[Tensor], Tensor]] = []  # of values (networks, features, batch)
        self._parts: dict[Tensor, list[nn.Parameter]] = {}  # stacked tensor -> the parameters that are its slices
        self._modules = list(critic.modules())
        if _can_be_stacked(critic):
            self._layers = [self._stacked(layers) for layers in zip(*critic.q_networks, strict=True)]

    def matches(self, critic: Any) -> bool:
        """Return whether the stack is valid for `critic`, whose tensors, layers or hooks may have been replaced."""
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
        """Return Q values ``(batch, networks)``."""
        if not self._layers:
            return torch.cat(self.critic(observations, actions), dim=1)
        with torch.no_grad() if self.critic.share_features_extractor else nullcontext():  # as in SB3
            features = self.critic.extract_features(observations, self.critic.features_extractor)
        # batch axis last: weight gradients then have the memory layout of the weights, as fused Adam requires
        values = torch.cat([features, actions], dim=1).t().expand(len(self.critic.q_networks), -1, -1)
        for layer in self._layers:
            values = layer(values)
        return values.squeeze(1).t()

    def gradients(
        self, loss: Tensor, parameters: list[nn.Parameter], gradient: Tensor | None = None
    ) -> list[Tensor | None]:
        """Return the gradients of `parameters`, given a scalar loss, or a tensor `loss` and its `gradient`."""
        parts = {id(part) for parts in self._parts.values() for part in parts}
        alone = [parameter for parameter in parameters if id(parameter) not in parts]
        wholes = list(self._parts) if len(alone) < len(parameters) else []
        found = torch.autograd.grad(loss, [*alone, *wholes], gradient, allow_unused=True)
        by_id = {id(parameter): own for parameter, own in zip(alone, found, strict=False)}
        for whole, stacked in zip(wholes, found[len(alone) :], strict=True):
            by_id |= {id(part): own for part, own in zip(self._parts[whole], stacked, strict=True)}
        return [by_id[id(parameter)] for parameter in parameters]

    @torch.no_grad()
    def _stacked(self, layers: tuple[nn.Module, ...]) -> Callable[[Tensor], Tensor]:
        """Stack one layer of all networks; the parameters become views of the stacked tensors."""
        first = layers[0]
        if not isinstance(first, nn.Linear | nn.LayerNorm):
            return first
        wholes = []
        for name in ("weight", "bias"):
            parts = [getattr(layer, name) for layer in layers]
            whole = torch.stack([part.detach() for part in parts])
            for part, slot in zip(parts, whole, strict=True):
                part.data = slot
            self._parts[whole.requires_grad_()] = parts
            wholes.append(whole)
        weight, bias = wholes
        if isinstance(first, nn.Linear):
            return functools.partial(_linear, weight, bias)
        return functools.partial(_layer_norm, weight, bias, first.eps)


def _linear(weight: Tensor, bias: Tensor, values: Tensor) -> Tensor:
    """Linear layers with weights ``(networks, outputs, inputs)`` and biases ``(networks, outputs)``."""
    return torch.baddbmm(bias[:, :, None], weight, values)


def _layer_norm(weight: Tensor, bias: Tensor, eps: float, values: Tensor) -> Tensor:
    """Layer norms with weights and biases ``(networks, features)``."""
    variance, mean = torch.var_mean(values, 1, correction=0, keepdim=True)
    return torch.addcmul(bias[:, :, None], (values - mean) * (variance + eps).rsqrt(), weight[:, :, None])


def _can_be_stacked(critic: Any) -> bool:
    """Return whether stacking gives the same result: nothing is overridden, hooked, frozen or of different shape."""
    if type(critic) is not ContinuousCritic or any(m._forward_hooks or m._forward_pre_hooks for m in critic.modules()):
        return False
    networks = critic.q_networks
    kinds = {tuple((type(layer), repr(layer)) for layer in network) for network in networks}
    return (
        len(kinds) == 1
        and all(
            type(layer) in _ACTIVATIONS
            or (type(layer) is nn.Linear and layer.bias is not None)
            or (type(layer) is nn.LayerNorm and layer.bias is not None and len(layer.normalized_shape) == 1)
            for network in networks
            for layer in network
        )
        and all(p.requires_grad for network in networks for p in network.parameters())
    )
