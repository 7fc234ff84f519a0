"""Provenance of results: machine, package versions, command line and commit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def origin(device: torch.device) -> dict[str, Any]:
    """Machine, package versions, command line and commit of this process, as JSON values."""
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
        # absolute paths mean nothing on other machines, so only their last part is kept
        "command": " ".join(["python", *(Path(a).name if Path(a).is_absolute() else a for a in sys.argv)]),
        "commit": commit(),
    }


def record_origin(made_on: list[dict[str, Any]], device: torch.device) -> None:
    """Append machine and commit of this process to `made_on`; warn if they differ from those of the last process."""
    here = {key: value for key, value in origin(device).items() if key in ("machine", "commit")}
    if made_on and made_on[-1] != here:
        warnings.warn(f"resumed on another machine or commit: started with {made_on[-1]}, now {here}", stacklevel=3)
    if here not in made_on:
        made_on.append(here)


def commit() -> str:
    """The commit of the code: SYNTHER_REPLAY_COMMIT if set (for copies without git history), else asked from git."""
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
