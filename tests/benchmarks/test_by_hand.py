"""The comparison of the command with scripts by hand, in miniature."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from synther_replay.benchmarks.speed import by_hand


def arrays(rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(rows, 3)).astype(np.float32)
    return {
        "observations": observations,
        "actions": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": observations[:, 0],
        "next_observations": observations + 1,
        "terminals": rng.random(rows) < 0.1,
    }


@pytest.fixture
def real(tmp_path):
    np.savez(tmp_path / "real.npz", **arrays(500, 0))
    return tmp_path / "real.npz"


@pytest.mark.parametrize("script", by_hand.SCRIPTS.values())
def test_scripts_are_counted_without_their_docstring(script):
    text = script.read_text()
    count = by_hand.lines_of_code(text)
    assert 10 < count < len(text.splitlines())
    assert by_hand.lines_of_code("# a comment\n" + text.split('"""\n', 1)[1]) == count


def test_real_rows_score_better_than_shifted_ones(real, tmp_path):
    np.savez(tmp_path / "good.npz", **arrays(400, 1))
    bad = arrays(400, 1)
    bad["observations"] = bad["observations"] + 2
    np.savez(tmp_path / "bad.npz", **bad)
    good, shifted = (by_hand.scores(real, tmp_path / f"{name}.npz", 300) for name in ("good", "bad"))
    assert good["marginal"] > 0.9 > shifted["marginal"]


def test_a_program_that_fails_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="ended with 3"):
        by_hand.timed([sys.executable, "-c", "raise SystemExit(3)"], folder=tmp_path)


def test_the_time_in_full_comes_from_the_parts(monkeypatch, tmp_path, real):
    def timed(command, *, folder, variables):
        assert str(folder) in variables["PYTHONPATH"]
        assert "Trainer.train_num_steps = 10" in command
        started = by_hand.time.time()
        for number, step in enumerate((5, 10), start=1):  # 2 s for the start and five steps, 1 s for five more
            Path(tmp_path, f"model-{step}.pt").touch()
            os.utime(tmp_path / f"model-{step}.pt", (started + 1 + number,) * 2)
        return {"seconds": 5.0, "processor_seconds": 8.0}  # 2 s for the rows

    monkeypatch.setattr(by_hand, "timed", timed)
    found = by_hand.published_run(Path("python"), tmp_path / "code", real, tmp_path, rows=100, steps=10, seed=0)
    whole = by_hand.in_full(found)
    expected = 1 + by_hand.PUBLISHED_STEPS * 0.2 + 2 / 100 * by_hand.ROWS
    assert whole["whole_seconds"] == pytest.approx(expected, rel=1e-2)
    assert whole["whole_processor_seconds"] == pytest.approx(1.6 * expected, rel=1e-2)


def test_finished_runs_are_kept(monkeypatch, tmp_path, real):
    done = []

    def one(way):
        def run(*args, **options):
            folder = next(value for value in (*args, *options.values()) if isinstance(value, Path) and value.is_dir())
            np.savez(folder / "synthetic.npz", **arrays(300, 1))
            done.append(way)
            return {"seconds": 1.0, "processor_seconds": 1.0}

        return run

    for name in ("ours", "with_sdv", "with_published"):
        monkeypatch.setattr(by_hand, name, one(name))
    monkeypatch.setattr(by_hand, "package_versions", lambda _: {"sdv": "2"})
    monkeypatch.setattr(by_hand, "check_reference", lambda _: None)
    out = tmp_path / "out.json"
    arguments = [str(real), "--peer-python", "python", "--reference", str(tmp_path / "code"), "--out", str(out)]
    for seeds in (1, 2, 2):
        by_hand.main([*arguments, "--seeds", str(seeds)])
    assert done == ["ours", "with_sdv", "with_published", "ours", "with_sdv"]
    content = json.loads(out.read_text())
    assert [len(way["runs"]) for way in content["ways"].values()] == [2, 2, 1]
    assert content["versions"]["peers: sdv"] == "2"
    out.write_text(json.dumps({**content, "real": "other.npz"}))
    with pytest.raises(SystemExit):
        by_hand.main(arguments)


def test_the_table_has_a_line_for_each_way():
    run = {"seconds": 30.0, "processor_seconds": 40.0, "marginal": 0.9, "correlation": 0.95}
    whole = {"whole_seconds": 7_200.0, "whole_processor_seconds": 9_000.0, "steps": 10}
    ways = {
        "a": {"lines": 1, "runs": [run, {**run, "marginal": 0.8}]},
        "b": {"lines": 9, "runs": [{**run, **whole}]},
    }
    table = by_hand.table({"rows": 10, "ways": ways})
    assert "| a | 1 | 30 s | 40 s | 0.800 to 0.900 | 0.950 | 2 |" in table
    assert "| b (fidelity after 10 of 100,000 steps) | 9 | 2.0 h (computed) | 2.5 h (computed) | 0.900 |" in table
