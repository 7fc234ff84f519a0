"""The tests that the frameworks ship with, with our buffers in place of theirs; README.md has the results.

`make soak` runs them; ``make soak PYTEST_ARGS="-rP tests/integrations"`` shows the tables. SB3_DIR and
TORCHRL_DIR name checkouts; without the first, the tests of Stable-Baselines3 come from PyPI.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parent
PACKAGES = {"sb3": "stable_baselines3", "torchrl": "torchrl"}


@pytest.fixture
def runner(monkeypatch):
    """The module `run_framework_tests`, as if no framework was installed."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for package in PACKAGES.values():
        monkeypatch.setitem(sys.modules, package, None)
    for module in ("run_framework_tests", "substitution", "sb3_substitution"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return importlib.import_module("run_framework_tests")


@pytest.mark.soak
@pytest.mark.parametrize("real_ratio", [1.0, 0.5])
@pytest.mark.parametrize("framework", PACKAGES)
def test_own_tests_of_the_framework_pass(framework, real_ratio):
    pytest.importorskip(PACKAGES[framework])
    variable = f"{framework.upper()}_DIR"
    checkout = os.environ.get(variable)
    if framework == "torchrl" and not checkout:
        pytest.skip(f"{variable} does not name a checkout of TorchRL, whose tests are not on PyPI")
    command = [sys.executable, FOLDER / "run_framework_tests.py", framework, "--real-ratio", str(real_ratio)]
    ended = subprocess.run(
        [*command, "--checkout", checkout] if checkout else command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    print(ended.stdout[-20_000:])
    assert ended.returncode == 0


def test_runner_needs_no_framework(runner):
    assert runner.FRAMEWORKS.keys() == PACKAGES.keys()
    framework = importlib.import_module("sb3_substitution").FRAMEWORK
    with pytest.raises(ImportError):
        framework.substitute(runner.Record(1.0))


def test_rows_too_long_for_a_generator_stay_real_and_are_counted(runner):
    record = runner.Record(0.5)
    assert record.buffer_options(100)["real_ratio"] == 0.5 and not record.too_long
    assert record.buffer_options(30_000)["real_ratio"] == 1.0 and record.too_long
    record.start({})
    assert not record.too_long


@pytest.mark.parametrize(
    ("mixed", "gigabytes", "whole", "status"),
    [(5, 1.0, True, 0), (4, 1.0, True, 1), (4, 1.0, False, 0), (5, 18.0, True, 1)],
)
def test_run_fails_without_synthetic_rows_or_with_much_memory(runner, monkeypatch, mixed, gigabytes, whole, status):
    monkeypatch.setattr(sys.modules["substitution"], "peak_gigabytes", lambda: gigabytes)
    plugin = runner.Plugin(SimpleNamespace(files={}, mixed=5), runner.Record(0.5), whole=whole)
    plugin.counts["test_run.py"]["mixed"] = mixed
    session = SimpleNamespace(exitstatus=0)
    plugin.pytest_sessionfinish(session)
    assert session.exitstatus == status
