"""Triton kernel `learn`: gradients of all weights, Adam and target update in one pass; see `triton_kernels`.

The gradient of each weight tile is used at once, so that gradients are never written to memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from synther_replay.benchmarks.agents.networks.triton_kernels import to_fp16


@triton.jit
def _state(parameters, mean, square, place, target, mask, TARGETS: tl.constexpr):
    """Load parameters, moments and targets for Adam; called early, to overlap with the gradient computation."""
    p = tl.load(parameters + place, mask=mask)
    t = p
    if TARGETS:
        t = tl.load(parameters + target, mask=mask)
    return p, tl.load(mean + place, mask=mask), tl.load(square + place, mask=mask), t


@triton.jit
def _adam(
    parameters, fp16, mean, square, place, target, mask, state, gradient, rates, speed, decay, beta1, beta2, eps,
    TARGETS: tl.constexpr,
):  # fmt: skip
    p, m, v, t = state
    p -= decay * p
    m += (1 - beta1) * (gradient - m)
    v = beta2 * v + (1 - beta2) * gradient * gradient
    p -= m * tl.load(rates) / (tl.sqrt(v) * tl.load(rates + 1) + eps)
    if TARGETS:
        t += speed * (p - t)
    tl.store(mean + place, m, mask=mask)
    tl.store(square + place, v, mask=mask)
    tl.store(parameters + place, p, mask=mask)
    tl.store(fp16 + place, p.to(tl.float16), mask=mask)
    if TARGETS:
        tl.store(parameters + target, t, mask=mask)
        tl.store(fp16 + target, t.to(tl.float16), mask=mask)


@triton.jit
def _step(
    parameters, fp16, mean, square, row, target, place, mask, gradient, rates, speed, decay, beta1, beta2, eps,
    TARGETS: tl.constexpr,
):  # fmt: skip
    """Load and update in one call, for small tensors."""
    at, target_place = row + place, target + place
    state = _state(parameters, mean, square, at, target_place, mask, TARGETS)
    _adam(
        parameters, fp16, mean, square, at, target_place, mask, state, gradient, rates, speed, decay, beta1, beta2, eps,
        TARGETS,
    )  # fmt: skip


@triton.jit
def _learn_w2(
    parameters, fp16, mean, square, rates, row, target, left, right, part, speed, decay, beta1, beta2, eps,
    B: tl.constexpr, H: tl.constexpr, RT: tl.constexpr, T: tl.constexpr, FACTOR: tl.constexpr, TARGETS: tl.constexpr,
):  # fmt: skip
    b, i, j = tl.arange(0, T), (part // (H // T)) * RT + tl.arange(0, RT), (part % (H // T)) * T + tl.arange(0, T)
    place = i[:, None] * H + j[None, :]
    every = place >= 0
    at, target_place = row + place, target + place
    state = _state(parameters, mean, square, at, target_place, every, TARGETS)
    total = tl.zeros((RT, T), tl.float32)
    for start in range(0, B, T):
        h = tl.load(left + (start + b)[:, None] * H + i[None, :])
        d = tl.load(right + (start + b)[:, None] * H + j[None, :])
        total = tl.dot(tl.trans(h), d, total)
    _adam(
        parameters, fp16, mean, square, at, target_place, every, state, total * FACTOR, rates,
        speed, decay, beta1, beta2, eps, TARGETS,
    )  # fmt: skip


@triton.jit
def _learn_w1(
    parameters, fp16, mean, square, rates, row, target, left, right, part, speed, decay, beta1, beta2, eps,
    B: tl.constexpr, C: tl.constexpr, CT: tl.constexpr, H: tl.constexpr, T: tl.constexpr, FACTOR: tl.constexpr,
    TARGETS: tl.constexpr,
):  # fmt: skip
    b, c, j = tl.arange(0, T), (part // (H // T)) * CT + tl.arange(0, CT), (part % (H // T)) * T + tl.arange(0, T)
    place = c[:, None] * H + j[None, :]
    used = (c[:, None] < C) & (j[None, :] < H)
    at, target_place = row + place, target + place
    state = _state(parameters, mean, square, at, target_place, used, TARGETS)
    total = tl.zeros((CT, T), tl.float32)
    for start in range(0, B, T):
        x = tl.load(left + (start + b)[:, None] * C + c[None, :], mask=c[None, :] < C, other=0.0)
        x = to_fp16(x)
        d = tl.load(right + (start + b)[:, None] * H + j[None, :])
        total = tl.dot(tl.trans(x), d, total)
    _adam(
        parameters, fp16, mean, square, at, target_place, used, state, total * FACTOR, rates,
        speed, decay, beta1, beta2, eps, TARGETS,
    )  # fmt: skip


@triton.jit
def _learn_rest(
    parameters, fp16, mean, square, rates, row, target, h2, d_h2, d_out, part, speed, decay, beta1, beta2, eps,
    W3: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr, B: tl.constexpr, H: tl.constexpr, T: tl.constexpr,
    A: tl.constexpr, AP: tl.constexpr, FACTOR: tl.constexpr, FACTOR3: tl.constexpr, TARGETS: tl.constexpr,
):  # fmt: skip
    b, j, o = tl.arange(0, T), part * T + tl.arange(0, T), tl.arange(0, AP)
    d_b2 = tl.zeros((T,), tl.float32)
    if A == 1:
        d_w3, d_b3 = tl.zeros((T,), tl.float32), tl.zeros((T,), tl.float32)
    else:
        d_w3, d_b3 = tl.zeros((T, AP), tl.float32), tl.zeros((T, AP), tl.float32)
    # One stage: with more, Triton (3.6 and 3.9) prefetches a later `d` into the shared memory that asynchronous
    # products may still read. `tests/benchmarks/test_triton_compiled.py` checks the compiled code.
    for start in tl.range(0, B, T, num_stages=1):
        hidden = tl.load(h2 + (start + b)[:, None] * H + j[None, :]).to(tl.float32)
        d_b2 += tl.sum(tl.load(d_h2 + (start + b)[:, None] * H + j[None, :]).to(tl.float32), 0)
        if A == 1:
            d = tl.load(d_out + start + b)
            d_w3 += tl.sum(d[:, None] * hidden, 0)
        else:
            d = tl.load(d_out + (start + b)[:, None] * A + o[None, :], mask=o[None, :] < A, other=0.0)
            d_w3 = tl.dot(tl.trans(hidden), d, d_w3)
        d_b3 += d
    if A == 1:
        place, used = j, j >= 0
        first, once = b, (b == 0) & (part == 0)  # a single number, written by one program
        d_b3 = tl.sum(d_b3, 0) + tl.zeros((T,), tl.float32)
    else:
        place, used = j[:, None] * A + o[None, :], (j[:, None] >= 0) & (o[None, :] < A)
        first, once = o, (o < A) & (part == 0)
        d_b3 = tl.sum(d_b3, 0)
    _step(
        parameters, fp16, mean, square, row + W3, target + W3, place, used, d_w3 * FACTOR3, rates,
        speed, decay, beta1, beta2, eps, TARGETS,
    )  # fmt: skip
    _step(
        parameters, fp16, mean, square, row + B2, target + B2, j, j >= 0, d_b2 * FACTOR, rates,
        speed, decay, beta1, beta2, eps, TARGETS,
    )  # fmt: skip
    _step(
        parameters, fp16, mean, square, row + B3, target + B3, first, once, d_b3 * FACTOR3, rates,
        speed, decay, beta1, beta2, eps, TARGETS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rates"])
def learn(
    inputs, parameters, fp16, mean, square, h1, h2, d_out, d_h1, d_h2, rates, speed, decay, beta1, beta2, eps,
    W2: tl.constexpr, W3: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr, P: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, B: tl.constexpr, AGENT: tl.constexpr, C: tl.constexpr, CT: tl.constexpr,
    H: tl.constexpr, A: tl.constexpr, AP: tl.constexpr, RT: tl.constexpr, T: tl.constexpr,
    FACTOR: tl.constexpr, FACTOR3: tl.constexpr, TARGETS: tl.constexpr,
):  # fmt: skip
    """One step of Adam for S networks, N per agent, and with `TARGETS` of their targets, stored after all networks.

    The stride between inputs of agents is `AGENT`. Gradients are multiplied by `FACTOR` for the hidden layers and by
    `FACTOR3` for the output layer.
    """
    part, network = tl.program_id(0), tl.program_id(1)
    across: tl.constexpr = H // T
    tiles_of_w2: tl.constexpr = across * (H // RT)
    tiles: tl.constexpr = tiles_of_w2 + across * ((C + CT - 1) // CT)
    row = network.to(tl.int64) * P
    target = row + S * P
    kept = network * B * H
    if part < tiles_of_w2:
        _learn_w2(
            parameters, fp16, mean, square, rates, row + W2, target + W2, h1 + kept, d_h2 + kept, part,
            speed, decay, beta1, beta2, eps, B, H, RT, T, FACTOR, TARGETS,
        )  # fmt: skip
    elif part < tiles:
        _learn_w1(
            parameters, fp16, mean, square, rates, row, target, inputs + (network // N) * AGENT, d_h1 + kept,
            part - tiles_of_w2, speed, decay, beta1, beta2, eps, B, C, CT, H, T, FACTOR, TARGETS,
        )  # fmt: skip
    else:
        _learn_rest(
            parameters, fp16, mean, square, rates, row, target, h2 + kept, d_h2 + kept, d_out + network * B * A,
            part - tiles, speed, decay, beta1, beta2, eps, W3, B2, B3, B, H, T, A, AP, FACTOR, FACTOR3, TARGETS,
        )  # fmt: skip
