"""Launches `kernels.product`; `products` says what for."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from synther_replay.benchmarks.agents.networks import triton_kernels as kernels

# Tiles of what is put out, and warps for one. On an H200 each was the fastest of eight, or nearly, for some products of
# EDAC or of TD3+BC with larger networks.
_TILES = ((128, 128, 8), (64, 128, 4), (64, 64, 4), (32, 64, 4))
_DEPTH = 64  # how much of the operands is read at a time
_LONG = 512  # sums from here on are long enough for the largest tile to hide what it waits for
_MULTIPROCESSORS = 128  # about as many tiles as that keep a large GPU busy


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
    """``factor * a @ b + bias`` of halves for all networks.

    Args:
        a: ``(S, m, k)``.
        b: ``(S, k, n)``; both may be views with any strides.
        bias: ``(S, 1, n)``.
        relu: Whether what is below 0 becomes 0.
        unit: ``(S, m, n)``; where it is not above 0, the result is 0.
        factor: Of the product.
        out: Where to write it, ``(S, m, n)`` with rows that are not spread out; None for a new tensor.
        add: Whether to add it to what is there.
        dtype: Of a new tensor; None for halves.
    """
    (stack, m, k), n = a.shape, b.shape[2]
    if out is None:
        out = torch.empty(stack, m, n, dtype=dtype or a.dtype, device=a.device)
    unit_or_out = out if unit is None else unit
    if out.stride(2) != 1 or unit_or_out.stride(2) != 1:
        raise ValueError("out and unit: expected rows of numbers that lie side by side")
    for tallest, widest, count in _TILES if k >= _LONG else _TILES[1:]:
        tall, wide, warps = _tile(m, tallest), _tile(n, widest), count
        tiles = triton.cdiv(m, tall) * triton.cdiv(n, wide)
        if tiles * stack >= _MULTIPROCESSORS:
            break
    kernels.product[(tiles, stack)](
        a, b, out, out if bias is None else bias, unit_or_out, M=m, N=n, K=k, A_S=a.stride(0), A_M=a.stride(1),
        A_K=a.stride(2), B_S=b.stride(0), B_K=b.stride(1), B_N=b.stride(2), O_S=out.stride(0), O_M=out.stride(1),
        U_S=unit_or_out.stride(0), U_M=unit_or_out.stride(1), BIAS_S=0 if bias is None else bias.stride(0),
        FACTOR=factor, BIASED=bias is not None, RELU=relu, MASKED=unit is not None, ADD=add, BM=tall, BN=wide,
        BK=_tile(k, _DEPTH), num_warps=warps, num_stages=3,
    )  # fmt: skip
    return out


def _tile(size: int, most: int) -> int:
    """Edge of tiles that cover `size` numbers: tensor cores want a power of two, and 16 at least."""
    return min(most, max(16, triton.next_power_of_2(size)))
