"""The throughput benchmark in miniature, and the shared parts that write its result."""

import json
import subprocess
import sys

import pytest
import torch

from synther_replay.benchmarks import throughput
from synther_replay.benchmarks.common import provenance
from synther_replay.benchmarks.common.files import write_json
from synther_replay.benchmarks.common.formatting import markdown_table, mean_and_spread
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.common.timing import seconds
from synther_replay.benchmarks.speed import adapters, docs_tables
from synther_replay.benchmarks.speed.suite import Suite, measure


def test_seconds_leaves_the_warm_up_out():
    calls = []
    seconds(lambda: calls.append(1), torch.device("cpu"), repeats=3, warm_up=2)
    assert len(calls) == 5


def test_a_result_says_where_it_comes_from(monkeypatch):
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
    found = origin(torch.device("cpu"))
    assert set(found) == {"machine", "versions", "command", "commit"}
    assert found["commit"] == "abc"
    release, _, _ = torch.__version__.partition("+")  # what follows names the build, which not all packages do
    assert found["versions"]["torch"].partition("+")[0] == release
    assert found["machine"]["cores"]


@pytest.mark.parametrize(("changed", "suffix"), [("", ""), (" M file.py\n", "-dirty")])
def test_the_commit_says_whether_files_had_changed(changed, suffix, monkeypatch):
    answers = {"rev-parse": "0123abc\n", "status": changed}
    monkeypatch.delenv("SYNTHER_REPLAY_COMMIT", raising=False)

    def git(command, **_):
        return subprocess.CompletedProcess(command, 0, answers[command[1]])

    monkeypatch.setattr(provenance.subprocess, "run", git)
    assert provenance.commit() == f"0123abc{suffix}"


def test_json_is_written_whole(tmp_path):
    write_json(tmp_path / "deep" / "result.json", {"a": 1.5})
    assert json.loads((tmp_path / "deep" / "result.json").read_text()) == {"a": 1.5}
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["result.json"]


def test_table_rounds_numbers_and_marks_what_is_missing():
    table = markdown_table(("a", "b"), [(1.23456, None), ("x", 7)])
    assert table.splitlines() == ["| a | b |", "|---|---|", "| 1.235 | - |", "| x | 7 |"]


def test_the_spread_is_that_of_a_sample():
    assert mean_and_spread([1.0, 3.0, 8.0]) == "4 +- 4"  # sqrt(26 / 2) and not sqrt(26 / 3)
    assert mean_and_spread([1.0, 3.0, 8.0], 2) == "4.00 +- 3.61"
    assert mean_and_spread([-2.5], 1) == "-2.5"


@pytest.mark.slow
def test_throughput_measures_a_training_step_of_a_stack():
    suite = Suite(torch.device("cpu"), None)
    suite.training_step(2)
    entry = suite.results["training step, M = 2, batch 256"]
    assert entry["ms"] > 0
    assert entry["parameters"] > 10_000


def test_a_folder_that_is_not_the_published_code_is_refused(tmp_path):
    with pytest.raises(ValueError, match="reference"):
        measure(torch.device("cpu"), tmp_path)


def test_published_code_without_its_agent_is_refused(tmp_path):
    (tmp_path / "synther" / "diffusion").mkdir(parents=True)
    (tmp_path / "synther" / "diffusion" / "elucidated_diffusion.py").touch()
    with pytest.raises(ValueError, match="reference: the agent requires redq"):
        measure(torch.device("cpu"), tmp_path)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--device", "abacus", "device: expected 'auto' or a torch device, got 'abacus'"),
        ("--reference", ".", "reference: . is not a checkout of the published SynthER code"),
        ("--corl", ".", "corl: . is not a checkout of CORL"),
        ("--out", ".", "--out: expected a file, got the folder ."),
        ("--out", f"{__file__}/x.json", "--out: expected a writable folder"),
    ],
)
def test_throughput_refuses_invalid_arguments(option, value, message, monkeypatch, capsys):
    monkeypatch.setattr(throughput, "measure", lambda *_: pytest.fail("it measured"))
    monkeypatch.setattr(sys, "argv", ["throughput.py", option, value])
    with pytest.raises(SystemExit):
        throughput.main()
    assert message in capsys.readouterr().err


def test_adapters_are_measured_alone_and_shown_in_place_of_older_figures(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
    figures = {f"{part}_ratio": 1.25 for part in ("add", "sample", "add and sample")}
    monkeypatch.setattr(adapters, "overhead", lambda *_: {"adapter, TorchRL": figures})
    adapters.main(["--device", "cpu", "--out", str(tmp_path / "adapters-cpu.json")])
    assert "1.25" in capsys.readouterr().out
    old = {"results": {"adapter, TorchRL": {"sample_ratio": 9.0}, "adapter, CORL": {"sample_ratio": 2.0}}}
    write_json(tmp_path / "throughput-cpu.json", old)
    table = docs_tables.adapters_table({"CPU": docs_tables._of_adapters(tmp_path, "cpu")})
    assert "| TorchRL | 1.25x | 1.25x | 1.25x |" in table
    assert "| CORL | - | 2.00x | - |" in table


def test_adapters_refuse_a_folder_that_is_not_corl(tmp_path, capsys):
    with pytest.raises(SystemExit):
        adapters.main(["--device", "cpu", "--corl", str(tmp_path)])
    assert "--corl" in capsys.readouterr().err
