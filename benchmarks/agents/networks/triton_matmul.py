"""Launcher of the Triton kernel `product`, which `matmul` uses for fp16 operands."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from synther_replay.benchmarks.agents.networks import triton_kernels as kernels

# Height, width and warps of output tiles. Tuned on an H200 with the products of EDAC and of TD3+BC with large networks.
_TILES = ((128, 128, 8), (64, 128, 4), (64, 64, 4), (32, 64, 4))
_DEPTH = 64  # tile size along k
_LONG = 512  # smallest k for which the largest tile hides its memory latency
MULTIPROCESSORS = 128  # number of tiles that keeps a large GPU busy


def product(
    a: Tensor,
    b: Tensor,
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    unit: Tensor | None = None,
    factor: float = 1.0,
    out: Tensor | None = None,
    add: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``factor * a @ b + bias`` of fp16 operands, for all networks.

    Args:
        a: ``(S, m, k)``, any strides.
        b: ``(S, k, n)``, any strides.
        bias: ``(S, 1, n)``.
        relu: Whether to apply relu.
        unit: ``(S, m, n)``; the result is 0 where it is not above 0.
        factor: Factor of the product.
        out: Output tensor, ``(S, m, n)`` with contiguous rows; None for a new tensor.
        add: Whether to add the result to `out`.
        dtype: Type of a new tensor; None for fp16.
    """
    (stack, m, k), n = a.shape, b.shape[2]
    if out is None:
        out = torch.empty(stack, m, n, dtype=dtype or a.dtype, device=a.device)
    unit_or_out = out if unit is None else unit
    if out.stride(2) != 1 or unit_or_out.stride(2) != 1:
        raise ValueError(
            f"out, unit: expected contiguous rows (stride 1), got strides {out.stride(2)} and {unit_or_out.stride(2)}"
        )
    for tallest, widest, count in _TILES if k >= _LONG else _TILES[1:]:
        tall, wide, warps = tile_size(m, tallest), tile_size(n, widest), count
        tiles = triton.cdiv(m, tall) * triton.cdiv(n, wide)
        if tiles * stack >= MULTIPROCESSORS:
            break
    kernels.product[(tiles, stack)](
        a, b, out, out if bias is None else bias, unit_or_out, M=m, N=n, K=k, A_S=a.stride(0), A_M=a.stride(1),
        A_K=a.stride(2), B_S=b.stride(0), B_K=b.stride(1), B_N=b.stride(2), O_S=out.stride(0), O_M=out.stride(1),
        U_S=unit_or_out.stride(0), U_M=unit_or_out.stride(1), BIAS_S=0 if bias is None else bias.stride(0),
        FACTOR=factor, BIASED=bias is not None, RELU=relu, MASKED=unit is not None, ADD=add, BM=tall, BN=wide,
        BK=tile_size(k, _DEPTH), num_warps=warps, num_stages=3,
    )  # fmt: skip
    return out


def tile_size(size: int, most: int | None = None) -> int:
    """Tile size for `size` numbers: a power of two, at least 16 (tensor cores) and at most `most`."""
    tile: int = max(16, triton.next_power_of_2(size))
    return tile if most is None else min(most, tile)
