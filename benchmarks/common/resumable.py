"""Resumable runs: checkpoint and result files, the check that both match the settings, and the save-and-stop loop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from synther_replay.benchmarks.common.files import write_json
from synther_replay.errors import CheckpointError
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint

_ABSENT = "absent"  # distinguishes a missing setting from None


def checkpoint_path(result: Path) -> Path:
    """Path of the checkpoint of an unfinished run, next to its result file."""
    return result.with_name(f".{result.stem}.checkpoint")


class HasSettings(Protocol):
    """Settings of a run."""

    def to_json(self) -> dict[str, Any]:
        """Everything that the result depends on, as JSON values."""


def is_done(path: Path, settings: HasSettings) -> bool:
    """Whether the result file exists. Raises `ValueError` if it has other settings, so that it is not overwritten."""
    if not path.exists():
        return False
    if mismatch := differences(read_result(path).get("settings"), settings.to_json()):
        raise ValueError(f"{path}: result has other settings ({mismatch}); remove the file or choose another --out")
    return True


def read_result(path: Path) -> dict[str, Any]:
    """Read a result file."""
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:
        raise ValueError(f"{path}: result file is damaged ({error}); remove it") from error
    return content


def saved_state(checkpoint: Path, kind: str, settings: HasSettings) -> dict[str, Any]:
    """Load a checkpoint. Raises `ValueError` if it was saved with other settings."""
    try:
        state = load_checkpoint(checkpoint, kind)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; remove the file to start over") from error
    if mismatch := differences(state["settings"], settings.to_json()):
        raise ValueError(
            f"{checkpoint}: checkpoint has other settings ({mismatch}); remove the file or choose another --out"
        )
    return state


def save_state(checkpoint: Path, kind: str, state: dict[str, Any]) -> None:
    """Save a checkpoint.

    Raises:
        OSError: The disk is full. The message says whether an earlier checkpoint remains.
    """
    try:
        save_checkpoint(checkpoint, kind, state)
    except OSError as error:
        reason = error.__cause__ or error  # the cause does not repeat the path
        raise OSError(
            f"{checkpoint}: cannot save the checkpoint ({reason}); free disk space, then {resume_hint(checkpoint)}"
        ) from error


def save_result(path: Path, result: dict[str, Any]) -> None:
    """Write the result of a finished run and remove its checkpoint.

    Raises:
        OSError: The disk is full. The result is printed to stdout if possible, so that it is not lost.
    """
    try:
        write_json(path, result)
    except OSError as error:
        printed = "the result was printed to stdout; "
        try:
            print(json.dumps(result), flush=True)
        except OSError:  # stdout is redirected to the same full disk
            printed = ""
        raise OSError(f"{error}; {printed}free disk space, then {resume_hint(checkpoint_path(path))}") from error
    checkpoint_path(path).unlink(missing_ok=True)


def resume_hint(checkpoint: Path) -> str:
    """What repeating the command does after a run was interrupted."""
    if checkpoint.exists():
        return "run the same command to resume from the last checkpoint"
    return "run the same command to start over (no checkpoint was saved)"


def differences(found: Any, expected: Any, name: str = "settings") -> str:
    """List the values in which two nested dictionaries differ; an empty string if they are equal."""
    if not (isinstance(found, dict) and isinstance(expected, dict)):
        return "" if found == expected else f"{name}: got {found!r}, expected {expected!r}"
    keys = {**found, **expected}
    parts = (differences(found.get(key, _ABSENT), expected.get(key, _ABSENT), key) for key in keys)
    return "; ".join(filter(None, parts))


def run_until(
    chunk: Callable[[], None],
    save: Callable[[], None],
    finished: Callable[[], bool],
    *,
    started: float,
    time_limit: float | None,
    checkpoint_every: float,
) -> bool:
    """Run chunks until the run is finished or the time limit is reached.

    Args:
        chunk: Runs the next chunk.
        save: Saves a checkpoint.
        finished: Whether the run is finished.
        started: `time.monotonic()` at which the time limit starts to count.
        time_limit: Seconds after which to save and stop; None for no limit.
        checkpoint_every: Seconds between checkpoints.

    Returns:
        Whether the run is finished.
    """
    saved = started
    while not finished():
        chunk()
        now = time.monotonic()
        out_of_time = time_limit is not None and now - started > time_limit
        if not finished() and (out_of_time or now - saved > checkpoint_every):
            save()
            saved = time.monotonic()
            if out_of_time:
                return False
    return True
