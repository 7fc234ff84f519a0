"""Batched matrix products with fused bias, relu or mask: PyTorch operations, or one Triton kernel each on a GPU.

Operands ``(S, m, k)`` and ``(S, k, n)`` are fp32 or fp16. Activations and their gradients have the same type; outputs
and parameter gradients are fp32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from synther_replay.common.acceleration import fused, has_triton

_LARGEST_HALF = 65504.0


def choose_precision(device: torch.device, *, precise: bool = False) -> None:
    """Set the precision of this process on a GPU: fp16 networks and TF32 otherwise, or fp32 throughout if `precise`."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if precise else "high")


def uses_fp16(device: torch.device) -> bool:
    """Whether networks use fp16 products: on a GPU, unless `choose_precision` was called with `precise`."""
    return device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"


def as_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to a type; values beyond the range of fp16 are clamped to it."""
    return x.clamp(-_LARGEST_HALF, _LARGEST_HALF).to(dtype) if dtype == torch.half != x.dtype else x.to(dtype)


@fused
def scaled(x: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """``factor * x``, converted to a type."""
    return as_type(x * factor, dtype)


@fused
def multiplied(x: Tensor, factors: Tensor) -> Tensor:
    """``x * factors`` in the type of `x`, with a factor per row."""
    wide = x.float() if x.dtype == torch.half else x
    return as_type(wide * factors, x.dtype)


def linear_relu(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """``relu(a @ b + bias)``."""
    if kernel := _kernel_for(a):
        return kernel(a, b, bias=bias, relu=True)
    if a.dtype == torch.half:
        return as_type(matmul_fp32(a, b, bias).relu_(), a.dtype)
    z = torch.bmm(a, b)
    return z.relu_() if bias is None else _biased_relu(z, bias)


def relu_mask(a: Tensor, b: Tensor, unit: Tensor) -> Tensor:
    """``a @ b`` where `unit`, the output of a relu, is above 0, and 0 elsewhere."""
    if kernel := _kernel_for(a):
        return kernel(a, b, unit=unit)
    if a.dtype == torch.half:
        return _relu_mask(matmul_fp32(a, b), unit)
    return torch.ops.aten.threshold_backward(torch.bmm(a, b), unit, 0)


@fused
def outer_relu_mask(column: Tensor, row: Tensor, unit: Tensor) -> Tensor:
    """`relu_mask` for ``k = 1``, as an elementwise product."""
    wide = column.float() if column.dtype == torch.half else column
    return as_type(torch.where(unit > 0, wide * row, 0.0), unit.dtype)


def matmul_fp32(a: Tensor, b: Tensor, bias: Tensor | None = None, *, factor: float = 1.0) -> Tensor:
    """``factor * a @ b + bias`` in fp32."""
    if kernel := _kernel_for(a):
        return kernel(a, b, bias=bias, factor=factor, dtype=torch.float32)
    if a.dtype == torch.half:
        a, b = a.float(), b.float()
        bias = None if bias is None else bias.float()
    if bias is not None:
        return torch.baddbmm(bias, a, b, alpha=factor)
    z = torch.bmm(a, b)
    return z if factor == 1 else z * factor


def write_product(a: Tensor, b: Tensor, factor: float, out: Tensor, *, add: bool = False) -> None:
    """Write ``factor * a @ b`` to `out` in fp32, or add it."""
    if kernel := _kernel_for(a):
        kernel(a, b, factor=factor, out=out, add=add)
    elif add:
        out.add_(matmul_fp32(a, b), alpha=factor)
    elif factor == 1 and a.dtype == out.dtype:
        torch.bmm(a, b, out=out)
    else:
        torch.mul(matmul_fp32(a, b), factor, out=out)


@fused
def write_sum(d: Tensor, factor: float, out: Tensor, *, add: bool = False) -> None:
    """Write ``factor`` times the sum over rows of `d` ``(S, m, n)`` to `out` ``(S, 1, n)`` in fp32, or add it."""
    total = d.sum(1, keepdim=True, dtype=out.dtype) * factor
    out.copy_(out + total if add else total)


def _kernel_for(a: Tensor) -> Callable[..., Tensor] | None:
    """The Triton kernel for fp16 operands on a GPU; None for others, which PyTorch multiplies."""
    if not _has_kernel(a):
        return None
    from synther_replay.benchmarks.agents.networks.triton_matmul import product  # lazy: needs Triton

    return product


def _has_kernel(a: Tensor) -> bool:
    return a.dtype == torch.half and a.is_cuda and has_triton()


@fused
def _biased_relu(z: Tensor, bias: Tensor) -> Tensor:
    return (z + bias).relu()


@fused
def _relu_mask(d: Tensor, unit: Tensor) -> Tensor:
    return as_type(torch.where(unit > 0, d, 0.0), unit.dtype)
