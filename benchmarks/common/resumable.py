"""What runs that can be stopped and continued have in common.

Where their results and checkpoints are and whether they are of the same settings, what is left where one breaks off,
where their time goes, and when they save and stop.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from synther_replay.benchmarks.common.files import write_json
from synther_replay.errors import CheckpointError
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint

_ABSENT = "absent"  # a setting that is not there is not the same as None


def checkpoint_beside(result: Path) -> Path:
    """Where a run is saved whose result is not there yet."""
    return result.with_name(f".{result.stem}.checkpoint")


class HasSettings(Protocol):
    """What a result can be of."""

    def to_json(self) -> dict[str, Any]:
        """Everything that the result depends on."""


def is_done(path: Path, settings: HasSettings) -> bool:
    """Whether the result is there already; one of other settings is never overwritten."""
    if not path.exists():
        return False
    if other := differences(read_result(path).get("settings"), settings.to_json()):
        raise ValueError(f"{path} holds the result of other settings ({other}); remove it, or choose another --out")
    return True


def read_result(path: Path) -> dict[str, Any]:
    """What a result file holds."""
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); remove it first") from error
    return content


def saved_state(checkpoint: Path, kind: str, settings: HasSettings) -> dict[str, Any]:
    """Where a run was left; one of other settings is refused."""
    try:
        state = load_checkpoint(checkpoint, kind)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; remove it to begin again") from error
    if other := differences(state["settings"], settings.to_json()):
        raise ValueError(f"{checkpoint} was made with other settings ({other}); remove it, or choose another --out")
    return state


def save_state(checkpoint: Path, kind: str, state: dict[str, Any]) -> None:
    """Save where a run is.

    Raises:
        OSError: There is no room; the message says what is left.
    """
    try:
        save_checkpoint(checkpoint, kind, state)
    except OSError as error:
        why = error.__cause__ or error  # without the path, which is said already
        raise OSError(
            f"{checkpoint}: the run cannot be saved ({why}); with room for it {resume_hint(checkpoint)}"
        ) from error


def save_result(path: Path, result: dict[str, Any]) -> None:
    """Write the result of a run that is finished, which needs no checkpoint any more.

    Raises:
        OSError: There is no room. The result is printed where it can be, so that it is not lost.
    """
    try:
        write_json(path, result)
    except OSError as error:
        instead = "it is printed instead, to be put there, or "
        try:
            print(json.dumps(result), flush=True)
        except OSError:  # the output goes to a file on the same disk
            instead = ""
        raise OSError(f"{error}; {instead}with room for it {resume_hint(checkpoint_beside(path))}") from error
    checkpoint_beside(path).unlink(missing_ok=True)


def resume_hint(checkpoint: Path) -> str:
    """What comes of a run that broke off, in words."""
    if checkpoint.exists():
        return "the same command goes on from what was saved last"
    return "the same command begins again, as nothing was saved"


def differences(found: Any, wanted: Any, name: str = "settings") -> str:
    """Where two trees of settings differ, in words; nothing where they are equal."""
    if not (isinstance(found, dict) and isinstance(wanted, dict)):
        return "" if found == wanted else f"{name} {found!r}, not {wanted!r}"
    parts = (differences(found.get(key, _ABSENT), wanted.get(key, _ABSENT), key) for key in {**found, **wanted})
    return ", ".join(filter(None, parts))


def run_until(
    chunk: Callable[[], None],
    save: Callable[[], None],
    finished: Callable[[], bool],
    *,
    begun: float,
    time_limit: float | None,
    checkpoint_every: float,
) -> bool:
    """Go on to the end or the time limit, whichever comes first.

    Args:
        chunk: Makes the run a little longer.
        save: Saves where it is.
        finished: Says whether it is at its end.
        begun: Since when the limit counts.
        time_limit: Seconds after which to save and stop; None for no limit.
        checkpoint_every: Seconds between two saves on the way.

    Returns:
        Whether the end was reached.
    """
    saved = begun
    while not finished():
        chunk()
        now = time.monotonic()
        out_of_time = time_limit is not None and now - begun > time_limit
        if not finished() and (out_of_time or now - saved > checkpoint_every):
            save()
            saved = time.monotonic()
            if out_of_time:
                return False
    return True
