"""What the process of a refit does: it reads a task, computes it and writes the result.

A refit that does not run inline has a process of its own where it computes on the CPU. A thread would share Python's
global lock with the learner, and OpenMP starts its threads for each of the two as if it had all cores.
"""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.protocols import Generator
from synther_replay.relevance.guide import Guide, Plan
from synther_replay.replay.examination import check_generated
from synther_replay.replay.fits import RefitResult
from synther_replay.replay.refitting import RefitJob, new_fit

TASK, RESULT, LOG = "task.pt", "result.pt", "log.txt"
_POLITENESS = 5  # `nice`: where cores are few, the learner comes first; more would starve it beside other programs


@dataclass(frozen=True, eq=False)
class RefitTask:
    """Everything that a refit depends on.

    Attributes:
        parts: The generator, and the guide if it plans when the job runs, pickled when the refit began.
        spec: Layout of the rows.
        real: Valid real rows, ``(n, dim)``, or ``(M, n, dim)`` of M runs.
        options: Arguments of `JobGenerator.begin`.
        plan: A plan that was made when the refit began; None: by the guide, or not guided.
        rows: Number of rows to generate.
        steps: Environment steps when the refit began.
        threads: Threads of torch.
    """

    parts: bytes
    spec: TransitionSpec
    real: Tensor
    options: dict[str, Any]
    plan: Plan | None
    rows: int
    steps: int
    threads: int

    def compute(self) -> RefitResult:
        """Fit and generate."""
        generator: Generator
        guide: Guide | None
        generator, guide = pickle.loads(self.parts)
        real = Transitions(self.spec, self.real)
        plan: Any = self.plan if guide is None else functools.partial(guide.plan, real, self.steps)
        # Rows of several runs have one more axis.
        one = functools.partial(check_generated, self.spec, count=self.rows)
        check = one if self.real.ndim == 2 else Transitions.check
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            job = RefitJob(new_fit(generator, real, self.options, plan), rows=self.rows, check=check, steps=self.steps)
            result = job.result(generator, guide)
        return replace(result, warnings=tuple(str(warning.message) for warning in given))


def main(folder: str, parent: int) -> None:
    """Compute the task in a folder; end with the process that waits for it."""
    _leave_after(lambda: os.read(0, 1), folder)  # the pipe at stdin ends with the parent
    _leave_after(functools.partial(_wait_for_end_of, parent), folder)  # unless a fork of it holds the pipe, too
    if hasattr(os, "nice"):
        os.nice(_POLITENESS)
    outcome: RefitResult | Exception
    try:
        task: RefitTask = torch.load(Path(folder, TASK), mmap=True, weights_only=False)  # our own file
        torch.set_num_threads(task.threads)
        outcome = task.compute()
    except Exception as error:
        outcome = _portable(error)
    unfinished = Path(folder, f"{RESULT}.part")
    try:
        write(outcome, unfinished)
    except OSError as error:
        unfinished.unlink(missing_ok=True)  # there may be room for the error
        write(_portable(error), unfinished)
    unfinished.replace(Path(folder, RESULT))


def write(value: Any, path: Path) -> None:
    """Write a task or a result.

    Raises:
        OSError: It cannot be written.
    """
    try:
        torch.save(value, path)
    except (OSError, RuntimeError) as error:  # of a full disk torch says something about positions in the file
        message = f"{path}: cannot be written ({error}); if the disk is full, TMPDIR chooses another folder"
        raise OSError(message) from error


def _portable(error: Exception) -> Exception:
    """The error, or one with the same text if it cannot be pickled."""
    try:
        copied = pickle.loads(pickle.dumps(error))
        if isinstance(copied, Exception) and str(copied) == str(error):
            return error
    except Exception:  # whatever a class of somebody else raises
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")


def _wait_for_end_of(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)


def _leave_after(wait: Callable[[], object], folder: str) -> None:
    """End at once when the wait is over, whatever the other threads do."""

    def leave() -> None:
        wait()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()
