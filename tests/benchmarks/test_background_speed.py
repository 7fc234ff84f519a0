"""The benchmark of refits in the background in miniature."""

import json
import sys

import pytest

from synther_replay import DiffusionGenerator
from synther_replay.benchmarks.speed.docs_tables import background_table

pytest.importorskip("stable_baselines3")

from synther_replay.benchmarks.speed import background


def test_both_modes_are_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
    monkeypatch.setattr(DiffusionGenerator, "background", "thread", raising=False)  # a process takes seconds to start
    monkeypatch.setattr(background, "_STEPS_AFTER", 5)
    monkeypatch.setattr(background, "_FIRST_STEPS", 5)
    out = tmp_path / "new" / "found.json"
    options = {
        "env": "Pendulum-v1",
        "start": 120,
        "lag": 10,
        "fit-steps": 5,
        "rows": 20,
        "refits": 2,
        "note": "none",
        "out": out,
    }
    monkeypatch.setattr(sys, "argv", ["background", *(f"--{name}={value}" for name, value in options.items())])
    background.main()
    written = json.loads(out.read_text())
    assert {"machine", "versions", "command", "commit", "settings", "results", "note"} == written.keys()
    assert written["commit"] == "abc"
    inline, other = (written["results"][mode] for mode in ("inline", "background"))
    assert inline["longest_step"] >= inline["pause_seconds"] >= inline["refit_seconds"] > 0
    assert other["steps"] == 120 + 2 * 15 - 2
    assert len(inline["later_pauses"]) == len(other["later_pauses"]) == 1
    assert other["median_step_during_refit"] > 0
    table = background_table(written["results"])
    assert len(table.splitlines()) == 9
    for found in (inline, other):
        assert f"| {found['later_pauses'][0]:.3g} s |" in table
    assert "pause_seconds" in capsys.readouterr().out
