"""The benchmark of first uses in miniature."""

import json
import sys

import torch

from synther_replay.benchmarks.speed import first_use


def test_every_size_is_fitted_and_sampled(monkeypatch):
    done = []

    class Generator:
        def __init__(self, spec, config, device):
            self.size = spec.observation_dim, config.width

        def fit(self, rows, **_):
            done.append(("fit", *self.size))

        def sample(self, n):
            done.append(("sample", *self.size))

    monkeypatch.setattr(first_use, "DiffusionGenerator", Generator)
    found = first_use.measure(torch.device("cpu"))
    assert [name for name, *_ in done] == ["fit", "sample"] * 4
    assert len(set(done)) == len(done) == len(found) - 1
    assert min(found.values()) >= 0


def test_both_processes_share_their_caches(monkeypatch, tmp_path):
    started = []

    def run(command, env, **_):
        started.append(env["TRITON_CACHE_DIR"])
        return first_use.subprocess.CompletedProcess(command, 0, json.dumps({"first, fit": float(len(started))}))

    monkeypatch.setattr(first_use.subprocess, "run", run)
    results = first_use.measure_in_fresh_processes(torch.device("cpu"))
    assert results == {"empty caches": {"first, fit": 1.0}, "filled caches": {"first, fit": 2.0}}
    assert started[0] == started[1]


def test_the_result_is_written(monkeypatch, tmp_path):
    results = {state: {"x": 1.0} for state in first_use.STATES}
    monkeypatch.setattr(first_use, "measure_in_fresh_processes", lambda _: results)
    monkeypatch.setattr(sys, "argv", ["first_use.py", "--device", "cpu", "--out", str(tmp_path / "out.json")])
    first_use.main()
    assert json.loads((tmp_path / "out.json").read_text())["results"]["filled caches"] == {"x": 1.0}
