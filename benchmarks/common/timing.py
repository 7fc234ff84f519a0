"""Timing without warm-up, and where the time of a run goes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Stopwatch:
    """Seconds of a run, without those between a stop and its continuation.

    Args:
        clocks: Names of the parts to count; some may run side by side.

    Attributes:
        begun: When this process began it.
        seconds: Spent so far, by clock.
    """

    def __init__(self, clocks: tuple[str, ...]) -> None:
        """Start now."""
        self.begun = time.monotonic()
        self.seconds = dict.fromkeys(clocks, 0.0)
        self._before = 0.0  # in earlier processes

    def total_seconds(self) -> float:
        """Of the whole run so far."""
        return self._before + time.monotonic() - self.begun

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Count the time spent within."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - begun

    def wall_seconds(self) -> dict[str, float]:
        """Seconds of the whole and of its parts."""
        return {"total": self.total_seconds(), **self.seconds}

    def continue_from(self, wall_seconds: dict[str, float]) -> None:
        """Count on from what an earlier process spent; what was spent on getting ready here counts too."""
        for name in self.seconds:
            self.seconds[name] += wall_seconds.get(name, 0.0)
        self._before += wall_seconds["total"]


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], Any], device: torch.device, *, repeats: int = 3, warm_up: int = 1) -> float:
    """Median time of one call, after `warm_up` calls that are not counted."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeats):
        synchronise(device)
        begun = time.perf_counter()
        work()
        synchronise(device)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)
