"""Atomic file writes: after a failure the old file is complete, after success the new one."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ABANDONED = 3_600.0  # seconds after which a temporary file of another machine counts as abandoned
# .<name of the file>.<machine>.<process>.synther.tmp, of a folder .synther.dir
_NAME = re.compile(r"\.(?P<name>.+)\.(?P<machine>[^.]*)\.(?P<process>\d+)\.synther\.(?:tmp|dir)")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; the temporary file replaces `path` if the block ends without an error.

    The new file has the permissions of the old one; without an old one, those that the umask gives. If `path` is a
    symbolic link, its target is replaced.

    A killed process leaves its temporary file behind. The next process that writes to the folder on the same machine
    removes it. A temporary file of another machine is removed by the next write of `path` after one hour.

    Raises:
        FileNotFoundError: The folder does not exist.
        OSError: The file cannot be written. The message names it.
    """
    if path.is_dir():  # before anything is computed for it
        raise IsADirectoryError(errno.EISDIR, "is a folder; name a file", str(path))
    with _beside(path, "tmp") as (path, temporary):
        yield temporary
        with suppress(FileNotFoundError):  # there is no old file
            os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
        _to_disk(temporary)
        os.replace(temporary, path)
        _to_disk(path.parent)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder next to `path`; it replaces `path` if the block ends without an error.

    If `path` is a symbolic link, its target is replaced. A folder cannot replace another in one step. A process that is
    killed between the two leaves the old one beside `path` as ``.<name>.<machine>.<process>.synther.old``; nothing
    removes it.

    Raises:
        FileNotFoundError: The folder around does not exist.
        OSError: The folder cannot be written. The message names it.
    """
    with _beside(path, "dir") as (path, temporary):
        temporary.mkdir()
        yield temporary
        for written in sorted(temporary.rglob("*"), reverse=True):
            _to_disk(written)
        _to_disk(temporary)
        old = temporary.with_suffix(".old") if path.exists() else None
        if old is not None:
            os.replace(path, old)
        try:
            os.replace(temporary, path)
        except BaseException:
            if old is not None:
                os.replace(old, path)
            raise
        _to_disk(path.parent)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _beside(path: Path, ending: str) -> Iterator[tuple[Path, Path]]:
    """Yield the path, or the target of a link, and the name of a temporary file or folder, which is removed at the end.

    Abandoned ones of the same ending are removed first. An error of a write names the path.
    """
    if path.is_symlink():
        path = path.resolve()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path: folder {path.parent} does not exist")
    for left in path.parent.glob(f".*.synther.{ending}"):
        with suppress(FileNotFoundError):  # another process may have removed it
            if _is_abandoned(left, path.name):
                _remove(left)
    temporary = path.with_name(f".{path.name}.{_machine()}.{os.getpid()}.synther.{ending}")
    try:
        yield path, temporary
    except OSError as error:
        if error.errno is not None and error.filename is None:  # of a failed write, for example on a full disk
            error.filename = str(path)
        raise
    finally:
        _remove(temporary)


def _remove(temporary: Path) -> None:
    if temporary.is_dir():
        shutil.rmtree(temporary, ignore_errors=True)
    else:
        temporary.unlink(missing_ok=True)


def _machine() -> str:
    return platform.node().replace(".", "-")


def _is_abandoned(left: Path, name: str) -> bool:
    """Return whether the writer of a temporary file has ended, or the file is an old one of the same `name`."""
    found = _NAME.fullmatch(left.name)
    if found is None:
        return False
    if os.name == "posix" and found["machine"] == _machine() and not _is_running(int(found["process"])):
        return True
    return found["name"] == name and time.time() - left.stat().st_mtime > _ABANDONED


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only checks that the process exists
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's process, or not a valid process id
        return True
    return True


def _to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
