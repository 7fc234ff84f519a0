"""The command as a process: installed or not, interrupted, killed, and started again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_data import ENVIRONMENT, SETTINGS, arrays, command

from synther_replay.files import read

ROWS = 400_000  # seven blocks
BLOCK = 65_536 * 10 * 4  # bytes without the checksum, ten values a row


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    given = {"env": ENVIRONMENT, **options}
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, **given)


@pytest.mark.slow
def test_without_typer_it_says_what_to_install():
    code = "import sys; sys.modules['typer'] = None; from synther_replay.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'synther-replay[cli]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_it_is_quiet_when_not_in_a_terminal(tmp_path, data):
    done = run("upsample", data, tmp_path / "more.npz", "--rows", 10, *SETTINGS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_completion_is_offered():
    done = run("--show-completion", env={**ENVIRONMENT, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert "completion" in done.stdout.lower() + done.stderr.lower()


@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_the_same_command_continues(tmp_path, data):
    out = tmp_path / "out.npz"
    arguments = ("upsample", data, out, "--rows", 400_000, *SETTINGS)
    spool = tmp_path / "out.npz.partial" / "rows.spool"
    process = subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    while process.poll() is None and not (spool.exists() and spool.stat().st_size > BLOCK):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.count("\n") == 1
    assert not out.exists()
    done = subprocess.run(command(*arguments, "--json"), capture_output=True, text=True, env=ENVIRONMENT, check=False)
    printed = json.loads(done.stdout)
    assert printed["resumed_rows"] > 0
    assert printed["fit"] is None
    assert len(read(out)) == 400_000
    assert {path.name for path in Path(tmp_path).iterdir()} == {"out.npz", "real.npz"}


def killed(folder: Path, arguments: tuple[object, ...], delay: float) -> bool:
    """Kill the command some time after it took its folder; return whether it was still running."""

    def taken() -> int:
        try:
            return (folder / "lock").stat().st_mtime_ns
        except FileNotFoundError:  # removed in between
            return 0

    before = taken()
    process = subprocess.Popen(command(*arguments), env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    while process.poll() is None and taken() in (0, before):
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()
    return process.wait() == -signal.SIGKILL


def check_kills(tmp_path: Path, suffix: str, kills: int) -> None:
    """Kill the command again and again; in the end the file has the bytes of one that was never killed."""
    real = tmp_path / "real.npz"
    np.savez(real, **arrays())
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    common = ("--rows", ROWS, "--seed", 1, "--overwrite", *SETTINGS)
    assert run("upsample", real, whole, *common).returncode == 0
    folder, stopped = tmp_path / f"out{suffix}.partial", 0
    for number in range(kills):
        delay = random.Random(number).random() * 0.5  # the fit and seven blocks take about two seconds
        stopped += killed(folder, ("upsample", real, out, *common), delay)
    done = run("upsample", real, out, *common, "--json")
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == whole.read_bytes()
    assert stopped >= 0.8 * kills
    assert not folder.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".hdf5", ".npz", ".parquet"])
def test_a_killed_upsample_continues_with_equal_bytes(tmp_path, suffix):
    check_kills(tmp_path, suffix, kills=3)


@pytest.mark.soak
@pytest.mark.parametrize("suffix", [".hdf5", ".npz", ".parquet"])
def test_a_hundred_kills(tmp_path, suffix):
    check_kills(tmp_path, suffix, kills=100)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path, data):
    peaks = []
    for rows in (100_000, 1_000_000):
        code = (
            "import resource, sys; from synther_replay.cli import main\n"
            "try: main()\n"
            "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        )
        arguments = ("upsample", data, tmp_path / f"{rows}.hdf5", "--rows", rows, *SETTINGS)
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT
        )
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stderr.split()[-1]))
    assert peaks[1] < 1.1 * peaks[0]


def test_a_second_process_for_the_same_output_is_refused(tmp_path, data):
    from synther_replay.cli.work import WorkFolder

    held = WorkFolder(tmp_path / "out.npz", {})
    with pytest.raises(BlockingIOError, match="another process"):
        WorkFolder(tmp_path / "out.npz", {})
    held.remove()
    WorkFolder(tmp_path / "out.npz", {}).remove()
    assert os.listdir(tmp_path) == ["real.npz"]
