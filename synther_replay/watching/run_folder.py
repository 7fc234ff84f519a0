"""RunFolder: the history of refits as JSON lines, which a kill at any time leaves readable."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from synther_replay.watching.record import RefitRecord

HISTORY = "refits.jsonl"
REPORT = "report.html"


class RunFolder:
    """Writes refits to a run directory, for ``synther watch``.

    The history is append-only, one line of JSON per refit, and on disk before the run goes on.

    Args:
        path: The directory; made if it does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Make the directory."""
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)

    def write(self, record: RefitRecord) -> None:
        """Append one refit to the history."""
        line = json.dumps({"time": round(time.time(), 3), **record.to_json()}, allow_nan=False)
        with open(self.path / HISTORY, "ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a killed run left half a line
                    line = f"\n{line}"
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())


def read_history(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the refits of the run in a directory, in the order of their steps.

    Lines that are not whole are left out, and so are refits that were made again after the run was resumed from an
    earlier step or started anew.
    """
    try:
        text = (Path(path) / HISTORY).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    records: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            continue
        while records and records[-1]["step"] >= record["step"]:
            records.pop()
        records.append(record)
    return records
