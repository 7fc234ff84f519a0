"""DiffusionGenerator: codec, diffusion model and outcome model behind `fit` and `sample`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from synther_replay.common.checks import device_or_cpu, resolve_device, whole_number
from synther_replay.common.short_forms import default_preset
from synther_replay.common.trees import on_cpu
from synther_replay.config import GeneratorConfig
from synther_replay.data.calibration import Calibration
from synther_replay.data.codec import TransitionCodec
from synther_replay.data.conditions import ConditionCodec, checked_condition, checked_weights
from synther_replay.data.mismatch import differing
from synther_replay.data.stream import RowStream
from synther_replay.data.table import RowTable
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.diffusion.trainer import TrainingPlan
from synther_replay.diffusion.workers import Workers
from synther_replay.errors import CheckpointError, NotFittedError, is_out_of_memory
from synther_replay.model.checks import check_base, check_spec, check_transitions
from synther_replay.model.consistency import Consistency
from synther_replay.model.engine import Engine
from synther_replay.model.fitted import Draws, FittedModel
from synther_replay.model.fitting import FitData, FitJob, FitReport, sample
from synther_replay.model.outcomes import OutcomeModel
from synther_replay.model.rare_outcomes import RareOutcomes
from synther_replay.model.windows import Windows
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint

__all__ = ["DiffusionGenerator", "FitJob", "FitReport"]

KIND = "diffusion generator"
_PARTS = ("outcomes", "rare", "table", "conditions", "calibration", "consistency")  # of a model, in its state


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
        group: Group of `torch.distributed` whose processes fit together, usually on a GPU each; all of them must make
            the same calls with the same data. `batch_size` is that of the group: more processes take less time for the
            same fit. Copies and loaded generators have none. None: this process alone.
    """

    min_rows = 32  # minimum number of rows for `fit`
    min_window = 2 * min_rows  # of rows that are read in windows; one has about so many rows, by chance

    def __init__(
        self,
        spec: TransitionSpec,
        config: GeneratorConfig | Mapping[str, Any] | str | None = None,
        *,
        device: torch.device | str = "auto",
        seed: int = 0,
        stack: int = 1,
        group: Any = None,
    ) -> None:
        """Build the untrained models."""
        if not isinstance(spec, TransitionSpec):
            raise TypeError(f"spec: expected a TransitionSpec, got {spec!r}")
        self.spec = spec
        self.device = resolve_device(device)
        self.config = GeneratorConfig.of(config, default=default_preset(self.device), name="config")
        self.seed = whole_number("seed", seed, least=0)
        self.stack = whole_number("stack", stack)
        self.group = group
        self._draws = Draws(self.seed)
        self._model: FittedModel | None = None
        self._engine = self._new_engine(self.device)
        self._training = self._engine.initial()

    @property
    def is_fitted(self) -> bool:
        """Whether `sample` can be called."""
        return self._model is not None

    @property
    def model(self) -> FittedModel | None:
        """The fitted model, which is replaced as a whole; None before the first fit."""
        return self._model

    @property
    def parameters(self) -> int:
        """Number of parameters of one model."""
        return self._engine.shape(0 if self._model is None else self._model.condition_dim).parameters

    @property
    def rejected(self) -> int:
        """Total number of generated rows rejected as non-finite."""
        return self._draws.rejected

    def fit(
        self,
        transitions: Transitions | RowStream,
        *,
        condition: Any = None,
        weights: Any = None,
        window: int | None = None,
        steps: int | None = None,
        max_seconds: float | None = None,
        from_scratch: bool | None = None,
        progress: bool | None = None,
    ) -> FitReport:
        """Fit the model to transitions: `begin`, `FitJob.run` and `commit`. If it raises, the generator is unchanged.

        Args:
            transitions: Real transitions, rows ``(n, dim)``; with a stack, ``(stack, n, dim)``. Or a stream of them,
                for example a file of `synther_replay.files.open_file`: it may be larger than memory.
            condition: What `sample` can ask for, one number or vector per row, ``(n,)`` or ``(n, C)``, for example its
                return. The model learns rows with and without it. None: no conditions.
            weights: How much each row counts, ``(n,)``, at least 0. None: all the same.
            window: Rows of a stream that are in memory at a time, a random sample; further ones take their place as the
                training goes on. None: 2^27 values (512 MiB).
            steps: Gradient steps, rounded up to a multiple of `average_every`. None: as configured.
            max_seconds: Time limit of training steps and calibration, without the outcome model. None: as configured.
            from_scratch: Whether to start from new weights. None: as configured. The first fit always does, and one
                whose conditions have another number of values than those of the last.
            progress: Whether to show a progress bar. None: in a terminal, if the fit takes longer than a few seconds.

        Raises:
            TypeError: `transitions` is neither `Transitions` nor a stream.
            ValueError: Wrong spec or stack size, too few rows, non-finite values; a stream with conditions, weights or
                a stack of models.
            DivergedError: The loss or a weight of the outcome model became non-finite.
        """
        job = self.begin(
            transitions,
            condition=condition,
            weights=weights,
            window=window,
            steps=steps,
            max_seconds=max_seconds,
            from_scratch=from_scratch,
            progress=progress,
        )
        job.run()
        return self.commit(job)

    @torch.inference_mode(mode=False)
    def begin(
        self,
        transitions: Transitions | RowStream,
        *,
        condition: Any = None,
        weights: Any = None,
        window: int | None = None,
        steps: int | None = None,
        max_seconds: float | None = None,
        from_scratch: bool | None = None,
        progress: bool | None = None,
    ) -> FitJob:
        """Prepare a fit: check and encode the transitions, which may change afterwards. Arguments: see `fit`.

        `FitJob.run` computes it, here or in another thread, and `commit` takes its result. The generator is unchanged
        until then.
        """
        begun = time.monotonic()
        windows = extremes = None
        if not isinstance(transitions, Transitions) and isinstance(transitions, RowStream):
            windows = self._windows(transitions, window, condition is not None or weights is not None)
            transitions, extremes = windows.first()
        elif window is not None:
            raise ValueError(f"window: applies to a stream, got {window!r} and {type(transitions).__name__}")
        rows = self._checked(transitions)
        count = rows.shape[1] if windows is None else windows.count
        lead = (self.stack, rows.shape[1])
        if condition is not None:
            condition = checked_condition(condition, lead, None, self.device)
        if weights is not None:
            weights = checked_weights(weights, lead, self.device)
        start, model = self._training, self._model
        condition_dim = 0 if condition is None else condition.shape[2]
        last_dim = 0 if model is None else model.condition_dim
        if model is None or condition_dim != last_dim:  # new weights, of the seed of now
            start = self._engine.initial(condition_dim) | {"fits": start["fits"]}
        trained = model is not None and model.table is None and condition_dim == last_dim
        if not trained or from_scratch is None:
            from_scratch = not (trained and self.config.warm_start)
        if steps is None:
            steps = self.config.steps if from_scratch else self.config.refit_steps
        steps = whole_number("steps", steps)
        plan = TrainingPlan(
            steps=steps,
            batch_size=self.config.batch_size_for(count),
            learning_rate=self.config.learning_rate,
            evaluate_every=min(self.config.evaluate_every, math.ceil(steps / 8)),
            patience=self.config.patience,
            max_seconds=self.config.max_seconds if max_seconds is None else _positive("max_seconds", max_seconds),
            from_scratch=from_scratch,
        )
        return FitJob(
            self._engine,
            self._draws,
            FitData.of(rows, condition, weights, self._new_codec(), self.config, self.seed, extremes)._replace(
                windows=windows
            ),
            plan,
            start,
            base=(self._training, model),
            previous=None if from_scratch else model,
            rows=count,
            seconds=time.monotonic() - begun,
            progress=progress,
        )

    def commit(self, job: FitJob) -> FitReport:
        """Make the result of a job the model of this generator; if it has not run yet, it runs now.

        Raises:
            TypeError: `job` is not a `FitJob`.
            ValueError: The job was begun by another generator, or before the last commit or load.
        """
        if not isinstance(job, FitJob):
            raise TypeError(f"job: expected a FitJob, got {job!r}")
        if job.engine is not self._engine:
            raise ValueError("job: it was begun by another generator, or before this one was moved or loaded")
        check_base(job.base, self._training)
        report = job.run()
        assert job.model is not None and job.training is not None  # after run
        self._model, self._training = job.model, job.training
        job.count_before, self._draws.count = self._draws.count, max(self._draws.count, job.draws.count)
        return report

    def revert(self, job: FitJob) -> None:
        """Undo the commit of a job, the last one.

        Raises:
            ValueError: The job is not the one that was committed last.
        """
        if job.engine is not self._engine or job.training is not self._training:
            raise ValueError("job: it is not the one that was committed last")
        self._model, self._training, self._draws.count = job.base_model, job.base, job.count_before

    def sample(self, n: int, *, condition: Any = None, guidance: float = 1.0, seed: int | None = None) -> Transitions:
        """Generate `n` transitions (per model of a stack) on the generator's device.

        Non-finite rows are counted in `rejected` and drawn again.

        Args:
            n: Number of transitions.
            condition: What the rows should be like, in the units of `fit`: one number for all rows, ``(n,)`` or
                ``(n, C)``. None: rows as they are distributed in the data.
            guidance: Weight of the condition. 1 follows the data's distribution given the condition, larger values
                exaggerate it at twice the cost, 0 ignores it.
            seed: Seed of these rows alone, whatever was drawn before; later draws do not change. None: the next rows of
                the generator's own seed.

        Raises:
            NotFittedError: Called before the first `fit` or `load`.
            ValueError: The condition has a wrong shape or is not finite, or the model was fitted without conditions.
            GenerationError: Rows were still non-finite after 20 attempts.
        """
        if self._model is None:
            whole_number("n", n)
            raise NotFittedError("generator: call fit or load before sample")
        draws = self._draws if seed is None else Draws(whole_number("seed", seed, least=0))
        return sample(self._engine, self._model, draws, self._draws, n, condition, guidance)

    def reseed(self, seed: int) -> None:
        """Continue with another seed, so that copies in several workers fit and generate differently."""
        self.seed = self._draws.seed = self._engine.seed = whole_number("seed", seed, least=0)

    def to(self, device: torch.device | str) -> DiffusionGenerator:
        """Move to another device in place and return self."""
        device = resolve_device(device)
        if device != self.device:
            engine = self._new_engine(device)
            vars(self).update({"device": device, "_engine": engine, **self._restored(self.state_dict(), engine)})
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
        model = self._model
        parts = {name: None if model is None else getattr(model, name) for name in _PARTS}
        codec = self._new_codec() if model is None else model.codec
        return {
            "spec": self.spec.to_json(),
            "config": self.config.to_json(),
            "seed": self.seed,
            "stack": self.stack,
            "draws": self._draws.count,
            "rejected": self._draws.rejected,
            "fitted": model is not None,
            "codec": codec.state_dict(),
            **{name: None if part is None else part.state_dict() for name, part in parts.items()},
            "trainer": {
                name: value.clone() if isinstance(value, Tensor) else value for name, value in self._training.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; on a mismatch raise `CheckpointError` with both sides and change nothing.

        Spec, stack, the sizes of the network and the settings of data and sampling must agree, because they give
        weights and rows their meaning. Settings of training and machine may differ; those of this object are used.
        """
        try:
            self._check_agreement(state)
            restored = self._restored(state, self._engine)
        except Exception as error:
            if isinstance(error, CheckpointError) or is_out_of_memory(error):
                raise
            raise CheckpointError(f"state: not a valid {KIND} of this version ({error!r})") from error
        vars(self).update(restored)
        self._engine.seed = self.seed

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without CUDA graphs; tensors are on the CPU, so any machine can load them."""
        state = on_cpu(self.state_dict())
        return {"device": str(self.device), "spec": self.spec, "config": self.config, "state": state}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """Restore; on the CPU if the device does not exist here."""
        device, state = device_or_cpu(torch.device(pickled["device"])), pickled["state"]
        config = GeneratorConfig.from_json(state["config"])  # not the object: one of 0.2.0 lacks newer fields
        self.__init__(pickled["spec"], config, device=device, seed=state["seed"], stack=state["stack"])  # type: ignore[misc]
        self.load_state_dict(state)

    def _check_agreement(self, state: dict[str, Any]) -> None:
        differences = self.config.differences(GeneratorConfig.from_json(state["config"]), self._new_codec().code_dim)
        if state["spec"] != self.spec.to_json():
            differences["spec"] = differing(state["spec"], self.spec)
        if state["stack"] != self.stack:
            differences["stack"] = state["stack"], self.stack
        if differences:
            listed = "; ".join(f"{name}: got {got}, expected {mine}" for name, (got, mine) in differences.items())
            raise CheckpointError(f"state: {listed}")
        if any(len(statistic) != self.stack for statistic in state["codec"].values()):
            raise CheckpointError(f"state: codec: expected statistics of {self.stack} models")

    def _restored(self, state: dict[str, Any], engine: Engine) -> dict[str, Any]:
        """Return the attributes that a state stands for, with tensors on the device of the engine."""
        seed, count, rejected = (whole_number(name, state[name], least=0) for name in ("seed", "draws", "rejected"))
        outcomes, rare, table, conditions, calibration, consistency = (state.get(name) for name in _PARTS)
        codec, device = self._new_codec(), engine.device
        codec.load_state_dict(state["codec"], device)
        if conditions is not None:
            conditions = ConditionCodec.from_state(conditions, self.stack, device)
        condition_dim = 0 if conditions is None else conditions.mean.shape[2]
        training = engine.checked(state["trainer"], condition_dim)
        model = None
        if state["fitted"]:
            if not codec.statistics:
                raise CheckpointError("state: a fitted generator must have codec statistics, got none")
            if outcomes is not None:
                outcomes = OutcomeModel.from_state(outcomes, self.stack, codec.layout.feature_dim, device)
            if rare is not None:
                kinds = 0 if outcomes is None else outcomes.shares.shape[1]
                rare = RareOutcomes.from_state(rare, (self.stack, self.spec.dim, kinds), device)
            if table is not None:
                table = RowTable.from_state(table, self.stack, self.spec.dim, condition_dim, device)
            if calibration is not None:
                calibration = Calibration.from_state(calibration, self.stack, codec, device)
            if consistency is not None:
                consistency = Consistency.from_state(consistency, self.stack, codec, device)
            weights = engine.weights(training)
            model = FittedModel(codec, *weights, outcomes, rare, table, conditions, calibration, consistency)
        return {"seed": seed, "_draws": Draws(seed, count, rejected), "_training": training, "_model": model}

    def _checked(self, transitions: Transitions) -> Tensor:
        """Validate transitions and return rows ``(stack, n, dim)`` on the device."""
        check_transitions(transitions, self.spec, "Transitions or a stream of them")
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

    def _windows(self, stream: RowStream, size: int | None, has_more: bool) -> Windows:
        if self.stack > 1 or has_more:
            raise ValueError("transitions: conditions, weights and stacks need Transitions in memory, got a stream")
        check_spec(stream.spec, self.spec)  # before it is read
        size = None if size is None else whole_number("window", size, least=self.min_window)
        return Windows(stream, size, self.seed)

    def _new_codec(self) -> TransitionCodec:
        config = self.config
        return TransitionCodec(
            self.spec,
            normalise_rewards=config.normalise_rewards,
            unsquash_actions=config.unsquash_actions,
            find_limits=config.find_limits,
            exact=config.exact,
        )

    def _new_engine(self, device: torch.device) -> Engine:
        workers = None if self.group is None else Workers(self.group, device)
        return Engine(self.config, self._new_codec().code_dim, self.stack, device, self.seed, workers)


def _positive(name: str, value: float) -> float:
    if not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{name}: expected a positive number, got {value!r}")
    return float(value)
