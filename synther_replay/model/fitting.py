"""FitJob: one fit of the generator, from the data to a `FittedModel`."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from synther_replay.common.checks import whole_number
from synther_replay.common.locking import Lock
from synther_replay.common.progress import progress_bar
from synther_replay.common.seeding import Stream, derive_seed, generator_for
from synther_replay.common.stacks import take_rows
from synther_replay.config import GeneratorConfig
from synther_replay.data.calibration import GENERATED_ROWS, LEAST_ROWS, REAL_ROWS, Calibration, RealSample
from synther_replay.data.codec import TransitionCodec
from synther_replay.data.conditions import ConditionCodec, checked_condition, drawn_by_weight
from synther_replay.data.splitting import held_out_last
from synther_replay.data.table import RowTable
from synther_replay.data.transitions import Transitions
from synther_replay.diffusion.trainer import TrainingPlan, TrainingResult
from synther_replay.errors import GenerationError, NotFittedError
from synther_replay.model.consistency import Consistency
from synther_replay.model.engine import Engine, Training
from synther_replay.model.fitted import Draws, FittedModel
from synther_replay.model.outcomes import STEPS, OutcomeModel, Outcomes
from synther_replay.model.rare_outcomes import RareOutcomes
from synther_replay.model.windows import Windows, WindowSupply

# Gradient steps of the diffusion model for one of the outcome model, up to its usual number of steps and beyond.
_STEPS_PER_OUTCOME_STEP = 3, 15
# The same for the regressions of `consistent`, of the steps that were taken.
_STEPS_PER_REGRESSION_STEP, _REGRESSION_STEPS = (2, 5), 2_000
_LARGEST_CALIBRATION = 0.5  # share of the training time; very short fits are not calibrated


@dataclass(frozen=True)
class FitReport:
    """Result of `DiffusionGenerator.fit`; with a stack, losses are means over its models.

    Attributes:
        loss: Mean training loss since the last evaluation.
        held_out_loss: Held-out loss of the kept model; None if no rows are held out.
        steps: Gradient steps taken; 0 for rows without continuous columns, which are kept as a table.
        seconds: Total time of the fit.
        rows: Number of rows, training and held-out together.
        from_scratch: Whether training started from new weights.
        stopped_early: Whether training stopped before the planned steps, by patience or by the time limit.
        losses: Training loss of each model.
        held_out_losses: Lowest held-out loss of each model; the weights with this loss are kept.
    """

    loss: float
    held_out_loss: float | None
    steps: int
    seconds: float
    rows: int
    from_scratch: bool
    stopped_early: bool
    losses: tuple[float, ...]
    held_out_losses: tuple[float, ...] | None


class FitData(NamedTuple):
    """Real rows as a fit needs them; they share no memory with the rows that they were made from."""

    codec: TransitionCodec
    conditions: ConditionCodec | None
    table: RowTable | None
    codes: Tensor  # (M, n, code_dim + condition), held-out rows last; no rows with a table
    held_out: int  # number of held-out rows
    outcomes: Outcomes | None
    number: Tensor  # number of each row's outcome, (M, n)
    few: RareOutcomes | None  # rows of outcomes with few rows
    sample: RealSample | None  # for the calibration; None if nothing can be calibrated
    windows: Windows | None = None  # of a stream; the codes are those of the first one

    @classmethod
    def of(
        cls,
        rows: Tensor,
        condition: Tensor | None,
        weights: Tensor | None,
        codec: TransitionCodec,
        config: GeneratorConfig,
        seed: int,
        extremes: Tensor | None = None,
    ) -> FitData:
        """Encode rows ``(M, n, dim)``.

        Args:
            rows: Valid rows.
            condition: Their conditions ``(M, n, C)``, if any.
            weights: Their weights ``(M, n)``, if any. Rows are drawn in proportion to them, training and held-out rows
                among themselves, so everything that is fitted sees the weighted distribution.
            codec: A new codec; fitted here.
            config: Settings.
            seed: Seed of the split and of the draw by weight.
            extremes: Further rows ``(n, dim)`` of the data, which extend the ranges of the codec and nothing else.
        """
        order, held_out = held_out_last(rows, config.held_out, seed)
        if weights is not None:
            drawn, held_out = _drawn(order, held_out, weights, generator_for(rows.device, seed, Stream.WEIGHTED))
            rows, order = take_rows(rows, drawn), None
            condition = None if condition is None else take_rows(condition, drawn)
        codec.fit(rows, None if extremes is None else extremes[None].to(rows.device))
        conditions = None if condition is None else ConditionCodec.of(condition)
        encoded = None if condition is None or conditions is None else conditions.encode(condition)
        nothing = rows.new_empty(len(rows), 0, dtype=torch.long)
        if codec.is_discrete:
            return cls(codec, conditions, RowTable.of(rows, encoded), nothing, 0, None, nothing, None, None)
        codes = codec.encode(rows, order)
        if encoded is not None:
            codes = torch.cat((codes, encoded if order is None else take_rows(encoded, order)), dim=-1)
        outcomes, number, few, sample = None, nothing, None, None
        if config.exact:
            spec = codec.spec
            if rows.shape[1] >= LEAST_ROWS:
                rng = generator_for("cpu", seed, Stream.COMPARED_REAL)
                some = torch.randperm(rows.shape[1], generator=rng, device="cpu")[:REAL_ROWS]
                sample = RealSample.of(rows[:, some.to(rows.device)], codec)
            rewards, terminated = rows[..., spec.rewards.start], rows[..., spec.terminated.start]
            found, number = Outcomes.of(rewards, terminated, codec.reward_levels)
            if found.shares.shape[1] > 1:
                few = RareOutcomes.of(rows, number, found)
                outcomes, number = found, number if order is None else number.gather(1, order)
        return cls(codec, conditions, None, codes, held_out, outcomes, number, few, sample)


class FitJob:
    """A fit that was begun. `run` computes it, `DiffusionGenerator.commit` makes its result the generator's model.

    It holds its own copy of the data. `run` may be called in another thread: generator and rows stay as they are.

    Attributes:
        base: State of the generator's training when the job was begun.
        base_model: Model of the generator at that time.
        training: State after `run`, else None.
        model: The fitted model after `run`, else None.
        report: The report after `run`, else None.
        draws: Number of the draws, with those of this job.
    """

    def __init__(
        self,
        engine: Engine,
        draws: Draws,
        data: FitData,
        plan: TrainingPlan,
        start: Training,
        *,
        base: tuple[Training, FittedModel | None],
        previous: FittedModel | None,
        rows: int,
        seconds: float,
        progress: bool | None,
    ) -> None:
        """Keep what `run` needs.

        Args:
            engine: Trains and samples.
            draws: Number of the generator's draws.
            data: The data.
            plan: Arguments of the training.
            start: State to start from.
            base: State of the generator's training, and its model.
            previous: Model whose outcome model and regressions training starts from, if any.
            rows: Number of real rows.
            seconds: Time that the preparation took.
            progress: Whether to show a progress bar. None: in a terminal, if the fit takes longer than a few seconds.
        """
        self.engine, (self.base, self.base_model) = engine, base
        self.training: Training | None = None
        self.model: FittedModel | None = None
        self.report: FitReport | None = None
        self.count_before = draws.count  # of the generator's draws when the job is committed
        self.draws = replace(draws)  # its own count: a job that is not committed leaves no trace
        self._generators_draws = draws
        self._plan, self._start, self._previous = plan, start, previous
        self._data: FitData | None = data
        self._rows, self._seconds, self._progress = rows, seconds, progress
        self._running = Lock()

    @torch.inference_mode(mode=False)
    def run(self) -> FitReport:
        """Compute the fit, once; another call waits for it and returns the same report.

        Raises:
            DivergedError: The loss or a weight of the outcome model became non-finite.
        """
        with self._running:
            if self.report is None:
                self.report = self._run()
            return self.report

    def _run(self) -> FitReport:
        begun, data, engine = time.monotonic(), self._data, self.engine
        assert data is not None  # until there is a report
        result, training, outcomes = TrainingResult((0.0,) * engine.stack, None, 0, False), dict(self._start), None
        spent = 0.0
        if data.table is None:
            result, training = self._train(data)
            spent = time.monotonic() - begun
            if engine.workers is not None:
                spent = engine.workers.number_of_first(spent)
            outcomes = self._fit_outcomes(data, training)
        rare = None if outcomes is None or data.few is None else data.few.limited(outcomes.told)
        weights, frequencies = engine.weights(training)
        model = FittedModel(data.codec, weights, frequencies, outcomes, rare, data.table, data.conditions, None, None)
        if data.table is None and self._has_time_to_compare(result.steps, spent):
            model = self._compared(model, data, result.steps, training["fits"])
        self.model = model
        self.training, self._data = training, None
        held = result.held_out_loss
        return FitReport(
            loss=sum(result.loss) / engine.stack,
            held_out_loss=None if held is None else sum(held) / engine.stack,
            steps=result.steps,
            seconds=self._seconds + time.monotonic() - begun,
            rows=self._rows,
            from_scratch=self._plan.from_scratch,
            stopped_early=result.stopped_early,
            losses=result.loss,
            held_out_losses=held,
        )

    def sample(self, n: int, *, condition: Any = None, guidance: float = 1.0) -> Transitions:
        """Generate rows with the fitted model before it is committed; see `DiffusionGenerator.sample`."""
        if self.model is None:
            raise NotFittedError("job: call run before sample")
        return sample(self.engine, self.model, self.draws, self._generators_draws, n, condition, guidance)

    def _train(self, data: FitData) -> tuple[TrainingResult, Training]:
        plan = self._plan
        train, held_out = data.codes, None
        if data.held_out:
            train, held_out = data.codes.tensor_split([-data.held_out], dim=1)
        condition = 0 if data.conditions is None else data.conditions.mean.shape[2]
        with progress_bar(plan.steps, "fitting", "step", shown=self._progress) as bar, ExitStack() as stack:
            fresh_rows = None
            if data.windows is not None:
                draws = plan.steps * plan.batch_size
                fresh_rows = stack.enter_context(WindowSupply(data.windows, draws, self._encode_window)).due

            def show(done: int, loss: float, held_out_loss: float | None) -> None:
                text = "-" if held_out_loss is None else f"{held_out_loss:.4f}"
                bar.set_postfix(loss=f"{loss:.4f}", held_out=text, refresh=False)  # `update` waits for the delay
                bar.update(min(done, plan.steps) - bar.n)

            return self.engine.train(self._start, condition, self.draws.seed, train, held_out, plan, show, fresh_rows)

    def _encode_window(self, rows: Tensor) -> Tensor:
        assert self._data is not None  # while it runs
        return self._data.codec.encode(rows[None].to(self.engine.device))

    def _has_time_to_compare(self, steps: int, seconds: float) -> bool:
        """Whether a comparison takes less than half the time of the training, and ends within the time limit.

        Args:
            steps: Gradient steps of the training.
            seconds: Its time.
        """
        # A training step computes about three times what an evaluation of as many rows does.
        share = GENERATED_ROWS * self.engine.config.sampling_steps / max(1, 3 * steps * self._plan.batch_size)
        limit = self._plan.max_seconds
        return share < _LARGEST_CALIBRATION and (limit is None or seconds * (1 + share) <= limit)

    def _compared(self, model: FittedModel, data: FitData, steps: int, fits: int) -> FittedModel:
        """Compare generated with real rows, and correct what differs."""
        wants_consistency = self.engine.config.consistent and data.codes.shape[1] >= LEAST_ROWS
        if data.sample is None and not wants_consistency:
            return model
        # Draws of their own: those of the generator stay as they are.
        draws = Draws(derive_seed(self.draws.seed, Stream.COMPARED_GENERATED, fits))
        try:
            generated = self.engine.draw_open(model, GENERATED_ROWS, draws)
        except GenerationError:  # for `sample` to raise
            return model
        consistency = self._fit_consistency(data, generated, steps, fits) if wants_consistency else None
        calibration = None if data.sample is None else Calibration.of(data.sample, generated, model.codec)
        return replace(model, calibration=calibration, consistency=consistency)

    def _fit_consistency(self, data: FitData, generated: Tensor, steps: int, fits: int) -> Consistency | None:
        few, many = _STEPS_PER_REGRESSION_STEP
        return self.engine.fit_consistency(
            data.codes,
            data.held_out,
            data.codec.encode(data.codec.close_gaps(generated.clone())),
            data.codec,
            width=self.engine.config.width,
            steps=max(min(_REGRESSION_STEPS, steps // few), steps // many, 1),
            seed=derive_seed(self.draws.seed, Stream.CONSISTENCY_FIT, fits),
            previous=None if self._previous is None else self._previous.consistency,
        )

    def _fit_outcomes(self, data: FitData, training: Training) -> OutcomeModel | None:
        if data.outcomes is None:
            return None
        few, many = _STEPS_PER_OUTCOME_STEP
        steps = self.engine.config.steps
        return OutcomeModel.fit(
            data.codes,
            data.outcomes,
            data.number,
            seed=derive_seed(self.draws.seed, Stream.OUTCOME_FIT, training["fits"]),
            steps=max(min(STEPS, steps // few), steps // many, 1),
            previous=None if self._previous is None else self._previous.outcomes,
            features=data.codec.layout.features,
        )


def sample(
    engine: Engine,
    model: FittedModel,
    draws: Draws,
    generators_draws: Draws,
    n: int,
    condition: Any,
    guidance: float,
) -> Transitions:
    """Generate `n` transitions per model, with conditions in the units of the fit; see `DiffusionGenerator.sample`.

    Rejected rows count for the generator, too, whatever draws they are of.
    """
    n = whole_number("n", n)
    if not isinstance(guidance, int | float) or not 0 <= guidance < float("inf"):
        raise ValueError(f"guidance: expected a number of at least 0, got {guidance!r}")
    if condition is None and guidance != 1.0:
        raise ValueError(f"guidance: applies to a condition, got {guidance!r} without one")
    if condition is not None:
        if model.conditions is None:
            raise ValueError("condition: the model was fitted without conditions; call fit with condition=...")
        condition = checked_condition(condition, (engine.stack, n), model.condition_dim, engine.device)
    rejected = draws.rejected
    try:
        rows = engine.draw(model, n, draws, condition, float(guidance))
    finally:
        if draws is not generators_draws:
            generators_draws.rejected += draws.rejected - rejected
    return Transitions(model.codec.spec, rows[0] if engine.stack == 1 else rows)


def _drawn(order: Tensor | None, held_out: int, weights: Tensor, rng: torch.Generator) -> tuple[Tensor, int]:
    """Row numbers ``(M, n)`` drawn by weight, held-out rows last, and the number of these."""
    if order is not None:
        parts = order.tensor_split([-held_out], dim=1)
        if all(bool((weights.gather(1, part).sum(1) > 0).all()) for part in parts):
            drawn = [part.gather(1, drawn_by_weight(weights.gather(1, part), rng)) for part in parts]
            return torch.cat(drawn, dim=1), held_out
    return drawn_by_weight(weights, rng), 0  # too few rows with a weight to hold some out
