"""Worker processes: how they begin, and that they end with the program that began them."""

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
    """How worker processes are started: forked from a process that has imported everything and never saw a GPU.

    That process starts here, and takes seconds: the earlier this is called, the less there is to wait for later.
    """
    context = multiprocessing.get_context("forkserver")
    # Installed packages only: up to Python 3.13 that process does not find what lies beside the script. What is not
    # installed is passed over.
    context.set_forkserver_preload(["torch", "synther_replay", "gymnasium", "mujoco", "dm_control.suite"])
    with _safe_path(), _without_interrupts():
        forkserver.ensure_running()
    return context


@contextmanager
def _safe_path() -> Iterator[None]:
    """Let a process that starts here not look for packages in the working directory.

    In a checkout it would take the sources there for an installed `synther_replay`, and miss the adapters, which are
    part of the package only where it is installed.
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
    """Let a process that starts here not hear an interrupt from the keyboard, of which it would say much to no end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only that one may change what an interrupt does
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class WorkerPool(ProcessPoolExecutor):
    """Processes that wait for orders; where the block ends with an error, whatever they are at ends with it.

    Args:
        processes: How many.
    """

    def __init__(self, processes: int) -> None:
        """Start them with the first orders."""
        super().__init__(processes, mp_context=worker_context(), initializer=_end_with_parent)
        # Where workers have died, nobody reads the orders that are on their way, and Python 3.11 may wait for it.
        self._call_queue.cancel_join_thread()  # type: ignore[attr-defined]

    def end(self) -> None:
        """Begin nothing more, and end what is under way."""
        processes = [*(self._processes or {}).values()]
        self.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()  # it may not hear an interrupt yet

    def __exit__(self, kind: Any, *_: Any) -> None:
        """Begin nothing more; without an error, a process ends when it is through with its order."""
        if kind is None:
            self.shutdown(wait=False, cancel_futures=True)
        else:
            self.end()


def _end_with_parent() -> None:
    """Let this worker end when the program is killed: it would wait for work for ever.

    An interrupt from the keyboard goes to both. The program has something to say then, and this one just ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
