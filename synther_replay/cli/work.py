"""WorkFolder: what a killed command leaves beside its output, so that the same command continues."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from synther_replay.persistence.atomic import replacing

try:
    import fcntl
except ImportError:  # Windows, where two commands for one output are not detected
    fcntl = None  # type: ignore[assignment]

_MANIFEST, _MODEL, _ROWS = "manifest.json", "model.safetensors", "rows.spool"
_SHARDS, _ENTRIES, _OLD = "shards", "entries", "old"  # folders of an output in shards


class WorkFolder:
    """The folder ``<output>.partial`` with a manifest, the fitted model and the rows so far.

    What a command with other arguments, input or version left there is removed; other files are not touched.

    Args:
        output: The file or folder that will be written.
        manifest: Everything that the rows depend on, as JSON values.

    Raises:
        BlockingIOError: Another process is writing the same output.
        FileExistsError: There is a folder of that name with other files.
    """

    def __init__(self, output: Path, manifest: Mapping[str, Any]) -> None:
        """Make or continue the folder."""
        self.path = _folder(output)
        self.path.mkdir(exist_ok=True)
        self._lock_file = self.path / "lock"
        if any(self.path.iterdir()) and not self._lock_file.exists():
            raise FileExistsError(f"{self.path}: holds other files; rows of {output} would wait there")
        self._lock = self._lock_file.open("w")
        if fcntl is not None:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BlockingIOError(f"{output}: another process is writing it ({self.path} is locked)") from error
            if not os.fstat(self._lock.fileno()).st_nlink:  # its owner has removed it meanwhile
                raise BlockingIOError(f"{output}: another process has just written it")
        self._settle_old(output)
        self.is_continued = self._manifest() == json.loads(json.dumps(manifest))
        if not self.is_continued:
            self.model.unlink(missing_ok=True)
            self.rows.unlink(missing_ok=True)
            for folder in (_SHARDS, _ENTRIES):
                shutil.rmtree(self.path / folder, ignore_errors=True)
            with replacing(self.path / _MANIFEST) as temporary:
                temporary.write_text(json.dumps(manifest))

    def _settle_old(self, output: Path) -> None:
        """Take the old output back that a killed command had moved away, or remove it where the new one is there."""
        old = self.path / _OLD
        if old.exists() and not output.exists():
            os.replace(old, output)
        shutil.rmtree(old, ignore_errors=True)

    @classmethod
    def is_left(cls, output: Path) -> bool:
        """Whether a model or rows wait for the same command to be given again."""
        return any((_folder(output) / name).exists() for name in (_MODEL, _ROWS, _SHARDS))

    @property
    def model(self) -> Path:
        """Path of the fitted model."""
        return self.path / _MODEL

    @property
    def rows(self) -> Path:
        """Path of the rows so far."""
        return self.path / _ROWS

    @property
    def shards(self) -> Path:
        """Path of the shards so far; their entries are beside it."""
        return self.path / _SHARDS

    def deliver_shards(self, output: Path) -> None:
        """Move the folder of shards to the output; an old one goes, or comes back if that fails.

        After a kill in between, the old one waits in this folder for the next command, which takes it back.
        """
        old = self.path / _OLD
        if output.exists():
            os.replace(output, old)
        try:
            os.replace(self.shards, output)
        except BaseException:
            if old.exists():
                os.replace(old, output)
            raise
        for folder in (old, self.path / _ENTRIES):
            shutil.rmtree(folder, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder, unless it has other files; the output is complete."""
        for own in (self.model, self.rows, self.path / _MANIFEST, self._lock_file):
            own.unlink(missing_ok=True)
        self._lock.close()
        with suppress(OSError):
            self.path.rmdir()

    def _manifest(self) -> Any:
        try:
            return json.loads((self.path / _MANIFEST).read_text())
        except (OSError, ValueError):
            return None


def _folder(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial")
