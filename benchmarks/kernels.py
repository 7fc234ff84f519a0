"""The learner's inner loop as Triton kernels: three for a critic update of all agents, one for their next actions.

A critic update is the same as that of `critics.TorchCritics`, product for product, with three launches instead of some
twenty:

1. `_values`: both hidden layers and the value of every critic and target, a tile of the batch at a time; the first
   hidden layer is made in strips that are used up at once by the second.
2. `_errors`: distance from the Bellman target, and its gradient back through the second layer.
3. `_learn`: the gradient of each tile of weights, with Adam and the target network applied to the tile right there,
   so that no gradient is ever written.

Tiles of one network follow each other in a grid, so that what they share is still in the cache.

Matrix products take half-precision operands and add up in single precision: a half has the mantissa of the TF32 in
which PyTorch multiplies floats on such a GPU, in half the bytes, and can be read across or down. Its range is smaller,
so gradients are scaled, and an error beyond some 4,000 / |w3| counts as if it were that: a run that has got there has
diverged anyhow. Parameters, moments, targets, values and errors stay in single precision.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from stacked import BETAS, EPS, Adam, MlpShape
from torch import Tensor

_TILE = 64  # edge of a tile of weights, and rows of the batch that are reduced at a time
_SCALE = 16.0  # of gradients that are kept as halves: errors from 1e-4 to 1e4 stay in range
_LARGEST = tl.constexpr(65504.0)  # half


@triton.jit
def _relu(x):
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _half(x):
    """As a half, at the end of the range where it is beyond; what is no number stays none."""
    low = tl.maximum(x, -_LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(low, _LARGEST, propagate_nan=tl.PropagateNan.ALL).to(tl.float16)


@triton.jit
def _value(
    inputs, values, halves, h1, h2, q, network, tile, learning,
    W2: tl.constexpr, W3: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr, P: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, B: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    agent = (network % S) // N + tl.where(learning, 0, S // N)
    row = network.to(tl.int64) * P
    b = tile * BM + tl.arange(0, BM)
    c, j, k = tl.arange(0, CP), tl.arange(0, H), tl.arange(0, BK)
    x = tl.load(inputs + (agent * B + b)[:, None] * C + c[None, :], mask=c[None, :] < C, other=0.0)
    x = _half(x)
    kept = (network % S) * B * H + b[:, None] * H
    acc = tl.zeros((BM, H), tl.float32)
    for start in range(0, H, BK):
        w1 = tl.load(halves + row + c[:, None] * H + start + k[None, :], mask=c[:, None] < C, other=0.0)
        strip = _half(_relu(tl.dot(x, w1)))
        tl.store(h1 + kept + start + k[None, :], strip, mask=learning)
        w2 = tl.load(halves + row + W2 + (start + k)[:, None] * H + j[None, :])
        acc = tl.dot(strip, w2, acc)
    hidden = _relu(acc + tl.load(values + row + B2 + j)[None, :])
    tl.store(h2 + kept + j[None, :], _half(hidden), mask=learning)
    value = tl.sum(hidden * tl.load(values + row + W3 + j)[None, :], 1) + tl.load(values + row + B3)
    tl.store(q + network * B + b, value)


@triton.jit(do_not_specialize=["left_out"])
def _values(
    inputs, values, halves, left_out, h1, h2, q,
    W2: tl.constexpr, W3: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr, P: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, B: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    tile, network = tl.program_id(0), tl.program_id(1)
    learning = network < S  # else it is a target
    # Of a target that is not asked, `_errors` adds infinity to whatever value lies there.
    asked = tl.load(left_out + network % S) == 0.0
    if learning | asked:
        _value(
            inputs, values, halves, h1, h2, q, network, tile, learning, W2, W3, B2, B3, P, S, N, B, C, CP, H, BM, BK
        )  # fmt: skip


@triton.jit
def _policies(
    rows, values, halves, out,
    W2: tl.constexpr, W3: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr, P: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr,
    A: tl.constexpr, AP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    agent, tile = tl.program_id(0), tl.program_id(1)
    row = agent.to(tl.int64) * P
    r = agent.to(tl.int64) * R + tile * BM + tl.arange(0, BM)
    c, j, k, o = tl.arange(0, CP), tl.arange(0, H), tl.arange(0, BK), tl.arange(0, AP)
    x = tl.load(rows + r[:, None] * D + c[None, :], mask=c[None, :] < C, other=0.0)
    x = _half(tl.where(c[None, :] == C, 1.0, x))
    acc = tl.zeros((BM, H), tl.float32)
    for start in range(0, H, BK):
        w1 = tl.load(halves + row + c[:, None] * H + start + k[None, :], mask=c[:, None] <= C, other=0.0)
        strip = _half(_relu(tl.dot(x, w1)))
        w2 = tl.load(halves + row + W2 + (start + k)[:, None] * H + j[None, :])
        acc = tl.dot(strip, w2, acc)
    hidden = _half(_relu(acc + tl.load(values + row + B2 + j)[None, :]))
    w3 = tl.load(halves + row + W3 + j[:, None] * A + o[None, :], mask=o[None, :] < A, other=0.0)
    result = tl.dot(hidden, w3) + tl.load(values + row + B3 + o, mask=o < A, other=0.0)[None, :]
    tl.store(out + r[:, None] * A + o[None, :], result, mask=o[None, :] < A)


@triton.jit(do_not_specialize=["left_out"])
def _errors(
    values, halves, h1, h2, q, bellman, left_out, error, d_h1, d_h2, bellman_stride,
    W2: tl.constexpr, W3: tl.constexpr, P: tl.constexpr, S: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
    H: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, AGENT: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    tile, network = tl.program_id(0), tl.program_id(1)
    agent = network // N
    row = network.to(tl.int64) * P
    b = tile * BM + tl.arange(0, BM)
    i, k = tl.arange(0, H), tl.arange(0, BK)
    smallest = tl.full((BM,), float("inf"), tl.float32)
    for n in range(N):
        asked = tl.load(q + (S + agent * N + n) * B + b) + tl.load(left_out + agent * N + n)
        smallest = tl.minimum(smallest, asked, propagate_nan=tl.PropagateNan.ALL)
    target = tl.load(bellman + agent * AGENT + b) * smallest + tl.load(bellman + bellman_stride + agent * AGENT + b)
    difference = tl.load(q + network * B + b) - target
    tl.store(error + network * B + b, difference)
    kept = network * B * H + b[:, None] * H
    acc = tl.zeros((BM, H), tl.float32)
    for start in range(0, H, BK):
        hidden = tl.load(h2 + kept + start + k[None, :])
        w3 = tl.load(values + row + W3 + start + k) * SCALE
        strip = _half(tl.where(hidden > 0, difference[:, None] * w3[None, :], 0.0))
        tl.store(d_h2 + kept + start + k[None, :], strip)
        w2 = tl.load(halves + row + W2 + i[:, None] * H + start + k[None, :])
        acc = tl.dot(strip, tl.trans(w2), acc)
    first = tl.load(h1 + kept + i[None, :])
    tl.store(d_h1 + kept + i[None, :], _half(tl.where(first > 0, acc, 0.0)))


@triton.jit
def _state(values, mean, square, place, target, mask):
    """What Adam changes: parameters, moments, targets. Read early, so that they arrive while gradients are made."""
    p, t = tl.load(values + place, mask=mask), tl.load(values + target, mask=mask)
    return p, tl.load(mean + place, mask=mask), tl.load(square + place, mask=mask), t


@triton.jit
def _adam(values, halves, mean, square, place, target, mask, state, gradient, rates, SPEED, BETA1, BETA2, EPS):
    p, m, v, t = state
    m += (1 - BETA1) * (gradient - m)
    v = BETA2 * v + (1 - BETA2) * gradient * gradient
    p -= m * tl.load(rates) / (tl.sqrt(v) * tl.load(rates + 1) + EPS)
    t += SPEED * (p - t)
    tl.store(mean + place, m, mask=mask)
    tl.store(square + place, v, mask=mask)
    tl.store(values + place, p, mask=mask)
    tl.store(values + target, t, mask=mask)
    tl.store(halves + place, p.to(tl.float16), mask=mask)
    tl.store(halves + target, t.to(tl.float16), mask=mask)


@triton.jit
def _learn_w2(
    values, halves, mean, square, rates, row, target, left, right, part, SPEED, BETA1, BETA2, EPS,
    B: tl.constexpr, H: tl.constexpr, RT: tl.constexpr, T: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    b, i, j = tl.arange(0, T), (part // (H // T)) * RT + tl.arange(0, RT), (part % (H // T)) * T + tl.arange(0, T)
    place = i[:, None] * H + j[None, :]
    every = place >= 0
    at, follows = row + place, target + place
    state = _state(values, mean, square, at, follows, every)
    total = tl.zeros((RT, T), tl.float32)
    for start in range(0, B, T):
        h = tl.load(left + (start + b)[:, None] * H + i[None, :])
        d = tl.load(right + (start + b)[:, None] * H + j[None, :])
        total = tl.dot(tl.trans(h), d, total)
    gradient = total * (2.0 / (B * SCALE))
    _adam(values, halves, mean, square, at, follows, every, state, gradient, rates, SPEED, BETA1, BETA2, EPS)


@triton.jit
def _learn_w1(
    values, halves, mean, square, rates, row, target, left, right, part, SPEED, BETA1, BETA2, EPS,
    B: tl.constexpr, C: tl.constexpr, CT: tl.constexpr, H: tl.constexpr, T: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    b, c, j = tl.arange(0, T), (part // (H // T)) * CT + tl.arange(0, CT), (part % (H // T)) * T + tl.arange(0, T)
    place = c[:, None] * H + j[None, :]
    used = (c[:, None] < C) & (j[None, :] < H)
    at, follows = row + place, target + place
    state = _state(values, mean, square, at, follows, used)
    total = tl.zeros((CT, T), tl.float32)
    for start in range(0, B, T):
        x = tl.load(left + (start + b)[:, None] * C + c[None, :], mask=c[None, :] < C, other=0.0)
        x = _half(x)
        d = tl.load(right + (start + b)[:, None] * H + j[None, :])
        total = tl.dot(tl.trans(x), d, total)
    gradient = total * (2.0 / (B * SCALE))
    _adam(values, halves, mean, square, at, follows, used, state, gradient, rates, SPEED, BETA1, BETA2, EPS)


@triton.jit
def _learn_rest(
    values, halves, mean, square, rates, row, target, h2, d_h2, error, part, SPEED, BETA1, BETA2, EPS,
    W3: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr, B: tl.constexpr, H: tl.constexpr, T: tl.constexpr,
    SCALE: tl.constexpr,
):  # fmt: skip
    b, j = tl.arange(0, T), part * T + tl.arange(0, T)
    d_w3, d_b2, d_b3 = tl.zeros((T,), tl.float32), tl.zeros((T,), tl.float32), tl.zeros((T,), tl.float32)
    for start in range(0, B, T):
        difference = tl.load(error + start + b)
        hidden = tl.load(h2 + (start + b)[:, None] * H + j[None, :]).to(tl.float32)
        d_w3 += tl.sum(difference[:, None] * hidden, 0)
        d_b2 += tl.sum(tl.load(d_h2 + (start + b)[:, None] * H + j[None, :]).to(tl.float32), 0)
        d_b3 += difference
    every = j >= 0
    d_w3, d_b2 = d_w3 * (2.0 / B), d_b2 * (2.0 / (B * SCALE))
    at, follows = row + W3 + j, target + W3 + j
    state = _state(values, mean, square, at, follows, every)
    _adam(values, halves, mean, square, at, follows, every, state, d_w3, rates, SPEED, BETA1, BETA2, EPS)
    at, follows = row + B2 + j, target + B2 + j
    state = _state(values, mean, square, at, follows, every)
    _adam(values, halves, mean, square, at, follows, every, state, d_b2, rates, SPEED, BETA1, BETA2, EPS)
    at, follows = row + B3 + b, target + B3 + b
    once = (b == 0) & (part == 0)  # one number, so one lane writes it
    state = _state(values, mean, square, at, follows, once)
    gradient = tl.sum(d_b3, 0) * (2.0 / B) + tl.zeros((T,), tl.float32)
    _adam(values, halves, mean, square, at, follows, once, state, gradient, rates, SPEED, BETA1, BETA2, EPS)


@triton.jit(do_not_specialize=["rates"])
def _learn(
    inputs, values, halves, mean, square, h1, h2, error, d_h1, d_h2, rates, SPEED, BETA1, BETA2, EPS,
    W2: tl.constexpr, W3: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr, P: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, B: tl.constexpr, C: tl.constexpr, CT: tl.constexpr, H: tl.constexpr,
    RT: tl.constexpr, T: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    part, network = tl.program_id(0), tl.program_id(1)
    across: tl.constexpr = H // T
    tiles_of_w2: tl.constexpr = across * (H // RT)
    tiles: tl.constexpr = tiles_of_w2 + across * ((C + CT - 1) // CT)
    row = network.to(tl.int64) * P
    target = row + S * P
    kept = network * B * H
    if part < tiles_of_w2:
        _learn_w2(
            values, halves, mean, square, rates, row + W2, target + W2, h1 + kept, d_h2 + kept, part,
            SPEED, BETA1, BETA2, EPS, B, H, RT, T, SCALE,
        )  # fmt: skip
    elif part < tiles:
        _learn_w1(
            values, halves, mean, square, rates, row, target, inputs + (network // N) * B * C, d_h1 + kept,
            part - tiles_of_w2, SPEED, BETA1, BETA2, EPS, B, C, CT, H, T, SCALE,
        )  # fmt: skip
    else:
        _learn_rest(
            values, halves, mean, square, rates, row, target, h2 + kept, d_h2 + kept, error + network * B,
            part - tiles, SPEED, BETA1, BETA2, EPS, W3, B2, B3, B, H, T, SCALE,
        )  # fmt: skip


def _starts(shape: MlpShape) -> dict[str, int]:
    """Where the parts of a row of parameters begin, as the kernels call them; w1 begins it."""
    return {name.upper(): start for name, start in shape.starts().items() if name != "w1"}


def _edge(size: int) -> int:
    """Edge of a tile that holds `size` numbers: tensor cores want a power of two, and 16 at least."""
    return max(16, triton.next_power_of_2(size))


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
    agents, count, width = rows.shape
    if count % _TILE:
        raise ValueError(f"rows: expected a multiple of {_TILE} per agent, got {count}")
    rows = rows.contiguous()
    out = torch.empty(agents, count, shape.outputs, device=rows.device)
    _policies[(agents, count // _TILE)](
        rows[..., columns], parameters, parameters.half(), out, **_starts(shape), P=shape.parameters, R=count, D=width,
        C=shape.inputs, CP=_edge(shape.inputs + 1), H=shape.hidden, A=shape.outputs, AP=_edge(shape.outputs),
        BM=_TILE, BK=32, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


class TritonCritics:
    """Critics of all agents with their targets, updated by the kernels above.

    Args:
        values: Parameters of S critics, then of their targets, ``(2S, P)``.
        adam: Adam of the first S rows.
        shape: Of one critic.
        critics: Per agent.
        batch_size: Rows of a batch.
        target_speed: Of the targets.
    """

    def __init__(
        self, values: Tensor, adam: Adam, shape: MlpShape, *, critics: int, batch_size: int, target_speed: float
    ) -> None:
        """Allocate what the kernels hand on to each other."""
        self.values, self.adam, self.target_speed = values, adam, target_speed
        stack, device = len(values) // 2, values.device
        self.halves = values.half()  # what the products read; `_learn` keeps it up to date
        self.q = torch.zeros(2 * stack, batch_size, device=device)
        self.error = torch.zeros(stack, batch_size, device=device)
        hidden = (4, stack, batch_size, shape.hidden)
        self.h1, self.h2, self.d_h1, self.d_h2 = torch.zeros(hidden, dtype=torch.float16, device=device)
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
        self.halves.copy_(self.values)

    def update(
        self, inputs: Tensor, bellman: Tensor, left_out: Tensor, rates: Tensor, *, follow: bool = True
    ) -> Tensor:
        """One update; see `critics.Critics`."""
        sizes, starts, width, tuning = self._sizes, self._starts, self._width, self.tuning
        stack, batch, hidden = sizes["S"], sizes["B"], width["H"]
        weights: dict[str, Any] = {"W2": starts["W2"], "W3": starts["W3"]}
        _values[(batch // tuning["values"]["BM"], 2 * stack)](
            inputs, self.values, self.halves, left_out, self.h1, self.h2, self.q, **starts, **sizes, **width,
            **tuning["values"],
        )  # fmt: skip
        _errors[(batch // tuning["errors"]["BM"], stack)](
            self.values, self.halves, self.h1, self.h2, self.q, bellman, left_out, self.error, self.d_h1, self.d_h2,
            bellman.stride(0), **weights, **sizes, H=hidden, AGENT=bellman.stride(1), SCALE=_SCALE,
            **tuning["errors"],
        )  # fmt: skip
        tile = tuning["learn"]
        rows = hidden // tile["RT"] + triton.cdiv(width["C"], tile["CT"]) + 1  # of tiles: of w2, of w1, of the rest
        _learn[(hidden // tile["T"] * rows, stack)](
            inputs, self.values, self.halves, self.adam.mean, self.adam.square, self.h1, self.h2, self.error,
            self.d_h1, self.d_h2, rates, self.target_speed if follow else 0.0, *BETAS, EPS, **starts, **sizes, **width,
            SCALE=_SCALE, **tile,
        )  # fmt: skip
        return self.q[stack:].view(-1, sizes["N"], batch)
