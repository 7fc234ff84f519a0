"""The benchmark of a refit to many rows in miniature."""

import json

from synther_replay.benchmarks.speed import large_refit


def test_time_and_memory_are_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
    out = tmp_path / "new" / "found.json"
    large_refit.main(["--rows=1500", "--steps=5", "--repeats=2", f"--out={out}"])
    written = json.loads(out.read_text())
    assert {"machine", "versions", "command", "commit", "results"} == written.keys()
    found = written["results"]
    assert found["matrix_bytes"] == 1_500 * 42 * 4
    assert len(found["refit_seconds"]) == 2
    assert min(found["refit_seconds"]) > 0
    assert found["memory_of_matrix"] > 0
    assert "refit_seconds" in capsys.readouterr().out
