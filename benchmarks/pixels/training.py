"""A learner's updates in chunks, with checkpoints; and files of trained networks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from synther_replay.benchmarks.common.formatting import finite
from synther_replay.benchmarks.common.provenance import origin, record_origin
from synther_replay.benchmarks.common.resumable import (
    HasSettings,
    checkpoint_path,
    run_until,
    save_result,
    save_state,
    saved_state,
)
from synther_replay.benchmarks.common.timing import Stopwatch, synchronise
from synther_replay.benchmarks.pixels.learners import Learner
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint

KIND = "pixel run"
CHUNK = {"cuda": 1_000, "cpu": 10}  # updates between points at which a checkpoint can be saved: about a second
REPORTS = 10  # of the losses, evenly spaced
_WEIGHTS = "pixel networks"
_CLOCKS = ("start", "learner", "checkpoint")
_PRINT = partial(print, flush=True)


@dataclass(frozen=True)
class Limits:
    """When a stage saves and stops.

    Attributes:
        deadline: `time.monotonic()` at which it saves and stops; None: when it is finished.
        checkpoint_every: Seconds between checkpoints.
    """

    deadline: float | None = None
    checkpoint_every: float = 120.0


class Training:
    """Makes all updates of a learner and writes a result; resumes from a checkpoint next to it.

    Args:
        path: The result file.
        settings: What the result depends on; a checkpoint of other settings is refused.
        learner: The learner, untrained.
        report: Called with each line of progress.
    """

    def __init__(
        self, path: Path, settings: HasSettings, learner: Learner, report: Callable[[str], None] = _PRINT
    ) -> None:
        """Load the checkpoint if there is one."""
        self.path, self.settings, self.learner, self.report = path, settings, learner, report
        self.updates = 0
        self.losses: dict[str, dict[str, float | None]] = {}  # by number of updates
        self.made_on: list[dict[str, Any]] = []
        self.watch = Stopwatch(_CLOCKS)
        with self.watch.clock("start"):
            if checkpoint_path(path).exists():
                self._load()
            record_origin(self.made_on, learner.device)
            learner.prepare()

    def run(self, limits: Limits) -> bool:
        """Run until finished or until the deadline; returns whether it is finished."""
        now, deadline = time.monotonic(), limits.deadline
        return run_until(
            self._run_chunk,
            self._save,
            lambda: self.updates >= self.learner.settings.updates,
            started=now,
            time_limit=None if deadline is None else deadline - now,
            checkpoint_every=limits.checkpoint_every,
        )

    def write(self, about: Mapping[str, Any]) -> None:
        """Write the result and remove the checkpoint.

        Args:
            about: Further values of the result.
        """
        seconds = {name: round(spent, 2) for name, spent in self.watch.wall_seconds().items()}
        result = {"settings": self.settings.to_json(), **about, "losses": self.losses, "wall_seconds": seconds}
        save_result(self.path, {**result, "made_on": self.made_on, **origin(self.learner.device)})

    def _run_chunk(self) -> None:
        """Depends only on the state at its start."""
        total, before = self.learner.settings.updates, self.updates
        with self.watch.clock("learner"):
            self.learner.reseed(self.updates)
            for _ in range(min(CHUNK[self.learner.device.type], total - self.updates)):
                self.learner.learn()
                self.updates += 1
            synchronise(self.learner.device)
        if self.updates * REPORTS // total > before * REPORTS // total:
            self._keep_losses()

    def _keep_losses(self) -> None:
        losses = {name: finite(float(loss), ".5g") for name, loss in self.learner.losses.items()}
        self.losses[str(self.updates)] = losses
        each = 1_000 * self.watch.seconds["learner"] / self.updates
        shown = ", ".join(f"{name} loss {loss}" for name, loss in losses.items())
        self.report(
            f"{self.path}: update {self.updates:,} of {self.learner.settings.updates:,}, {each:.2f} ms each, {shown}"
        )

    def _save(self) -> None:
        with self.watch.clock("checkpoint"):
            state = {
                "settings": self.settings.to_json(),
                "learner": self.learner.state_dict(),
                "updates": self.updates,
                "losses": self.losses,
                "made_on": self.made_on,
                "seconds": self.watch.wall_seconds(),
            }
            self.path.parent.mkdir(parents=True, exist_ok=True)
            save_state(checkpoint_path(self.path), KIND, state)
        self.report(f"{self.path}: checkpoint saved at update {self.updates:,}")

    def _load(self) -> None:
        state = saved_state(checkpoint_path(self.path), KIND, self.settings)
        self.learner.load_state_dict(state["learner"])
        self.updates, self.losses, self.made_on = state["updates"], state["losses"], state["made_on"]
        self.watch.continue_from(state["seconds"])
        self.report(f"{self.path}: resumed at update {self.updates:,}")


def save_weights(path: Path, *modules: nn.Module, half: bool = False) -> None:
    """Write the weights of modules to one file; in fp16 for files that travel."""
    parts = {
        str(number): {name: part.half() if half else part for name, part in module.state_dict().items()}
        for number, module in enumerate(modules)
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(path, _WEIGHTS, parts)


def load_weights(path: Path, *modules: nn.Module) -> None:
    """Load weights in place.

    Raises:
        CheckpointError: The file is missing, damaged or something else.
    """
    parts: dict[str, dict[str, Tensor]] = load_checkpoint(path, _WEIGHTS)
    for number, module in enumerate(modules):
        module.load_state_dict(parts[str(number)])
