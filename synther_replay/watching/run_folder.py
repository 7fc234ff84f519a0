"""RunFolder: the history of refits as JSON lines, which a kill at any time leaves readable."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from pathlib import Path
from typing import Any

from synther_replay.common.checks import whole_number
from synther_replay.watching.record import RefitRecord

logger = logging.getLogger(__name__)

HISTORY = "refits.jsonl"
REPORT = "report.html"


class RunFolder:
    """Writes refits to a run directory, for ``synther watch``.

    The history is append-only, one line of JSON per refit, and on disk before the run goes on. The quality report of
    the rows that were compared takes about a second, so not every refit has one; it needs Plotly.

    Args:
        path: The directory; made if it does not exist.
        report_every: Refits from one report to the next, the first refit has one; 0: no reports.
    """

    def __init__(self, path: str | os.PathLike[str], *, report_every: int = 10) -> None:
        """Make the directory."""
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._report_every = whole_number("report_every", report_every, least=0)
        self._written = 0

    def write(self, record: RefitRecord) -> None:
        """Append one refit to the history; write the report if it is due."""
        self._append(record)
        if self._report_every and self._written % self._report_every == 0:
            self._report(record)
        self._written += 1

    def _report(self, record: RefitRecord) -> None:
        if record.real is None or record.synthetic is None:
            return
        from synther_replay.report import report  # takes longer to import than the rest of this package

        settings = {"Refit": {"line": record.line()}, "Fit": record.report.fit}
        title = f"{self.path.name}: rows of the refit at step {record.step:,}"
        try:
            report(record.real, record.synthetic, settings=settings, title=title).save(self.path / REPORT)
        except ImportError as error:
            logger.info("no reports in %s: %s", self.path, error)
            self._report_every = 0

    def _append(self, record: RefitRecord) -> None:
        line = json.dumps({"time": round(time.time(), 3), **record.to_json()}, allow_nan=False)
        self.path.mkdir(parents=True, exist_ok=True)  # this writer may have been unpickled on another machine
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
    earlier step or started anew. Numbers that are not finite are None.
    """
    try:
        text = (Path(path) / HISTORY).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    records: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            record = json.loads(line, parse_constant=lambda _: None, parse_float=_finite)
        except (ValueError, RecursionError):  # a forged line may be nested as deeply as it is long
            continue
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            continue
        is_failure = record.get("error") is not None  # replaces nothing
        while not is_failure and records and records[-1]["step"] >= record["step"]:
            records.pop()
        records.append(record)
    return records


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None  # 1e999 is infinite
