"""Worker processes of the benchmarks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import synther_replay

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PRINTS_WHAT_WORKERS_IMPORT = f"""
import os, sys
sys.path.append({str(BENCHMARKS)!r})
from pools import worker_pool

def found():
    import synther_replay
    return synther_replay.__file__

if __name__ == "__main__":
    with worker_pool(1) as pool:
        print(pool.submit(found).result())
    print(os.environ.get("PYTHONSAFEPATH"))
"""


@pytest.mark.parametrize("safe_path", [None, "", "yes"])
def test_workers_take_the_installed_package_where_the_working_directory_has_one_of_its_name(tmp_path, safe_path):
    elsewhere, script = tmp_path / "checkout", tmp_path / "scripts" / "script.py"
    (elsewhere / "synther_replay").mkdir(parents=True)
    (elsewhere / "synther_replay" / "__init__.py").touch()  # and no more of it, as a checkout has no adapters
    script.parent.mkdir()
    script.write_text(PRINTS_WHAT_WORKERS_IMPORT)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    if safe_path is not None:
        environment["PYTHONSAFEPATH"] = safe_path
    ran = subprocess.run(
        [sys.executable, script], cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.stdout.splitlines() == [synther_replay.__file__, str(safe_path)], ran.stderr
