"""The benchmark of writing rows in miniature."""

import json

import pytest

from synther_replay.benchmarks.speed import writing

pytest.importorskip("h5py")
pytest.importorskip("pyarrow")


def test_time_and_bytes_of_each_format_are_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
    out = tmp_path / "found.json"
    writing.main(["--rows=70000", "--repeats=1", f"--folder={tmp_path}", f"--out={out}"])  # more than a block
    written = json.loads(out.read_text())
    found = written["results"]
    assert (found["rows"], found["columns"], written["commit"]) == (70_000, 42, "abc")
    assert found["formats"].keys() == writing.FORMATS.keys()
    for (run,) in found["formats"].values():
        assert min(run.values()) > 0
        assert 0.5 < run["bytes"] / (70_000 * 42 * 4) < 1.5
    assert found["disk_bytes_per_second"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
