"""Result files, written in one step."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from synther_replay.persistence.atomic import replacing


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
