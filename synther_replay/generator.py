"""DiffusionGenerator: codec, diffusion and classifier of ends behind `fit` and `sample`."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from synther_replay.common.checks import device_or_cpu, resolve_device, whole_number
from synther_replay.common.seeding import derive_seed, generator_for
from synther_replay.config import GeneratorConfig
from synther_replay.data.codec import TransitionCodec
from synther_replay.data.splitting import split_held_out
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.diffusion.edm import NoiseLevels
from synther_replay.diffusion.generation import StackSampler
from synther_replay.diffusion.trainer import StackTrainer, TrainingPlan, TrainingResult
from synther_replay.errors import CheckpointError, GenerationError, NotFittedError
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint
from synther_replay.termination import TerminationClassifier

KIND = "diffusion generator"
# Rows that are not valid are drawn again, so many times at most.
_REPAIRS = 20


@dataclass(frozen=True)
class FitReport:
    """What a call of `fit` did; losses are means over the models of a stack.

    Attributes:
        loss: Mean training loss since the last measurement.
        held_out_loss: Loss of the model that is kept on the rows kept out of training; None without such rows.
        steps: Gradient steps taken.
        seconds: Time it took, all included.
        rows: Rows that were learnt from or held out.
        from_scratch: Whether it started from nothing.
        stopped_early: Whether it stopped before the planned steps, by patience or out of time.
        losses: The training loss of each model.
        held_out_losses: The held-out loss of each model, the lowest that was measured: that model is kept.
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
    """Learns the distribution of transitions and generates more of them.

    >>> import gymnasium as gym, torch
    >>> spec = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (1,)))
    >>> some = Transitions(spec, torch.rand(500, spec.dim).round())
    >>> generator = DiffusionGenerator(spec, GeneratorConfig.tiny(width=32, steps=20), device="cpu")
    >>> generator.fit(some).steps
    20
    >>> len(generator.sample(1_000))
    1000

    Args:
        spec: Layout of the transitions.
        config: Settings; None for `GeneratorConfig.fast()` on a GPU and `GeneratorConfig.tiny()` on a CPU.
        device: "auto" for the GPU if there is one, or a torch device.
        seed: The same seed and the same calls give the same rows on the same device.
        stack: Number of independent models, trained and sampled side by side; with more than one, all transitions
            have a leading axis of that size. They share their fate: training goes on until the last of them is out
            of patience, and if one diverges the fit of all is undone.
    """

    min_rows = 32  # fewer rows than this make no distribution to learn

    def __init__(
        self,
        spec: TransitionSpec,
        config: GeneratorConfig | None = None,
        *,
        device: torch.device | str = "auto",
        seed: int = 0,
        stack: int = 1,
    ) -> None:
        """Build untrained models."""
        if not isinstance(spec, TransitionSpec):
            raise TypeError(f"spec: expected a TransitionSpec, got {spec!r}")
        self.spec = spec
        self.device = resolve_device(device)
        if config is None:
            config = GeneratorConfig.fast() if self.device.type == "cuda" else GeneratorConfig.tiny()
        if not isinstance(config, GeneratorConfig):
            raise TypeError(f"config: expected a GeneratorConfig, got {config!r}")
        self.config = config
        self.seed = whole_number("seed", seed, least=0)
        self.stack = whole_number("stack", stack)
        self.rejected = 0  # generated rows that were thrown away, in total
        self._draws = 0
        self._fitted = False
        self._codec = self._new_codec()
        self._ends: TerminationClassifier | None = None
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
        """Learn from transitions; if it raises, the generator is as it was.

        Args:
            transitions: Real transitions; with a stack, ``(stack, n)`` of them.
            steps: Gradient steps instead of the configured number, rounded up to a multiple of `average_every`.
            max_seconds: Time limit for the training steps instead of the configured one; a classifier of ends
                comes on top.
            from_scratch: Whether to forget the last model; None as configured, and always for the first fit.
            progress: Whether to show a progress bar; None shows it in a terminal only.

        Raises:
            TypeError: Not `Transitions`.
            ValueError: Another spec, another stack, too few rows, or rows that are not finite.
            DivergedError: The loss, or a weight of the classifier of ends, became NaN or infinite.
        """
        begun = time.monotonic()
        rows = self._checked(transitions)
        if not self._fitted or from_scratch is None:
            from_scratch = not (self._fitted and self.config.warm_start)
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
        train, held_out = split_held_out(rows, codec.encode(rows), self.config.held_out)
        before = self._codec, self._ends, self._fitted
        try:
            with self._trainer.undone_on_failure():
                result = self._train(train, held_out, plan, progress)
                self._codec, self._ends, self._fitted = codec, self._classify_ends(codec, rows), True
                self._load_sampler()
        except BaseException:
            self._codec, self._ends, self._fitted = before
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

        Rows that are not finite are counted in `rejected` and drawn again.

        Raises:
            NotFittedError: Before the first `fit` or `load`.
            GenerationError: Too many rows were rejected to fill the request.
        """
        n = whole_number("n", n)
        if not self._fitted:
            raise NotFittedError("generator: call fit or load before sample")
        rows = torch.empty(self.stack, n, self.spec.dim, dtype=torch.float32, device=self.device)
        wanting = self._generate_into(rows)
        for _ in range(_REPAIRS):
            missing = int(wanting.sum(1).max())
            if missing == 0:
                break
            self._repair(rows, wanting, missing)
        if bool(wanting.any()):
            raise GenerationError(
                f"generator: after {_REPAIRS} repairs {int(wanting.sum())} of {n * self.stack} rows are still not "
                "valid; fit longer or look at the data"
            )
        return Transitions(self.spec, rows[0] if self.stack == 1 else rows)

    def to(self, device: torch.device | str) -> DiffusionGenerator:
        """Move to another device, in place."""
        device = resolve_device(device)
        if device != self.device:
            state = self.state_dict()
            self.device = device
            self._build_models()
            self.load_state_dict(state)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file; see `checkpoint`."""
        save_checkpoint(path, KIND, self.state_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: torch.device | str = "auto") -> DiffusionGenerator:
        """Rebuild a saved generator, on any device.

        Raises:
            CheckpointError: The file is damaged, foreign, or of a newer version.
        """
        state = load_checkpoint(path, KIND)
        try:
            spec = TransitionSpec.from_json(state["spec"])
            config = GeneratorConfig.from_json(state["config"])
            generator = cls(spec, config, device=device, seed=state["seed"], stack=state["stack"])
            generator.load_state_dict(state)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"path: {path} does not describe a generator of this release ({error!r})") from error
        return generator

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything that the next `fit` or `sample` depends on."""
        return {
            "spec": self.spec.to_json(),
            "config": self.config.to_json(),
            "seed": self.seed,
            "stack": self.stack,
            "draws": self._draws,
            "rejected": self.rejected,
            "fitted": self._fitted,
            "codec": self._codec.state_dict(),
            "ends": None if self._ends is None else self._ends.state_dict(),
            "trainer": self._trainer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`.

        A state of another spec, network, stack or `predict_terminated` is refused and changes nothing.
        """
        mine = {
            "spec": self.spec.to_json(),
            "network": vars(self._trainer.shape),
            "predict_terminated": self.config.predict_terminated,
            "stack": self.stack,
        }
        try:
            config = GeneratorConfig.from_json(state["config"])
            theirs = {
                "spec": state["spec"],
                "network": vars(config.network(self._codec.code_dim)),
                "predict_terminated": config.predict_terminated,
                "stack": state["stack"],
            }
            seed, draws, rejected = (whole_number(k, state[k], least=0) for k in ("seed", "draws", "rejected"))
            fitted = bool(state["fitted"])
            codec = self._new_codec()
            codec.load_state_dict(state["codec"], self.device)
            for name, value in mine.items():
                if theirs[name] != value:
                    raise CheckpointError(f"state: {name} is {theirs[name]}, this generator has {value}")
            if fitted and not codec.statistics:
                raise CheckpointError("state: it is fitted but has no statistics")
            ends = None
            if fitted and config.predict_terminated:
                ends = TerminationClassifier.from_state(state["ends"], self.stack, codec.code_dim - 2, self.device)
            self._trainer.load_state_dict(state["trainer"])
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"state: it does not describe a generator of this release ({error!r})") from error
        self._codec, self._ends, self._fitted = codec, ends, fitted
        self.seed = self._trainer.seed = seed
        self._draws, self.rejected = draws, rejected
        self._load_sampler()

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and deepcopy take along: captured graphs stay behind."""
        return {"device": str(self.device), "spec": self.spec, "config": self.config, "state": self.state_dict()}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """Rebuild, on the CPU where the device is missing."""
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

    def _classify_ends(self, codec: TransitionCodec, rows: Tensor) -> TerminationClassifier | None:
        """Always from scratch: it takes seconds, and old ends may be known by heart."""
        if not self.config.predict_terminated:
            return None
        return TerminationClassifier.fit(
            codec.features(codec.encode(rows)),
            rows[..., self.spec.terminated.start],
            batch_size=self.config.batch_size,
            seed=derive_seed(self.seed, 5, self._trainer.fits),
        )

    def _load_sampler(self) -> None:
        self._sampler.load(self._trainer.weights(), self._trainer.frequencies)

    def _checked(self, transitions: Transitions) -> Tensor:
        """Rows ``(stack, n, dim)`` on the device, after everything that can be wrong with them."""
        if not isinstance(transitions, Transitions):
            raise TypeError(f"transitions: expected Transitions, got {type(transitions).__name__}")
        if transitions.spec != self.spec:
            raise ValueError(f"transitions: their spec differs from the generator's, {transitions.spec.to_json()}")
        rows = transitions.rows.detach().to(self.device)
        rows = rows[None] if rows.ndim == 2 else rows
        if rows.ndim != 3 or rows.shape[0] != self.stack:
            raise ValueError(f"transitions: expected rows of {self.stack} runs, got shape {tuple(rows.shape)}")
        if rows.shape[1] < self.min_rows:
            raise ValueError(f"transitions: expected at least {self.min_rows} rows to fit, got {rows.shape[1]}")
        transitions.check()
        return rows

    def _generate_into(self, rows: Tensor) -> Tensor:
        """Fill rows ``(stack, n, dim)`` and say which of them are not valid, bool ``(stack, n)``."""
        invalid = torch.empty(rows.shape[:2], dtype=torch.bool, device=self.device)

        def write(start: int, codes: Tensor) -> None:
            here = slice(start, start + codes.shape[1])
            rows[:, here], valid = self._codec.decode(codes)
            invalid[:, here] = ~valid
            if self._ends is not None:  # they are told by the rows as they will be seen, not by the codes before
                seen = self._codec.features(self._codec.encode(rows[:, here]))
                rows[:, here, self.spec.terminated] = self._ends.draw(seen, chance)[..., None]

        self._draws += 1
        chance = generator_for(self.device, self.seed, 6, self._draws)
        with torch.autocast(self.device.type, enabled=False):
            self._sampler.draw(rows.shape[1], derive_seed(self.seed, 4, self._draws), write)
        self.rejected += int(invalid.sum())
        return invalid

    def _repair(self, rows: Tensor, wanting: Tensor, count: int) -> None:
        """Draw `count` more rows per model and put the valid ones where rows are wanting."""
        spare = rows.new_empty(self.stack, count, self.spec.dim)
        unusable = self._generate_into(spare)
        for m in range(self.stack):
            places = wanting[m].nonzero()[:, 0]
            usable = spare[m, ~unusable[m]][: len(places)]
            rows[m, places[: len(usable)]] = usable
            wanting[m, places[: len(usable)]] = False

    def _new_codec(self) -> TransitionCodec:
        config = self.config
        return TransitionCodec(
            self.spec,
            normalise_rewards=config.normalise_rewards,
            unsquash_actions=config.unsquash_actions,
            find_limits=config.find_limits,
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
