"""Pace: how far a fit has come, by its steps and by its time limit, and how long it will take."""

from __future__ import annotations

import logging
import time

import torch
from torch import Tensor

from synther_replay.diffusion.workers import Workers

logger = logging.getLogger(__name__)

# A fit on a CPU that will take longer than the first number of seconds logs its progress; longer than the second, it
# says so at a level that is shown by default: a training loop that stands still looks like one that hangs.
_LONG, _VERY_LONG = 10.0, 30.0
_MEASURED = 1.0  # seconds of training that an estimate needs


class Pace:
    """Progress of one fit.

    Args:
        steps: Planned gradient steps.
        block: Steps between two calls of `advance`.
        max_seconds: Time limit; None: no limit.
        device: Device of the fit.
        workers: Processes that take part; the clock of the first one counts.

    Attributes:
        done: Steps taken so far.
        expected: Estimated seconds of all steps; None until it is known, and on a GPU.
    """

    def __init__(
        self, steps: int, block: int, max_seconds: float | None, device: torch.device, workers: Workers | None = None
    ) -> None:
        """Start the clock."""
        self.done = 0
        self.expected: float | None = None
        self._steps, self._block, self._limit, self._device = steps, block, max_seconds, device
        self._workers = workers
        self._begun = time.monotonic()
        self._elapsed = 0.0

    def advance(self) -> bool:
        """Count a block; return whether the time is up."""
        self.done += self._block
        if self._device.type == "cuda":
            if self._limit is None:
                return False
            torch.cuda.synchronize(self._device)  # CUDA kernels run asynchronously
        self._elapsed = time.monotonic() - self._begun
        if self._workers is not None and self._limit is not None:
            self._elapsed = self._workers.number_of_first(self._elapsed)
        if self.expected is None and self._elapsed >= _MEASURED and self._device.type == "cpu":
            self.expected = self._elapsed * self._steps / self.done
        return self._limit is not None and self._elapsed >= self._limit

    @property
    def share(self) -> float:
        """Share of the fit that is over, for annealing: by steps or by time.

        Time counts only where it is ahead of the steps by more than a block, so a limit that does not bind changes
        nothing.
        """
        by_steps = self.done / self._steps
        by_time = 0.0 if self._limit is None else self._elapsed / self._limit
        return by_time if by_time > by_steps + self._block / self._steps else by_steps

    def announce(self, dim: int) -> bool:
        """Log how long a fit to rows of `dim` codes will take; return whether that is known yet."""
        if self.expected is None:
            return False
        if self.expected > _LONG:
            cut = self._limit is not None and self.expected > self._limit
            logger.log(
                logging.WARNING if self.expected > _VERY_LONG else logging.INFO,
                "fit: %d steps on rows of %d values take about %.0f s on this CPU%s. Fewer steps, a smaller "
                "max_seconds, shorter observations or a GPU make it shorter",
                self._steps,
                dim,
                self.expected,
                f"; max_seconds ends them after {self._limit:.0f} s" if cut else "",
            )
        return True

    def report(self, loss: Tensor) -> None:
        """Log the progress of a long fit."""
        if self.expected is not None and self.expected > _LONG:
            logger.info(
                "fit: step %d of %d after %.0f s, loss %.4f", self.done, self._steps, self._elapsed, loss.mean().item()
            )
