"""Files that are written in one step: whatever happens, the old one or the new one is there whole."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ABANDONED = 3_600.0  # seconds after which nobody is still writing
# .<name of the file>.<machine>.<process>.synther.tmp
_NAME = re.compile(r"\.(?P<name>.+)\.(?P<machine>[^.]*)\.(?P<process>\d+)\.synther\.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; the file takes the place of `path` when the block ends without an error.

    A process that is killed leaves its file under that name behind. The next one that writes to the folder removes it;
    where it cannot see whether that process is still there, on another machine, the next one to write `path` does, once
    the file is old. A symbolic link stays one: what it points to is replaced.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    if path.is_symlink():
        path = path.resolve()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path: there is no folder {path.parent}")
    for left in path.parent.glob(".*.synther.tmp"):
        with suppress(FileNotFoundError):  # another process may be quicker
            if _is_abandoned(left, path.name):
                left.unlink()
    temporary = path.with_name(f".{path.name}.{_machine()}.{os.getpid()}.synther.tmp")
    try:
        yield temporary
        _to_disk(temporary)
        os.replace(temporary, path)
        _to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _machine() -> str:
    return platform.node().replace(".", "-")


def _is_abandoned(left: Path, name: str) -> bool:
    """Whether nobody will finish a temporary file: its process is gone, or it is old and in the way of `name`."""
    found = _NAME.fullmatch(left.name)
    if found is None:
        return False
    if os.name == "posix" and found["machine"] == _machine() and not _is_running(int(found["process"])):
        return True
    return found["name"] == name and time.time() - left.stat().st_mtime > _ABANDONED


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # only asks
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # somebody else's, or no number of a process
        return True
    return True


def _to_disk(path: Path) -> None:
    """Ask the system to write a file, or the entries of a folder, to disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
