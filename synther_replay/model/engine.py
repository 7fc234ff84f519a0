"""Engine: trains denoisers and draws codes from them, without a model of its own.

Trainer and sampler hold device memory and CUDA graphs that are worth keeping between fits. What they compute with is
passed in and out: the state of the training, and a `FittedModel`. A fit that fails or is dropped therefore changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from synther_replay.common.locking import Lock
from synther_replay.common.mlp import Shape
from synther_replay.common.progress import is_in_refit, progress_bar
from synther_replay.common.regression import Regression
from synther_replay.config import GeneratorConfig
from synther_replay.data.codec import TransitionCodec
from synther_replay.diffusion.edm import NoiseLevels
from synther_replay.diffusion.network import NetworkShape
from synther_replay.diffusion.stack_sampler import StackSampler
from synther_replay.diffusion.trainer import StackTrainer, TrainingPlan, TrainingResult
from synther_replay.diffusion.workers import Workers
from synther_replay.model.consistency import Consistency
from synther_replay.model.fitted import Draws, FittedModel
from synther_replay.model.predicting import new_regression

# State of the training of M models: weights, moments, averages and counters. Its tensors are never changed.
Training = dict[str, Any]


class Engine:
    """Trainer and sampler of M models on one device; threads take turns.

    Args:
        config: Settings.
        code_dim: Number of codes of a row.
        stack: M.
        device: Compute device.
        seed: Seed of weights, batches and noise.
        workers: Processes that train together; None: this one alone.
    """

    def __init__(
        self,
        config: GeneratorConfig,
        code_dim: int,
        stack: int,
        device: torch.device,
        seed: int,
        workers: Workers | None = None,
    ) -> None:
        """Check the size of the network and make its first trainer."""
        self.config, self.code_dim, self.stack, self.device, self.seed = config, code_dim, stack, device, seed
        self.workers = workers
        bf16 = config.precision == "bf16" or (config.precision == "auto" and device.type == "cuda")
        self.dtype = torch.bfloat16 if bf16 else torch.float32
        # Of the number of condition values that was used last: a second one would hold its memory for nothing.
        self._trainer: StackTrainer | None = None
        self._sampler: StackSampler | None = None
        self._sampled: FittedModel | None = None  # whose weights the sampler has
        self._regressions: dict[Shape, Regression] = {}  # of the last fit
        self._training, self._sampling = Lock(), Lock()
        self.trainer(0)

    def shape(self, condition: int) -> NetworkShape:
        """Sizes of the network for conditions of so many values."""
        return self.config.network(self.code_dim, condition)

    def trainer(self, condition: int) -> StackTrainer:
        """The trainer of networks for conditions of so many values."""
        shape, config = self.shape(condition), self.config
        if self._trainer is None or self._trainer.shape != shape:
            self._trainer = None  # free its memory first
            with torch.inference_mode(mode=False):
                self._trainer = StackTrainer(
                    shape,
                    self.stack,
                    self.device,
                    self.dtype,
                    seed=self.seed,
                    betas=config.betas,
                    clip=config.gradient_clip,
                    average_decay=config.average_decay,
                    average_every=config.average_every,
                    levels=NoiseLevels(config.noise_mean, config.noise_std),
                    workers=self.workers,
                )
        return self._trainer

    def sampler(self, condition: int) -> StackSampler:
        """The sampler of networks for conditions of so many values."""
        shape, config = self.shape(condition), self.config
        if self._sampler is None or self._sampler.shape != shape:
            self._sampler = self._sampled = None  # free its memory first
            with torch.inference_mode(mode=False):
                self._sampler = StackSampler(shape, self.stack, self.device, self.dtype, config.sampler(), config.chunk)
        return self._sampler

    def initial(self, condition: int = 0) -> Training:
        """State of untrained networks."""
        with self._training:
            trainer = self.trainer(condition)
            trainer.seed, trainer.starts, trainer.fits = self.seed, -1, 0
            trainer.reset()
            return trainer.state_dict()

    def checked(self, training: Training, condition: int) -> Training:
        """Return a state on the device of this engine; a mismatch raises an error."""
        with self._training:
            trainer = self.trainer(condition)
            trainer.load_state_dict(training)
            return trainer.state_dict()

    def weights(self, training: Training) -> tuple[Tensor, Tensor]:
        """Weights for sampling in the compute dtype, and frequencies of the noise features."""
        return training["average"].to(self.dtype), training["frequencies"]

    def train(
        self,
        start: Training,
        condition: int,
        seed: int,
        train: Tensor,
        held_out: Tensor | None,
        plan: TrainingPlan,
        on_progress: Callable[[int, float, float | None], None],
        fresh_rows: Callable[[float], Tensor | None] | None,
    ) -> tuple[TrainingResult, Training]:
        """Train from a state with the seed of batches and noise; return the result and the new state.

        Other arguments: see `StackTrainer.fit`.
        """
        with self._training:
            trainer = self.trainer(condition)
            trainer.seed = seed
            trainer.load_state_dict(start)
            result = trainer.fit(train, held_out, plan, on_progress, fresh_rows)
            return result, trainer.state_dict()

    def fit_consistency(
        self, codes: Tensor, held_out: int, generated: Tensor, codec: TransitionCodec, **options: Any
    ) -> Consistency | None:
        """See `Consistency.fit`."""
        used: dict[Shape, Regression] = {}

        def regression(shape: Shape) -> Regression:
            known = self._regressions.get(shape)
            used[shape] = known or new_regression(shape, stack=self.stack, device=self.device)
            return used[shape]

        with self._training, torch.inference_mode(mode=False):
            found = Consistency.fit(codes, held_out, generated, codec, regression=regression, **options)
            self._regressions = used
            return found

    def draw(self, model: FittedModel, n: int, draws: Draws, condition: Tensor | None, guidance: float) -> Tensor:
        """Generate rows ``(M, n, dim)``; if it raises, `draws` counts only the rejected rows."""
        with self._sampling, torch.inference_mode(mode=False):
            count = draws.count
            try:
                return model.draw(n, draws, self._draw_codes(model), condition, guidance)
            except BaseException:
                draws.count = count
                raise

    def draw_open(self, model: FittedModel, n: int, draws: Draws) -> Tensor:
        """Generate rows as the model makes them, see `FittedModel.draw_open`."""
        with self._sampling, torch.inference_mode(mode=False):
            return model.draw_open(n, draws, self._draw_codes(model))

    def _draw_codes(self, model: FittedModel) -> Callable[..., None]:
        condition_dim = model.condition_dim
        if model.table is None and self._sampled is not model:
            self._sampled = None  # an interrupt leaves half of the new weights
            self.sampler(condition_dim).load(model.weights, model.frequencies)
            self._sampled = model

        def draw(
            n: int, seed: int, write: Callable[[int, Tensor], None], condition: Tensor | None, guidance: float
        ) -> None:
            with (
                torch.autocast(self.device.type, enabled=False),
                progress_bar(n, "generating", "row", shown=None if is_in_refit() else False) as bar,
            ):

                def write_and_show(start: int, codes: Tensor) -> None:
                    write(start, codes)
                    bar.update(codes.shape[-2])

                self.sampler(condition_dim).draw(n, seed, write_and_show, condition, guidance)

        return draw
