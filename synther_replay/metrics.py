"""How good generated rows are: marginals, correlations, memorisation, and the simulator's own verdict.

Rows are `Transitions`, tensors or NumPy arrays ``(n, dim)``, compared on the device of the real (or training) ones, in
float32 unless all are wider: the same number in two precisions would otherwise count as two values. The reports
(`fidelity`, `memorisation`, `dynamics_error`) leave out and count rows that are not finite; the rest refuses them.
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

# Bounds on temporaries: columns sorted at once, rows held in float64 at once.
_COLUMNS, _ROWS = 4, 65_536


@dataclass(frozen=True, eq=False)
class Memorisation:
    """Whether synthetic rows lie closer to the training rows than fresh rows do; distances in standard deviations."""

    synthetic_distance: float  # median distance of synthetic rows to the nearest training row
    held_out_distance: float  # the same for held-out rows, which the generator has never seen
    ratio: float  # the first over the second: about 1 without memorisation, 0 for copies, NaN where both are 0
    share_closer: float  # share closer to training than to as many held-out rows: 0.5 without, 1.0 for copies
    rejected: int  # rows of the three sets left out because they are not finite


@dataclass(frozen=True, eq=False)
class DynamicsError:
    """Squared differences between transitions and the simulator's answers; tensors ``(n,)`` on the CPU."""

    next_observation: float  # mean squared error over rows and columns
    reward: float  # mean squared error over rows
    next_observation_by_row: Tensor  # mean over columns, float64
    reward_by_row: Tensor  # float64
    indices: Tensor  # which of the transitions the n rows are
    rejected: int  # rows left out because they, or the answers to them, are not finite


@dataclass(frozen=True, eq=False)
class Fidelity:
    """How closely synthetic rows follow the real ones; 1.0 is perfect."""

    marginal: float  # mean of `ks_complement` over columns
    correlation: float  # mean of `correlation_similarity` over pairs of columns that vary in both sets; NaN if none
    marginal_by_column: Tensor  # float64, (dim,)
    rejected_real: int  # rows left out because they are not finite
    rejected_synthetic: int
    memorisation: Memorisation | None = None  # only where held-out rows were given

    def __str__(self) -> str:
        """A few aligned lines."""
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

    The two scores are the means of SDMetrics' KSComplement and CorrelationSimilarity. Real rows that the generator was
    not trained on, `held_out` ``(k, dim)``, ask for `memorisation` too, which draws rows with `seed`. Raises TypeError
    for anything but rows, ValueError where shapes or specs differ or fewer than two rows of a set are finite.

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
    """One minus the exact two-sample Kolmogorov-Smirnov statistic of every column, float64, ``(dim,)``."""
    rows, _ = _clean({"real": real, "synthetic": synthetic}, refuse=True)
    few, many = sorted(rows, key=len)  # the statistic is symmetric, and the shorter costs fewer searches
    n, m = len(few), len(many)
    rank = torch.arange(n, device=few.device)
    largest = []
    for start in range(0, few.shape[1], _COLUMNS):
        x, y = (_sorted_columns(part[:, start : start + _COLUMNS]) for part in (few, many))
        # F_few - F_many is largest at a value of few, F_many - F_few just before one. Of equal values, the last gives
        # the former and the first the latter, so ties need no care. Times n m all is integer, hence exact.
        above = (rank + 1) * m - torch.searchsorted(y, x, right=True) * n
        below = torch.searchsorted(y, x) * n - rank * m
        largest.append(torch.maximum(above.amax(1), below.amax(1)))
    return 1 - torch.cat(largest).double() / (n * m)


def correlation_similarity(real: Rows, synthetic: Rows) -> Tensor:
    """``1 - |rho_real - rho_synthetic| / 2`` (Pearson) for every pair of columns, float64, ``(dim, dim)``.

    NaN where a column is constant in either set and so has no correlation; SDMetrics refuses such a pair. A real
    correlation of exactly 0, for which SDMetrics gives NaN, is compared like any other.
    """
    one, two = map(_correlation, _clean({"real": real, "synthetic": synthetic}, refuse=True)[0])
    return 1 - (one - two).abs() / 2


def distance_to_closest(queries: Rows, records: Rows, *, chunk: int = 2048) -> Tensor:
    """Euclidean distance of every query ``(n, dim)`` to its nearest record ``(m, dim)``, float64, ``(n,)``.

    No more than ``chunk * chunk`` distances are held at once.
    """
    whole_number("chunk", chunk)
    (asking, known), _ = _clean({"queries": queries, "records": records}, least=1, refuse=True)
    centre = known.mean(0, dtype=torch.float64)  # large norms would cost digits in the expanded square below
    distances = []
    for query in (part.double() for part in torch.split(asking, chunk)):
        best = torch.full((len(query),), torch.inf, dtype=torch.float64, device=query.device)
        nearest = torch.full_like(query, torch.inf)
        for part in torch.split(known, chunk):
            record = part.double() - centre
            score, index = torch.addmm(record.square().sum(1), query - centre, record.t(), alpha=-2).min(1)
            nearest = torch.where((score < best)[:, None], part[index].double(), nearest)
            best = torch.minimum(score, best)
        distances.append((query - nearest).square().sum(1).sqrt())  # not from `best`: a copy is at exactly 0
    return torch.cat(distances)


def memorisation(
    synthetic: Rows, training: Rows, held_out: Rows, *, max_rows: int = 10_000, seed: int = 0
) -> Memorisation:
    """Ask whether synthetic rows ``(m, dim)`` copy the training rows ``(n, dim)``, with held-out rows ``(k, dim)``.

    Columns are standardised by the training rows; those constant there are dropped (all constant: ValueError). At most
    `max_rows` synthetic and held-out rows, drawn with `seed`, look for their nearest. A copy whose original is missing
    looks fresh, so all training rows stand behind the distances; behind `share_closer` stand only as many as are held
    out, and with k < n even pure copies reach no more than about ``(1 + k / n) / 2``.
    """
    whole_number("max_rows", max_rows)
    cleaned, rejected = _clean({"training": training, "synthetic": synthetic, "held_out": held_out})
    known, new, fresh = _standardised(cleaned)
    generator = generator_for("cpu", seed)  # on the CPU, so that all devices draw alike
    new = _draw(new, max_rows, generator)
    distance = distance_to_closest(new, known)
    usual = distance_to_closest(_draw(fresh, max_rows, generator), known).median()
    size = min(len(known), len(fresh))
    to_known = distance if size == len(known) else distance_to_closest(new, _draw(known, size, generator))
    to_fresh = distance_to_closest(new, _draw(fresh, size, generator))
    share = (to_fresh - to_known).sign().mean() / 2 + 0.5  # ties, as between discrete rows, count half
    median = distance.median()
    return Memorisation(float(median), float(usual), float(median / usual), float(share), sum(rejected))


def dynamics_error(transitions: Transitions, step_fn: StepFunction, *, max_rows: int | None = None) -> DynamicsError:
    """Ask the simulator what really follows from the observations and actions of `transitions`.

    `step_fn` takes observation rows ``(n, obs_dim)`` and action rows ``(n, act_dim)``, float32 arrays, and answers next
    observation rows ``(n, obs_dim)`` and rewards ``(n,)``. At most `max_rows` rows, evenly spaced, are asked about.
    The means are NaN where not one answer is finite.
    """
    if not isinstance(transitions, Transitions):
        raise TypeError(f"transitions: expected Transitions, got {type(transitions).__name__}")
    matrix, spec = _matrix("transitions", transitions), transitions.spec
    whole_number("max_rows", len(matrix) if max_rows is None else max_rows)
    asked = min(max_rows or len(matrix), len(matrix))
    indices = torch.arange(asked) * len(matrix) // asked
    rows = matrix[indices.to(matrix.device)].cpu()
    finite = torch.isfinite(rows).all(1)
    rows, indices = rows[finite], indices[finite]
    if not len(rows):
        raise ValueError(f"transitions: expected a finite row, got {asked} others")
    error = _answer_errors(rows, spec, step_fn)
    answered = torch.isfinite(error).all(1)
    error, indices = error[answered], indices[answered]
    next_observation, reward = error.unbind(1)
    means = float(next_observation.mean()), float(reward.mean())
    return DynamicsError(*means, next_observation, reward, indices, asked - len(indices))


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
    """Columns as sorted rows of a matrix."""
    columns = rows.t().contiguous()
    # On the CPU NumPy sorts with SIMD instructions, up to 20 times as fast as torch.
    return torch.from_numpy(np.sort(columns.numpy())) if columns.device.type == "cpu" else columns.sort().values


def _correlation(rows: Tensor) -> Tensor:
    """Pearson correlations in float64, ``(dim, dim)``; NaN for constant columns."""
    low, high = (bound.double() for bound in (rows.amin(0), rows.amax(0)))
    total, product = torch.zeros_like(low), torch.zeros_like(low).diag()
    for part in torch.split(rows, _ROWS):
        # On [0, 1] offset and scale cost no digits: a column that reaches both ends has a variance of at least 1 / 2n,
        # so one pass loses at most a factor n of float64's precision. A constant column becomes 0 / 0.
        unit = (part - low) / (high - low)
        total += unit.sum(0)
        product += unit.t() @ unit
    product -= total.outer(total) / len(rows)
    scale = product.diagonal().sqrt()
    return (product / scale.outer(scale)).clamp(-1, 1)


def _standardised(sets: list[Tensor]) -> list[Tensor]:
    """All sets scaled by the mean and deviation of the first, without the columns that are constant there."""
    # Column by column, because a float64 copy of everything is large.
    scale, centre = torch.stack([torch.stack(torch.std_mean(column.double())) for column in sets[0].t()], dim=1)
    scale, centre = scale.to(sets[0].dtype), centre.to(sets[0].dtype)
    varied = (sets[0].amin(0) < sets[0].amax(0)) & (scale > 0)
    if not bool(varied.any()):
        raise ValueError(f"training: every column is constant, got {sets[0][0].tolist()} throughout")
    # An absurd synthetic value may overflow: far away is all that matters then.
    return [((rows[:, varied] - centre[varied]) / scale[varied]).nan_to_num() for rows in sets]


def _draw(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """At most `count` rows at random."""
    return rows if len(rows) <= count else rows[torch.randperm(len(rows), generator=generator)[:count].to(rows.device)]


def _clean(named: Mapping[str, Rows], *, least: int = 2, refuse: bool = False) -> tuple[list[Tensor], list[int]]:
    """Finite rows as matrices of one width, dtype and device, and how many rows of each were not finite."""
    matrices = [_matrix(name, value) for name, value in named.items()]
    specs = [value.spec for value in named.values() if isinstance(value, Transitions)]
    if any(spec != specs[0] for spec in specs):
        raise ValueError(f"{', '.join(named)}: expected equal specs, got {[spec.to_json() for spec in specs]}")
    if len({matrix.shape[1] for matrix in matrices}) > 1:
        raise ValueError(f"{', '.join(named)}: expected equally many columns, got {[m.shape[1] for m in matrices]}")
    narrow = any(matrix.is_floating_point() and matrix.dtype != torch.float64 for matrix in matrices)
    kept, rejected = [], []
    for name, matrix in zip(named, matrices, strict=True):
        rows = matrix.to(matrices[0].device, torch.float32 if narrow else torch.float64)
        if not bool(torch.isfinite(rows.sum())):  # cheap; a sum that merely overflows costs a second look
            rows = rows[torch.isfinite(rows).all(1)]
        kept.append(rows)
        rejected.append(len(matrix) - len(rows))
        if len(rows) < least or (refuse and rejected[-1]):
            wanted = f"{least} or more finite rows{' and no other' if refuse else ''}"
            raise ValueError(f"{name}: expected {wanted}, got {len(rows)} finite and {rejected[-1]} others")
    return kept, rejected


def _matrix(name: str, value: Rows) -> Tensor:
    """A detached matrix, refusing everything that is not rows of one run."""
    matrix = value.rows if isinstance(value, Transitions) else value
    if isinstance(matrix, np.ndarray) and matrix.dtype.kind in "biuf":
        matrix = torch.from_numpy(np.require(matrix, requirements=["C", "W"]))
    if not isinstance(matrix, Tensor) or matrix.is_complex():
        kind = f"{type(value).__name__} of {getattr(value, 'dtype', 'no dtype')}"
        raise TypeError(f"{name}: expected Transitions, a tensor or an array of real numbers, got {kind}")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name}: expected the rows of one run, shape (n, dim), got {tuple(matrix.shape)}")
    return matrix.detach()
