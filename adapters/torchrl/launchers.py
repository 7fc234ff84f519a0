"""Starts the Triton kernel of `mixing`; imported on a GPU only, because PyTorch for CPUs has no Triton."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from synther_replay.adapters.torchrl import triton_kernels
from synther_replay.adapters.torchrl.mixing import Columns

_ROWS, _COLUMNS, _PLACES = 16, 64, 128


def mix(
    rows: Tensor, places: Tensor, index: Tensor, numbers: Tensor, flags: Tensor, terminated: int, columns: Columns
) -> tuple[Tensor, Tensor, Tensor]:
    """See `mixing`."""
    size, width, count = len(rows), numbers.shape[1], len(flags)
    out = torch.empty(size * width, dtype=torch.float32, device=rows.device)
    raised = torch.empty(count + 1, size, dtype=torch.bool, device=rows.device)
    row_numbers = torch.empty(size, dtype=torch.long, device=rows.device)
    triton_kernels.mix[(triton.cdiv(size, _ROWS),)](
        rows,
        places,
        index,
        numbers,
        flags.view(torch.uint8),
        columns.starts,
        columns.widths,
        out,
        raised.view(torch.uint8),
        row_numbers,
        size,
        len(places),
        width,
        rows.stride(0),
        flags.stride(0),
        FLAGS=count,
        TERMINATED=terminated,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        PLACES=_PLACES,
        PLACE_BLOCKS=triton.cdiv(len(places), _PLACES),
        COLUMN_BLOCKS=triton.cdiv(width, _COLUMNS),
    )
    return out, raised, row_numbers
