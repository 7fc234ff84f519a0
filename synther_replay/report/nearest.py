"""Distance to the nearest real row: are synthetic rows copies?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from synther_replay.common.seeding import Stream, generator_for
from synther_replay.metrics.distances import Memorisation, memorisation
from synther_replay.report.comparison import Comparison, compare

QUERIES = 1_000  # rows of each set whose nearest real row is searched: every query is compared with all of these
RECORDS = 200_000
_LEAST_ROWS = 20  # a tenth of them is set aside where no rows were held out
_RARE = 0.01  # share of other real rows that are closer to the real ones than a near-copy


@dataclass(frozen=True, eq=False)
class Nearest:
    """Distances of synthetic rows, and of other real rows, to the nearest real row, in standard deviations.

    Attributes:
        memorisation: The distances. Its `share_closer` means something only with held-out rows.
        held_out: Whether the other real rows were kept from the generator; else they are some of the real rows.
        records: Number of real rows that were searched.
        copies: Share of all synthetic rows that equal a real row.
        copies_baseline: Share of the other real rows that equal a real row.
        near: Share of the synthetic rows that are closer to a real row than 99 % of the other real rows are.
    """

    memorisation: Memorisation
    held_out: bool
    records: int
    copies: float
    copies_baseline: float
    near: float

    def compared(self) -> Comparison:
        """The distances of the other real rows and of the synthetic ones."""
        return compare(self.memorisation.held_out_by_row, self.memorisation.synthetic_by_row)


def nearest(real: Tensor, synthetic: Tensor, held_out: Tensor | None, *, seed: int = 0) -> Nearest | None:
    """Measure distances to the nearest real row; None if the rows are too few or all equal.

    Args:
        real: Real rows, ``(n, dim)``.
        synthetic: Synthetic rows, ``(m, dim)``.
        held_out: Real rows that the generator was not trained on, ``(k, dim)``. None: some of `real` take their place.
        seed: Seed of the choice of rows.
    """
    known, other = _records(real, held_out, seed)
    if min(len(known), len(other)) < 2 or bool((known == known[0]).all()):
        return None
    found = memorisation(synthetic, known, other, max_rows=QUERIES, seed=seed)
    distance, usual = found.synthetic_by_row, found.held_out_by_row
    # Of all real rows: some of them were not searched.
    copies = float(np.isin(_as_bytes(synthetic), _as_bytes(real)).mean())
    return Nearest(
        memorisation=found,
        held_out=held_out is not None,
        records=len(known),
        copies=copies,
        copies_baseline=float((usual == 0).double().mean()),
        near=max(copies, float((distance < usual.quantile(_RARE)).double().mean())),
    )


def _as_bytes(rows: Tensor) -> np.ndarray:
    """Rows ``(n, dim)`` as one value each, equal for equal rows, ``(n,)``."""
    values = np.ascontiguousarray((rows + 0.0).cpu().numpy())  # -0.0 becomes 0.0
    return values.view(np.dtype((np.void, values.dtype.itemsize * values.shape[1]))).ravel()


def _records(real: Tensor, held_out: Tensor | None, seed: int) -> tuple[Tensor, Tensor]:
    """The real rows to search, and those to compare with."""
    order = torch.randperm(len(real), generator=generator_for("cpu", seed, Stream.SET_ASIDE), device="cpu")
    order = order.to(real.device)
    if held_out is not None:
        return (real if len(real) <= RECORDS else real[order[:RECORDS]]), held_out
    aside = min(QUERIES, len(real) // 10) if len(real) >= _LEAST_ROWS else 0
    return real[order[aside : aside + RECORDS]], real[order[:aside]]
