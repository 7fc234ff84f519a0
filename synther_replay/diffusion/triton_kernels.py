"""Triton kernels of the element-wise operations of training and sampling; `launchers` starts them.

`torch.compile` could write such kernels, too, but takes some ten seconds to start and a second per function and shape.
These compile in a fraction of a second each, once per machine: Triton keeps them on disk, and sizes are arguments, so
one compilation serves all of them.

A program computes a tile of rows and columns, which needs no division of indices. Sizes that are multiples of 8 come
divided by 8: multiplied again, the compiler knows how rows are aligned and moves 16 bytes at a time. Everything is
computed in fp32. Comparisons are written such that NaN stays NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

_TURN = tl.constexpr(6.283185307179586)
_EPS = tl.constexpr(1e-8)


@triton.jit
def _relu(x):
    return tl.where(x < 0, 0.0, x)


@triton.jit
def _clamp(x, limit: tl.constexpr):
    return tl.where(x < -limit, -limit, tl.where(x > limit, limit, x))


@triton.jit(do_not_specialize=["rows", "eighths", "shift_eighths"])
def shifted_relu(h, shift, out, rows, eighths, shift_eighths, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """``relu(h + shift)`` of h ``(M, rows, width)`` and shift ``(M, width)``."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    model, width = tl.program_id(2).to(tl.int64), eighths * 8
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = (model * rows + row)[:, None] * width + column[None, :]
    x = tl.load(h + place, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(shift + model * (shift_eighths * 8) + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(out + place, _relu(x + y[None, :]), mask=inside)


@triton.jit(do_not_specialize=["rows", "eighths", "bias_eighths"])
def biased_silu(x, bias, biased, silu, rows, eighths, bias_eighths, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """``x + bias`` and its silu, of x ``(M, rows, width)`` and bias ``(M, width)``."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    model, width = tl.program_id(2).to(tl.int64), eighths * 8
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = (model * rows + row)[:, None] * width + column[None, :]
    y = tl.load(bias + model * (bias_eighths * 8) + column, mask=column < width, other=0.0).to(tl.float32)
    z = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + y[None, :]
    tl.store(biased + place, z, mask=inside)
    tl.store(silu + place, z / (1.0 + tl.exp(-z)), mask=inside)


@triton.jit(do_not_specialize=["eighths", "bias_eighths"])
def running_sum(biases, out, eighths, bias_eighths, COUNT: tl.constexpr, COLUMNS: tl.constexpr):
    """Running sum of biases ``(M, COUNT, width)`` over the second axis."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    model, width = tl.program_id(1).to(tl.int64), eighths * 8
    total = tl.zeros((COLUMNS,), tl.float32)
    for k in range(COUNT):
        place = k * width + column
        value = tl.load(biases + model * (bias_eighths * 8) + place, mask=column < width, other=0.0)
        total += value.to(tl.float32)
        tl.store(out + model * COUNT * width + place, total, mask=column < width)


@triton.jit(do_not_specialize=["eighths"])
def add_through_relu(g, through, relu, out, eighths, BLOCK: tl.constexpr):
    """``g + through`` where relu is above 0, else ``g``."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < eighths * 8
    x = tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(through + place, mask=inside, other=0.0).to(tl.float32)
    unit = tl.load(relu + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, tl.where(unit <= 0, x, x + y), mask=inside)


@triton.jit(do_not_specialize=["rows", "eighths", "gain_rows"])
def add_gained(
    y, gains, x, rows, eighths, gain_rows,
    FIRST: tl.constexpr, SECOND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add ``clamp(x)`` at two limits times its gains, ``(M, gain_rows, 2 * width)``, to y ``(M, rows, width)``."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    model, width = tl.program_id(2).to(tl.int64), eighths * 8
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = (model * rows + row)[:, None] * width + column[None, :]
    gain = (model * gain_rows + tl.minimum(row, gain_rows - 1))[:, None] * (2 * width) + column[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    total = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(gains + gain, mask=inside, other=0.0).to(tl.float32) * _clamp(value, FIRST)
    total += tl.load(gains + gain + width, mask=inside, other=0.0).to(tl.float32) * _clamp(value, SECOND)
    tl.store(y + place, total, mask=inside)


@triton.jit(do_not_specialize=["rows", "eighths"])
def gained_gradient(
    d_y, x, out, rows, eighths,
    FIRST: tl.constexpr, SECOND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """``d_y * clamp(x)`` at two limits, side by side: ``(rows, 2 * width)``."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    width, first = eighths * 8, row.to(tl.int64)[:, None]
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place, beside = first * width + column[None, :], first * (2 * width) + column[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(d_y + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + beside, d * _clamp(value, FIRST), mask=inside)
    tl.store(out + beside + width, d * _clamp(value, SECOND), mask=inside)


@triton.jit(do_not_specialize=["rows", "dim", "eighths"])
def corrupt(x, sigma, noise, inputs, target, rows, dim, eighths, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Network inputs ``(rows, width)`` and targets ``(rows, dim)`` of EDM for clean rows; see `edm.corrupt`."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    width, first = eighths * 8, row.to(tl.int64)[:, None]
    used = (row < rows)[:, None] & (column < dim)[None, :]
    inside = (row < rows)[:, None] & (column < width)[None, :]
    level = tl.load(sigma + row, mask=row < rows, other=1.0)[:, None]
    c_in = 1.0 / tl.sqrt(level * level + 1.0)
    value = tl.load(x + first * dim + column[None, :], mask=used, other=0.0)
    n = tl.load(noise + first * dim + column[None, :], mask=used, other=0.0)
    tl.store(inputs + first * width + column[None, :], (value + level * n) * c_in, mask=inside)
    tl.store(target + first * dim + column[None, :], (level * value - n) * c_in, mask=used)


@triton.jit(do_not_specialize=["rows", "rows_per_model", "models", "half", "eighths"])
def noise_features(
    sigma, frequencies, out, rows, rows_per_model, models, half, eighths, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Features of the noise level, ``(rows, width)``; see `edm.noise_features`."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)[None, :]
    width, model = eighths * 8, ((row // rows_per_model) % models)[:, None]
    level = tl.log(tl.load(sigma + row, mask=row < rows, other=1.0))[:, None] * 0.25
    is_sine, is_cosine = (column >= 1) & (column <= half), (column > half) & (column <= 2 * half)
    which = tl.where(is_cosine, column - half, column) - 1
    turns = level * tl.load(frequencies + model * half + which, mask=is_sine | is_cosine, other=0.0)
    angle = (turns - tl.floor(turns + 0.5)) * _TURN  # small: fast sines are accurate between -pi and pi
    value = tl.where(is_sine, tl.sin(angle), tl.where(is_cosine, tl.cos(angle), 0.0))
    value = tl.where(column == 0, level, value)
    inside = (row < rows)[:, None] & (column < width)
    tl.store(out + row.to(tl.int64)[:, None] * width + column, value, mask=inside)


@triton.jit(do_not_specialize=["rows", "dim", "eighths"])
def squared_error(
    y, target, gradient, partial, rows, dim, eighths, scale, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Gradient of the squared error of y ``(M, rows, width)``, and the error's sum over each tile."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    model, width = tl.program_id(2).to(tl.int64), eighths * 8
    used = (row < rows)[:, None] & (column < dim)[None, :]
    inside = (row < rows)[:, None] & (column < width)[None, :]
    first = (model * rows + row)[:, None]
    value = tl.load(y + first * width + column[None, :], mask=inside, other=0.0).to(tl.float32)
    error = tl.where(used, value - tl.load(target + first * dim + column[None, :], mask=used, other=0.0), 0.0)
    tl.store(gradient + first * width + column[None, :], error * scale, mask=inside)
    tile = (model * tl.num_programs(0) + tl.program_id(0)) * tl.num_programs(1) + tl.program_id(1)
    tl.store(partial + tile, tl.sum(error * error))


@triton.jit(do_not_specialize=["rows", "dim", "eighths"])
def scaled_input(x, sigma, out, rows, dim, eighths, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """``x / sqrt(sigma^2 + 1)``, padded with zeros from ``(rows, dim)`` to ``(rows, width)``."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    width, first = eighths * 8, row.to(tl.int64)[:, None]
    level = tl.load(sigma)
    used = (row < rows)[:, None] & (column < dim)[None, :]
    value = tl.load(x + first * dim + column[None, :], mask=used, other=0.0) / tl.sqrt(level * level + 1.0)
    tl.store(out + first * width + column[None, :], value, mask=(row < rows)[:, None] & (column < width)[None, :])


@triton.jit(do_not_specialize=["rows", "dim", "eighths"])
def denoised(x, y, sigma, out, rows, dim, eighths, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """``c_skip * x + c_out * y`` of x ``(rows, dim)`` and y ``(rows, width)``."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    width, first = eighths * 8, row.to(tl.int64)[:, None]
    level = tl.load(sigma)
    variance = level * level + 1.0
    used = (row < rows)[:, None] & (column < dim)[None, :]
    value = tl.load(x + first * dim + column[None, :], mask=used, other=0.0)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    f = tl.load(y + first * width + column[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(out + first * dim + column[None, :], value / variance + f * (level / tl.sqrt(variance)), mask=used)


@triton.jit(do_not_specialize=["eighths"])
def adam(
    parameters, working, gradient, mean, square, norm, rates, eighths, clip, new1, beta2, new2, BLOCK: tl.constexpr
):
    """One step of Adam on ``(M, P)``; `new1` and `new2` are ``1 - beta``. See `optimiser`."""
    model, size = tl.program_id(1).to(tl.int64), eighths * 8
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place, inside = model * size + offset, offset < size
    factor = clip / (tl.load(norm + model) + 1e-6)
    g = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32) * tl.where(factor > 1.0, 1.0, factor)
    m = tl.load(mean + place, mask=inside, other=0.0)
    v = tl.load(square + place, mask=inside, other=0.0)
    m += new1 * (g - m)
    v = beta2 * v + new2 * g * g
    p = tl.load(parameters + place, mask=inside, other=0.0)
    p -= m * tl.load(rates) / (tl.sqrt(v) * tl.load(rates + 1) + _EPS)
    tl.store(mean + place, m, mask=inside)
    tl.store(square + place, v, mask=inside)
    tl.store(parameters + place, p, mask=inside)
    tl.store(working + place, p, mask=inside)
