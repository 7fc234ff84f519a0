"""What a sub-command shows: progress on a terminal's stderr, the result on stdout."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

Advance = Callable[[int], None]


class Output:
    """Shows progress and result of one command.

    Args:
        as_json: Whether the result is one JSON object.
        always: Whether a readable result is printed if stdout is not a terminal, too.
    """

    def __init__(self, *, as_json: bool, always: bool = False) -> None:
        """Look at the terminals."""
        self._as_json = as_json
        self._shown = always or sys.stdout.isatty()
        self._progress = Console(stderr=True)

    @property
    def is_interactive(self) -> bool:
        """Whether somebody sees the progress."""
        return self._progress.is_terminal

    @contextmanager
    def step(self, description: str, total: int | None = None, done: int = 0) -> Iterator[Advance]:
        """Show a bar, or a spinner without a `total`, while the block runs; it advances by the yielded function."""
        if not self.is_interactive:
            yield lambda _: None
            return
        columns = (
            (BarColumn(), MofNCompleteColumn(), TextColumn("time left"), TimeRemainingColumn())
            if total is not None
            else (TimeElapsedColumn(),)
        )
        with Progress(
            SpinnerColumn(),
            TextColumn(description),
            *columns,
            console=self._progress,
            transient=True,
            speed_estimate_period=math.inf,  # a block of rows may take longer than any period
        ) as progress:
            task = progress.add_task(description, total=total, completed=done)
            progress.advance(task, 0)  # speed counts from here, so that the first block gives an estimate
            yield lambda rows: progress.advance(task, rows)

    def note(self, text: str) -> None:
        """Print a line on stderr; as JSON, the result tells it."""
        if not self._as_json:
            self._progress.print(" ".join(text.split()), highlight=False, markup=False, soft_wrap=True)

    def result(self, values: Mapping[str, Any], text: str | Table) -> None:
        """Print the result."""
        if self._as_json:
            print(json.dumps(values, default=str))
        elif self._shown:
            Console(soft_wrap=isinstance(text, str)).print(text, highlight=False)
