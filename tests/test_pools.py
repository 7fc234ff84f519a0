"""Worker processes of the benchmarks, in programs of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import synther_replay

PREAMBLE = f"""
import os, signal, sys, time
from multiprocessing import forkserver
from pathlib import Path
sys.path.append({str(Path(__file__).parents[1] / "benchmarks")!r})
from pools import worker_context, worker_pool
"""
PRINTS_WHAT_WORKERS_IMPORT = """
def found():
    import synther_replay
    return synther_replay.__file__

if __name__ == "__main__":
    with worker_pool(1) as pool:
        print(pool.submit(found).result())
    print(os.environ.get("PYTHONSAFEPATH"))
"""
INTERRUPTS_THE_SERVER = """
if __name__ == "__main__":
    worker_context()
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGINT)
    with worker_pool(1) as pool:
        print(pool.submit(abs, -7).result())
    os.kill(os.getpid(), signal.SIGINT)  # which means what it always did
"""
LOSES_ITS_WORKER_AND_ITS_ORDERS = """
def order(_):
    Path("begun").write_text(str(os.getpid()))
    time.sleep(600)

if __name__ == "__main__":
    pool = worker_pool(1)
    orders = [pool.submit(order, bytes(1_000_000)) for _ in range(5)]  # more than a pipe holds
    while not (Path("begun").exists() and Path("begun").read_text()):
        time.sleep(0.01)
    for one in orders:
        one.cancel()
    os.kill(int(Path("begun").read_text()), signal.SIGKILL)
    print(type(orders[0].exception()).__name__)
"""


@pytest.fixture
def run(tmp_path):
    """Run a program in a folder of its own, where it is no package's."""

    def run(program, folder, **variables):
        script = tmp_path / "scripts" / "script.py"
        script.parent.mkdir()
        script.write_text(PREAMBLE + program)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"} | variables
        return subprocess.run(
            [sys.executable, script], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )

    return run


@pytest.mark.parametrize("safe_path", [None, "", "yes"])
def test_workers_take_the_installed_package_where_the_working_directory_has_one_of_its_name(run, tmp_path, safe_path):
    checkout = tmp_path / "checkout"
    (checkout / "synther_replay").mkdir(parents=True)
    (checkout / "synther_replay" / "__init__.py").touch()  # and no more of it, as a checkout has no adapters
    ran = run(PRINTS_WHAT_WORKERS_IMPORT, checkout, **({} if safe_path is None else {"PYTHONSAFEPATH": safe_path}))
    assert ran.stdout.splitlines() == [synther_replay.__file__, str(safe_path)], ran.stderr


def test_an_interrupt_does_not_reach_the_process_that_starts_workers(run, tmp_path):
    ran = run(INTERRUPTS_THE_SERVER, tmp_path)
    assert ran.stdout == "7\n", ran.stderr
    assert ran.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert ran.stderr.count("Traceback") == 1  # of the program alone


def test_a_program_ends_that_has_lost_its_worker_and_cancelled_its_orders(run, tmp_path):
    assert run(LOSES_ITS_WORKER_AND_ITS_ORDERS, tmp_path).stdout == "BrokenProcessPool\n"
