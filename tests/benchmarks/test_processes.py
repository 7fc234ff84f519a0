"""Process pools, in programs of their own."""

import os
import subprocess
import sys

import pytest

import synther_replay

PREAMBLE = """
import os, signal, sys, time
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from pathlib import Path
from synther_replay.benchmarks.common.processes import WorkerPool, worker_context
"""
PRINTS_WHAT_WORKERS_IMPORT = """
def found():
    import synther_replay
    return synther_replay.__file__

if __name__ == "__main__":
    with WorkerPool(1) as pool:
        print(pool.submit(found).result())
    print(os.environ.get("PYTHONSAFEPATH"))
"""
INTERRUPTS_THE_SERVER = """
if __name__ == "__main__":
    worker_context()
    server = forkserver._forkserver._forkserver_pid
    for pause in (0.0, 0.5):  # before it can have started to import, and while it does
        time.sleep(pause)
        os.kill(server, signal.SIGINT)
    with WorkerPool(1) as pool:
        print(pool.submit(abs, -7).result())
    print(forkserver._forkserver._forkserver_pid == server)
    os.kill(os.getpid(), signal.SIGINT)  # which means what it always did
"""
ORDERS_WITHOUT_END = """
def order(_):
    Path(f"{os.getpid()}.started").touch()
    time.sleep(600)

def started():
    return sorted(int(path.stem) for path in Path.cwd().glob("*.started"))
"""
INTERRUPTED_WHILE_WORKERS_COME_UP = """
if __name__ == "__main__":
    try:
        with WorkerPool(2) as pool:
            orders = [pool.submit(order, b"") for _ in range(4)]
            os.killpg(0, signal.SIGINT)
            orders[0].result()
    except KeyboardInterrupt:
        print("interrupted")
else:
    time.sleep(2)  # workers import this
"""
LOSES_A_WORKER_AND_ITS_ORDERS = """
if __name__ == "__main__":
    try:
        with WorkerPool(2) as pool:
            orders = [pool.submit(order, bytes(1_000_000)) for _ in range(6)]  # more than a pipe holds
            while len(started()) < 2:
                time.sleep(0.01)
            for one in orders:
                one.cancel()
            os.kill(started()[0], signal.SIGKILL)
            orders[0].result()
    except BrokenProcessPool:
        print("broken")
"""


@pytest.fixture
def run(tmp_path):
    """Run a program from a folder; its script lies in another."""

    def run(program, folder, **variables):
        script = tmp_path / "scripts" / "script.py"
        script.parent.mkdir()
        script.write_text(PREAMBLE + program)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"} | variables
        return subprocess.run(
            [sys.executable, script],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            start_new_session=True,  # which an interrupt of its group stays in
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize("safe_path", [None, "", "yes"])
def test_workers_take_the_installed_package_where_the_working_directory_has_one_of_its_name(run, tmp_path, safe_path):
    checkout = tmp_path / "checkout"
    (checkout / "synther_replay").mkdir(parents=True)
    (checkout / "synther_replay" / "__init__.py").touch()  # and no more of it, as a checkout has no adapters
    ran = run(PRINTS_WHAT_WORKERS_IMPORT, checkout, **({} if safe_path is None else {"PYTHONSAFEPATH": safe_path}))
    assert ran.stdout.splitlines() == [synther_replay.__file__, str(safe_path)], ran.stderr


@pytest.mark.slow
def test_an_interrupt_does_not_reach_the_process_that_starts_workers(run, tmp_path):
    ran = run(INTERRUPTS_THE_SERVER, tmp_path)
    assert ran.stdout == "7\nTrue\n", ran.stderr
    assert ran.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert ran.stderr.count("Traceback") == 1  # of the program alone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "said"),
    [(INTERRUPTED_WHILE_WORKERS_COME_UP, "interrupted\n"), (LOSES_A_WORKER_AND_ITS_ORDERS, "broken\n")],
    ids=["interrupted while workers come up", "a worker lost"],
)
def test_a_pool_that_exits_with_an_error_does_not_wait_for_its_tasks(run, tmp_path, program, said):
    assert run(ORDERS_WITHOUT_END + program, tmp_path).stdout == said
