"""Machine, versions, command and commit behind a result."""

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


def record_origin(made_on: list[dict[str, Any]], device: torch.device) -> None:
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
