"""A run of hundreds of refits takes as much memory at its end as at its beginning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from synther_replay.watching import read_history

pytest.importorskip("plotly")
if not sys.platform.startswith("linux"):
    pytest.skip("memory, threads and files are read from /proc", allow_module_level=True)

# Bytes. The rows of one refit and their copies are nearly 1 MB: a hundred that stay would be far more. What the
# allocator keeps differs by half of it from run to run.
MOST_GROWTH = 32 * 2**20
MOST_PER_REFIT = 2_500  # bytes of history with nine columns


def measured(folder: Path, refits: int) -> list[dict[str, Any]]:
    program = Path(__file__).with_name("many_refits.py")
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", program, folder, str(refits)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr[-5_000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


def check_flat(folder: Path, refits: int) -> None:
    parts = measured(folder, refits)
    print(*parts, sep="\n")
    assert len(parts) == refits // 100
    assert {part["threads"] for part in parts} == {parts[0]["threads"]}
    assert {part["files"] for part in parts} == {parts[0]["files"]}
    assert parts[-1]["memory"] - parts[0]["memory"] < MOST_GROWTH
    assert len(read_history(folder)) == refits
    for number, part in enumerate(parts, start=1):
        assert part["written"].keys() == {"refits.jsonl", "report.html"}
        assert part["written"]["refits.jsonl"] < number * 100 * MOST_PER_REFIT
    assert parts[-1]["written"]["report.html"] < 1.1 * parts[0]["written"]["report.html"]


@pytest.mark.slow
def test_two_hundred_refits(tmp_path):
    check_flat(tmp_path, 200)


@pytest.mark.soak
def test_five_hundred_refits(tmp_path):
    check_flat(tmp_path, 500)
