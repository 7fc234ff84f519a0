"""Memorisation: distances of generated rows to the nearest training rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from synther_replay.common.checks import whole_number
from synther_replay.common.seeding import generator_for
from synther_replay.metrics.rows import Rows, clean


@dataclass(frozen=True, eq=False)
class Memorisation:
    """Distances of synthetic and held-out rows to the training rows, in standard deviations."""

    synthetic_distance: float  # median distance of synthetic rows to the nearest training row
    held_out_distance: float  # the same for held-out rows
    ratio: float  # synthetic / held-out: about 1 without memorisation, 0 for copies, NaN if both are 0
    share_closer: float  # share of synthetic rows closer to training than to held-out rows: 0.5 without memorisation
    rejected: int  # non-finite rows of the three sets, excluded
    synthetic_by_row: Tensor  # distances of the queried synthetic rows, float64, (n,)
    held_out_by_row: Tensor  # the same for held-out rows


def distance_to_closest(queries: Rows, records: Rows, *, chunk: int = 2048) -> Tensor:
    """Return the Euclidean distance of each query ``(n, dim)`` to the nearest record ``(m, dim)``, float64, ``(n,)``.

    At most ``chunk * chunk`` distances are in memory at once.
    """
    whole_number("chunk", chunk)
    (asking, known), _ = clean({"queries": queries, "records": records}, least=1, strict=True)
    centre = known.mean(0, dtype=torch.float64)  # centring reduces cancellation in the expanded square below
    distances = []
    for query in (part.double() for part in torch.split(asking, chunk)):
        best = torch.full((len(query),), torch.inf, dtype=torch.float64, device=query.device)
        nearest = torch.full_like(query, torch.inf)
        for part in torch.split(known, chunk):
            record = part.double() - centre
            score, index = torch.addmm(record.square().sum(1), query - centre, record.t(), alpha=-2).min(1)
            nearest = torch.where((score < best)[:, None], part[index].double(), nearest)
            best = torch.minimum(score, best)
        distances.append((query - nearest).square().sum(1).sqrt())  # recomputed: exactly 0 for a copy
    return torch.cat(distances)


def memorisation(
    synthetic: Rows, training: Rows, held_out: Rows, *, max_rows: int = 10_000, seed: int = 0
) -> Memorisation:
    """Measure whether synthetic rows ``(m, dim)`` are copies of training rows ``(n, dim)``.

    Held-out rows ``(k, dim)`` give the reference. Columns are standardised by the training rows; constant columns are
    dropped (ValueError if all are constant). At most `max_rows` synthetic and held-out rows, drawn with `seed`, are
    queried. Distances are to all training rows. `share_closer` compares equally many training and held-out rows; with
    ``k < n``, pure copies reach only about ``(1 + k / n) / 2``.
    """
    whole_number("max_rows", max_rows)
    cleaned, rejected = clean({"training": training, "synthetic": synthetic, "held_out": held_out})
    known, new, fresh = _standardised(cleaned)
    generator = generator_for("cpu", seed)  # on the CPU: the same rows on all devices
    new = _draw(new, max_rows, generator)
    distance = distance_to_closest(new, known)
    usual = distance_to_closest(_draw(fresh, max_rows, generator), known)
    size = min(len(known), len(fresh))
    to_known = distance if size == len(known) else distance_to_closest(new, _draw(known, size, generator))
    to_fresh = distance_to_closest(new, _draw(fresh, size, generator))
    share = (to_fresh - to_known).sign().mean() / 2 + 0.5  # ties count half
    medians = distance.median(), usual.median()
    return Memorisation(
        float(medians[0]),
        float(medians[1]),
        float(medians[0] / medians[1]),
        float(share),
        sum(rejected),
        distance,
        usual,
    )


def _standardised(sets: list[Tensor]) -> list[Tensor]:
    """Scale all sets by mean and standard deviation of the first; drop its constant columns."""
    # Column by column: a float64 copy of the matrix would be large.
    scale, centre = torch.stack([torch.stack(torch.std_mean(column.double())) for column in sets[0].t()], dim=1)
    scale, centre = scale.to(sets[0].dtype), centre.to(sets[0].dtype)
    varied = (sets[0].amin(0) < sets[0].amax(0)) & (scale > 0)
    if not bool(varied.any()):
        raise ValueError(f"training: every column is constant, got {sets[0][0].tolist()} throughout")
    # An extreme synthetic value may overflow; any large distance will do.
    return [((rows[:, varied] - centre[varied]) / scale[varied]).nan_to_num() for rows in sets]


def _draw(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw at most `count` rows."""
    if len(rows) <= count:
        return rows
    return rows[torch.randperm(len(rows), generator=generator, device="cpu")[:count].to(rows.device)]
