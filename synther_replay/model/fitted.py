"""FittedModel: the immutable result of a fit, and how rows are drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from synther_replay.common.seeding import Stream, derive_seed, generator_for
from synther_replay.common.stacks import take_rows
from synther_replay.data.calibration import Calibration
from synther_replay.data.codec import TransitionCodec
from synther_replay.data.conditions import ConditionCodec
from synther_replay.data.table import RowTable
from synther_replay.errors import GenerationError
from synther_replay.model.consistency import Consistency
from synther_replay.model.outcomes import OutcomeModel
from synther_replay.model.rare_outcomes import RareOutcomes

_MAX_REDRAWS = 20  # attempts to replace non-finite rows
_BLOCK = 65_536  # rows that are calibrated at once, over all models, which bounds the memory

# Fills codes: number of rows, seed, what to do with a chunk, conditions, guidance. See `StackSampler.draw`.
DrawCodes = Callable[[int, int, Callable[[int, Tensor], None], Tensor | None, float], None]


@dataclass
class Draws:
    """Numbers the draws of a generator, so that each has a random stream of its own.

    Attributes:
        seed: Seed of the generator.
        count: Draws so far.
        rejected: Generated rows that were non-finite and drawn again.
    """

    seed: int
    count: int = 0
    rejected: int = 0


@dataclass(frozen=True, eq=False)
class FittedModel:
    """Everything that rows are generated from. A fit makes a new one; no tensor of it is ever changed.

    Attributes:
        codec: Transitions to codes and back, with the statistics of the data.
        weights: Weights of the denoisers in their compute dtype, ``(M, P)``.
        frequencies: Frequencies of their noise features.
        outcomes: Sets rewards with few values, and `terminated`; None if there is nothing to set.
        rare: Real rows of the outcomes that are too rare for it; None if there are none.
        table: The rows themselves if no column of the data is continuous; the weights are not used then.
        conditions: Statistics of the conditions; None if the fit had none.
        calibration: Moves generated observations to where the real ones lie; None if they lie there.
        consistency: Makes next observations and rewards follow the rest of the row; None if that is off.
    """

    codec: TransitionCodec
    weights: Tensor
    frequencies: Tensor
    outcomes: OutcomeModel | None
    rare: RareOutcomes | None
    table: RowTable | None
    conditions: ConditionCodec | None
    calibration: Calibration | None
    consistency: Consistency | None

    @property
    def condition_dim(self) -> int:
        """Number of values of a condition; 0 without conditions."""
        return 0 if self.conditions is None else self.conditions.mean.shape[2]

    def draw(self, n: int, draws: Draws, codes: DrawCodes, condition: Tensor | None, guidance: float) -> Tensor:
        """Generate rows ``(M, n, dim)``.

        Args:
            n: Rows per model.
            draws: Number of the draw; advanced.
            codes: Computes the codes of rows with the weights of this model.
            condition: Conditions ``(M, n, C)`` in the units of the data; None: none.
            guidance: Weight of the condition.

        Raises:
            GenerationError: Rows were still non-finite after 20 attempts.
        """
        encoded = None if condition is None or self.conditions is None else self.conditions.encode(condition)
        if self.table is not None:
            draws.count += 1
            rng = generator_for(self.table.rows.device, draws.seed, Stream.GENERATED, draws.count)
            return self.table.draw(n, rng, encoded if guidance else None)
        rows = self.draw_open(n, draws, codes, encoded, guidance)
        for block in rows.split(max(1, _BLOCK // len(rows)), dim=1):
            if self.calibration is not None:
                self.calibration.apply(block, self.codec)
            self.codec.close_gaps(block)
        self._set_outcomes(rows, draws, is_guided=encoded is not None and guidance != 0)
        return rows

    def draw_open(
        self, n: int, draws: Draws, codes: DrawCodes, encoded: Tensor | None = None, guidance: float = 1.0
    ) -> Tensor:
        """Generate rows without calibration and outcomes, gaps at atoms open; conditions are encoded. See `draw`."""
        stack, device = len(self.weights), self.weights.device
        rows = torch.empty(stack, n, self.codec.spec.dim, dtype=torch.float32, device=device)
        invalid = self._fill(rows, draws, codes, encoded, guidance)
        for _ in range(_MAX_REDRAWS):
            missing = int(invalid.sum(1).max())
            if missing == 0:
                break
            self._redraw(rows, invalid, missing, draws, codes, encoded, guidance)
        if bool(invalid.any()):
            raise GenerationError(
                f"generator: {int(invalid.sum())} of {n * stack} rows are still non-finite after {_MAX_REDRAWS} "
                "redraws; train for more steps or check the data"
            )
        return rows

    def _fill(self, rows: Tensor, draws: Draws, codes: DrawCodes, condition: Tensor | None, guidance: float) -> Tensor:
        """Fill rows ``(M, n, dim)``, gaps at atoms open; return which of them are non-finite, bool ``(M, n)``."""
        invalid = torch.empty(rows.shape[:2], dtype=torch.bool, device=rows.device)

        def write(start: int, chunk: Tensor) -> None:
            here = slice(start, start + chunk.shape[1])
            if self.consistency is not None:
                chunk = self.consistency.applied(chunk)
            rows[:, here], valid = self.codec.decode_open(chunk)
            invalid[:, here] = ~valid

        draws.count += 1
        codes(rows.shape[1], derive_seed(draws.seed, Stream.GENERATED, draws.count), write, condition, guidance)
        draws.rejected += int(invalid.sum())
        return invalid

    def _redraw(
        self,
        rows: Tensor,
        invalid: Tensor,
        count: int,
        draws: Draws,
        codes: DrawCodes,
        condition: Tensor | None,
        guidance: float,
    ) -> None:
        """Generate `count` more rows per model and replace invalid rows by the valid ones among them."""
        # The invalid rows of each model, in order; models with fewer repeat valid ones, which are left as they are.
        place = (~invalid).long().argsort(dim=1, stable=True)[:, :count]
        asked = None if condition is None else take_rows(condition, place)
        spare = rows.new_empty(len(rows), count, rows.shape[2])
        usable = ~self._fill(spare, draws, codes, asked, guidance) & invalid.gather(1, place)
        for model, own in enumerate(usable):
            rows[model, place[model, own]] = spare[model, own]
            invalid[model, place[model, own]] = False

    def _set_outcomes(self, rows: Tensor, draws: Draws, *, is_guided: bool) -> None:
        """Set `terminated` and rewards with few values, given the decoded rows, which were clipped and rounded."""
        codec, rare, kinds = self.codec, None if is_guided else self.rare, 0
        if self.outcomes is not None:
            kinds = self.outcomes.shares.shape[1]
            with torch.autocast(rows.device.type, enabled=False):
                number = self.outcomes.assign(
                    rows,
                    lambda block: codec.layout.features(codec.encode(block)),
                    (codec.spec.rewards.start, codec.spec.terminated.start),
                    derive_seed(draws.seed, Stream.OUTCOMES, draws.count),
                    match_shares=not is_guided,
                    rare=None if rare is None else rare.least_chance(kinds),
                )
        codec.restore_terminal_rewards(rows)
        if rare is not None:  # after that: the rewards of real rows are as they should be
            rng = generator_for(rows.device, draws.seed, Stream.RARE_OUTCOMES, draws.count)
            rare.insert(rows, number, kinds, rng)
