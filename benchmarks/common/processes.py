"""Process pools: how workers are started, and how they exit with their parent."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Any

_SAFE_PATH = "PYTHONSAFEPATH"


def worker_context() -> Any:
    """The forkserver context of all workers; its server has the imports done and has not initialised CUDA.

    The server starts here and takes seconds to import. Call this early and do other set-up meanwhile.
    """
    context = multiprocessing.get_context("forkserver")
    # Installed packages only: up to Python 3.13 the server cannot import modules next to the script. Packages that are
    # not installed are skipped.
    context.set_forkserver_preload(["torch", "synther_replay", "gymnasium", "mujoco", "dm_control.suite"])
    with _safe_path(), _without_interrupts():
        forkserver.ensure_running()
    return context


@contextmanager
def _safe_path() -> Iterator[None]:
    """Keep the working directory off `sys.path` of processes that start within the block.

    In a checkout, `synther_replay` would otherwise be imported from the working directory, where it lacks
    `synther_replay.adapters` and `synther_replay.benchmarks`.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Let processes that start within the block ignore SIGINT, so that Ctrl-C prints no traceback of theirs."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class WorkerPool(ProcessPoolExecutor):
    """A process pool whose workers are killed when its `with` block raises, or when the parent process dies.

    Args:
        processes: Number of workers.
    """

    def __init__(self, processes: int) -> None:
        """Workers start with the first task."""
        super().__init__(processes, mp_context=worker_context(), initializer=_exit_with_parent)
        # If workers died, no one reads the queue any more, and Python 3.11 may wait for it at exit.
        self._call_queue.cancel_join_thread()  # type: ignore[attr-defined]

    def kill(self) -> None:
        """Cancel queued tasks and kill all workers."""
        processes = [*(self._processes or {}).values()]
        self.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()  # a worker that is starting still ignores SIGINT

    def __exit__(self, kind: Any, *_: Any) -> None:
        """Cancel queued tasks; running ones are finished, or killed after an exception."""
        if kind is None:
            self.shutdown(wait=False, cancel_futures=True)
        else:
            self.kill()


def _exit_with_parent() -> None:
    """Exit this worker when its parent dies; it would otherwise wait for tasks forever.

    Ctrl-C reaches both. The parent reports it, the worker exits silently.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
