"""StackTrainer: trains a stack of M independent denoisers.

Training runs in blocks of `average_every` steps. A block draws all its batches at once, takes its gradient steps
(forward, backward, clipping, Adam) and updates the EMA. On CUDA a block is one CUDA graph.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from synther_replay.common.acceleration import capture
from synther_replay.common.checks import whole_number
from synther_replay.common.seeding import Stream, derive_seed, generator_for
from synther_replay.diffusion import edm
from synther_replay.diffusion.batches import HeldOutBatches, draw_batches
from synther_replay.diffusion.network import NetworkShape, Weights, backward, forward, initialise
from synther_replay.diffusion.optimiser import StackAdam
from synther_replay.diffusion.pace import Pace
from synther_replay.diffusion.stopping import BestModels
from synther_replay.diffusion.workers import Workers
from synther_replay.errors import DivergedError

# Limits the EMA decay in the first updates of a fit: the initial weights would otherwise dominate the EMA.
_AVERAGE_WARM_UP = 10


@dataclass(frozen=True)
class TrainingPlan:
    """Arguments of one call of `StackTrainer.fit`; see `GeneratorConfig` for the fields.

    `max_seconds` counts from the first step: compilation and CUDA graph capture are not included.
    """

    steps: int
    batch_size: int
    learning_rate: float
    evaluate_every: int
    patience: int | None
    max_seconds: float | None
    from_scratch: bool


@dataclass(frozen=True)
class TrainingResult:
    """Result of `StackTrainer.fit`; losses are per model."""

    loss: tuple[float, ...]
    held_out_loss: tuple[float, ...] | None
    steps: int
    stopped_early: bool


class StackTrainer:
    """M denoisers, their optimiser, and the training loop.

    Args:
        shape: Sizes of each network.
        stack: M, the number of independent models.
        device: Compute device.
        dtype: Dtype of the matrix products; weights and moments are always float32.
        seed: Seed of weights, frequencies, batches and noise.
        betas: Betas of Adam.
        clip: Maximum gradient norm per model.
        average_decay: EMA decay per update.
        average_every: Gradient steps between EMA updates; the length of a block.
        levels: Distribution of the noise levels; None: EDM's.
        workers: Processes that train together; None: this one alone.
    """

    def __init__(
        self,
        shape: NetworkShape,
        stack: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        seed: int,
        betas: tuple[float, float] = (0.9, 0.99),
        clip: float = 1.0,
        average_decay: float = 0.995,
        average_every: int = 10,
        levels: edm.NoiseLevels | None = None,
        workers: Workers | None = None,
    ) -> None:
        """Draw initial weights and frequencies."""
        self.shape, self.stack, self.device, self.dtype, self.seed = shape, stack, device, dtype, seed
        self.average_decay, self.average_every = average_decay, average_every
        self.levels = levels or edm.NoiseLevels()
        self.workers = workers
        self.starts = 0
        self.fits = 0
        self.adam_steps = 0
        rng = self._initial_rng()
        self.optimiser = StackAdam(initialise(shape, stack, rng).to(device), dtype, betas=betas, clip=clip)
        self.frequencies = self._draw_frequencies(rng)
        self.rng = torch.Generator(device)
        self.loss_sum = torch.zeros(stack, dtype=torch.float32, device=device)
        # Scalars as tensors, because a CUDA graph must read their current values.
        self.rows_used, self.steps_taken, self.learning_rate, self.average_weight = torch.zeros(
            4, dtype=torch.float64, device=device
        ).unbind()
        self.columns = shape.dim + shape.condition  # of the training data
        self.data = torch.empty(stack, 0, self.columns, dtype=torch.float32, device=device)
        self._replay: Callable[[], None] | None = None  # CUDA graph of a block
        self._captured_for: tuple[int, int] | None = None
        self._announced = False  # whether the duration of a fit has been logged

    def reset(self) -> None:
        """Draw new weights and frequencies and zero the moments of Adam."""
        self.starts += 1
        self.adam_steps = 0
        rng = self._initial_rng()
        self.optimiser.reset(initialise(self.shape, self.stack, rng))
        self.frequencies.copy_(self._draw_frequencies(rng))

    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def fit(
        self,
        train: Tensor,
        held_out: Tensor | None,
        plan: TrainingPlan,
        on_progress: Callable[[int, float, float | None], None] | None = None,
        fresh_rows: Callable[[float], Tensor | None] | None = None,
    ) -> TrainingResult:
        """Train all models. If it raises, the models are unchanged.

        Args:
            train: Encoded rows and their conditions, ``(M, n, dim + condition)``.
            held_out: The same for validation, ``(M, k, dim + condition)``; None: no early stopping.
            plan: Training arguments.
            on_progress: Called at every evaluation with steps, mean loss and mean held-out loss.
            fresh_rows: Called with the share of the training that is done; returns rows that replace `train`, or None.

        Raises:
            ValueError: Rows have the wrong shape.
            DivergedError: A loss became non-finite.
        """
        for name, rows in (("train", train), ("held_out", held_out)):
            if rows is not None and tuple(rows.shape) != (self.stack, max(1, rows.shape[-2]), self.columns):
                raise ValueError(f"{name}: expected shape ({self.stack}, n, {self.columns}), got {tuple(rows.shape)}")
        with self.rollback_on_error(), torch.autocast(self.device.type, enabled=False):
            if plan.from_scratch and self.adam_steps:
                self.reset()
            self.fits += 1
            self._hold(train)
            workers = self.workers
            run_block = self._block_for(plan.batch_size if workers is None else workers.part_of(plan.batch_size))
            rank = [workers.rank] if workers else []
            self.rng.manual_seed(derive_seed(self.seed, Stream.TRAINING, self.fits, *rank))
            validation = None
            if held_out is not None:
                rng = generator_for(self.device, self.seed, Stream.VALIDATION, self.fits)
                rows = held_out.to(self.device)
                validation = HeldOutBatches(rows, plan.batch_size, rng=rng, **self._network())
            try:
                return self._loop(run_block, plan, validation, on_progress, fresh_rows)
            finally:
                self.release()

    def weights(self) -> Tensor:
        """Return the EMA weights in the compute dtype, ``(M, P)``."""
        return self.optimiser.average.to(self.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of weights, moments, EMA, frequencies and counters."""
        counts = {"starts": self.starts, "fits": self.fits, "adam_steps": self.adam_steps}
        return {**{name: tensor.clone() for name, tensor in self._tensors().items()}, **counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict` in place; a shape mismatch raises ValueError and changes nothing."""
        counts = [whole_number(name, state[name], least=0) for name in ("starts", "fits", "adam_steps")]
        for name, tensor in self._tensors().items():
            if state[name].shape != tensor.shape:
                raise ValueError(f"{name}: expected shape {tuple(tensor.shape)}, got {tuple(state[name].shape)}")
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])
        self.optimiser.refresh_working()
        self.starts, self.fits, self.adam_steps = counts

    # ------------------------------------------------------------------ loop

    def _loop(
        self,
        run_block: Callable[[], None],
        plan: TrainingPlan,
        validation: HeldOutBatches | None,
        on_progress: Callable[[int, float, float | None], None] | None,
        fresh_rows: Callable[[float], Tensor | None] | None,
    ) -> TrainingResult:
        blocks = math.ceil(plan.steps / self.average_every)
        pace = Pace(blocks * self.average_every, self.average_every, plan.max_seconds, self.device, self.workers)
        blocks_per_check = max(1, plan.evaluate_every // self.average_every)
        best = None
        if validation is not None:
            best = BestModels(self.optimiser.tensors(), plan.patience)
            if self.adam_steps:
                best.begin_with(self._agreed(validation.loss(self.weights())))
        loss: Tensor = self.loss_sum
        done, last_check, stopped = 0, 0, False
        self.loss_sum.zero_()
        while done < blocks and not stopped:
            if fresh_rows is not None and (rows := fresh_rows(pace.share)) is not None:
                self._hold(rows if self.device.type != "cuda" else rows[:, : self.data.shape[1]])  # no new capture
            self._set_rates(plan.learning_rate, pace.share, pace.done)
            run_block()
            done += 1
            self.adam_steps += self.average_every
            stopped = pace.advance()
            self._announced = self._announced or pace.announce(self.shape.dim)
            if done - last_check < blocks_per_check and done < blocks and not stopped:
                continue
            loss = self.loss_sum / ((done - last_check) * self.average_every)
            if self.workers is not None:
                self.workers.average(loss)  # one that diverged makes all stop
            self._check_finite(loss)
            self.loss_sum.zero_()
            last_check = done
            held_out_loss = None
            if best is not None and validation is not None:
                held_out_loss = self._agreed(validation.loss(self.weights()))
                self._check_finite(held_out_loss)
                stopped = best.measure(held_out_loss) or stopped
            pace.report(loss)
            if on_progress is not None:
                held = None if held_out_loss is None else held_out_loss.mean().item()
                on_progress(pace.done, loss.mean().item(), held)
        if best is not None:
            best.restore()
            self.optimiser.refresh_working()
        held_out_losses = None if best is None else tuple(best.loss.tolist())
        return TrainingResult(tuple(loss.tolist()), held_out_losses, pace.done, done < blocks)

    def _set_rates(self, learning_rate: float, progress: float, steps: int) -> None:
        """Set the cosine-annealed learning rate and the EMA weight, which is larger in the first updates."""
        self.learning_rate.fill_(learning_rate * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))
        self.steps_taken.fill_(self.adam_steps)
        updates = steps / self.average_every
        self.average_weight.fill_(1 - min(self.average_decay, (1 + updates) / (_AVERAGE_WARM_UP + updates)))

    def _agreed(self, loss: Tensor) -> Tensor:
        return loss if self.workers is None else self.workers.of_first(loss)

    def _check_finite(self, loss: Tensor) -> None:
        finite = torch.isfinite(loss)
        if not bool(finite.all()):
            which = (~finite).nonzero().flatten().tolist()
            raise DivergedError(f"training diverged: the loss of model {which} of {self.stack} became non-finite")

    @contextmanager
    def rollback_on_error(self) -> Iterator[None]:
        """Context manager: an exception restores the models to their state on entry."""
        before = self.state_dict()
        try:
            yield
        except BaseException:  # including KeyboardInterrupt
            self.load_state_dict(before)
            raise

    def _tensors(self) -> dict[str, Tensor]:
        return {**self.optimiser.tensors(), "frequencies": self.frequencies}

    # ----------------------------------------------------------------- block

    def _hold(self, train: Tensor) -> None:
        """Copy the rows to the memory that the CUDA graph reads; it grows by doubling, so captures are rare."""
        n = train.shape[1]
        self.rows_used.fill_(n)
        if self.device.type != "cuda":
            self.data = train.to(self.device).contiguous()
            return
        if n > self.data.shape[1]:
            size = (self.stack, 1 << (n - 1).bit_length(), self.columns)
            self.data = torch.empty(size, dtype=torch.float32, device=self.device)
            self._captured_for = None
        self.data[:, :n] = train

    def release(self) -> None:
        """Free the training rows; on CUDA the graph keeps them."""
        if self.device.type != "cuda":
            self.data = self.data.new_empty(self.stack, 0, self.columns)

    def _block_for(self, batch_size: int) -> Callable[[], None]:
        """Return a function that trains one block; on CUDA it replays a graph.

        The trainer must not hold a method of its own: in such a cycle a dropped model stays in memory until Python's
        garbage collector runs, which counts objects, not bytes.
        """
        block = functools.partial(self._block, batch_size)
        if self.device.type != "cuda" or not (self.workers is None or self.workers.is_capturable):
            return block
        key = (batch_size, self.data.shape[1])
        if self._replay is None or self._captured_for != key:
            before = self.state_dict()
            self._set_rates(0.0, 0.0, 0)
            self._replay = capture(block, self.rng)
            self._captured_for = key
            self.load_state_dict(before)
        return self._replay

    def _block(self, batch_size: int) -> None:
        steps = self.average_every
        inputs, features, targets = draw_batches(
            self.data, self.rows_used, (steps, self.stack, batch_size), rng=self.rng, **self._network()
        )
        counts = self.steps_taken + torch.arange(1, steps + 1, device=self.device)
        rates = self.optimiser.bias_corrected(self.learning_rate, counts)
        weights = Weights.of(self.optimiser.working, self.shape)
        gradient = Weights.of(self.optimiser.gradient, self.shape)
        for k in range(steps):
            y, kept = forward(weights, inputs[k], features[k])
            backward(weights, kept, edm.squared_error(y, targets[k], self.loss_sum), gradient)
            if self.workers is not None:
                self.workers.average(self.optimiser.gradient)
            self.optimiser.step(rates[k])
        self.optimiser.update_average(self.average_weight)

    def _network(self) -> dict[str, Any]:
        return {"shape": self.shape, "frequencies": self.frequencies, "dtype": self.dtype, "levels": self.levels}

    def _initial_rng(self) -> torch.Generator:
        # On the CPU: a seed gives the same initial weights on every device.
        return generator_for("cpu", self.seed, Stream.WEIGHTS, self.starts)

    def _draw_frequencies(self, rng: torch.Generator) -> Tensor:
        return torch.randn(
            self.stack, 1, self.shape.fourier // 2, generator=rng, dtype=torch.float32, device=rng.device
        ).to(self.device)
