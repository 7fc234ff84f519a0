"""Normalisation of hidden layers without parameters, with explicit backward passes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.networks.matmul import as_type
from synther_replay.common.acceleration import fused

EPS = 1e-5


class Norm(NamedTuple):
    """Normalised values ``(S, B, hidden)``, and what they were multiplied by, ``(S, B, 1)`` in fp32."""

    normal: Tensor
    factor: Tensor

    def cut(self, rows: Any) -> Norm:
        """Some networks, or some rows."""
        return Norm(self.normal[rows], self.factor[rows])


def layer_norm(z: Tensor, dtype: torch.dtype, alternating: bool = False) -> tuple[Norm, Tensor]:
    """Values ``(S, B, hidden)`` with mean 0 and variance 1 over the last dimension, and their relu, in a type.

    With `alternating`, those of every second network stay as they are.
    """
    normal, factor, unit = _layer_norm(z, dtype, alternating)
    return Norm(normal, factor), unit


def layer_norm_backward(d: Tensor, norm: Norm, alternating: bool = False) -> Tensor:
    """Gradient by the values before `layer_norm`, given that by the normalised ones."""
    return _layer_norm_backward(d, norm.normal, norm.factor, alternating)


def rms_norm(unit: Tensor) -> Norm:
    """Values divided by their root mean square over the last dimension."""
    return Norm(*_rms_norm(unit))


def rms_norm_backward(d: Tensor, norm: Norm, unit: Tensor) -> Tensor:
    """Gradient by the values before the relu whose output `unit` went into `rms_norm`, given that by its result."""
    return _rms_norm_backward(d, norm.normal, norm.factor, unit)


@fused
def _layer_norm(z: Tensor, dtype: torch.dtype, alternating: bool) -> tuple[Tensor, Tensor, Tensor]:
    centred = z - z.mean(-1, keepdim=True)
    factor = (centred.square().mean(-1, keepdim=True) + EPS).rsqrt()
    normal = centred * factor
    if alternating:
        plain = _every_second(z)
        normal, factor = torch.where(plain, z, normal), torch.where(plain, 1.0, factor)
    return as_type(normal, dtype), factor, as_type(normal.relu(), dtype)


@fused
def _layer_norm_backward(d: Tensor, normal: Tensor, factor: Tensor, alternating: bool) -> Tensor:
    wide, n = _wide(d), _wide(normal)
    along = (wide * n).mean(-1, keepdim=True)
    back = factor * (wide - wide.mean(-1, keepdim=True) - n * along)
    return as_type(torch.where(_every_second(wide), wide, back) if alternating else back, d.dtype)


@fused
def _rms_norm(unit: Tensor) -> tuple[Tensor, Tensor]:
    wide = _wide(unit)
    factor = (wide.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return as_type(wide * factor, unit.dtype), factor


@fused
def _rms_norm_backward(d: Tensor, normal: Tensor, factor: Tensor, unit: Tensor) -> Tensor:
    n = _wide(normal)
    back = factor * (d - n * (d * n).mean(-1, keepdim=True))
    return as_type(torch.where(unit > 0, back, 0.0), unit.dtype)


def _every_second(x: Tensor) -> Tensor:
    """True for the second, fourth, ... network of ``(S, B, hidden)``; ``(S, 1, 1)``."""
    return (torch.arange(len(x), device=x.device) % 2 == 1)[:, None, None]


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.half else x
