"""Fixtures of the tests of the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_data import arrays

pytest.importorskip("typer")
pytest.importorskip("h5py")
pytest.importorskip("pyarrow")


@pytest.fixture
def synther(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command in this process, because a new one spends seconds on imports."""
    from synther_replay.cli import main

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        given = list(map(str, arguments))
        monkeypatch.setattr(sys, "argv", ["synther", *given])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # restored after the test
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        status = ended.value.code
        return subprocess.CompletedProcess(given, status if isinstance(status, int) else 0, *capsys.readouterr())

    return run


@pytest.fixture
def synther_json(synther: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Runs the command with ``--json`` and returns the object that it prints."""

    def run(*arguments: object) -> dict[str, Any]:
        done = synther(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert done.stdout.count("\n") == 1
        printed: dict[str, Any] = json.loads(done.stdout)
        return printed

    return run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A small data set."""
    path = tmp_path / "real.npz"
    np.savez(path, **arrays())
    return path
