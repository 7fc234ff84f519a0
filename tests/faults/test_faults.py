"""Saving and loading under faults: nothing is lost, mixed or left behind, and nothing crashes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("h5py")
if not sys.platform.startswith("linux"):
    pytest.skip("the limits of memory and file sizes are those of Linux", allow_module_level=True)

CASES = ["generator", "table", "buffer", "corl-npz", "corl-hdf5", "corl-stream"]
FEW = {
    "interrupted_save": 12,
    "interrupted_load": 12,
    "killed_save": 6,
    "full_disk": 6,
    "damaged_file": 30,
    "forged_file": 30,
}
MANY = {
    "interrupted_save": 200,
    "interrupted_load": 200,
    "killed_save": 100,
    "full_disk": 100,
    "damaged_file": 1_000,
    "forged_file": 1_000,
}


def faults_of(case):
    """Only checkpoints have a header to forge with right checksums."""
    return [fault for fault in FEW if fault != "forged_file" or not case.startswith("corl")]


def run(case, **trials):
    program = Path(__file__).with_name("faults.py")
    arguments = [f"{fault}={count}" for fault, count in trials.items()]
    ended = subprocess.run(
        [sys.executable, program, case, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr[-5_000:]
    assert ended.stdout.count(case) == len(trials)
    print(ended.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_some_faults(case):
    run(case, **{fault: FEW[fault] for fault in faults_of(case)})


@pytest.mark.soak
@pytest.mark.parametrize(("case", "fault"), [(case, fault) for case in CASES for fault in faults_of(case)])
def test_many_faults(case, fault):
    run(case, **{fault: MANY[fault]})
