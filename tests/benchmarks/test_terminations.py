"""Counting of generated `terminated` flags, on a few rows of a stand-in."""

import json
import sys

import numpy as np
import pytest

from synther_replay import GeneratorConfig
from synther_replay.benchmarks.fidelity import terminations


@pytest.fixture
def rows(tmp_path):
    """A file of rows with the columns of Hopper, terminated as its rule says."""
    rng = np.random.default_rng(0)
    observations, following = rng.normal(1.0, 0.1, (2, 300, 11)).astype(np.float32)
    path = tmp_path / "hopper-few.npz"
    np.savez(
        path,
        observations=observations,
        actions=rng.uniform(-1, 1, (300, 3)).astype(np.float32),
        rewards=rng.normal(size=300).astype(np.float32),
        next_observations=np.concatenate([following[:, :1], following[:, 1:2] - 1, following[:, 2:]], 1),
        terminals=(following[:, 0] <= 0.7) | (abs(following[:, 1] - 1) >= 0.2),
    )
    return path


def run(monkeypatch, *arguments):
    small = GeneratorConfig.tiny(width=32, depth=1, steps=10, sampling_steps=2)
    monkeypatch.setattr(GeneratorConfig, "tiny", lambda exact: GeneratorConfig(**small.to_json() | {"exact": exact}))
    monkeypatch.setattr(sys, "argv", ["terminations.py", "--presets", "tiny", "--device", "cpu", *map(str, arguments)])
    terminations.main()


def test_flags_are_counted_with_and_without_exact(rows, tmp_path, monkeypatch):
    run(monkeypatch, "--datasets", rows, "--rows", 1_000, "--out", tmp_path / "out.json")
    content = json.loads((tmp_path / "out.json").read_text())
    found = content["results"][str(rows)]
    assert set(found) == {"tiny, exact=False", "tiny, exact=True"}
    for entry in found.values():
        assert entry["rows"] == 1_000
        assert entry["precision"] * entry["terminated"] == pytest.approx(entry["both"])
        assert entry["recall"] * entry["by_rule"] == pytest.approx(entry["both"])
    exact = found["tiny, exact=True"]
    assert exact["rate"] == pytest.approx(exact["real_rate"], abs=0.01)
    assert {"machine", "versions", "command", "commit"} < set(content)


def test_rows_of_a_random_policy_are_collected(tmp_path, monkeypatch):
    out = tmp_path / "out.json"
    run(monkeypatch, "--datasets", "random:InvertedPendulum-v5", "--real-rows", 400, "--rows", 200, "--out", out)
    found = json.loads(out.read_text())["results"]["random:InvertedPendulum-v5"]["tiny, exact=True"]
    assert 0.1 < found["real_rate"] < 0.3
    assert found["rate"] == pytest.approx(found["real_rate"], abs=0.03)


def test_tasks_without_a_rule_are_refused(rows, monkeypatch, capsys):
    other = rows.rename(rows.with_name("halfcheetah-few.npz"))
    with pytest.raises(SystemExit):
        run(monkeypatch, "--datasets", other)
    assert "--datasets" in capsys.readouterr().err
