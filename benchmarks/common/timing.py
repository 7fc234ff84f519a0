"""Timing: the clocks of a resumable run, and the median time of a call after warm-up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Stopwatch:
    """Wall time of a run and of its parts, summed over the processes that worked on it.

    Args:
        clocks: Names of the parts; they may overlap in time.

    Attributes:
        started: `time.monotonic()` at which this process started the run.
        seconds: Seconds spent so far, by clock.
    """

    def __init__(self, clocks: tuple[str, ...]) -> None:
        """Start now."""
        self.started = time.monotonic()
        self.seconds = dict.fromkeys(clocks, 0.0)
        self._before = 0.0  # spent by earlier processes

    def total_seconds(self) -> float:
        """Wall time of the run so far."""
        return self._before + time.monotonic() - self.started

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Add the time spent in the `with` block to a clock."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - started

    def move(self, seconds: float, name: str, to: str) -> None:
        """Count seconds of one clock on another."""
        self.seconds[name] -= seconds
        self.seconds[to] += seconds

    def wall_seconds(self) -> dict[str, float]:
        """Seconds in total and by clock."""
        return {"total": self.total_seconds(), **self.seconds}

    def continue_from(self, wall_seconds: dict[str, float]) -> None:
        """Add the seconds of earlier processes; those already counted in this process are kept."""
        for name in self.seconds:
            self.seconds[name] += wall_seconds.get(name, 0.0)
        self._before += wall_seconds["total"]


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], Any], device: torch.device, *, repeats: int = 3, warm_up: int = 1) -> float:
    """Median seconds of one call, after `warm_up` calls that are not timed."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeats):
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times)
