"""Atomic writing of result files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from synther_replay.persistence.atomic import replacing


def make_folder_of(result: Path) -> None:
    """Create the folder of a result file. Called before a run, so that a bad path fails before hours of work."""
    try:
        result.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(result.parent, os.W_OK | os.X_OK):
            raise PermissionError("no write permission")
        if result.is_dir():
            raise ValueError(f"--out: expected a file, got the folder {result}")
    except OSError as error:
        raise ValueError(f"--out: expected a writable folder, got {result.parent} ({error})") from error


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds; the folder is created.

    Raises:
        OSError: The file cannot be written. The message names `path`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        raise OSError(f"{path}: cannot write the file ({error.strerror or error})") from error


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    with writing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")
