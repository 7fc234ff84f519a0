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
FORMATS = {".hdf5": ROWS, ".npz": ROWS, ".parquet": ROWS, "-v0": 20_000}  # rows by ending; -v0: a folder for Minari
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


def contents(path: Path) -> dict[str, bytes]:
    """The bytes of a file, or of all files of a folder."""
    files = [path] if path.is_file() else [inner for inner in path.rglob("*") if inner.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def check_kills(tmp_path: Path, ending: str, kills: int) -> None:
    """Kill the command again and again; in the end the file has the bytes of one that was never killed."""
    if ending == "-v0":
        pytest.importorskip("minari")
    real = tmp_path / "real.npz"
    np.savez(real, **arrays())
    before = real.read_bytes()
    whole, out = tmp_path / "whole" / f"rows{ending}", tmp_path / "out" / f"rows{ending}"
    for path in (whole, out):
        path.parent.mkdir()
    common = ("--rows", FORMATS[ending], "--seed", 1, "--overwrite", *SETTINGS)
    assert run("upsample", real, whole, *common).returncode == 0
    folder, stopped = out.with_name(f"{out.name}.partial"), 0
    for number in range(kills):
        delay = random.Random(number).random() * 0.5  # the fit and seven blocks take about two seconds
        stopped += killed(folder, ("upsample", real, out, *common), delay)
    done = run("upsample", real, out, *common, "--json")
    assert done.returncode == 0, done.stderr
    assert contents(out) == contents(whole)
    assert stopped >= 0.8 * kills
    assert not folder.exists()
    assert hidden(out.parent) == []
    assert real.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("ending", FORMATS)
def test_a_killed_upsample_continues_with_equal_bytes(tmp_path, ending):
    check_kills(tmp_path, ending, kills=3)


@pytest.mark.soak
@pytest.mark.parametrize("ending", FORMATS)
def test_a_hundred_kills(tmp_path, ending):
    check_kills(tmp_path, ending, kills=100)


def check_kills_of_fit(tmp_path: Path, kills: int) -> None:
    """Kill a fit again and again; the model is always the old one or the new one, as a whole."""
    real, folder = tmp_path / "real.npz", tmp_path / "models"
    np.savez(real, **arrays())
    before = real.read_bytes()
    folder.mkdir()
    whole, out = tmp_path / "whole.safetensors", folder / "model.safetensors"
    assert run("fit", real, out, "--seed", 2, *SETTINGS).returncode == 0
    started = time.monotonic()
    assert run("fit", real, whole, "--seed", 1, *SETTINGS).returncode == 0
    seconds = time.monotonic() - started
    valid, stopped = {out.read_bytes(), whole.read_bytes()}, 0
    assert len(valid) == 2
    for number in range(kills):
        process = subprocess.Popen(
            command("fit", real, out, "--seed", 1, "--overwrite", *SETTINGS), env=ENVIRONMENT, stderr=subprocess.DEVNULL
        )
        time.sleep(seconds * (0.3 + 0.7 * number / kills))
        process.kill()
        stopped += process.wait() == -signal.SIGKILL
        assert out.read_bytes() in valid
    done = run("fit", real, out, "--seed", 1, "--overwrite", *SETTINGS)
    assert (done.returncode, done.stderr) == (0, "")
    assert out.read_bytes() == whole.read_bytes()
    assert stopped  # the first, at least: how long a fit takes depends on what else the machine does
    assert hidden(folder) == []
    assert real.read_bytes() == before


@pytest.mark.slow
def test_a_killed_fit_leaves_a_whole_model(tmp_path):
    check_kills_of_fit(tmp_path, kills=3)


@pytest.mark.soak
def test_a_hundred_kills_of_fit(tmp_path):
    check_kills_of_fit(tmp_path, kills=100)


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
