"""Chooses the implementation of networks: Triton kernels on a GPU, PyTorch operations elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from synther_replay.benchmarks.agents.networks.adam import Adam
from synther_replay.benchmarks.agents.networks.matmul import uses_fp16
from synther_replay.benchmarks.agents.networks.mlp import (
    MlpShape,
    forward,
    fused_padded,
    operands,
)
from synther_replay.benchmarks.agents.networks.torch_networks import LearningNetwork, LearningTorchNetwork
from synther_replay.common.acceleration import has_triton


def make_network(
    parameters: Tensor, adam: Adam, shape: MlpShape, *, batch_size: int, target_speed: float = 0.0
) -> LearningNetwork:
    """Whichever is faster here.

    Args:
        parameters: Of S networks, ``(S, P)``, or of those and then of as many targets, ``(2S, P)``.
        adam: Adam of the first S rows.
        shape: Of one network.
        batch_size: Rows that it learns from.
        target_speed: How far targets move towards the networks in a step that they follow.
    """
    if has_kernels(parameters.device, shape, batch_size):
        from synther_replay.benchmarks.agents.networks.triton_networks import LearningTritonNetwork

        return LearningTritonNetwork(parameters, adam, shape, batch_size=batch_size, target_speed=target_speed)
    return LearningTorchNetwork(parameters, adam, shape, target_speed=target_speed)


def outputs_for(parameters: Tensor, shape: MlpShape, rows: Tensor, columns: slice) -> Tensor:
    """What networks ``(M, P)`` put out for some columns of rows ``(M, R, dim)``; no gradient is needed."""
    if has_kernels(parameters.device, shape, rows.shape[1]):
        from synther_replay.benchmarks.agents.networks.triton_networks import policy_outputs

        return policy_outputs(parameters, shape, rows, columns)
    return forward(operands(parameters, shape), fused_padded(rows[..., columns], columns=shape.padded_inputs))[0]


def has_kernels(device: torch.device, shape: MlpShape, batch_size: int) -> bool:
    """Whether `triton_networks` can be used; a CPU build of PyTorch has no Triton to import it with."""
    if not uses_fp16(device) or not has_triton():
        return False
    from synther_replay.benchmarks.agents.networks.triton_networks import fits

    return fits(shape, batch_size, device)
