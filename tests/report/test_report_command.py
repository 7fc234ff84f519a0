"""``synther report``: files in, a page or JSON out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("plotly")
from typer.testing import CliRunner

from synther_replay.cli.app import app
from synther_replay.files import read, write


def save(path: Path, n: int, seed: int, *, shift: float = 0.0, width: int = 3) -> Path:
    rng = np.random.default_rng(seed)
    observations, following = rng.normal(size=(2, n, width)).astype(np.float32)
    actions = rng.uniform(-0.5, 0.5, size=(n, 1)).astype(np.float32)
    np.savez(
        path,
        observations=observations + np.float32(shift),
        actions=actions * np.float32(1 + 0.001 * seed),  # every file has another range of actions
        rewards=observations[:, 0],
        next_observations=following,
        terminals=rng.random(n) < 0.1,
    )
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Real rows, rows of the same distribution, and shifted ones."""
    made = {"real": save(tmp_path / "real.npz", 1_000, 0), "good": save(tmp_path / "good.npz", 1_000, 1)}
    return made | {"bad": save(tmp_path / "bad.npz", 1_000, 2, shift=1.0)}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the command in an empty folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return lambda *arguments: CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_page_is_written_and_replaced(files, run) -> None:
    for name in ("good", "bad"):
        assert run(files["real"], files[name]).exit_code == 0
        page = Path("report.html").read_text()
        assert f"Quality of {name}.npz" in page
    assert run(files["real"], files["good"], "-o", "other.html", "--held-out", files["bad"]).exit_code == 0
    assert [path.name for path in sorted(Path().iterdir())] == ["other.html", "report.html"]


def test_json_is_one_object_and_writes_no_page_unless_asked(files, run) -> None:
    done = run(files["real"], files["good"], "--json")
    printed = json.loads(done.stdout)
    assert (printed["passed"], printed["output"], printed["rows_real"]) == (True, None, 1_000)
    assert not list(Path().iterdir())
    assert json.loads(run(files["real"], files["bad"], "--json", "-o", "page.html").stdout)["output"] == "page.html"
    assert Path("page.html").exists()


def test_the_verdict_is_printed_in_the_log_of_a_job_too(files, run) -> None:
    assert run(files["real"], files["good"]).stdout.startswith("report.html: passed, ")
    assert run(files["real"], files["bad"]).stdout.startswith("report.html: failed\n  observation[")


def test_remarks_are_printed_below_the_verdict(files, run) -> None:
    done = run(files["real"], files["real"])
    first, *rest = done.stdout.splitlines()
    assert "passed" in first and any("equal a real row" in line for line in rest)


def test_check_fails_by_the_verdict(files, run) -> None:
    assert run(files["real"], files["good"], "--check").exit_code == 0
    done = run(files["real"], files["bad"], "--check")
    assert done.exit_code == 1
    assert "bad.npz: observation[" in done.stderr
    assert Path("report.html").exists()


def test_a_range_of_actions_that_was_inferred_is_no_bound(files, run) -> None:
    assert json.loads(run(files["real"], files["bad"], "--json").stdout)["out_of_bounds"] == 0


def test_columns_have_the_names_that_are_given(files, run) -> None:
    printed = json.loads(run(files["real"], files["bad"], "--json", "--names", "a,b,c").stdout)
    assert [column["name"] for column in printed["columns"]][:4] == ["a", "b", "c", "action[0]"]
    assert run(files["real"], files["bad"], "--json", "--names", "a,b").exit_code == 1


def test_evenly_spaced_rows_are_compared(tmp_path, files, run) -> None:
    printed = json.loads(run(files["real"], files["good"], "--json", "--rows", 300).stdout)
    assert (printed["rows_real"], printed["rows_synthetic"]) == (250, 250)  # every fourth row
    assert printed["settings"]["synthetic"]["rows compared"] == "250"


def test_transitions_are_counted_where_they_take_two_rows(tmp_path, files, run) -> None:
    pytest.importorskip("h5py")
    write(tmp_path / "good.hdf5", read(files["good"]))
    printed = json.loads(run(files["real"], tmp_path / "good.hdf5", "--json", "--rows", 1_000).stdout)
    assert (printed["rows_real"], printed["rows_synthetic"]) == (1_000, 1_000)


def test_files_of_equal_names_keep_their_settings(tmp_path, run) -> None:
    paths = [tmp_path / folder / "d.npz" for folder in ("x", "y")]
    for n, path in zip((500, 400), paths, strict=True):
        path.parent.mkdir()
        save(path, n, n)
    told = json.loads(run(*paths, "--json").stdout)["settings"]
    assert {part: (told[part]["file"], told[part]["rows"]) for part in ("real", "synthetic")} == {
        "real": (str(paths[0]), "500"),
        "synthetic": (str(paths[1]), "400"),
    }


def test_files_that_do_not_fit_together_are_refused_in_one_line(tmp_path, files, run) -> None:
    wide = save(tmp_path / "wide.npz", 50, 0, width=5)
    for arguments in ((files["real"], wide), (files["real"], tmp_path / "missing.npz")):
        done = run(*arguments)
        assert done.exit_code == 1
        assert done.stderr.count("\n") == 1
        assert arguments[1].name in done.stderr
    assert "got spec (observations: shape (5,)), expected" in run(files["real"], wide).stderr
    assert run(files["real"], files["good"], "--env", "Reacher-v5").exit_code == 1
    assert run(files["real"], files["good"], "-o", "missing/page.html").exit_code == 1
    assert not list(Path().iterdir())
