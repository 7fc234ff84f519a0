"""Shared by the runs of the frameworks' own tests: options of our buffers, and a pytest plugin that counts outcomes."""

from __future__ import annotations

import importlib.metadata
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from synther_replay import GeneratorConfig, RetrainSchedule

# Small and early enough for synthetic rows in tests of a hundred steps.
GENERATOR = GeneratorConfig.tiny(
    width=16, depth=1, embedding=16, steps=10, refit_steps=10, batch_size=32, sampling_steps=4
)
SCHEDULE = RetrainSchedule(every=100, rows=200, start=32)
# Hundreds of buffers are built and dropped in one process: it grows beyond this only if they stay in memory.
MOST_GIGABYTES = 4.0


@dataclass
class Record:
    """Options of our buffers in the current test, and what happened in it.

    Attributes:
        real_ratio: Real ratio of every buffer, except of those whose rows are too long for a generator.
        options: Further options of the buffers in the current test.
        ours: Whether the current test has built one of our buffers.
        mixed: Whether one of them returned a batch with synthetic rows.
        too_long: Whether one of them got ``real_ratio=1`` because its rows are too long for a generator.
    """

    real_ratio: float
    options: Mapping[str, Any] = field(default_factory=dict)
    ours: bool = False
    mixed: bool = False
    too_long: bool = False

    def start(self, options: Mapping[str, Any]) -> None:
        """Begin a test whose buffers get these options."""
        self.options, self.ours, self.mixed, self.too_long = options, False, False, False

    def buffer_options(self, row_length: int = 0) -> dict[str, Any]:
        """Return the options of a new buffer with rows of this length."""
        self.ours = True
        options = {"real_ratio": self.real_ratio, "generator": GENERATOR, "schedule": SCHEDULE, **self.options}
        try:
            GENERATOR.network(row_length)
        except ValueError:  # an image: refused with synthetic rows
            self.too_long = self.real_ratio < 1
            options["real_ratio"] = 1.0
        return options


@dataclass(frozen=True)
class CannotApply:
    """Tests that must fail with our buffers.

    Attributes:
        test: Prefix of their names: ``test_file.py::test_name[parameters]``.
        reason: The reason.
        when_mixed: Whether this applies only with synthetic rows.
        without_gpu: Whether this applies only without a GPU.
    """

    test: str
    reason: str
    when_mixed: bool = True
    without_gpu: bool = False


@dataclass(frozen=True)
class Framework:
    """Description of a framework.

    Attributes:
        distribution: Name of the installed distribution.
        folder: Where its tests are in a checkout.
        files: The test files below that folder, each with options that our buffers need there.
        substitute: Puts our classes in the place of the framework's; called before its tests are imported.
        mixed: Number of tests that have to get synthetic rows with a real ratio below 1, at least.
        leaves_out: Whether a test has nothing to do with replay buffers: gets the test and the real ratio.
        cannot_apply: Tests that have to fail.
        on_pypi: Whether the source distribution on PyPI has the tests.
    """

    distribution: str
    folder: str
    files: Mapping[str, Mapping[str, Any]]
    substitute: Callable[[Record], None]
    mixed: int
    leaves_out: Callable[[pytest.Item, float], bool]
    cannot_apply: tuple[CannotApply, ...] = ()
    on_pypi: bool = False


class Plugin:
    """Pytest plugin: makes the tests of a framework use our buffers and counts the outcomes.

    Args:
        framework: The framework.
        record: What the buffers tell.
        whole: Whether all tests run; only then the number of tests with synthetic rows is checked.
    """

    columns = ("passed", "cannot apply", "failed", "skipped", "ours", "mixed", "too long")

    def __init__(self, framework: Framework, record: Record, *, whole: bool) -> None:
        self.framework, self.record, self.whole = framework, record, whole
        self.options = {Path(name).name: options for name, options in framework.files.items()}
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.too_long: list[str] = []
        self.faults: list[str] = []

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if self.framework.leaves_out(item, self.record.real_ratio)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
        for item in items:
            for known in self.framework.cannot_apply:
                spared = (known.when_mixed and self.record.real_ratio == 1) or (
                    known.without_gpu and torch.cuda.is_available()
                )
                if not spared and f"{item.path.name}::{item.name}".startswith(known.test):
                    item.add_marker(pytest.mark.xfail(reason=known.reason, strict=True))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        record = self.record
        record.start(self.options[item.path.name])
        done = yield
        self.counts[item.path.name] += Counter(ours=record.ours, mixed=record.mixed)
        if record.too_long:
            self.counts[item.path.name]["too long"] += 1
            self.too_long.append(f"{item.path.name}::{item.name}")
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            expected = "cannot apply" if hasattr(report, "wasxfail") else report.outcome
            self.counts[Path(report.location[0]).name][expected] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        mixed = sum(counts["mixed"] for counts in self.counts.values())
        if self.whole and self.record.real_ratio < 1 and mixed < self.framework.mixed:
            self.faults.append(f"synthetic rows in {mixed} tests, expected at least {self.framework.mixed}")
        if peak_gigabytes() > MOST_GIGABYTES:
            self.faults.append(f"peak memory of {peak_gigabytes():.1f} GB, expected at most {MOST_GIGABYTES} GB")
        if self.faults and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        version = importlib.metadata.version(self.framework.distribution)
        terminalreporter.section(f"{self.framework.distribution} {version}, real_ratio={self.record.real_ratio}")
        terminalreporter.line("| file | " + " | ".join(self.columns) + " |")
        terminalreporter.line("|---" * (1 + len(self.columns)) + "|")
        total = Counter[str]()
        for name, counts in [*self.counts.items(), ("**all**", total)]:
            terminalreporter.line(f"| {name} | " + " | ".join(str(counts[column]) for column in self.columns) + " |")
            total += counts
        for name in self.too_long:
            terminalreporter.line(f"with real_ratio=1, rows too long: {name}")
        terminalreporter.line(f"peak memory: {peak_gigabytes():.1f} GB")
        for fault in self.faults:
            terminalreporter.line(f"FAULT: {fault}", red=True)


def peak_gigabytes() -> float:
    """Return the most memory that this process has held."""
    import resource  # not on Windows, where pytest imports this file when it looks for doctests

    unit = 1 if sys.platform == "darwin" else 1_024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
