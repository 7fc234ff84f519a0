"""Networks of all agents that learn by the kernels of `kernels`, as `critics` and `networks` promise."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from synther_replay.benchmarks.agents.networks import triton_kernels as kernels
from synther_replay.benchmarks.agents.networks.adam import BETAS, EPS, Adam
from synther_replay.benchmarks.agents.networks.mlp import MlpShape
from synther_replay.benchmarks.agents.networks.torch_networks import Network

_TILE = 64  # edge of a tile of weights, and rows of the batch that are reduced at a time
_SCALE = 16.0  # of critics' gradients that are kept as halves: errors from 1e-4 to 1e4 stay in range
_MULTIPROCESSORS = 128  # about as many tiles as that keep a large GPU busy


def fits(shape: MlpShape, batch_size: int, device: torch.device) -> bool:
    """Whether the kernels can be used: two hidden layers, tiles without ragged edges, and a GPU with room for them."""
    power_of_two = shape.hidden & (shape.hidden - 1) == 0
    tiled = shape.hidden_layers == 2 and power_of_two and shape.hidden >= _TILE and batch_size % _TILE == 0
    # More than any of the kernels asks for: up to three strips of both weights, and a tile of inputs.
    columns = _edge(shape.padded_inputs)
    room = 2 * (3 * 64 * (columns + shape.hidden) + _TILE * (columns + _TILE))
    return tiled and room <= torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def policy_outputs(parameters: Tensor, shape: MlpShape, rows: Tensor, columns: slice) -> Tensor:
    """What M policies put out for observations that lie in rows of transitions, in one kernel.

    Args:
        parameters: Of the policies, ``(M, P)``.
        shape: Of a policy.
        rows: Transitions of each, ``(M, R, dim)``, R a multiple of 64.
        columns: Where in a row the observation is.

    Returns:
        Means and logarithms of standard deviations, ``(M, R, outputs)``.
    """
    if rows.shape[1] % _TILE:
        raise ValueError(f"rows: expected a multiple of {_TILE} per agent, got {rows.shape[1]}")
    out = torch.empty(*rows.shape[:2], shape.outputs, device=rows.device)
    tuning = {"BM": _TILE, "BK": 32, "num_warps": 4, "num_stages": 3}
    _outputs(rows.contiguous()[..., columns], parameters, parameters.half(), shape, out, tuning)
    return out


class TritonCritics:
    """Critics of all agents with their targets.

    Args:
        values: Parameters of S critics, then of their targets, ``(2S, P)``.
        adam: Adam of the first S rows.
        shape: Of one critic.
        critics: Per agent.
        batch_size: Rows of a batch.
        target_speed: Of the targets.

    Attributes:
        first: The first critic of each agent.
    """

    def __init__(
        self, values: Tensor, adam: Adam, shape: MlpShape, *, critics: int, batch_size: int, target_speed: float
    ) -> None:
        """Allocate what the kernels hand on to each other."""
        stack, device = len(values) // 2, values.device
        self.layers = _Layers(values, values.half(), shape, stack, batch_size)
        self.adam, self.target_speed = adam, target_speed
        first = slice(0, stack, critics)
        self.first: Network = TritonNetwork(
            _Layers(values[first], self.layers.halves[first], shape, stack // critics, batch_size)
        )
        self.q = torch.zeros(2 * stack, batch_size, device=device)
        self.error = torch.zeros(stack, batch_size, device=device)
        columns = shape.padded_inputs
        self._sizes = {"S": stack, "N": critics, "B": batch_size, "P": shape.parameters}
        self._width = {"C": columns, "H": shape.hidden}
        self._starts = _starts(shape)
        # Found by trying on an H200. Tiles of the batch are small where there are few networks, so that there is work
        # for every multiprocessor.
        many, ensembles = stack >= 16, stack >= 64
        self.tuning = {
            "values": {
                "CP": _edge(columns),
                "BM": 64 if many else 16,
                "BK": 32 if many else 64,
                "num_warps": 4,
                "num_stages": 3,
            },
            "errors": {
                "BM": 64 if ensembles else 32 if many else 16,
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
        """Follow parameters that were changed from outside."""
        self.layers.refresh()

    def update(
        self, inputs: Tensor, bellman: Tensor, left_out: Tensor, rates: Tensor, *, follow: bool = True
    ) -> Tensor:
        """One update; see `critics.Critics`."""
        sizes, starts, width, tuning = self._sizes, self._starts, self._width, self.tuning
        stack, batch, critics = sizes["S"], sizes["B"], sizes["N"]
        weights: dict[str, Any] = {"W2": starts["W2"], "W3": starts["W3"]}
        layers = self.layers
        kernels.values[(batch // tuning["values"]["BM"], 2 * stack)](
            inputs, layers.parameters, layers.halves, left_out, layers.h1, layers.h2, self.q, **starts, **sizes,
            **width, **tuning["values"],
        )  # fmt: skip
        kernels.errors[(batch // tuning["errors"]["BM"], stack)](
            layers.parameters, layers.halves, layers.h1, layers.h2, self.q, bellman, left_out, self.error,
            layers.d_h1, layers.d_h2, bellman.stride(0), **weights, **sizes, H=width["H"], AGENT=bellman.stride(1),
            SCALE=_SCALE, **tuning["errors"],
        )  # fmt: skip
        layers.learn(
            self.adam, inputs[0], self.error, rates, tuning["learn"], critics=critics,
            speed=self.target_speed if follow else None, FACTOR=2 / (batch * _SCALE), FACTOR3=2 / batch,
        )  # fmt: skip
        return self.q[stack:].view(-1, critics, batch)


class TritonNetwork:
    """See `networks.Network`.

    Args:
        layers: Parameters, and room for what the kernels hand on to each other.
    """

    def __init__(self, layers: _Layers) -> None:
        """Choose tiles."""
        self.layers = layers
        # Tiles of the batch are small where there are few rows in all, so that there is work for every multiprocessor.
        self.tuning = {
            "few": {"BM": 16, "BK": 64, "num_warps": 4, "num_stages": 3},
            "many": {"BM": 64, "BK": 32, "num_warps": 4, "num_stages": 3},
        }
        self._inputs: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """See `networks.Network`."""
        layers = self.layers
        stack, rows, _ = inputs.shape
        out = torch.empty(stack, rows, layers.shape.outputs, device=inputs.device)
        kept = layers.h1, layers.h2
        _outputs(inputs, layers.parameters, layers.halves, layers.shape, out, self._tiles(stack * rows), kept)
        self._inputs = inputs
        return out

    def back_to_inputs(self, d_out: Tensor) -> Tensor:
        """See `networks.Network`."""
        d_inputs = torch.empty(*d_out.shape[:2], self.layers.shape.padded_inputs, device=d_out.device)
        self._back(d_out.contiguous(), d_inputs)
        return d_inputs

    def _back(self, d_out: Tensor, d_inputs: Tensor | None = None) -> None:
        """Leave the gradients of hidden layers in their place, and write that of the inputs if it is wanted."""
        layers, shape, starts = self.layers, self.layers.shape, _starts(self.layers.shape)
        stack, batch, _ = d_out.shape
        tiles = self._tiles(stack * batch)
        kernels.back[(batch // tiles["BM"], stack)](
            layers.parameters, layers.halves, layers.h1, layers.h2, d_out, layers.d_h1, layers.d_h2,
            d_out if d_inputs is None else d_inputs, W2=starts["W2"], W3=starts["W3"], P=layers.parameters.stride(0),
            B=batch, C=shape.padded_inputs, CP=_edge(shape.padded_inputs), H=shape.hidden, A=shape.outputs,
            AP=_edge(shape.outputs), SCALE=float(batch), TO_INPUTS=d_inputs is not None, **tiles,
        )  # fmt: skip

    def _tiles(self, rows: int) -> dict[str, int]:
        return self.tuning["many" if rows >= _MULTIPROCESSORS * self.tuning["many"]["BM"] else "few"]


class LearningTritonNetwork(TritonNetwork):
    """See `networks.LearningNetwork`, and for the arguments `networks.make_network`."""

    def __init__(
        self, parameters: Tensor, adam: Adam, shape: MlpShape, *, batch_size: int, target_speed: float = 0.0
    ) -> None:
        """Allocate what the kernels hand on to each other."""
        super().__init__(_Layers(parameters, parameters.half(), shape, len(adam.parameters), batch_size))
        self.adam, self.target_speed = adam, target_speed
        self.learning = {"T": _TILE, "RT": _TILE, "CT": 32, "num_warps": 4, "num_stages": 2}

    def refresh(self) -> None:
        """Follow parameters that were changed from outside."""
        self.layers.refresh()

    def learn(self, d_out: Tensor, rates: Tensor, *, follow: bool = False) -> None:
        """See `networks.LearningNetwork`."""
        assert self._inputs is not None, "there is no way back before forward"
        d_out, batch = d_out.contiguous(), d_out.shape[1]
        self._back(d_out)
        self.layers.learn(
            self.adam, self._inputs, d_out, rates, self.learning, critics=1,
            speed=self.target_speed if follow else None,
            FACTOR=1 / batch, FACTOR3=1.0,  # what is kept as halves is of a row by itself, `d_out` of one of a batch
        )  # fmt: skip


class _Layers:
    """Parameters of networks with two hidden layers, and what the kernels hand on to each other.

    Args:
        parameters: ``(S, P)``, or with targets ``(2S, P)``; rows may be further apart.
        halves: The same as halves, which the products read; `learn` keeps it up to date.
        shape: Of one network.
        stack: S.
        batch_size: Rows that they learn from.
    """

    def __init__(self, parameters: Tensor, halves: Tensor, shape: MlpShape, stack: int, batch_size: int) -> None:
        self.parameters, self.halves, self.shape = parameters, halves, shape
        size = 4, stack, batch_size, shape.hidden
        self.h1, self.h2, self.d_h1, self.d_h2 = torch.zeros(size, dtype=torch.float16, device=parameters.device)

    def refresh(self) -> None:
        """Follow parameters that were changed from outside."""
        self.halves.copy_(self.parameters)

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
        """Adam's step from `inputs` ``(S / critics, B, columns)``; `speed` is that of the targets, if they move."""
        shape, columns = self.shape, self.shape.padded_inputs
        stack, batch, _ = self.h1.shape
        tiles = shape.hidden // tuning["RT"] + triton.cdiv(columns, tuning["CT"]) + 1  # of w2, of w1, of the rest
        kernels.learn[(shape.hidden // tuning["T"] * tiles, stack)](
            inputs, self.parameters, self.halves, adam.mean, adam.square, self.h1, self.h2, d_out, self.d_h1,
            self.d_h2, rates, speed or 0.0, *BETAS, EPS, **_starts(shape), P=shape.parameters, S=stack, N=critics,
            B=batch, AGENT=inputs.stride(0), C=columns, H=shape.hidden, A=shape.outputs, AP=_edge(shape.outputs),
            FOLLOW=speed is not None, **tuning, **factors,
        )  # fmt: skip


def _outputs(
    rows: Tensor,
    parameters: Tensor,
    halves: Tensor,
    shape: MlpShape,
    out: Tensor,
    tuning: dict[str, int],
    kept: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Launch `kernels.outputs`; the last axis of `rows` ``(S, R, dim)`` begins with the inputs."""
    stack, count, _ = out.shape
    kernels.outputs[(count // tuning["BM"], stack)](
        rows, parameters, halves, out, *(kept or (halves, halves)), **_starts(shape), P=parameters.stride(0), R=count,
        AGENT=rows.stride(0), D=rows.stride(1), C=shape.inputs, CP=_edge(shape.inputs + 1), H=shape.hidden,
        A=shape.outputs, AP=_edge(shape.outputs), KEEP=kept[0].shape[1] if kept else 0, **tuning,
    )  # fmt: skip


def _starts(shape: MlpShape) -> dict[str, int]:
    """Where the parts of a row of parameters begin, as the kernels call them; w1 begins it."""
    return {name.upper(): start for name, start in shape.starts().items() if name != "w1"}


def _edge(size: int) -> int:
    """Edge of a tile that holds `size` numbers: tensor cores want a power of two, and 16 at least."""
    return max(16, triton.next_power_of_2(size))
