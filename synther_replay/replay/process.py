"""Refits in a process: what may go there, how it is started, and how its result comes back."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from synther_replay.common.cancelling import check_cancelled
from synther_replay.protocols import Generator, Stateful
from synther_replay.replay.fits import RefitResult
from synther_replay.replay.worker import LOG, RESULT, TASK, RefitTask, write

# Not `multiprocessing`: its processes import the user's script, which then must be guarded by `__name__`.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from synther_replay.replay.worker import main
main(sys.argv[2], int(sys.argv[3]))
"""
_LOOKS_EVERY = 0.2  # seconds, for a job that was dropped
_SHOWN = 500  # last characters of what a process that died had printed


def threads_of_a_process() -> int:
    """Threads for a refit beside the learner: half of those that torch uses here."""
    return max(1, torch.get_num_threads() // 2)


class RefitProcess:
    """Computes a task in a process, which ends with the one that waits for it. Rows go through files.

    Attributes:
        pid: Number of the process; None while there is none.
    """

    def __init__(self, task: RefitTask) -> None:
        """Keep the task."""
        self._task = task
        self.pid: int | None = None

    def compute(self) -> RefitResult:
        """Start the process and wait for the result.

        Raises:
            RuntimeError: The process died.
            CancelledError: The refit was dropped; the process has ended.
            Exception: Any error of the task itself.
        """
        folder = tempfile.mkdtemp(prefix="synther-refit-")
        try:
            write(self._task, Path(folder, TASK))
            check_cancelled()
            return self._run(folder)
        finally:
            self.pid = None
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, folder: str) -> RefitResult:
        # A group of its own: Ctrl-C in a terminal is for the learner, which may catch it and go on.
        own_group: dict[str, Any] = {"process_group": 0}
        if sys.platform == "win32":
            own_group = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        paths = [path for path in sys.path if isinstance(path, str)]  # Python ignores the others
        command = [sys.executable, "-c", _PROGRAM, json.dumps(paths), folder, str(os.getpid())]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # no context on a GPU, which takes memory there
        with open(Path(folder, LOG), "wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, **own_group
            )
        self.pid = process.pid
        try:
            while True:
                try:
                    process.wait(_LOOKS_EVERY)
                    break
                except subprocess.TimeoutExpired:
                    check_cancelled()
        finally:
            process.kill()
            process.communicate()  # closes the pipe, too
        if process.returncode != 0:
            raise RuntimeError(f"the process of the refit {_ending(process.returncode)}{_last_words(folder)}")
        outcome: RefitResult | Exception = torch.load(Path(folder, RESULT), weights_only=False)  # our own file
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def check_portable(generator: Generator) -> None:
    """Raise TypeError unless a generator can go to another process and its state can come back."""
    advice = 'use refit="inline", or a generator with the attribute background = "thread" and jobs (see JobGenerator)'
    if not isinstance(generator, Stateful):
        name = type(generator).__name__
        raise TypeError(f"refit: {name} needs state_dict and load_state_dict for refits in a process; {advice}")
    check_sent(generator, advice)


def check_sent(part: object, advice: str) -> None:
    """Raise TypeError with advice unless something can go to another process."""
    try:
        _Sink(_Nowhere()).dump(part)
    except Exception as error:
        name = type(part).__name__
        raise TypeError(f"refit: {name} cannot be sent to the process of a refit ({error}); {advice}") from error


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


class _Sink(pickle.Pickler):
    """Pickles nowhere; refuses what another process cannot import."""

    def reducer_override(self, part: Any) -> Any:
        if isinstance(part, type | FunctionType) and part.__module__ == "__main__":
            raise pickle.PicklingError(f"{part.__qualname__} is defined in the script itself; put it in a module")
        return NotImplemented


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}" + (" (perhaps memory ran out)" if name == "SIGKILL" else "")


def _last_words(folder: str) -> str:
    try:
        text = Path(folder, LOG).read_text(errors="replace").strip()
    except OSError:
        return ""
    return f": {text[-_SHOWN:]}" if text else ""
