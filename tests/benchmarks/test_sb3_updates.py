"""The benchmark of updates inside Stable-Baselines3, in miniature."""

import json

import pytest

pytest.importorskip("stable_baselines3")
from synther_replay.benchmarks.speed import sb3_updates


@pytest.mark.parametrize(("option", "value"), [("--out", "."), ("--device", "abacus")])
def test_invalid_arguments_are_refused_before_timing(option, value, monkeypatch, capsys):
    monkeypatch.setattr(sb3_updates, "measure", lambda *_, **__: pytest.fail("it measured"))
    with pytest.raises(SystemExit):
        sb3_updates.main([option, value])
    assert f"{option.strip('-')}: expected" in capsys.readouterr().err


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
