"""The benchmark of updates inside Stable-Baselines3, in miniature."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3")

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import sb3_updates


def test_every_case_is_measured_and_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sb3_updates, "GRADIENT_STEPS", 2)
    monkeypatch.setattr(sb3_updates, "BATCH", 8)
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
    out = tmp_path / "updates.json"
    sb3_updates.main(["--out", str(out), "--device", "cpu", "--rows", "300", "--repeats", "1"])
    written = json.loads(out.read_text())
    assert written["commit"] == "abc"
    assert written["results"].keys() == sb3_updates.CASES.keys()
    for name, entry in written["results"].items():
        assert entry["updates_per_second"] == pytest.approx(entry["gradient_steps"] / entry["ms_per_call"] * 1e3)
        assert ("sampling_ms_per_call" in entry) == ("SynthERBuffer" in name)
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(sb3_updates.CASES)
