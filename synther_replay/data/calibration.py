"""Calibration: moves generated observations to where those of the data lie, by a little.

Where many values crowd together, such as joints at their limits or a body that lies still, a model in the middle of its
training spreads them, and the shares of values that many rows have exactly, such as a contact force of zero, are a
little off. `Calibration.of` compares generated with real values, column by column, and keeps for those that differ how
the one distribution maps to the other.

Continuous observations move by at most a fraction of the standard deviation, since a larger distance is an error that a
shift would only hide. The next observation moves by the same distance: the change from one to the other, and with it
the dynamics, stays as the model generated it. Columns with atoms (see `atoms`) are moved one by one while their gaps
are open, by at most the width of a gap, which is the distance from one side of an atom to the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from synther_replay.data.codec import TransitionCodec
from synther_replay.data.quantile_map import QUANTILES, QuantileMap, are_different
from synther_replay.data.transitions import TransitionSpec
from synther_replay.errors import CheckpointError

GENERATED_ROWS, REAL_ROWS = 4_096, 16_384  # rows that are compared, per model
LEAST_ROWS = 8 * QUANTILES  # with fewer real rows, quantiles would be the values of single rows
_COMPARED = 2_048  # rows in which two columns are equal if one is a copy of the other
_FARTHEST = 0.2  # standard deviations


class RealSample(NamedTuple):
    """Real rows that generated ones are compared with."""

    rows: Tensor  # (M, n, dim), gaps at atoms open
    continuous: Tensor  # numbers of the observation values without atoms that can be calibrated, (c,)
    with_atoms: Tensor  # columns of rows with atoms that can be calibrated, (a,)

    @classmethod
    def of(cls, rows: Tensor, codec: TransitionCodec) -> RealSample | None:
        """Choose the columns, given valid rows ``(M, n, dim)``, which are changed; None if there are none."""
        is_copied = copied(rows, codec.spec)
        continuous, with_atoms = codec.continuous_observations, codec.observations_with_atoms
        continuous = continuous[~is_copied[continuous + codec.spec.observations.start]]
        with_atoms = with_atoms[~is_copied[with_atoms]]
        if not len(continuous) and not len(with_atoms):
            return None
        return cls(codec.open_gaps(rows), continuous, with_atoms)


class Calibration(NamedTuple):
    """How c observation values without, and a columns of rows with atoms are moved; immutable."""

    continuous: QuantileMap | None  # of numbers among the observations
    with_atoms: QuantileMap | None  # of columns of rows

    @classmethod
    def of(cls, real: RealSample, generated: Tensor, codec: TransitionCodec) -> Calibration | None:
        """Compare real with generated rows ``(M, n, dim)``, both with open gaps; None if no column differs."""
        continuous = None
        if len(real.continuous):
            here = real.continuous + codec.spec.observations.start
            values = real.rows[..., here], generated[..., here]
            farthest = _FARTHEST * values[0].std(1, correction=0)
            continuous = QuantileMap.of(*values, real.continuous, are_different(*values), farthest)
        here = real.with_atoms
        values = real.rows[..., here], generated[..., here]
        closed = (codec.close_gaps(part.clone())[..., here] for part in (real.rows, generated))
        with_atoms = QuantileMap.of(*values, here, are_different(*closed), codec.widths_of_gaps(here))
        return None if continuous is None and with_atoms is None else cls(continuous, with_atoms)

    def apply(self, rows: Tensor, codec: TransitionCodec) -> None:
        """Move observations and next observations of rows ``(M, n, dim)`` with open gaps, in place."""
        if self.with_atoms is not None:
            columns = self.with_atoms.columns
            rows[..., columns] = self.with_atoms.moved(rows[..., columns])
        if self.continuous is not None:
            spec, real = codec.spec, self.continuous.real
            here, there = (self.continuous.columns + part.start for part in (spec.observations, spec.next_observations))
            values, following = rows[..., here], rows[..., there]
            rows[..., here] = moved = self.continuous.moved(values)
            # Not beyond the real range of the column, unless it lay there before.
            low, high = following.minimum(real[..., 0, None].mT), following.maximum(real[..., -1, None].mT)
            rows[..., there] = (following + (moved - values)).clamp(low, high)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return a copy of all tensors."""
        return {name: moved.state_dict() for name, moved in self._asdict().items() if moved is not None}

    @classmethod
    def from_state(cls, state: dict[str, Any], stack: int, codec: TransitionCodec, device: torch.device) -> Calibration:
        """Inverse of `state_dict`; raises `CheckpointError` if shapes or values are impossible."""
        if not set(state) <= set(cls._fields):
            raise CheckpointError(f"state: calibration: expected {cls._fields}, got {tuple(state)}")
        # Not only columns with atoms: of the models of a stack, some may have none in a column that others map.
        columns, spec = torch.arange(codec.spec.dim, device="cpu"), codec.spec
        allowed = {
            "continuous": columns[: spec.observation_dim],
            "with_atoms": torch.cat((columns[spec.observations], columns[spec.next_observations])),
        }
        return cls(
            *(
                QuantileMap.from_state(state[name], stack, columns, device) if name in state else None
                for name, columns in allowed.items()
            )
        )


def copied(rows: Tensor, spec: TransitionSpec) -> Tensor:
    """Which columns of rows ``(M, n, dim)`` hold observation values that are copies of others, now or next, bool.

    In stacked frames, or with a goal that repeats a part of the state, one shift for each column would part the copies.
    """
    parts = spec.observations, spec.next_observations
    columns = torch.cat([rows[:, :_COMPARED, part] for part in parts], -1).flatten(0, 1).T
    _, number, counts = torch.unique(columns, dim=0, return_inverse=True, return_counts=True)
    now_or_next = (counts[number] > 1).view(2, -1).any(0)
    is_copied = torch.zeros(spec.dim, dtype=torch.bool, device=rows.device)
    for part in parts:
        is_copied[part] = now_or_next
    return is_copied
