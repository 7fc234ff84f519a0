"""MixedRows: real and synthetic rows in one tensor at fixed addresses, for learners that run as CUDA graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from synther_replay.common.acceleration import fused
from synther_replay.replay.mixing import check_real_ratio, split_batch


class MixedRows:
    """Real rows, then synthetic ones, of one or several sets; a batch of both kinds is one gather.

    New rows are written over old ones, because a captured graph reads fixed addresses. `SyntheticStore` is replaced as
    a whole instead, so that an interrupted refit leaves it as it was.

    >>> mixed = MixedRows(torch.tensor([[[1.0], [2.0], [-1.0]]]), begin=2, real_ratio=0.5)
    >>> mixed.draw((3, 4), torch.Generator().manual_seed(0)).sign().squeeze().tolist()
    [[1.0, 1.0, -1.0, -1.0], [1.0, 1.0, -1.0, -1.0], [1.0, 1.0, -1.0, -1.0]]

    Args:
        rows: Memory of the rows, ``(sets, n, dim)``; not copied.
        begin: Place of the first synthetic row.
        real_ratio: Share of real rows in a batch.

    Attributes:
        real: The places of real rows, ``(sets, begin, dim)``.
        synthetic: The places of synthetic rows, ``(sets, n - begin, dim)``.
    """

    def __init__(self, rows: Tensor, begin: int, real_ratio: float) -> None:
        """Divide the memory."""
        self.rows, self.real_ratio = rows, check_real_ratio(real_ratio)
        self.real, self.synthetic = rows.split((begin, rows.shape[1] - begin), 1)

    def draw(
        self,
        size: tuple[int, ...],
        rng: torch.Generator,
        *,
        count: Tensor | int | None = None,
        has_synthetic: bool = True,
    ) -> Tensor:
        """Draw batches uniformly with replacement, ``(*size, dim)``; real rows come first in a batch.

        Args:
            size: ``(..., batch size)``. With several sets, ``(sets, batches, batch size)``.
            rng: Random numbers, on the device of the rows.
            count: Real rows in use; None: all.
            has_synthetic: Whether there are synthetic rows yet; batches are all real before.
        """
        from_real, _ = split_batch(size[-1], self.real_ratio, synthetic_available=has_synthetic)
        # float64: float32 cannot address millions of rows evenly
        uniform = torch.rand(size, generator=rng, device=self.rows.device, dtype=torch.float64)
        sets, begin, dim = self.real.shape
        count = begin if count is None else count
        index = _indices(uniform, from_real, count, begin, self.synthetic.shape[1], sets)
        return self.rows.view(-1, dim).index_select(0, index.view(-1)).view(*size, dim)


@fused
def _indices(uniform: Tensor, from_real: int, real: Tensor | int, begin: int, synthetic: int, sets: int) -> Tensor:
    """Places in the rows of all sets: first those of the real rows of each batch, then those of the synthetic ones."""
    column = torch.arange(uniform.shape[-1], device=uniform.device)
    index = torch.where(column < from_real, (uniform * real).long(), begin + (uniform * synthetic).long())
    if sets == 1:
        return index
    return index + torch.arange(sets, device=uniform.device)[:, None, None] * (begin + synthetic)
