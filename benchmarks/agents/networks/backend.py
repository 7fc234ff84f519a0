"""Choice of the network implementation: Triton kernels on a GPU, PyTorch operations otherwise."""

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
    """Build S trainable networks with the fastest available implementation.

    Args:
        parameters: Parameters of S networks, ``(S, P)``, or of S networks and then their targets, ``(2S, P)``.
        adam: Optimiser of the first S rows.
        shape: Shape of one network.
        batch_size: Rows per update.
        target_speed: Step size of the targets towards the networks.
    """
    if not shape.layer_norm and has_kernels(parameters.device, shape, batch_size):
        from synther_replay.benchmarks.agents.networks.triton_networks import LearningTritonNetwork

        return LearningTritonNetwork(parameters, adam, shape, batch_size=batch_size, target_speed=target_speed)
    return LearningTorchNetwork(parameters, adam, shape, target_speed=target_speed)


def outputs_for(parameters: Tensor, shape: MlpShape, rows: Tensor, columns: slice) -> Tensor:
    """Outputs of networks ``(M, P)`` for some columns of rows ``(M, R, dim)``, without gradients."""
    if not shape.layer_norm and has_kernels(parameters.device, shape, rows.shape[1]):
        from synther_replay.benchmarks.agents.networks.triton_networks import policy_outputs

        return policy_outputs(parameters, shape, rows, columns)
    return forward(operands(parameters, shape), fused_padded(rows[..., columns], columns=shape.padded_inputs))[0]


def has_kernels(device: torch.device, shape: MlpShape, batch_size: int) -> bool:
    """Whether `triton_networks` can be used; it is imported lazily, because CPU builds of PyTorch have no Triton."""
    if not uses_fp16(device) or not has_triton():
        return False
    from synther_replay.benchmarks.agents.networks.triton_networks import fits

    return fits(shape, batch_size, device)
