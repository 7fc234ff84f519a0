"""Worker processes: how they begin, and that they end with the program that began them."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from typing import Any


def worker_context() -> Any:
    """How worker processes are started: forked from a process that has imported everything and never saw a GPU.

    That process starts here, and takes seconds: the earlier this is called, the less there is to wait for later.
    """
    context = multiprocessing.get_context("forkserver")
    # Installed packages only: up to Python 3.13 that process does not find what lies beside the script. What is not
    # installed is passed over.
    context.set_forkserver_preload(["torch", "synther_replay", "gymnasium", "mujoco", "dm_control.suite"])
    forkserver.ensure_running()
    return context


def worker_pool(processes: int) -> ProcessPoolExecutor:
    """So many processes that wait for work; none outlives this one."""
    return ProcessPoolExecutor(processes, mp_context=worker_context(), initializer=_end_with_parent)


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
