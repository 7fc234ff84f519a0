"""What every benchmark shares: timing without warm-up, the origin of a number, JSON and tables."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from synther_replay.atomic import replacing


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], Any], device: torch.device, *, repeats: int = 3, warm_up: int = 1) -> float:
    """Median time of one call, after `warm_up` calls that are not counted."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeats):
        synchronise(device)
        begun = time.perf_counter()
        work()
        synchronise(device)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def origin(device: torch.device) -> dict[str, Any]:
    """Machine, versions, command and commit behind a result."""
    names = ("synther-replay", "torch", "numpy", "gymnasium", "safetensors", "triton", "stable-baselines3", "mujoco")
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    accelerator = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "machine": {"accelerator": accelerator, "cpu": platform.machine(), "cores": os.cpu_count()},
        "versions": versions,
        # absolute paths are of this machine only
        "command": " ".join(["python", *(Path(a).name if Path(a).is_absolute() else a for a in sys.argv)]),
        "commit": commit(),
    }


def sign(made_on: list[dict[str, Any]], device: torch.device) -> None:
    """Note in `made_on` on which machine and with which code a run goes on, and warn if that has changed."""
    here = {key: value for key, value in origin(device).items() if key in ("machine", "commit")}
    if made_on and made_on[-1] != here:
        warnings.warn(f"this run was begun with {made_on[-1]} and goes on with {here}", stacklevel=3)
    if here not in made_on:
        made_on.append(here)


def commit() -> str:
    """The commit measured: from git, or from SYNTHER_REPLAY_COMMIT where the tree was copied without its history."""
    given = os.environ.get("SYNTHER_REPLAY_COMMIT")
    if given:
        return given
    folder = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True)
        dirty = subprocess.run(["git", "status", "--porcelain"], cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("-dirty" if dirty.stdout.strip() else "")


def make_folder_of(result: Path) -> None:
    """Make the folder of a result before the run, and not when there is a result to lose."""
    try:
        result.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(result.parent, os.W_OK | os.X_OK):
            raise PermissionError("it cannot be written to")
        if result.is_dir():
            raise ValueError(f"out: expected a file to write, got the folder {result}")
    except OSError as error:
        raise ValueError(f"out: expected a folder to write to, got {result.parent} ({error})") from error


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A name to write to, whose file takes the place of `path` in the end; its folder is made.

    Raises:
        OSError: With the name of the file, which that of a full disk does not have.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        raise OSError(f"{path}: cannot be written ({error.strerror or error})") from error


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a result in one step."""
    with writing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def mean_and_spread(values: Sequence[float], digits: int = 0) -> str:
    """Mean and standard deviation of a sample, by n - 1; of one value, which has no spread, the value alone."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} +- {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown; numbers are rounded to four digits."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
