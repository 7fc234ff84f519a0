"""Quality of generated rows: marginals, correlations, memorisation, and dynamics error against a simulator.

Rows are `Transitions`, tensors or NumPy arrays ``(n, dim)``. They are compared on the device of the real (or training)
rows, in float64 if all are float64 or integer, else in float32. `fidelity`, `memorisation` and `dynamics_error` drop
and count non-finite rows; the other functions raise ValueError for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.common.checks import whole_number
from synther_replay.common.seeding import generator_for
from synther_replay.data.transitions import Transitions, TransitionSpec

Rows = Transitions | Tensor | np.ndarray
StepFunction = Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]

# Bounds on temporary memory: columns sorted at once, rows converted to float64 at once.
_COLUMNS, _ROWS = 4, 65_536


@dataclass(frozen=True, eq=False)
class Memorisation:
    """Distances of synthetic and held-out rows to the training rows, in standard deviations."""

    synthetic_distance: float  # median distance of synthetic rows to the nearest training row
    held_out_distance: float  # the same for held-out rows
    ratio: float  # synthetic / held-out: about 1 without memorisation, 0 for copies, NaN if both are 0
    share_closer: float  # share of synthetic rows closer to training than to held-out rows: 0.5 without memorisation
    rejected: int  # non-finite rows of the three sets, excluded


@dataclass(frozen=True, eq=False)
class DynamicsError:
    """Squared errors of transitions against the simulator; tensors ``(n,)`` on the CPU."""

    next_observation: float  # mean squared error over rows and columns
    reward: float  # mean squared error over rows
    next_observation_by_row: Tensor  # mean over columns, float64
    reward_by_row: Tensor  # float64
    indices: Tensor  # row numbers in `transitions`
    rejected: int  # rows excluded because they or the simulator's results are non-finite


@dataclass(frozen=True, eq=False)
class Fidelity:
    """Similarity of synthetic and real rows; 1.0 is perfect."""

    marginal: float  # mean of `ks_complement` over columns
    correlation: float  # mean of `correlation_similarity` over column pairs not constant in either set; NaN if none
    marginal_by_column: Tensor  # float64, (dim,)
    rejected_real: int  # non-finite rows, excluded
    rejected_synthetic: int  # non-finite rows, excluded
    memorisation: Memorisation | None = None  # only with held-out rows

    def __str__(self) -> str:
        """Format as a few aligned lines."""
        worst = int(self.marginal_by_column.argmin())
        text = (
            f"marginal      {self.marginal:.4f}  (worst: column {worst}, {self.marginal_by_column[worst]:.4f})\n"
            f"correlation   {self.correlation:.4f}\n"
            f"rejected      {self.rejected_real} real, {self.rejected_synthetic} synthetic"
        )
        if (memory := self.memorisation) is None:
            return text
        return f"{text}\nmemorisation  {memory.share_closer:.4f} closer to training, distance ratio {memory.ratio:.4f}"


def fidelity(real: Rows, synthetic: Rows, *, held_out: Rows | None = None, seed: int = 0) -> Fidelity:
    """Compare synthetic rows ``(m, dim)`` with real ones ``(n, dim)``.

    The scores are the means of SDMetrics' KSComplement and CorrelationSimilarity. With real rows that the generator was
    not trained on, `held_out` ``(k, dim)``, the result includes `memorisation`, which subsamples rows with `seed`.
    Raises TypeError for other types, ValueError if shapes or specs differ or a set has fewer than two finite rows.

    >>> fidelity(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([[3.0], [4.0]])).marginal
    0.5
    """
    named = {"real": real, "synthetic": synthetic} | ({} if held_out is None else {"held_out": held_out})
    (one, two, *_), rejected = _clean(named)
    marginal, similarity = ks_complement(one, two), correlation_similarity(one, two)
    correlation = float(similarity[torch.ones_like(similarity).triu(diagonal=1) > 0].nanmean())
    memory = None if held_out is None else memorisation(synthetic, real, held_out, seed=seed)
    return Fidelity(float(marginal.mean()), correlation, marginal, rejected[0], rejected[1], memory)


def ks_complement(real: Rows, synthetic: Rows) -> Tensor:
    """Return one minus the exact two-sample Kolmogorov-Smirnov statistic of each column, float64, ``(dim,)``."""
    rows, _ = _clean({"real": real, "synthetic": synthetic}, strict=True)
    few, many = sorted(rows, key=len)  # symmetric; searching from the shorter set is cheaper
    n, m = len(few), len(many)
    rank = torch.arange(n, device=few.device)
    largest = []
    for start in range(0, few.shape[1], _COLUMNS):
        x, y = (_sorted_columns(part[:, start : start + _COLUMNS]) for part in (few, many))
        # F_few - F_many is largest at a value of few, F_many - F_few just before one. Among ties, the last value gives
        # the former and the first the latter. Multiplied by n * m, everything is an integer and therefore exact.
        above = (rank + 1) * m - torch.searchsorted(y, x, right=True) * n
        below = torch.searchsorted(y, x) * n - rank * m
        largest.append(torch.maximum(above.amax(1), below.amax(1)))
    return 1 - torch.cat(largest).double() / (n * m)


def correlation_similarity(real: Rows, synthetic: Rows) -> Tensor:
    """Return ``1 - |rho_real - rho_synthetic| / 2`` (Pearson) for every pair of columns, float64, ``(dim, dim)``.

    NaN if a column is constant in either set (SDMetrics raises an error). A real correlation of exactly 0 is compared
    like any other (SDMetrics returns NaN).
    """
    one, two = map(_correlation, _clean({"real": real, "synthetic": synthetic}, strict=True)[0])
    return 1 - (one - two).abs() / 2


def distance_to_closest(queries: Rows, records: Rows, *, chunk: int = 2048) -> Tensor:
    """Return the Euclidean distance of each query ``(n, dim)`` to the nearest record ``(m, dim)``, float64, ``(n,)``.

    At most ``chunk * chunk`` distances are in memory at once.
    """
    whole_number("chunk", chunk)
    (asking, known), _ = _clean({"queries": queries, "records": records}, least=1, strict=True)
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
    cleaned, rejected = _clean({"training": training, "synthetic": synthetic, "held_out": held_out})
    known, new, fresh = _standardised(cleaned)
    generator = generator_for("cpu", seed)  # on the CPU: the same rows on all devices
    new = _draw(new, max_rows, generator)
    distance = distance_to_closest(new, known)
    usual = distance_to_closest(_draw(fresh, max_rows, generator), known).median()
    size = min(len(known), len(fresh))
    to_known = distance if size == len(known) else distance_to_closest(new, _draw(known, size, generator))
    to_fresh = distance_to_closest(new, _draw(fresh, size, generator))
    share = (to_fresh - to_known).sign().mean() / 2 + 0.5  # ties count half
    median = distance.median()
    return Memorisation(float(median), float(usual), float(median / usual), float(share), sum(rejected))


def dynamics_error(transitions: Transitions, step_fn: StepFunction, *, max_rows: int | None = None) -> DynamicsError:
    """Compare next observations and rewards of `transitions` with those of a simulator.

    `step_fn` takes observations ``(n, obs_dim)`` and actions ``(n, act_dim)``, float32 arrays, and returns next
    observations ``(n, obs_dim)`` and rewards ``(n,)``. At most `max_rows` evenly spaced rows are evaluated. The means
    are NaN if no result is finite.
    """
    if not isinstance(transitions, Transitions):
        raise TypeError(f"transitions: expected Transitions, got {type(transitions).__name__}")
    matrix, spec = _matrix("transitions", transitions), transitions.spec
    whole_number("max_rows", len(matrix) if max_rows is None else max_rows)
    count = min(max_rows or len(matrix), len(matrix))
    indices = torch.arange(count) * len(matrix) // count
    rows = matrix[indices.to(matrix.device)].cpu()
    finite = torch.isfinite(rows).all(1)
    rows, indices = rows[finite], indices[finite]
    if not len(rows):
        raise ValueError(f"transitions: expected at least one finite row, got {count} non-finite rows")
    error = _answer_errors(rows, spec, step_fn)
    answered = torch.isfinite(error).all(1)
    error, indices = error[answered], indices[answered]
    next_observation, reward = error.unbind(1)
    means = float(next_observation.mean()), float(reward.mean())
    return DynamicsError(*means, next_observation, reward, indices, count - len(indices))


def _answer_errors(rows: Tensor, spec: TransitionSpec, step_fn: StepFunction) -> Tensor:
    """Squared errors of next observation and reward, float64, ``(n, 2)``."""
    claims = rows[:, spec.next_observations], rows[:, spec.rewards.start]
    answers = step_fn(rows[:, spec.observations].numpy(), rows[:, spec.actions].numpy())
    truths = [torch.from_numpy(np.array(answer, dtype=np.float64)) for answer in answers]
    shapes, wanted = ([tuple(part.shape) for part in parts] for parts in (truths, claims))
    if shapes != wanted:
        raise ValueError(f"step_fn: expected next observations and rewards of shapes {wanted}, got {shapes}")
    return torch.stack([(claims[0] - truths[0]).square().mean(1), (claims[1] - truths[1]).square()], dim=1)


def _sorted_columns(rows: Tensor) -> Tensor:
    """Return the sorted columns as rows of a matrix."""
    columns = rows.t().contiguous()
    # On the CPU NumPy sorts with SIMD instructions, up to 20 times faster than torch.
    return torch.from_numpy(np.sort(columns.numpy())) if columns.device.type == "cpu" else columns.sort().values


def _correlation(rows: Tensor) -> Tensor:
    """Pearson correlations in float64, ``(dim, dim)``; NaN for constant columns."""
    low, high = (bound.double() for bound in (rows.amin(0), rows.amax(0)))
    total, product = torch.zeros_like(low), torch.zeros_like(low).diag()
    for part in torch.split(rows, _ROWS):
        # Scaling to [0, 1] makes one pass accurate: the variance is then at least 1 / 2n, so at most a factor n of
        # float64's precision is lost. A constant column becomes 0 / 0 = NaN.
        unit = (part - low) / (high - low)
        total += unit.sum(0)
        product += unit.t() @ unit
    product -= total.outer(total) / len(rows)
    scale = product.diagonal().sqrt()
    return (product / scale.outer(scale)).clamp(-1, 1)


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
    return rows if len(rows) <= count else rows[torch.randperm(len(rows), generator=generator)[:count].to(rows.device)]


def _clean(named: Mapping[str, Rows], *, least: int = 2, strict: bool = False) -> tuple[list[Tensor], list[int]]:
    """Return the finite rows as matrices of one width, dtype and device, and the non-finite count of each set."""
    matrices = [_matrix(name, value) for name, value in named.items()]
    specs = [value.spec for value in named.values() if isinstance(value, Transitions)]
    if any(spec != specs[0] for spec in specs):
        raise ValueError(f"{', '.join(named)}: expected equal specs, got {[spec.to_json() for spec in specs]}")
    if len({matrix.shape[1] for matrix in matrices}) > 1:
        raise ValueError(f"{', '.join(named)}: expected equal numbers of columns, got {[m.shape[1] for m in matrices]}")
    narrow = any(matrix.is_floating_point() and matrix.dtype != torch.float64 for matrix in matrices)
    kept, rejected = [], []
    for name, matrix in zip(named, matrices, strict=True):
        rows = matrix.to(matrices[0].device, torch.float32 if narrow else torch.float64)
        if not bool(torch.isfinite(rows.sum())):  # cheap test; a sum that only overflows is checked again
            rows = rows[torch.isfinite(rows).all(1)]
        kept.append(rows)
        rejected.append(len(matrix) - len(rows))
        if len(rows) < least or (strict and rejected[-1]):
            wanted = f"at least {least} finite rows{' and no non-finite ones' if strict else ''}"
            raise ValueError(f"{name}: expected {wanted}, got {len(rows)} finite and {rejected[-1]} non-finite")
    return kept, rejected


def _matrix(name: str, value: Rows) -> Tensor:
    """Return the rows of one run as a detached matrix."""
    matrix = value.rows if isinstance(value, Transitions) else value
    if isinstance(matrix, np.ndarray) and matrix.dtype.kind in "biuf":
        matrix = torch.from_numpy(np.require(matrix, requirements=["C", "W"]))
    if not isinstance(matrix, Tensor) or matrix.is_complex():
        kind = f"{type(value).__name__} of {getattr(value, 'dtype', 'no dtype')}"
        raise TypeError(f"{name}: expected Transitions, a tensor or an array of real numbers, got {kind}")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name}: expected the rows of one run, shape (n, dim), got {tuple(matrix.shape)}")
    return matrix.detach()
