"""The Triton kernel of `mixing`; `launchers` starts it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["size", "count", "width", "row_stride", "flag_stride"])
def mix(
    rows,
    places,
    index,
    numbers,
    flags,
    starts,
    widths,
    out,
    raised,
    row_numbers,
    size,
    count,
    width,
    row_stride,
    flag_stride,
    FLAGS: tl.constexpr,
    TERMINATED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PLACES: tl.constexpr,
    PLACE_BLOCKS: tl.constexpr,
    COLUMN_BLOCKS: tl.constexpr,
):
    """A program makes ROWS rows of the batch. It looks for them among the places, which are few."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < size
    rank = tl.full((ROWS,), -1, tl.int32)  # of a row among the real ones; -1 for synthetic rows
    for block in range(PLACE_BLOCKS):
        k = block * PLACES + tl.arange(0, PLACES)
        place = tl.load(places + k, mask=k < count, other=-1)
        found = tl.where(row[:, None] == place[None, :], k[None, :], -1)
        rank = tl.maximum(rank, tl.max(found, axis=1))
    is_real = (rank >= 0) & inside
    is_synthetic = (rank < 0) & inside
    source = tl.load(index + rank, mask=is_real, other=0)
    tl.store(row_numbers + row, tl.where(is_real, source, -1), mask=inside)
    held = rows + row.to(tl.int64) * row_stride
    for block in range(COLUMN_BLOCKS):
        column = block * COLUMNS + tl.arange(0, COLUMNS)
        in_row = column < width
        real = tl.load(
            numbers + source[:, None] * width + column[None, :], mask=is_real[:, None] & in_row[None, :], other=0.0
        )
        synthetic = tl.load(held[:, None] + column[None, :], mask=is_synthetic[:, None] & in_row[None, :], other=0.0)
        first = tl.load(starts + column, mask=in_row, other=0)
        columns = tl.load(widths + column, mask=in_row, other=0)
        place = (first * size + column - first)[None, :] + row[:, None] * columns[None, :]
        tl.store(out + place, tl.where(is_real[:, None], real, synthetic), mask=inside[:, None] & in_row[None, :])
    ends = tl.load(held + width, mask=is_synthetic, other=0.0) > 0.5
    for flag in tl.static_range(FLAGS):
        up = tl.load(flags + flag * flag_stride + source, mask=is_real, other=0) != 0
        if flag < TERMINATED:
            up = up | ends
        tl.store(raised + flag * size + row, up.to(tl.uint8), mask=inside)
    tl.store(raised + FLAGS * size + row, is_synthetic.to(tl.uint8), mask=inside)
