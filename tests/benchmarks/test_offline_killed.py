"""Programs of the offline benchmark that are ended in earnest, by a signal that nothing can answer or by Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

pytest.importorskip("h5py")
pytest.importorskip("mujoco")
from synther_replay.benchmarks.offline import upsampled
from synther_replay.persistence.checkpoint import load_checkpoint

pytestmark = pytest.mark.slow
BENCHMARKS = Path(upsampled.__file__).parents[1]
PATIENCE = 300  # seconds, on the slowest of machines
MAKE = [BENCHMARKS / "make_datasets.py", "hopper-random", "--rows", "500", "--workers", "1"]
SET = "hopper-random-regen"
# Saved and judged every 100 updates, which take seconds: the first save leaves ample time to kill it.
LEARN = [BENCHMARKS / "offline_d4rl.py", "--dataset", SET, "--algo", "td3bc", "--data", "synther", "--device", "cpu"]
LEARN += ["--seeds", "1", "--steps", "300", "--evaluate-every", "100", "--episodes", "1", "--workers", "1"]
LEARN += ["--checkpoint-every", "0", "--preset", "tiny", "--rows", "500"]
LEARN += [part for text in ("width=32", "depth=1", "steps=20", "sampling_steps=3") for part in ("--set", text)]
RESULT = Path("out") / SET / "td3bc-synther.json"
MEASURED = ("wall_seconds", "fit_seconds", "generate_seconds")  # all of a result that may differ

# Small files are written faster than anyone can kill. On this disk a process waits for the first that it writes, so
# that there is time before the file gets its name.
STALLED_DISK = "import os, time\nos.fsync = lambda _: time.sleep(600)\n"


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    finish([*MAKE, "--out", folder])
    return folder


@pytest.fixture(scope="module")
def learn(sets):
    """The command whose results and synthetic rows go to a folder; the names in it are the same for all folders."""
    return lambda place: [*LEARN, "--folder", sets, "--out", place / "out", "--upsampled", place / "upsampled"]


@pytest.fixture(scope="module")
def never_killed(learn, tmp_path_factory):
    place = tmp_path_factory.mktemp("never_killed")
    finish(learn(place))
    return place


@pytest.fixture
def stalled(tmp_path):
    """Variables of a process for which the disk stalls; the program itself is as it always is."""
    folder = tmp_path / "stalled"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(STALLED_DISK)  # Python imports it before the program
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def start(command, variables):
    """With a commit that stays the same while the tests run."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SYNTHER_REPLAY_COMMIT": "abc", **variables}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # A group of its own, which an interrupt from the keyboard goes to.
    return subprocess.Popen([sys.executable, *command], env=environment, start_new_session=True, **pipes)


def finish(command):
    """Run to the end; gives what was said."""
    with start(command, {}) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def kill(process):
    """The process itself, and not its workers."""
    process.kill()
    return -signal.SIGKILL


def interrupt(process):
    """All of them, as Ctrl-C does."""
    with suppress(ProcessLookupError):  # it may have ended by itself
        os.killpg(process.pid, signal.SIGINT)
    return 130


def end_when(there, command, variables=None, *, end=kill):
    """End the process as soon as `there` gives something; gives what was said."""
    deadline = time.monotonic() + PATIENCE
    with start(command, variables or {}) as process:
        try:
            while not (seen := there()) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
        finally:
            expected = end(process)
        try:
            said, _ = process.communicate(timeout=PATIENCE)  # workers have the pipe too: this waits until they are gone
        finally:
            process.kill()
    assert process.returncode == expected, f"it ended before it could be killed:\n{said}"
    assert seen, f"it did not come in {PATIENCE} s to where it is to be killed:\n{said}"
    return said


def unfinished(folder, name="*"):
    """Files that are not under their final name yet."""
    return [*folder.glob(f".{name}.synther.tmp")]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def expect_same_result(place, never_killed):
    contents = [json.loads((folder / RESULT).read_text()) for folder in (place, never_killed)]
    assert [point["step"] for point in contents[1]["curve"]] == [100, 200, 300]
    found, expected = ({key: value for key, value in c.items() if key not in MEASURED} for c in contents)
    assert found == expected
    assert names((place / RESULT).parent) == [RESULT.name]  # nothing of those that were killed


def test_killed_while_it_learns_and_again_while_it_writes_its_result(learn, never_killed, stalled, tmp_path):
    result, checkpoint = tmp_path / RESULT, (tmp_path / RESULT).with_name(f".{RESULT.stem}.checkpoint")
    end_when(checkpoint.exists, learn(tmp_path))
    assert checkpoint.exists()
    assert not result.exists()

    # Synthetic rows are there and nothing is saved on the way, so the result is the first that it writes.
    unsaved = [*learn(tmp_path), "--checkpoint-every", "3600"]
    end_when(lambda: unfinished(result.parent, f"{result.name}.*"), unsaved, stalled)
    assert unfinished(result.parent)
    assert not result.exists()

    assert "resumed at update " in finish(learn(tmp_path))
    expect_same_result(tmp_path, never_killed)


def test_interrupted_while_it_learns(learn, never_killed, tmp_path):
    result, checkpoint = tmp_path / RESULT, (tmp_path / RESULT).with_name(f".{RESULT.stem}.checkpoint")
    said = end_when(checkpoint.exists, learn(tmp_path), end=interrupt)
    told = f"offline_d4rl.py: error: {result}: interrupted; run the same command to resume from the last checkpoint"
    assert said.splitlines()[-1] == told
    assert "Traceback" not in said  # of its workers, either
    assert "resumed at update " in finish(learn(tmp_path))
    expect_same_result(tmp_path, never_killed)


def test_killed_while_it_writes_synthetic_rows(learn, never_killed, stalled, tmp_path):
    kept = tmp_path / "upsampled"
    end_when(lambda: unfinished(kept), learn(tmp_path), stalled)
    (left,) = unfinished(kept)
    assert names(kept) == [left.name]  # under any other it would be taken for whole
    assert not (tmp_path / RESULT).exists()

    finish(learn(tmp_path))
    expect_same_result(tmp_path, never_killed)
    assert names(kept) == names(never_killed / "upsampled")
    rows, expected = (
        load_checkpoint(path, upsampled.KIND)["rows"]
        for folder in (kept, never_killed / "upsampled")
        for path in folder.iterdir()
    )
    assert torch.equal(rows, expected)


def test_killed_while_it_writes_a_data_set(sets, stalled, tmp_path):
    out = tmp_path / "sets"
    end_when(lambda: unfinished(out), [*MAKE, "--out", out], stalled)
    (left,) = unfinished(out)
    assert names(out) == [left.name]

    finish([*MAKE, "--out", out])
    assert names(out) == [f"{SET}.hdf5"]
    assert (out / f"{SET}.hdf5").read_bytes() == (sets / f"{SET}.hdf5").read_bytes()
