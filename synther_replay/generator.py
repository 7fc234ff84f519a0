"""DiffusionGenerator: codec, diffusion model and outcome model behind `fit` and `sample`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from synther_replay.common.checks import device_or_cpu, resolve_device, whole_number
from synther_replay.common.seeding import derive_seed, generator_for
from synther_replay.common.short_forms import default_preset
from synther_replay.common.trees import on_cpu
from synther_replay.config import GeneratorConfig
from synther_replay.data.codec import TransitionCodec
from synther_replay.data.splitting import held_out_last
from synther_replay.data.table import RowTable
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.diffusion.edm import NoiseLevels
from synther_replay.diffusion.stack_sampler import StackSampler
from synther_replay.diffusion.trainer import StackTrainer, TrainingPlan, TrainingResult
from synther_replay.errors import CheckpointError, GenerationError, NotFittedError, is_out_of_memory
from synther_replay.outcomes import STEPS, OutcomeModel, Outcomes
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint

KIND = "diffusion generator"
_MAX_REDRAWS = 20  # attempts to replace non-finite rows
# Gradient steps of the diffusion model for one of the outcome model, up to its usual number of steps and beyond.
_STEPS_PER_OUTCOME_STEP = 3, 15


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


class DiffusionGenerator:
    """Diffusion model of transitions: fit it to real ones, then generate new ones.

    >>> import gymnasium as gym, torch
    >>> spec = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (1,)))
    >>> real = Transitions(spec, torch.rand(500, spec.dim) * torch.tensor([1.0] * 6 + [0.0]))
    >>> generator = DiffusionGenerator(spec, GeneratorConfig.tiny(width=32, steps=20), device="cpu")
    >>> generator.fit(real).steps
    20
    >>> len(generator.sample(1_000))
    1000

    Args:
        spec: Layout of the transitions.
        config: Settings, or a short form of `GeneratorConfig.of`. None, and a mapping without a preset:
            `GeneratorConfig.fast()` on a GPU, `GeneratorConfig.tiny()` on a CPU.
        device: A torch device, or "auto": the GPU if there is one, else the CPU.
        seed: Random seed. Results are deterministic for the same seed, calls and device.
        stack: Number of independent models trained and sampled in parallel. With more than one, all transitions have
            a leading axis of that size. Training continues until every model has run out of patience; if one model
            diverges, the fit of all is undone.
    """

    min_rows = 32  # minimum number of rows for `fit`

    def __init__(
        self,
        spec: TransitionSpec,
        config: GeneratorConfig | Mapping[str, Any] | str | None = None,
        *,
        device: torch.device | str = "auto",
        seed: int = 0,
        stack: int = 1,
    ) -> None:
        """Build the untrained models."""
        if not isinstance(spec, TransitionSpec):
            raise TypeError(f"spec: expected a TransitionSpec, got {spec!r}")
        self.spec = spec
        self.device = resolve_device(device)
        self.config = GeneratorConfig.of(config, default=default_preset(self.device), name="config")
        self.seed = whole_number("seed", seed, least=0)
        self.stack = whole_number("stack", stack)
        self.rejected = 0  # total number of generated rows rejected as non-finite
        self._draws = 0
        self._fitted = False
        self._codec = self._new_codec()
        self._outcomes: OutcomeModel | None = None
        self._table: RowTable | None = None  # replaces the diffusion model if no column of the data is continuous
        self._build_models()

    @property
    def is_fitted(self) -> bool:
        """Whether `sample` can be called."""
        return self._fitted

    @property
    def parameters(self) -> int:
        """Number of parameters of one model."""
        return self._trainer.shape.parameters

    @torch.inference_mode(mode=False)
    def fit(
        self,
        transitions: Transitions,
        *,
        steps: int | None = None,
        max_seconds: float | None = None,
        from_scratch: bool | None = None,
        progress: bool | None = None,
    ) -> FitReport:
        """Fit the model to transitions. If it raises, the generator is unchanged.

        Args:
            transitions: Real transitions, rows ``(n, dim)``; with a stack, ``(stack, n, dim)``.
            steps: Gradient steps, rounded up to a multiple of `average_every`. None: as configured.
            max_seconds: Time limit of the training steps, without the outcome model. None: as configured.
            from_scratch: Whether to start from new weights. None: as configured. The first fit always does.
            progress: Whether to show a progress bar. None: only in a terminal.

        Raises:
            TypeError: `transitions` is not a `Transitions`.
            ValueError: Wrong spec or stack size, too few rows, or non-finite values.
            DivergedError: The loss or a weight of the outcome model became non-finite.
        """
        begun = time.monotonic()
        rows = self._checked(transitions)
        trained = self._fitted and self._table is None
        if not trained or from_scratch is None:
            from_scratch = not (trained and self.config.warm_start)
        if steps is None:
            steps = self.config.steps if from_scratch else self.config.refit_steps
        steps = whole_number("steps", steps)
        plan = TrainingPlan(
            steps=steps,
            batch_size=self.config.batch_size_for(rows.shape[1]),
            learning_rate=self.config.learning_rate,
            evaluate_every=min(self.config.evaluate_every, math.ceil(steps / 8)),
            patience=self.config.patience,
            max_seconds=self.config.max_seconds if max_seconds is None else _positive("max_seconds", max_seconds),
            from_scratch=from_scratch,
        )
        codec = self._new_codec()
        codec.fit(rows)
        before = self._codec, self._outcomes, self._table, self._fitted
        try:
            with self._trainer.rollback_on_error():
                if codec.is_discrete:
                    result = TrainingResult((0.0,) * self.stack, None, 0, stopped_early=False)
                    outcomes, table = None, RowTable.of(rows)
                else:
                    order, count = held_out_last(rows, self.config.held_out, self.seed)
                    codes = codec.encode(rows, order)
                    train, held_out = (codes, None) if order is None else codes.tensor_split([-count], dim=1)
                    result = self._train(train, held_out, plan, progress)
                    previous = None if from_scratch else self._outcomes
                    outcomes, table = self._fit_outcomes(codec, codes, rows, order, previous), None
                self._codec, self._outcomes, self._table, self._fitted = codec, outcomes, table, True
                self._load_sampler()
        except BaseException:
            self._codec, self._outcomes, self._table, self._fitted = before
            self._load_sampler()
            raise
        held = result.held_out_loss
        return FitReport(
            loss=sum(result.loss) / self.stack,
            held_out_loss=None if held is None else sum(held) / self.stack,
            steps=result.steps,
            seconds=time.monotonic() - begun,
            rows=rows.shape[1],
            from_scratch=from_scratch,
            stopped_early=result.stopped_early,
            losses=result.loss,
            held_out_losses=held,
        )

    @torch.inference_mode(mode=False)
    def sample(self, n: int) -> Transitions:
        """Generate `n` transitions (per model of a stack) on the generator's device.

        Non-finite rows are counted in `rejected` and drawn again.

        Raises:
            NotFittedError: Called before the first `fit` or `load`.
            GenerationError: Rows were still non-finite after 20 attempts.
        """
        n = whole_number("n", n)
        if not self._fitted:
            raise NotFittedError("generator: call fit or load before sample")
        if self._table is not None:
            self._draws += 1
            rows = self._table.draw(n, generator_for(self.device, self.seed, 4, self._draws))
        else:
            rows = self._generate(n)
        return Transitions(self.spec, rows[0] if self.stack == 1 else rows)

    def to(self, device: torch.device | str) -> DiffusionGenerator:
        """Move to another device in place and return self."""
        device = resolve_device(device)
        if device != self.device:
            state, own = self.state_dict(), dict(vars(self))
            try:
                self.device = device
                self._build_models()
                self.load_state_dict(state)
            except BaseException:  # the old models are still there
                vars(self).update(own)
                raise
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint of the complete state to one file."""
        save_checkpoint(path, KIND, self.state_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: torch.device | str = "auto") -> DiffusionGenerator:
        """Load a generator from a checkpoint, on any device.

        Raises:
            CheckpointError: The file is missing, damaged, not a generator, or of a newer format version.
        """
        state = load_checkpoint(path, KIND)
        try:
            spec = TransitionSpec.from_json(state["spec"])
            config = GeneratorConfig.from_json(state["config"])
            held = max(weights.numel() for weights in state["trainer"].values() if isinstance(weights, Tensor))
            if config.network(1).parameters * state["stack"] > held:  # before memory for the network is allocated
                raise CheckpointError(f"state: {held} weights are too few for the network of {state['config']}")
            generator = cls(spec, config, device=device, seed=state["seed"], stack=state["stack"])
            generator.load_state_dict(state)
        except Exception as error:  # a forged state makes the constructor raise nearly anything
            if is_out_of_memory(error):
                raise
            raise CheckpointError(f"path: {path} is not a valid {KIND} of this version ({error!r})") from error
        return generator

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the complete state."""
        return {
            "spec": self.spec.to_json(),
            "config": self.config.to_json(),
            "seed": self.seed,
            "stack": self.stack,
            "draws": self._draws,
            "rejected": self.rejected,
            "fitted": self._fitted,
            "codec": self._codec.state_dict(),
            "outcomes": None if self._outcomes is None else self._outcomes.state_dict(),
            "table": None if self._table is None else self._table.state_dict(),
            "trainer": self._trainer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; on a mismatch raise `CheckpointError` with both sides and change nothing.

        Spec, stack, the sizes of the network and the settings of data and sampling must agree, because they give
        weights and rows their meaning. Settings of training and machine may differ; those of this object are used.
        """
        own, trained = dict(vars(self)), self._trainer.state_dict()
        try:
            config = GeneratorConfig.from_json(state["config"])
            differences = self.config.differences(config, self._codec.code_dim)
            for name, mine in (("spec", self.spec.to_json()), ("stack", self.stack)):
                if state[name] != mine:
                    differences[name] = state[name], mine
            if differences:
                listed = "; ".join(f"{name}: got {got}, expected {mine}" for name, (got, mine) in differences.items())
                raise CheckpointError(f"state: {listed}")
            if any(len(statistic) != self.stack for statistic in state["codec"].values()):
                raise CheckpointError(f"state: codec: expected statistics of {self.stack} models")
            self._codec, self._fitted = self._new_codec(), bool(state["fitted"])
            self._codec.load_state_dict(state["codec"], self.device)
            if self._fitted and not self._codec.statistics:
                raise CheckpointError("state: a fitted generator must have codec statistics, got none")
            outcomes, table = state.get("outcomes"), state.get("table")  # files before version 3 have neither
            if outcomes is not None:
                outcomes = OutcomeModel.from_state(outcomes, self.stack, self._codec.feature_dim, self.device)
            if table is not None:
                table = RowTable.from_state(table, self.stack, self.spec.dim, self.device)
            self._outcomes, self._table = outcomes, table
            self.seed, self._draws, self.rejected = (
                whole_number(name, state[name], least=0) for name in ("seed", "draws", "rejected")
            )
            self._trainer.load_state_dict(state["trainer"])
            self._trainer.seed = self.seed
            self._load_sampler()
        except BaseException as error:  # also an interrupt
            vars(self).update(own)
            self._trainer.load_state_dict(trained)
            self._trainer.seed = self.seed
            self._load_sampler()
            if isinstance(error, CheckpointError) or not isinstance(error, Exception) or is_out_of_memory(error):
                raise
            raise CheckpointError(f"state: not a valid {KIND} of this version ({error!r})") from error

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without CUDA graphs; tensors are on the CPU, so any machine can load them."""
        state = on_cpu(self.state_dict())
        return {"device": str(self.device), "spec": self.spec, "config": self.config, "state": state}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """Restore; on the CPU if the device does not exist here."""
        device, state = device_or_cpu(torch.device(pickled["device"])), pickled["state"]
        self.__init__(  # type: ignore[misc]
            pickled["spec"], pickled["config"], device=device, seed=state["seed"], stack=state["stack"]
        )
        self.load_state_dict(state)

    def _train(
        self, train: Tensor, held_out: Tensor | None, plan: TrainingPlan, progress: bool | None
    ) -> TrainingResult:
        disabled = None if progress is None else not progress
        with tqdm(total=plan.steps, desc="fitting", unit="step", leave=False, disable=disabled) as bar:

            def show(done: int, loss: float, held_out_loss: float | None) -> None:
                bar.update(min(done, plan.steps) - bar.n)
                bar.set_postfix(loss=f"{loss:.4f}", held_out="-" if held_out_loss is None else f"{held_out_loss:.4f}")

            return self._trainer.fit(train, held_out, plan, show)

    def _fit_outcomes(
        self,
        codec: TransitionCodec,
        codes: Tensor,
        rows: Tensor,
        order: Tensor | None,
        previous: OutcomeModel | None,
    ) -> OutcomeModel | None:
        """Fit the outcome model to codes in the given order of the rows; None if there is only one outcome."""
        if not self.config.exact:
            return None
        rewards, terminated = rows[..., self.spec.rewards.start], rows[..., self.spec.terminated.start]
        outcomes, number = Outcomes.of(rewards, terminated, codec.reward_levels)
        if outcomes.shares.shape[1] == 1:
            return None
        few, many = _STEPS_PER_OUTCOME_STEP
        return OutcomeModel.fit(
            codec.features(codes),
            outcomes,
            number if order is None else number.gather(1, order),
            seed=derive_seed(self.seed, 5, self._trainer.fits),
            steps=max(min(STEPS, self.config.steps // few), self.config.steps // many, 1),
            previous=previous,
        )

    def _load_sampler(self) -> None:
        self._sampler.load(self._trainer.weights(), self._trainer.frequencies)

    def _checked(self, transitions: Transitions) -> Tensor:
        """Validate transitions and return rows ``(stack, n, dim)`` on the device."""
        if not isinstance(transitions, Transitions):
            raise TypeError(f"transitions: expected Transitions, got {type(transitions).__name__}")
        if transitions.spec != self.spec:
            raise ValueError(f"transitions: got spec {transitions.spec.to_json()}, expected {self.spec.to_json()}")
        rows = transitions.rows.detach().to(self.device)
        rows = rows[None] if rows.ndim == 2 else rows
        if rows.ndim != 3 or rows.shape[0] != self.stack:
            raise ValueError(
                f"transitions: expected rows of shape ({self.stack}, n, {self.spec.dim}), got {tuple(rows.shape)}"
            )
        if rows.shape[1] < self.min_rows:
            raise ValueError(f"transitions: expected at least {self.min_rows} rows to fit, got {rows.shape[1]}")
        transitions.check()
        return rows

    def _generate(self, n: int) -> Tensor:
        """Generate rows ``(stack, n, dim)`` with the diffusion model."""
        rows = torch.empty(self.stack, n, self.spec.dim, dtype=torch.float32, device=self.device)
        invalid = self._generate_into(rows)
        for _ in range(_MAX_REDRAWS):
            missing = int(invalid.sum(1).max())
            if missing == 0:
                break
            self._redraw(rows, invalid, missing)
        if bool(invalid.any()):
            raise GenerationError(
                f"generator: {int(invalid.sum())} of {n * self.stack} rows are still non-finite after {_MAX_REDRAWS} "
                "redraws; train for more steps or check the data"
            )
        codec = self._codec
        if self._outcomes is not None:  # given the decoded rows, which were clipped and rounded
            with torch.autocast(self.device.type, enabled=False):
                self._outcomes.assign(
                    rows,
                    lambda block: codec.features(codec.encode(block)),
                    (self.spec.rewards.start, self.spec.terminated.start),
                    derive_seed(self.seed, 6, self._draws),
                )
        codec.restore_terminal_rewards(rows)
        return rows

    def _generate_into(self, rows: Tensor) -> Tensor:
        """Fill rows ``(stack, n, dim)``; return which of them are non-finite, bool ``(stack, n)``."""
        invalid = torch.empty(rows.shape[:2], dtype=torch.bool, device=self.device)

        def write(start: int, codes: Tensor) -> None:
            here = slice(start, start + codes.shape[1])
            rows[:, here], valid = self._codec.decode(codes)
            invalid[:, here] = ~valid

        self._draws += 1
        with torch.autocast(self.device.type, enabled=False):
            self._sampler.draw(rows.shape[1], derive_seed(self.seed, 4, self._draws), write)
        self.rejected += int(invalid.sum())
        return invalid

    def _redraw(self, rows: Tensor, invalid: Tensor, count: int) -> None:
        """Generate `count` more rows per model and replace invalid rows by the valid ones among them."""
        spare = rows.new_empty(self.stack, count, self.spec.dim)
        spare_invalid = self._generate_into(spare)
        for m in range(self.stack):
            positions = invalid[m].nonzero()[:, 0]
            valid = spare[m, ~spare_invalid[m]][: len(positions)]
            rows[m, positions[: len(valid)]] = valid
            invalid[m, positions[: len(valid)]] = False

    def _new_codec(self) -> TransitionCodec:
        config = self.config
        return TransitionCodec(
            self.spec,
            normalise_rewards=config.normalise_rewards,
            unsquash_actions=config.unsquash_actions,
            find_limits=config.find_limits,
            exact=config.exact,
        )

    @torch.inference_mode(mode=False)
    def _build_models(self) -> None:
        config = self.config
        bf16 = config.precision == "bf16" or (config.precision == "auto" and self.device.type == "cuda")
        dtype = torch.bfloat16 if bf16 else torch.float32
        shape = config.network(self._codec.code_dim)
        self._trainer = StackTrainer(
            shape,
            self.stack,
            self.device,
            dtype,
            seed=self.seed,
            betas=config.betas,
            clip=config.gradient_clip,
            average_decay=config.average_decay,
            average_every=config.average_every,
            levels=NoiseLevels(config.noise_mean, config.noise_std),
        )
        self._sampler = StackSampler(shape, self.stack, self.device, dtype, config.sampler(), config.chunk)


def _positive(name: str, value: float) -> float:
    if not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{name}: expected a positive number, got {value!r}")
    return float(value)
