"""Files that are written in one step: whatever happens, the old one or the new one is there whole."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ABANDONED = 3_600.0  # seconds after which nobody is still writing


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; the file takes the place of `path` when the block ends without an error.

    A process that is killed leaves its file under that name behind. The next one to write `path` removes it, once it is
    old enough not to be somebody's who is still writing.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path: there is no folder {path.parent}")
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(FileNotFoundError):  # another process may be quicker
            if time.time() - left.stat().st_mtime > _ABANDONED:
                left.unlink()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _to_disk(temporary)
        os.replace(temporary, path)
        _to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    """Ask the system to write a file, or the entries of a folder, to disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
