"""One critic update of all agents in three Triton kernels.

The same as `critics.TorchCritics`, product for product, but what one kernel leaves on the chip the next does not read
from memory, and there are three launches instead of some twenty:

1. `_values`: both hidden layers and the value of every critic and target, a tile of the batch at a time; the first
   hidden layer is made in strips that are used up at once by the second.
2. `_errors`: distance from the Bellman target, and its gradient back through the second layer.
3. `_learn`: the gradient of each tile of weights, with Adam and the target network applied to the tile right there,
   so that no gradient is ever written.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from stacked import BETAS, EPS, Adam, MlpShape
from torch import Tensor

_TILE = 64  # edge of a tile of weights, and rows of the batch that are reduced at a time


@triton.jit
def _values(
    inputs, values, h1, h2, q,
    W2: tl.constexpr, W3: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr, P: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, B: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    network, tile = tl.program_id(0), tl.program_id(1)
    learning = network < S  # else it is a target
    agent = (network % S) // N + tl.where(learning, 0, S // N)
    row = values + network.to(tl.int64) * P
    b = tile * BM + tl.arange(0, BM)
    c, j, k = tl.arange(0, CP), tl.arange(0, H), tl.arange(0, BK)
    x = tl.load(inputs + (agent * B + b)[:, None] * C + c[None, :], mask=c[None, :] < C, other=0.0)
    kept = (network % S) * B * H + b[:, None] * H
    acc = tl.zeros((BM, H), tl.float32)
    for start in range(0, H, BK):
        w1 = tl.load(row + c[:, None] * H + start + k[None, :], mask=c[:, None] < C, other=0.0)
        strip = tl.maximum(tl.dot(x, w1, input_precision=PRECISION), 0.0)
        tl.store(h1 + kept + start + k[None, :], strip, mask=learning)
        w2 = tl.load(row + W2 + (start + k)[:, None] * H + j[None, :])
        acc = tl.dot(strip, w2, acc, input_precision=PRECISION)
    hidden = tl.maximum(acc + tl.load(row + B2 + j)[None, :], 0.0)
    tl.store(h2 + kept + j[None, :], hidden, mask=learning)
    value = tl.sum(hidden * tl.load(row + W3 + j)[None, :], 1) + tl.load(row + B3)
    tl.store(q + network * B + b, value)


@triton.jit(do_not_specialize=["left_out"])
def _errors(
    values, h1, h2, q, bellman, left_out, error, d_h1, d_h2, bellman_stride,
    W2: tl.constexpr, W3: tl.constexpr, P: tl.constexpr, S: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
    H: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, AGENT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    network, tile = tl.program_id(0), tl.program_id(1)
    agent = network // N
    row = values + network.to(tl.int64) * P
    b = tile * BM + tl.arange(0, BM)
    i, k = tl.arange(0, H), tl.arange(0, BK)
    smallest = tl.full((BM,), float("inf"), tl.float32)
    for n in range(N):
        asked = tl.load(q + (S + agent * N + n) * B + b) + tl.load(left_out + agent * N + n)
        # not tl.minimum alone: a value that is no number has to be seen
        smallest = tl.where(asked != asked, asked, tl.minimum(smallest, asked))
    target = tl.load(bellman + agent * AGENT + b) * smallest + tl.load(bellman + bellman_stride + agent * AGENT + b)
    d_q = (tl.load(q + network * B + b) - target) * (2.0 / B)
    tl.store(error + network * B + b, d_q)
    kept = network * B * H + b[:, None] * H
    acc = tl.zeros((BM, H), tl.float32)
    for start in range(0, H, BK):
        hidden = tl.load(h2 + kept + start + k[None, :])
        w3 = tl.load(row + W3 + start + k)
        strip = tl.where(hidden > 0, d_q[:, None] * w3[None, :], 0.0)
        tl.store(d_h2 + kept + start + k[None, :], strip)
        w2 = tl.load(row + W2 + i[:, None] * H + start + k[None, :])
        acc = tl.dot(strip, tl.trans(w2), acc, input_precision=PRECISION)
    first = tl.load(h1 + kept + i[None, :])
    tl.store(d_h1 + kept + i[None, :], tl.where(first > 0, acc, 0.0))


@triton.jit
def _adam(values, mean, square, place, target, mask, gradient, rates, SPEED, BETA1, BETA2, EPS):
    m, v = tl.load(mean + place, mask=mask), tl.load(square + place, mask=mask)
    p, t = tl.load(values + place, mask=mask), tl.load(values + target, mask=mask)
    m += (1 - BETA1) * (gradient - m)
    v = BETA2 * v + (1 - BETA2) * gradient * gradient
    p -= m * tl.load(rates) / (tl.sqrt(v) * tl.load(rates + 1) + EPS)
    tl.store(mean + place, m, mask=mask)
    tl.store(square + place, v, mask=mask)
    tl.store(values + place, p, mask=mask)
    tl.store(values + target, t + SPEED * (p - t), mask=mask)


@triton.jit
def _learn_w2(
    values, mean, square, rates, row, target, left, right, part, SPEED, BETA1, BETA2, EPS,
    B: tl.constexpr, H: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    b, i, j = tl.arange(0, T), (part // (H // T)) * T + tl.arange(0, T), (part % (H // T)) * T + tl.arange(0, T)
    gradient = tl.zeros((T, T), tl.float32)
    for start in range(0, B, T):
        h = tl.load(left + (start + b)[:, None] * H + i[None, :])
        d = tl.load(right + (start + b)[:, None] * H + j[None, :])
        gradient = tl.dot(tl.trans(h), d, gradient, input_precision=PRECISION)
    place = i[:, None] * H + j[None, :]
    every = place >= 0
    _adam(values, mean, square, row + place, target + place, every, gradient, rates, SPEED, BETA1, BETA2, EPS)


@triton.jit
def _learn_w1(
    values, mean, square, rates, row, target, left, right, part, SPEED, BETA1, BETA2, EPS,
    B: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr, T: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    b, c, j = tl.arange(0, T), tl.arange(0, CP), part * T + tl.arange(0, T)
    gradient = tl.zeros((CP, T), tl.float32)
    for start in range(0, B, T):
        x = tl.load(left + (start + b)[:, None] * C + c[None, :], mask=c[None, :] < C, other=0.0)
        d = tl.load(right + (start + b)[:, None] * H + j[None, :])
        gradient = tl.dot(tl.trans(x), d, gradient, input_precision=PRECISION)
    place = c[:, None] * H + j[None, :]
    used = (c[:, None] < C) & (j[None, :] < H)
    _adam(values, mean, square, row + place, target + place, used, gradient, rates, SPEED, BETA1, BETA2, EPS)


@triton.jit
def _learn_rest(
    values, mean, square, rates, row, target, h2, d_h2, error, part, SPEED, BETA1, BETA2, EPS,
    W3: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr, B: tl.constexpr, H: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    b, j = tl.arange(0, T), part * T + tl.arange(0, T)
    d_w3, d_b2, d_b3 = tl.zeros((T,), tl.float32), tl.zeros((T,), tl.float32), tl.zeros((T,), tl.float32)
    for start in range(0, B, T):
        d_q = tl.load(error + start + b)
        d_w3 += tl.sum(d_q[:, None] * tl.load(h2 + (start + b)[:, None] * H + j[None, :]), 0)
        d_b2 += tl.sum(tl.load(d_h2 + (start + b)[:, None] * H + j[None, :]), 0)
        d_b3 += d_q
    every = j >= 0
    _adam(values, mean, square, row + W3 + j, target + W3 + j, every, d_w3, rates, SPEED, BETA1, BETA2, EPS)
    _adam(values, mean, square, row + B2 + j, target + B2 + j, every, d_b2, rates, SPEED, BETA1, BETA2, EPS)
    last = B3 + b  # b3 is one number: the first lane of the first part writes it
    once = (b == 0) & (part == 0)
    total = tl.sum(d_b3, 0) + tl.zeros((T,), tl.float32)
    _adam(values, mean, square, row + last, target + last, once, total, rates, SPEED, BETA1, BETA2, EPS)


@triton.jit(do_not_specialize=["rates"])
def _learn(
    inputs, values, mean, square, h1, h2, error, d_h1, d_h2, rates, SPEED, BETA1, BETA2, EPS,
    W2: tl.constexpr, W3: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr, P: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, B: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    network, part = tl.program_id(0), tl.program_id(1)
    across: tl.constexpr = H // T
    row = network.to(tl.int64) * P
    target = row + S * P
    kept = network * B * H
    if part < across * across:
        _learn_w2(
            values, mean, square, rates, row + W2, target + W2, h1 + kept, d_h2 + kept, part,
            SPEED, BETA1, BETA2, EPS, B, H, T, PRECISION,
        )  # fmt: skip
    elif part < across * (across + 1):
        _learn_w1(
            values, mean, square, rates, row, target, inputs + (network // N) * B * C, d_h1 + kept,
            part - across * across, SPEED, BETA1, BETA2, EPS, B, C, CP, H, T, PRECISION,
        )  # fmt: skip
    else:
        _learn_rest(
            values, mean, square, rates, row, target, h2 + kept, d_h2 + kept, error + network * B,
            part - across * (across + 1), SPEED, BETA1, BETA2, EPS, W3, B2, B3, B, H, T,
        )  # fmt: skip


class TritonCritics:
    """Critics of all agents with their targets, updated by the kernels above.

    Args:
        values: Parameters of S critics, then of their targets, ``(2S, P)``.
        adam: Adam of the first S rows.
        shape: Of one critic.
        critics: Per agent.
        batch_size: Rows of a batch.
        target_speed: Of the targets.
        precision: Of the matrix products: "tf32", or "ieee" to compare with other code.
    """

    def __init__(
        self,
        values: Tensor,
        adam: Adam,
        shape: MlpShape,
        *,
        critics: int,
        batch_size: int,
        target_speed: float,
        precision: str = "tf32",
    ) -> None:
        """Allocate what the kernels hand on to each other."""
        self.values, self.adam, self.target_speed = values, adam, target_speed
        stack, device = len(values) // 2, values.device
        self.q = torch.zeros(2 * stack, batch_size, device=device)
        self.error = torch.zeros(stack, batch_size, device=device)
        self.h1, self.h2, self.d_h1, self.d_h2 = torch.zeros(4, stack, batch_size, shape.hidden, device=device)
        columns = shape.padded_inputs
        sizes = {"S": stack, "N": critics, "B": batch_size, "P": shape.parameters, "PRECISION": precision}
        self._width = {"C": columns, "CP": max(16, triton.next_power_of_2(columns)), "H": shape.hidden}
        starts = {name.upper(): start for name, start in shape.starts().items() if name != "w1"}
        self._sizes, self._starts = sizes, starts
        # A tile of the batch per program: small enough that there is one for every multiprocessor
        self._rows = {programs: self._tile(programs, batch_size) for programs in (2 * stack, stack)}
        self._strip = 32

    @staticmethod
    def fits(shape: MlpShape, batch_size: int) -> bool:
        """Whether the kernels can be used: their tiles have no ragged edges."""
        powers = shape.hidden & (shape.hidden - 1) == 0
        return powers and shape.hidden >= _TILE and batch_size % _TILE == 0 and shape.padded_inputs <= 256

    @staticmethod
    def _tile(networks: int, batch_size: int) -> int:
        for rows in (64, 32):
            if networks * (batch_size // rows) >= 96:
                return rows
        return 16

    def update(self, inputs: Tensor, bellman: Tensor, left_out: Tensor, rates: Tensor) -> None:
        """One update; see `critics.TorchCritics.update`."""
        sizes, starts, width = self._sizes, self._starts, self._width
        stack, batch, hidden = sizes["S"], sizes["B"], width["H"]
        wide, narrow = self._rows[2 * stack], self._rows[stack]
        weights: dict[str, Any] = {"W2": starts["W2"], "W3": starts["W3"]}
        _values[(2 * stack, batch // wide)](
            inputs, self.values, self.h1, self.h2, self.q, **starts, **sizes, **width, BM=wide, BK=self._strip,
            num_warps=4 if wide < 64 else 8, num_stages=2,
        )  # fmt: skip
        _errors[(stack, batch // narrow)](
            self.values, self.h1, self.h2, self.q, bellman, left_out, self.error, self.d_h1, self.d_h2,
            bellman.stride(0), **weights, **sizes, H=hidden, BM=narrow, BK=self._strip, AGENT=bellman.stride(1),
            num_warps=4 if narrow < 64 else 8, num_stages=2,
        )  # fmt: skip
        across = hidden // _TILE
        _learn[(stack, across * (across + 2))](
            inputs, self.values, self.adam.mean, self.adam.square, self.h1, self.h2, self.error, self.d_h1, self.d_h2,
            rates, self.target_speed, *BETAS, EPS, **starts, **sizes, **width, T=_TILE,
            num_warps=8 if width["CP"] > _TILE else 4, num_stages=2,
        )  # fmt: skip
