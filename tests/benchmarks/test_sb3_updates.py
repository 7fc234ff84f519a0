"""The benchmark of updates inside Stable-Baselines3, in miniature."""

import json
import sys

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
import collect

from synther_replay.benchmarks.speed import sb3_updates


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "Pendulu-v1", "--out", "x.npz"], "Pendulu"),
        (["--env", "Pendulum-v1", "--out", f"{__file__}/x.npz"], "out: expected a folder to write to"),
    ],
)
def test_rows_are_not_collected_where_that_cannot_work(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(collect, "collect", lambda *_: pytest.fail("it trained"))
    monkeypatch.setattr(sys, "argv", ["collect.py", *arguments])
    with pytest.raises(SystemExit):
        collect.main()
    assert message in capsys.readouterr().err


def test_collected_rows_are_written_whole(tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.npz"
    command = ["collect.py", "--env", "Pendulum-v1", "--train-steps", "60", "--rows", "100", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    collect.main()
    with np.load(out) as found:
        assert (str(found["env"]), len(found["rewards"])) == ("Pendulum-v1", 100)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    assert "100 rows of Pendulum-v1" in capsys.readouterr().out


@pytest.mark.parametrize(("option", "value"), [("--out", "."), ("--device", "abacus")])
def test_updates_are_not_timed_where_that_cannot_work(option, value, monkeypatch, capsys):
    monkeypatch.setattr(sb3_updates, "measure", lambda *_, **__: pytest.fail("it measured"))
    with pytest.raises(SystemExit):
        sb3_updates.main([option, value])
    assert f"error: {option.strip('-')}: expected" in capsys.readouterr().err


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
