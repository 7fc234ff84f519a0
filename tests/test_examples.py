"""The examples run, with tiny budgets, as a user starts them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_upsample_prints_its_table_and_draws_its_picture(tmp_path):
    picture = tmp_path / "marginals.png"
    command = [sys.executable, "examples/upsample.py", "--rows", "300", "--steps", "30", "--out", str(picture)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert "generated 3,000 transitions" in done.stdout
    assert "marginal" in done.stdout
    assert "memorisation" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
