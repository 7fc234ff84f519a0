"""Triton kernels of the learners' updates, each for the networks of all agents; launched by `triton_networks`.

A critic update computes the same as `critics.TorchCritics`, with three kernels instead of about twenty:

1. `values`: both hidden layers and the value of every critic and target, by tiles of the batch. The first hidden layer
   is computed in strips that the second one consumes at once.
2. `errors`: TD errors, and their gradient through the second layer.
3. `triton_learning.learn`: the gradient of each weight tile, with Adam and the target update applied to the tile.

Other networks get the gradient of their outputs from outside: `outputs` replaces the first kernel and `back` the
second. Networks with other numbers of hidden layers, or wider ones, use `product`, one layer at a time.

Tiles of one network are adjacent in the grid, so that shared data stay in the cache.

Matrix products have fp16 operands and fp32 accumulators. fp16 has the same mantissa as TF32, which PyTorch uses for
fp32 products on these GPUs, and half the size. Its range is smaller, so gradients are scaled, and values beyond the
range are clamped: for example a TD error beyond about 4,000 / |w3|, which occurs only after a run has diverged.
Parameters, moments, targets, values and errors are fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LARGEST = tl.constexpr(65504.0)  # of fp16


@triton.jit
def _relu(x):
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def to_fp16(x):
    """Convert to fp16; values beyond its range are clamped, NaN stays NaN."""
    low = tl.maximum(x, -_LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(low, _LARGEST, propagate_nan=tl.PropagateNan.ALL).to(tl.float16)


@triton.jit
def product(
    a, b, out, bias, unit,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A_S: tl.constexpr, A_M: tl.constexpr, A_K: tl.constexpr,
    B_S: tl.constexpr, B_K: tl.constexpr, B_N: tl.constexpr, O_S: tl.constexpr, O_M: tl.constexpr, U_S: tl.constexpr,
    U_M: tl.constexpr, BIAS_S: tl.constexpr, FACTOR: tl.constexpr, BIASED: tl.constexpr, RELU: tl.constexpr,
    MASKED: tl.constexpr, ADD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Matrix product of fp16 operands for each network; see `triton_matmul.product` for bias, relu and mask."""
    tile, network = tl.program_id(0), tl.program_id(1).to(tl.int64)
    across: tl.constexpr = (N + BN - 1) // BN
    m, n, k = (tile // across) * BM + tl.arange(0, BM), (tile % across) * BN + tl.arange(0, BN), tl.arange(0, BK)
    left = a + network * A_S + m[:, None] * A_M + k[None, :] * A_K
    right = b + network * B_S + k[:, None] * B_K + n[None, :] * B_N
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        if M % BM == 0 and K % BK == 0:
            x = tl.load(left + start * A_K)
        else:
            x = tl.load(left + start * A_K, mask=(m[:, None] < M) & (start + k[None, :] < K), other=0.0)
        if N % BN == 0 and K % BK == 0:
            y = tl.load(right + start * B_K)
        else:
            y = tl.load(right + start * B_K, mask=(start + k[:, None] < K) & (n[None, :] < N), other=0.0)
        total = tl.dot(x, y, total)
    total *= FACTOR
    inside = (m[:, None] < M) & (n[None, :] < N)
    if BIASED:
        total += tl.load(bias + network * BIAS_S + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if RELU:
        total = _relu(total)
    if MASKED:
        open_units = tl.load(unit + network * U_S + m[:, None] * U_M + n[None, :], mask=inside, other=0.0) > 0
        total = tl.where(open_units, total, 0.0)
    place = out + network * O_S + m[:, None] * O_M + n[None, :]
    if ADD:
        total += tl.load(place, mask=inside, other=0.0)
    if out.dtype.element_ty == tl.float16:
        total = to_fp16(total)
    tl.store(place, total, mask=inside)


@triton.jit
def _first_statistics(
    x, w1, C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr, EPS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr
):
    """Mean and reciprocal standard deviation of each row of ``x @ w1``, whose strips are then computed once more."""
    c, k = tl.arange(0, CP), tl.arange(0, BK)
    total, square = tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32)
    for start in range(0, H, BK):
        strip = tl.dot(x, tl.load(w1 + c[:, None] * H + start + k[None, :], mask=c[:, None] < C, other=0.0))
        total += tl.sum(strip, 1)
        square += tl.sum(strip * strip, 1)
    mean = total / H
    return mean, 1 / tl.sqrt(tl.maximum(square / H - mean * mean, 0.0) + EPS)


@triton.jit
def _norm(z, H: tl.constexpr, EPS: tl.constexpr):
    """Rows with mean 0 and variance 1, and the reciprocal standard deviations."""
    centred = z - (tl.sum(z, 1) / H)[:, None]
    factor = 1 / tl.sqrt(tl.sum(centred * centred, 1) / H + EPS)
    return centred * factor[:, None], factor


@triton.jit
def _value(
    inputs, parameters, fp16, h1, h2, n1, n2, factors, q, network, tile, learning,
    W2: tl.constexpr, W3: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr, P: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, B: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr,
    NORM: tl.constexpr, ALTERNATING: tl.constexpr, EPS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    agent = (network % S) // N + tl.where(learning, 0, S // N)
    row = network.to(tl.int64) * P
    b = tile * BM + tl.arange(0, BM)
    c, j, k = tl.arange(0, CP), tl.arange(0, H), tl.arange(0, BK)
    x = tl.load(inputs + (agent * B + b)[:, None] * C + c[None, :], mask=c[None, :] < C, other=0.0)
    x = to_fp16(x)
    kept = (network % S) * B * H + b[:, None] * H
    normed = network % 2 == 0
    if NORM:
        mean, factor = _first_statistics(x, fp16 + row, C, CP, H, EPS, BM, BK)
        if ALTERNATING:
            mean, factor = tl.where(normed, mean, 0.0), tl.where(normed, factor, 1.0)
        tl.store(factors + network * B + b, factor, mask=learning)
    acc = tl.zeros((BM, H), tl.float32)
    for start in range(0, H, BK):
        w1 = tl.load(fp16 + row + c[:, None] * H + start + k[None, :], mask=c[:, None] < C, other=0.0)
        before = tl.dot(x, w1)
        if NORM:
            before = (before - mean[:, None]) * factor[:, None]
            tl.store(n1 + kept + start + k[None, :], to_fp16(before), mask=learning)
        strip = to_fp16(_relu(before))
        tl.store(h1 + kept + start + k[None, :], strip, mask=learning)
        w2 = tl.load(fp16 + row + W2 + (start + k)[:, None] * H + j[None, :])
        acc = tl.dot(strip, w2, acc)
    before = acc + tl.load(parameters + row + B2 + j)[None, :]
    if NORM:
        normal, factor = _norm(before, H, EPS)
        if ALTERNATING:
            normal, factor = tl.where(normed, normal, before), tl.where(normed, factor, 1.0)
        before = normal
        tl.store(factors + (S + network) * B + b, factor, mask=learning)
        tl.store(n2 + kept + j[None, :], to_fp16(before), mask=learning)
    hidden = _relu(before)
    tl.store(h2 + kept + j[None, :], to_fp16(hidden), mask=learning)
    value = tl.sum(hidden * tl.load(parameters + row + W3 + j)[None, :], 1) + tl.load(parameters + row + B3)
    tl.store(q + network * B + b, value)


@triton.jit(do_not_specialize=["excluded"])
def values(
    inputs, parameters, fp16, excluded, h1, h2, n1, n2, factors, q,
    W2: tl.constexpr, W3: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr, P: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, B: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr,
    NORM: tl.constexpr, ALTERNATING: tl.constexpr, EPS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Values of S critics and of their targets, N per agent, and the critics' hidden layers.

    With `NORM` also the critics' normalised layers before relu, and what they were multiplied by, ``(2, S, B)``; with
    `ALTERNATING`, every second network is not normalised; its factors are 1.
    """
    tile, network = tl.program_id(0), tl.program_id(1)
    learning = network < S  # otherwise a target
    # Targets that are not used are skipped: `errors` adds infinity to their old values.
    used = tl.load(excluded + network % S) == 0.0
    if learning | used:
        _value(
            inputs, parameters, fp16, h1, h2, n1, n2, factors, q, network, tile, learning,
            W2, W3, B2, B3, P, S, N, B, C, CP, H, NORM, ALTERNATING, EPS, BM, BK,
        )  # fmt: skip


@triton.jit
def outputs(
    rows, parameters, fp16, out, h1, h2,
    W2: tl.constexpr, W3: tl.constexpr, B2: tl.constexpr, B3: tl.constexpr, P: tl.constexpr,
    R: tl.constexpr, AGENT: tl.constexpr, D: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, H: tl.constexpr,
    A: tl.constexpr, AP: tl.constexpr, KEEP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Outputs of networks, and the hidden layers of the first `KEEP` rows.

    The stride of rows is `D`, their first `C` columns are inputs; the stride between networks is `AGENT`.
    """
    tile, network = tl.program_id(0), tl.program_id(1)
    row = network.to(tl.int64) * P
    b = tile * BM + tl.arange(0, BM)
    c, j, k, o = tl.arange(0, CP), tl.arange(0, H), tl.arange(0, BK), tl.arange(0, AP)
    x = tl.load(rows + network.to(tl.int64) * AGENT + b[:, None] * D + c[None, :], mask=c[None, :] < C, other=0.0)
    x = to_fp16(tl.where(c[None, :] == C, 1.0, x))
    kept, keeps = network * KEEP * H + b[:, None] * H, b[:, None] < KEEP
    acc = tl.zeros((BM, H), tl.float32)
    for start in range(0, H, BK):
        w1 = tl.load(fp16 + row + c[:, None] * H + start + k[None, :], mask=c[:, None] <= C, other=0.0)
        strip = to_fp16(_relu(tl.dot(x, w1)))
        if KEEP > 0:
            tl.store(h1 + kept + start + k[None, :], strip, mask=keeps)
        w2 = tl.load(fp16 + row + W2 + (start + k)[:, None] * H + j[None, :])
        acc = tl.dot(strip, w2, acc)
    hidden = to_fp16(_relu(acc + tl.load(parameters + row + B2 + j)[None, :]))
    if KEEP > 0:
        tl.store(h2 + kept + j[None, :], hidden, mask=keeps)
    w3 = tl.load(fp16 + row + W3 + j[:, None] * A + o[None, :], mask=o[None, :] < A, other=0.0)
    result = tl.dot(hidden, w3) + tl.load(parameters + row + B3 + o, mask=o < A, other=0.0)[None, :]
    tl.store(out + (network * R + b)[:, None] * A + o[None, :], result, mask=o[None, :] < A)


@triton.jit
def _top_gradient(
    parameters, unit, row, kept, d_out, start,
    W3: tl.constexpr, A: tl.constexpr, AP: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A strip of the second hidden layer, and the gradient by it before relu, given that by the outputs."""
    k, o = tl.arange(0, BK), tl.arange(0, AP)
    hidden = tl.load(unit + kept + start + k[None, :])
    if A == 1:
        d_hidden = d_out[:, None] * tl.load(parameters + row + W3 + start + k)[None, :]
    else:
        w3 = tl.load(parameters + row + W3 + (start + k)[None, :] * A + o[:, None], mask=o[:, None] < A, other=0.0)
        d_hidden = tl.dot(d_out, w3)
    return hidden, tl.where(hidden > 0, d_hidden, 0.0)


@triton.jit
def _through_hidden(
    parameters, fp16, u1, u2, factors, d_h1, d_h2, network, kept, place, d_out,
    W2: tl.constexpr, W3: tl.constexpr, P: tl.constexpr, S: tl.constexpr, B: tl.constexpr, H: tl.constexpr,
    A: tl.constexpr, AP: tl.constexpr, NORM: tl.constexpr, ALTERNATING: tl.constexpr, BM: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Gradients by both hidden layers before relu, given those by one output ``(BM,)`` or several ``(BM, AP)``.

    With `NORM`, those by the layers before their normalisation; `u1` and `u2` are then the normalised layers before
    relu, else the layers after it. The factors of the rows of this tile are at `place`.
    """
    i, k = tl.arange(0, H), tl.arange(0, BK)
    row = network.to(tl.int64) * P
    normed = 1.0
    if ALTERNATING:
        normed = tl.where(network % 2 == 0, 1.0, 0.0)  # 0: this network's gradient passes as it is
    if NORM:
        total, along = tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32)
        for start in range(0, H, BK):
            normal, d = _top_gradient(parameters, u2, row, kept, d_out, start, W3, A, AP, BK)
            total += tl.sum(d, 1)
            along += tl.sum(d * normal.to(tl.float32), 1)
        factor = tl.load(factors + S * B + place)[:, None]
        total, along = (total / H * normed)[:, None], (along / H * normed)[:, None]
    acc = tl.zeros((BM, H), tl.float32)
    for start in range(0, H, BK):
        hidden, d = _top_gradient(parameters, u2, row, kept, d_out, start, W3, A, AP, BK)
        if NORM:
            d = factor * (d - total - hidden.to(tl.float32) * along)
        strip = to_fp16(d)
        tl.store(d_h2 + kept + start + k[None, :], strip)
        w2 = tl.load(fp16 + row + W2 + i[:, None] * H + start + k[None, :])
        acc = tl.dot(strip, tl.trans(w2), acc)
    first = tl.load(u1 + kept + i[None, :])
    d = tl.where(first > 0, acc, 0.0)
    if NORM:
        normal = first.to(tl.float32)
        along = (tl.sum(d * normal, 1) / H * normed)[:, None]
        d = tl.load(factors + place)[:, None] * (d - (tl.sum(d, 1) / H * normed)[:, None] - normal * along)
    d_first = to_fp16(d)
    tl.store(d_h1 + kept + i[None, :], d_first)
    return d_first


@triton.jit(do_not_specialize=["excluded"])
def errors(
    parameters, fp16, u1, u2, factors, q, bellman, excluded, caution, bounds, error, d_h1, d_h2, bellman_stride,
    W2: tl.constexpr, W3: tl.constexpr, P: tl.constexpr, S: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
    H: tl.constexpr, NORM: tl.constexpr, ALTERNATING: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    AGENT: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """TD errors of the critics, and `SCALE` times their gradient by both hidden layers; see `_through_hidden`."""
    tile, network = tl.program_id(0), tl.program_id(1)
    agent = network // N
    b = tile * BM + tl.arange(0, BM)
    smallest = tl.full((BM,), float("inf"), tl.float32)
    largest = tl.full((BM,), -float("inf"), tl.float32)
    for n in range(N):
        value, offset = tl.load(q + (S + agent * N + n) * B + b), tl.load(excluded + agent * N + n)
        smallest = tl.minimum(smallest, value + offset, propagate_nan=tl.PropagateNan.ALL)
        largest = tl.maximum(largest, value - offset)
    cautious = smallest - tl.load(caution + agent) * (largest - smallest)
    target = tl.load(bellman + agent * AGENT + b) * cautious + tl.load(bellman + bellman_stride + agent * AGENT + b)
    target = tl.maximum(target, tl.load(bounds + agent), propagate_nan=tl.PropagateNan.ALL)
    target = tl.minimum(target, tl.load(bounds + S // N + agent), propagate_nan=tl.PropagateNan.ALL)
    difference = tl.load(q + network * B + b) - target
    tl.store(error + network * B + b, difference)
    kept = network * B * H + b[:, None] * H
    _through_hidden(
        parameters, fp16, u1, u2, factors, d_h1, d_h2, network, kept, network * B + b, difference * SCALE,
        W2, W3, P, S, B, H, 1, 16, NORM, ALTERNATING, BM, BK,
    )  # fmt: skip


@triton.jit
def back(
    parameters, fp16, h1, h2, d_out, d_h1, d_h2, d_inputs,
    W2: tl.constexpr, W3: tl.constexpr, P: tl.constexpr, B: tl.constexpr, C: tl.constexpr, CP: tl.constexpr,
    H: tl.constexpr, A: tl.constexpr, AP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, SCALE: tl.constexpr,
    TO_INPUTS: tl.constexpr,
):  # fmt: skip
    """`SCALE` times the gradient by both hidden layers, and the gradient by the inputs, given that by the outputs."""
    tile, network = tl.program_id(0), tl.program_id(1)
    b, o = tile * BM + tl.arange(0, BM), tl.arange(0, AP)
    if A == 1:
        d = tl.load(d_out + network * B + b)
    else:
        d = tl.load(d_out + (network * B + b)[:, None] * A + o[None, :], mask=o[None, :] < A, other=0.0)
    row, kept = network.to(tl.int64) * P, network * B * H + b[:, None] * H
    d_first = _through_hidden(
        parameters, fp16, h1, h2, parameters, d_h1, d_h2, network, kept, network * B + b, d * SCALE,
        W2, W3, P, 1, B, H, A, AP, False, False, BM, BK,
    )  # fmt: skip
    if TO_INPUTS:
        c, i = tl.arange(0, CP), tl.arange(0, H)
        w1 = tl.load(fp16 + row + c[:, None] * H + i[None, :], mask=c[:, None] < C, other=0.0)
        d_x = tl.dot(d_first, tl.trans(w1)) / SCALE
        tl.store(d_inputs + (network * B + b)[:, None] * C + c[None, :], d_x, mask=c[None, :] < C)
