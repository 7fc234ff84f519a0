"""Stacked networks and critics implemented by the Triton kernels of `triton_kernels`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor

from synther_replay.benchmarks.agents.networks import triton_kernels as kernels
from synther_replay.benchmarks.agents.networks import triton_learning
from synther_replay.benchmarks.agents.networks.adam import BETAS, EPS, Adam
from synther_replay.benchmarks.agents.networks.mlp import MlpShape
from synther_replay.benchmarks.agents.networks.normalisation import EPS as NORM_EPS
from synther_replay.benchmarks.agents.networks.torch_networks import Network, TorchNetwork
from synther_replay.benchmarks.agents.networks.triton_matmul import MULTIPROCESSORS, tile_size
from synther_replay.benchmarks.agents.value_range import no_bounds

_TILE = 64  # size of weight tiles, and batch rows per reduction step
_SCALE = 16.0  # of critics' gradients in fp16: errors from 1e-4 to 1e4 stay in range


def fits(shape: MlpShape, batch_size: int, device: torch.device) -> bool:
    """Whether the kernels support a shape: two hidden layers, sizes divisible into tiles, enough shared memory."""
    power_of_two = shape.hidden & (shape.hidden - 1) == 0
    plain = type(shape) is MlpShape and not shape.feature_norm
    tiled = plain and shape.hidden_layers == 2 and power_of_two and shape.hidden >= _TILE and batch_size % _TILE == 0
    # Upper bound of the shared memory of all kernels: three strips of both weights, and a tile of inputs.
    columns = tile_size(shape.padded_inputs)
    room = 2 * (3 * 64 * (columns + shape.hidden) + _TILE * (columns + _TILE))
    return tiled and room <= torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def policy_outputs(parameters: Tensor, shape: MlpShape, rows: Tensor, columns: slice) -> Tensor:
    """Outputs of M policies for the observations in rows of transitions, in one kernel.

    Args:
        parameters: Parameters of the policies, ``(M, P)``.
        shape: Shape of a policy.
        rows: Transitions of each agent, ``(M, R, dim)``, R a multiple of 64.
        columns: Columns of the observation.

    Returns:
        Means and log-stds, ``(M, R, outputs)``.
    """
    if rows.shape[1] % _TILE:
        raise ValueError(f"rows: expected a multiple of {_TILE} per agent, got {rows.shape[1]}")
    out = torch.empty(*rows.shape[:2], shape.outputs, device=rows.device)
    tuning = {"BM": _TILE, "BK": 32, "num_warps": 4, "num_stages": 3}
    _outputs(rows.contiguous()[..., columns], parameters, parameters.half(), shape, out, tuning)
    return out


class TritonCritics:
    """Critics of all agents with their targets, as Triton kernels.

    Args:
        values: Parameters of S critics, then of their targets, ``(2S, P)``.
        adam: Optimiser of the first S rows.
        shape: Shape of one critic.
        critics: Number of critics per agent.
        batch_size: Batch size.
        target_speed: Step size of the targets towards the critics.

    Attributes:
        first: The first critic of each agent.
        caution: See `critics.Critics`.
        bounds: See `critics.Critics`.
    """

    def __init__(
        self, values: Tensor, adam: Adam, shape: MlpShape, *, critics: int, batch_size: int, target_speed: float
    ) -> None:
        """Allocate the buffers that the kernels share."""
        stack, device = len(values) // 2, values.device
        self.layers = _Layers(values, values.half(), shape, stack, batch_size)
        self.adam, self.target_speed = adam, target_speed
        first = slice(0, stack, critics)
        of_first = _Layers(values[first], self.layers.fp16[first], shape, stack // critics, batch_size)
        all_alike = replace(shape, alternating=False)  # the first critics, of every agent
        self.first: Network = TorchNetwork(values[first], all_alike) if shape.layer_norm else TritonNetwork(of_first)
        self.q = torch.zeros(2 * stack, batch_size, device=device)
        self.error = torch.zeros(stack, batch_size, device=device)
        self.caution = torch.zeros(stack // critics, device=device)
        self.bounds = no_bounds(stack // critics, device)
        columns = shape.padded_inputs
        self._sizes = {"S": stack, "N": critics, "B": batch_size, "P": shape.parameters}
        self._width = {"C": columns, "H": shape.hidden}
        self._starts = _starts(shape)
        # Tuned on an H200. With few networks, tiles of the batch are small, to occupy all multiprocessors.
        many, ensembles = stack >= 16, stack >= 64
        self.tuning = {
            "values": {
                "CP": tile_size(columns),
                "BM": 64 if many else 16,
                "BK": 32 if many else 64,
                "num_warps": 4,
                "num_stages": 3,
            },
            "errors": {
                "BM": 64 if ensembles and not shape.layer_norm else 32 if many else 16,
                "BK": 32 if many else 64,
                "num_warps": 4,
                "num_stages": 3,
            },
            "learn": {
                "T": _TILE,
                "RT": 32 if ensembles else _TILE,
                "CT": 32,
                "num_warps": 4,
                "num_stages": 3 if ensembles else 2,
            },
        }

    def refresh(self) -> None:
        """Update the fp16 copy after the parameters were changed from outside."""
        self.layers.refresh()

    def update(
        self, inputs: Tensor, bellman: Tensor, excluded: Tensor, rates: Tensor, *, update_targets: bool = True
    ) -> Tensor:
        """One update; see `critics.Critics`."""
        sizes, starts, width, tuning = self._sizes, self._starts, self._width, self.tuning
        stack, batch, critics = sizes["S"], sizes["B"], sizes["N"]
        weights: dict[str, Any] = {"W2": starts["W2"], "W3": starts["W3"]}
        layers = self.layers
        norm = {"NORM": layers.shape.layer_norm, "ALTERNATING": layers.shape.alternating}
        kernels.values[(batch // tuning["values"]["BM"], 2 * stack)](
            inputs, layers.parameters, layers.fp16, excluded, layers.h1, layers.h2, layers.n1, layers.n2,
            layers.factors, self.q, **starts, **sizes, **width, **norm, EPS=NORM_EPS, **tuning["values"],
        )  # fmt: skip
        kernels.errors[(batch // tuning["errors"]["BM"], stack)](
            layers.parameters, layers.fp16, layers.n1, layers.n2, layers.factors, self.q, bellman, excluded,
            self.caution, self.bounds, self.error, layers.d_h1, layers.d_h2, bellman.stride(0), **weights, **sizes,
            **norm, H=width["H"], AGENT=bellman.stride(1), SCALE=_SCALE, **tuning["errors"],
        )  # fmt: skip
        layers.learn(
            self.adam, inputs[0], self.error, rates, tuning["learn"], critics=critics,
            speed=self.target_speed if update_targets else None, FACTOR=2 / (batch * _SCALE), FACTOR3=2 / batch,
        )  # fmt: skip
        return self.q[stack:].view(-1, critics, batch)


class TritonNetwork:
    """Triton implementation of `torch_networks.Network`, for networks without layer norm.

    Args:
        layers: Parameters, and the buffers that the kernels share.
    """

    def __init__(self, layers: _Layers) -> None:
        """Choose tile sizes."""
        self.layers = layers
        # With few rows, tiles of the batch are small, to occupy all multiprocessors.
        self.tuning = {
            "few": {"BM": 16, "BK": 64, "num_warps": 4, "num_stages": 3},
            "many": {"BM": 64, "BK": 32, "num_warps": 4, "num_stages": 3},
        }
        self._inputs: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """See `torch_networks.Network`."""
        layers = self.layers
        stack, rows, _ = inputs.shape
        out = torch.empty(stack, rows, layers.shape.outputs, device=inputs.device)
        kept = layers.h1, layers.h2
        _outputs(inputs, layers.parameters, layers.fp16, layers.shape, out, self._tiles(stack * rows), kept)
        self._inputs = inputs
        return out

    def backward_to_inputs(self, d_out: Tensor) -> Tensor:
        """See `torch_networks.Network`."""
        d_inputs = torch.empty(*d_out.shape[:2], self.layers.shape.padded_inputs, device=d_out.device)
        self._back(d_out.contiguous(), d_inputs)
        return d_inputs

    def _back(self, d_out: Tensor, d_inputs: Tensor | None = None) -> None:
        """Write the gradients by the hidden layers to their buffers, and those by the inputs to `d_inputs` if given."""
        layers, shape, starts = self.layers, self.layers.shape, _starts(self.layers.shape)
        stack, batch, _ = d_out.shape
        tiles = self._tiles(stack * batch)
        kernels.back[(batch // tiles["BM"], stack)](
            layers.parameters, layers.fp16, layers.h1, layers.h2, d_out, layers.d_h1, layers.d_h2,
            d_out if d_inputs is None else d_inputs, W2=starts["W2"], W3=starts["W3"], P=layers.parameters.stride(0),
            B=batch, C=shape.padded_inputs, CP=tile_size(shape.padded_inputs), H=shape.hidden, A=shape.outputs,
            AP=tile_size(shape.outputs), SCALE=float(batch), TO_INPUTS=d_inputs is not None, **tiles,
        )  # fmt: skip

    def _tiles(self, rows: int) -> dict[str, int]:
        return self.tuning["many" if rows >= MULTIPROCESSORS * self.tuning["many"]["BM"] else "few"]


class LearningTritonNetwork(TritonNetwork):
    """Triton implementation of `torch_networks.LearningNetwork`; see `backend.make_network` for the arguments."""

    def __init__(
        self, parameters: Tensor, adam: Adam, shape: MlpShape, *, batch_size: int, target_speed: float = 0.0
    ) -> None:
        """Allocate the buffers that the kernels share."""
        super().__init__(_Layers(parameters, parameters.half(), shape, len(adam.parameters), batch_size))
        self.adam, self.target_speed = adam, target_speed
        self.learning = {"T": _TILE, "RT": _TILE, "CT": 32, "num_warps": 4, "num_stages": 2}

    def refresh(self) -> None:
        """Update the fp16 copy after the parameters were changed from outside."""
        self.layers.refresh()

    def learn(self, d_out: Tensor, rates: Tensor, *, update_targets: bool = False) -> None:
        """See `torch_networks.LearningNetwork`."""
        assert self._inputs is not None, "call forward() before a backward pass"
        d_out, batch = d_out.contiguous(), d_out.shape[1]
        self._back(d_out)
        self.layers.learn(
            self.adam, self._inputs, d_out, rates, self.learning, critics=1,
            speed=self.target_speed if update_targets else None,
            FACTOR=1 / batch, FACTOR3=1.0,  # fp16 gradients of hidden layers are scaled by the batch size, `d_out` not
        )  # fmt: skip


class _Layers:
    """Parameters of networks with two hidden layers, and the buffers that the kernels share.

    Args:
        parameters: ``(S, P)``, or with targets ``(2S, P)``; rows may be strided.
        fp16: fp16 copy of the parameters, read by the matrix products and updated by `learn`.
        shape: Shape of one network.
        stack: S, the number of networks.
        batch_size: Rows per update.
    """

    def __init__(self, parameters: Tensor, fp16: Tensor, shape: MlpShape, stack: int, batch_size: int) -> None:
        self.parameters, self.fp16, self.shape = parameters, fp16, shape
        size = 4, stack, batch_size, shape.hidden
        self.h1, self.h2, self.d_h1, self.d_h2 = torch.zeros(size, dtype=torch.float16, device=parameters.device)
        # What gradients pass on their way back: the normalised layers before relu, or else the layers after it.
        self.n1, self.n2, self.factors = self.h1, self.h2, parameters
        if shape.layer_norm:
            self.n1, self.n2 = torch.zeros_like(self.h1), torch.zeros_like(self.h2)
            self.factors = torch.zeros(2, stack, batch_size, device=parameters.device)

    def refresh(self) -> None:
        """Update the fp16 copy."""
        self.fp16.copy_(self.parameters)

    def learn(
        self,
        adam: Adam,
        inputs: Tensor,
        d_out: Tensor,
        rates: Tensor,
        tuning: dict[str, int],
        *,
        critics: int,
        speed: float | None,
        **factors: float,
    ) -> None:
        """One step of Adam, given `inputs` ``(S / critics, B, columns)``; targets move by `speed` unless it is None."""
        shape, columns = self.shape, self.shape.padded_inputs
        stack, batch, _ = self.h1.shape
        tiles = shape.hidden // tuning["RT"] + triton.cdiv(columns, tuning["CT"]) + 1  # of w2, w1 and the rest
        triton_learning.learn[(shape.hidden // tuning["T"] * tiles, stack)](
            inputs, self.parameters, self.fp16, adam.mean, adam.square, self.h1, self.h2, d_out, self.d_h1,
            self.d_h2, rates, speed or 0.0, adam.decay, *BETAS, EPS, **_starts(shape), P=shape.parameters, S=stack,
            N=critics, B=batch, AGENT=inputs.stride(0), C=columns, H=shape.hidden, A=shape.outputs,
            AP=tile_size(shape.outputs), TARGETS=speed is not None, **tuning, **factors,
        )  # fmt: skip


def _outputs(
    rows: Tensor,
    parameters: Tensor,
    fp16: Tensor,
    shape: MlpShape,
    out: Tensor,
    tuning: dict[str, int],
    kept: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Launch `kernels.outputs`; the inputs are the first columns of `rows` ``(S, R, dim)``."""
    stack, count, _ = out.shape
    kernels.outputs[(count // tuning["BM"], stack)](
        rows, parameters, fp16, out, *(kept or (fp16, fp16)), **_starts(shape), P=parameters.stride(0), R=count,
        AGENT=rows.stride(0), D=rows.stride(1), C=shape.inputs, CP=tile_size(shape.inputs + 1), H=shape.hidden,
        A=shape.outputs, AP=tile_size(shape.outputs), KEEP=kept[0].shape[1] if kept else 0, **tuning,
    )  # fmt: skip


def _starts(shape: MlpShape) -> dict[str, int]:
    """First column of each weight and bias but w1, which is at 0, under the names of the kernel arguments."""
    return {name.upper(): start for name, start in shape.starts().items() if name != "w1"}
