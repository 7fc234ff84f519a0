"""Watching a run: names, one line, warnings with advice, history, TensorBoard and W&B."""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces

from synther_replay import (
    RefitReport,
    RetrainSchedule,
    RingBuffer,
    SyntheticReplayBuffer,
    Transitions,
    TransitionSpec,
)
from synther_replay.metrics import Thresholds
from synther_replay.relevance.guide import GuidanceReport
from synther_replay.watching import (
    PREFIX,
    RefitLog,
    RefitRecord,
    RunFolder,
    TensorBoardWriter,
    WandbWriter,
    read_history,
)
from synther_replay.watching.advice import Advisor
from synther_replay.watching.run_folder import HISTORY

SPEC = TransitionSpec.from_spaces(spaces.Box(-math.inf, math.inf, (2,)), spaces.Box(-1, 1, (1,)))
SCALARS = {"refits", "seconds", "refit_seconds", "pause_seconds", "store_size"}
FIDELITY = {"marginal", "correlation", "worst_marginal", "failures"} | {
    f"termination_rate_{which}" for which in ("real", "synthetic")
}
HISTOGRAMS = {"rewards_real", "rewards_synthetic", "marginals"}


def rows(n: int = 2_000, seed: int = 0) -> Transitions:
    x = torch.randn(n, SPEC.dim, generator=torch.Generator().manual_seed(seed))
    x[:, SPEC.actions] = x[:, SPEC.actions].clamp(-1, 1)
    x[:, SPEC.terminated] = (torch.arange(n) % 200 == 0)[:, None].float()
    return Transitions(SPEC, x)


class Copying:
    """Generates copies of the real rows, moved by `error`."""

    error = 0.0

    def fit(self, transitions: Transitions) -> None:
        self._rows = transitions.rows.clone()

    def sample(self, n: int) -> Transitions:
        copies = self._rows.repeat(n // len(self._rows) + 1, 1)[:n]
        copies[:, SPEC.observations] += self.error
        return Transitions(SPEC, copies)


def buffer(on_refit: Any) -> Any:
    made = SyntheticReplayBuffer(
        RingBuffer(SPEC, 10_000, device="cpu"), Copying(), schedule=RetrainSchedule(rows=4_000), on_refit=on_refit
    )
    made.add(rows())
    return made


class Kept:
    """A writer that keeps the records."""

    def __init__(self) -> None:
        self.records: list[RefitRecord] = []

    def write(self, record: RefitRecord) -> None:
        self.records.append(record)


def named(*names: str) -> set[str]:
    return {f"{PREFIX}{name}" for name in names}


# --- names and the line


def test_every_refit_is_written_under_the_documented_names():
    kept = Kept()
    own = buffer(RefitLog(kept))
    own.refit()
    own.refit()
    first, second = kept.records
    assert first.scalars().keys() == named(*SCALARS, *FIDELITY)
    assert first.histograms().keys() == named(*HISTOGRAMS)
    assert second.scalars()["synther/refits"] == 2
    assert second.scalars()["synther/store_size"] == 4_000
    assert second.seconds == pytest.approx(first.refit_seconds + second.refit_seconds)
    assert second.step == 2_000
    text = RefitRecord.__doc__ or ""
    assert all(f"`{name}`" in text for name in SCALARS | FIDELITY | HISTOGRAMS)


def test_losses_and_guidance_are_written_if_they_are_known():
    fit = type("Fit", (), {"loss": 0.5, "held_out_loss": None})()
    record = RefitRecord(RefitReport(fit, 10, 5, 1.0, 2.0, GuidanceReport(1.0, 2.0, 0.5)))
    assert record.scalars().keys() == named(
        "seconds",
        "refit_seconds",
        "pause_seconds",
        "store_size",
        "fit_loss",
        "relevance_real",
        "relevance_chosen",
        "guided_share",
    )
    assert record.scalars()["synther/refit_seconds"] == 3.0
    assert not record.histograms()


def test_a_record_keeps_only_the_rows_that_were_compared():
    log = RefitLog(fidelity_rows=100)
    buffer(log).refit()
    assert log.last is not None
    for kept in (log.last.real, log.last.synthetic):
        assert kept is not None
        assert kept.rows.untyped_storage().nbytes() == kept.rows.nbytes


def test_the_line_tells_the_refit_in_one_look():
    log = RefitLog()
    buffer(log).refit()
    assert log.last is not None
    parts = log.last.line().split(" | ")
    assert parts[:2] == ["refit 1", "step 2,000"]
    assert parts[3:] == ["terminated 0.5 % (real 0.5 %)", parts[4], "4K rows"]
    assert parts[4].endswith(" s")


@pytest.mark.parametrize(("share", "shown"), [(1.0, "100"), (0.996, "100"), (0.994, "99"), (0.051, "5.1"), (0.0, "0")])
def test_the_line_tells_shares_in_plain_figures(share, shown):
    log = RefitLog()
    buffer(log).refit()
    assert log.last is not None and log.last.fidelity is not None
    found = replace(log.last.fidelity, termination_rate_synthetic=share)
    assert f"terminated {shown} % (real 0.5 %)" in replace(log.last, fidelity=found).line()


def test_verbose_lines_go_through_logging(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]):
    with caplog.at_level(logging.INFO, "synther_replay.watching.log"):
        buffer(RefitLog()).refit()
        assert not caplog.messages
        buffer(RefitLog(verbose=1)).refit()
    assert [message.split(" | ")[0] for message in caplog.messages] == ["refit 1"]
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_verbose_lines_are_seen_without_any_setting_of_logging():
    program = """
from synther_replay import RefitReport
from synther_replay.watching import RefitLog
log = RefitLog(verbose=1)
for _ in range(2):
    log(RefitReport(None, 10, 5, 0.1, 0.1))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["step 5 | 0.2 s | 10 rows"] * 2


# --- faults


class Broken:
    def write(self, record: RefitRecord) -> None:
        raise OSError("disk full")


def test_a_writer_that_raises_neither_ends_the_run_nor_undoes_the_refit():
    kept = Kept()
    own = buffer(RefitLog(Broken(), kept))
    with pytest.warns(RuntimeWarning, match="Broken.*disk full") as caught:
        for _ in range(3):
            own.refit()
    assert own.refits == 3 and len(own.store) == 4_000
    assert len(kept.records) == 3
    assert len(caught) == 1  # and again at the tenth time


def test_nothing_undoes_a_refit_where_warnings_are_errors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def no_memory(*_: Any, **options: Any) -> None:
        raise MemoryError("no memory")

    kept = Kept()
    own = buffer(RefitLog(Broken(), kept))
    own.generator.error = 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            own.refit()
        monkeypatch.setattr("synther_replay.watching.record.fidelity", no_memory)
        own.refit()
    assert own.refits == len(kept.records) == 4
    for text in ("disk full", "real_ratio", "no memory"):
        assert any(text in message for message in caplog.messages)


def test_a_comparison_that_fails_costs_its_values_only(monkeypatch: pytest.MonkeyPatch):
    def no_memory(*_: Any, **options: Any) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr("synther_replay.watching.record.fidelity", no_memory)
    kept = Kept()
    own = buffer(RefitLog(kept))
    with pytest.warns(RuntimeWarning, match="no memory"):
        own.refit()
    assert kept.records[0].scalars().keys() == named(*SCALARS)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"fidelity_rows": -1}, "fidelity_rows"),
        ({"most_share": 0}, "most_share"),
        ({"most_share": True}, "most_share"),
        ({"thresholds": {"marginal": 0.9}}, "thresholds"),
        ({"thresholds": Thresholds}, r"thresholds: .*pass an object: Thresholds\("),
        ({"verbose": "loud"}, "verbose"),
    ],
)
def test_bad_options_are_refused_at_the_door(options: dict[str, Any], match: str):
    with pytest.raises((TypeError, ValueError), match=match):
        RefitLog(**options)


def test_writers_must_have_the_method_write():
    with pytest.raises(TypeError, match="writers"):
        RefitLog("runs/a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="writer"):
        TensorBoardWriter(3)


# --- advice


def test_bad_rows_of_some_refits_in_a_row_give_one_warning_with_advice():
    own = buffer(RefitLog())
    for good in (1, 0):  # good rows come between
        own.generator.error = 0.5
        with pytest.warns(RuntimeWarning, match="observation.*real_ratio") as caught:
            for _ in range(6):
                own.refit()
        assert len(caught) == 1
        own.generator.error = 0.0
        for _ in range(good):
            own.refit()
    with warnings.catch_warnings(record=True) as caught_late:
        warnings.simplefilter("always")
        for _ in range(3):
            own.generator.error = 0.5
            own.refit()
            own.refit()
            own.generator.error = 0.0
            own.refit()
    assert not caught_late


def test_guided_rows_may_differ():
    log = RefitLog()
    own = buffer(log)
    own.generator.error = 0.5
    own.on_refit = None
    report = own.refit()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            log(RefitReport(None, report.rows, 5, 1.0, 1.0, GuidanceReport(1.0, 2.0, 1.0)), own)
    assert not caught
    assert log.last is not None and log.last.fidelity is not None and not log.last.fidelity.passed


@pytest.mark.parametrize(("seconds", "run", "warns"), [(59, 60, 0), (61, 120, 1), (61, 130, 0)])
def test_refits_that_take_most_of_the_run_give_a_warning_with_advice(seconds: float, run: float, warns: int):
    now = [100.0]
    advisor = Advisor(0.5, clock=lambda: now[0])
    now[0] += run
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            advisor.look_at(RefitRecord(RefitReport(None, 10, 5, 1.0, 1.0), seconds=seconds))
    assert len(caught) == warns
    assert all("schedule" in str(warning.message) for warning in caught)


# --- pickled, as frameworks save their options


def test_writers_write_on_after_pickling(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "own") as own:
        log = RefitLog(TensorBoardWriter(tmp_path / "made"), TensorBoardWriter(own), folder=tmp_path / "history")
        buffer(log).refit()
        stored = pickle.dumps(log)
    folders = [tmp_path / name for name in ("made", "own", "history")]
    for folder in folders:
        shutil.rmtree(folder)  # as on another machine
    loaded = pickle.loads(stored)
    assert not any(folder.exists() for folder in folders)  # opened when something is written
    buffer(loaded).refit()
    assert all(any(folder.iterdir()) for folder in folders)


def test_a_writer_of_wandb_takes_the_run_of_the_process_that_loads_it(monkeypatch: pytest.MonkeyPatch):
    wandb = pytest.importorskip("wandb")
    written: list[dict[str, Any]] = []

    class Run:
        def __init__(self) -> None:
            self.lock = threading.Lock()  # as in a real one, which cannot be pickled either

        def define_metric(self, *_: Any, **options: Any) -> None:
            pass

        def log(self, values: dict[str, Any]) -> None:
            written.append(values)

    loaded = pickle.loads(pickle.dumps(RefitLog(WandbWriter(Run()))))
    monkeypatch.setattr(wandb, "run", Run())
    buffer(loaded).refit()
    assert written[0]["synther/step"] == 2_000


def test_pickles_hold_no_rows():
    log = RefitLog()
    buffer(log).refit()
    loaded = pickle.loads(pickle.dumps(log))
    assert loaded.last is None and loaded.seconds == log.seconds
    assert log.last is not None
    assert len(pickle.dumps(log)) < 5_000


class Clock:
    """A clock that begins elsewhere in another process."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("run", "warns"), [(100, 1), (200, 0)])
def test_the_time_of_the_run_goes_on_in_another_process(monkeypatch: pytest.MonkeyPatch, run: float, warns: int):
    monkeypatch.setattr(Clock, "now", 5_000.0)
    advisor = Advisor(0.5, clock=Clock())
    monkeypatch.setattr(Clock, "now", 5_000.0 + run - 10)
    stored = pickle.dumps(advisor)
    monkeypatch.setattr(Clock, "now", 3.0)
    loaded = pickle.loads(stored)
    monkeypatch.setattr(Clock, "now", 13.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded.look_at(RefitRecord(RefitReport(None, 10, 5, 1.0, 1.0), seconds=80.0))
    assert len(caught) == warns


# --- the run directory


def test_the_history_has_one_line_per_refit(tmp_path: Path):
    own = buffer(RefitLog(folder=tmp_path / "a" / "run"))
    own.refit()
    own.add(rows(100))
    own.refit()
    lines = (tmp_path / "a" / "run" / HISTORY).read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["step"] for record in records] == [2_000, 2_100]
    assert records[0]["scalars"].keys() == named(*SCALARS, *FIDELITY)
    assert sum(records[0]["rewards"]["real"]) == pytest.approx(1)
    assert records == read_history(tmp_path / "a" / "run")


def test_values_that_are_not_finite_are_null(tmp_path: Path):
    fit = type("Fit", (), {"loss": math.nan})()
    RunFolder(tmp_path).write(RefitRecord(RefitReport(fit, 10, 5, 1.0, 1.0)))
    assert read_history(tmp_path)[0]["scalars"]["synther/fit_loss"] is None


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "-Infinity"])
def test_numbers_of_a_history_that_are_not_finite_are_none(tmp_path: Path, number: str):
    (tmp_path / HISTORY).write_text(f'{{"step": 1, "scalars": {{"bad": [{number}], "good": 0.5}}}}\n')
    assert read_history(tmp_path) == [{"step": 1, "scalars": {"bad": [None], "good": 0.5}}]


def record(step: int) -> RefitRecord:
    return RefitRecord(RefitReport(None, 10, step, 1.0, 1.0))


@pytest.mark.parametrize(
    "left",
    [b'{"step": 7, "sca', b"\xff\x00", b"[1]\n", b'{"step": "x"}\n', b"\n\n", b"[" * 200_000],
    ids=lambda left: left[:20],
)
def test_what_a_kill_left_behind_is_passed_over(tmp_path: Path, left: bytes):
    folder = RunFolder(tmp_path)
    folder.write(record(1))
    with open(tmp_path / HISTORY, "ab") as file:
        file.write(left)
    assert [entry["step"] for entry in read_history(tmp_path)] == [1]
    folder.write(record(2))
    assert [entry["step"] for entry in read_history(tmp_path)] == [1, 2]


def test_a_resumed_run_replaces_the_refits_that_it_makes_again(tmp_path: Path):
    folder = RunFolder(tmp_path)
    for step in (10, 20, 30, 20, 30, 40):
        folder.write(record(step))
    assert [entry["step"] for entry in read_history(tmp_path)] == [10, 20, 30, 40]
    assert len((tmp_path / HISTORY).read_text().splitlines()) == 6
    assert read_history(tmp_path / "nothing") == []


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_run_leaves_a_history_of_whole_refits(tmp_path: Path):
    program = """
import sys
from synther_replay import RefitReport
from synther_replay.watching import RefitRecord, RunFolder
folder = RunFolder(sys.argv[1])
step = int(sys.argv[2])
while True:
    folder.write(RefitRecord(RefitReport(None, 10, step, 1.0, 1.0)))
    print(step, flush=True)
    step += 1
"""
    last = 0
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), str(last + 1)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(20):
            last = int(process.stdout.readline())
        process.kill()
        rest = process.stdout.read().split()
        last = max([last, *(int(step) for step in rest)])
        process.wait()
        steps = [entry["step"] for entry in read_history(tmp_path)]
        assert steps[:last] == list(range(1, last + 1))
        last = steps[-1]


# --- other loggers


def test_tensorboard_gets_the_same_names(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = RefitLog(TensorBoardWriter(tmp_path))
    buffer(log).refit()
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert log.last is not None
    assert set(found.Tags()["scalars"]) == log.last.scalars().keys()
    assert set(found.Tags()["histograms"]) == log.last.histograms().keys()
    (event,) = found.Scalars("synther/marginal")
    assert (event.step, event.value) == (2_000, pytest.approx(log.last.scalars()["synther/marginal"]))


@pytest.mark.slow
def test_wandb_gets_the_same_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wandb = pytest.importorskip("wandb")
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("WANDB_DIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    log = RefitLog(WandbWriter())
    with pytest.warns(RuntimeWarning, match="wandb.init"):
        buffer(log).refit()
    with wandb.init(project="refits", dir=tmp_path) as run:
        run.log({"loss": 1.0}, step=50_000)
        buffer(log).refit()
        assert log.last is not None
        written = dict(run.summary)
        names = log.last.scalars().keys() | log.last.histograms().keys() | {"synther/step"}
        assert names <= written.keys()
        assert written["synther/step"] == 2_000
    assert any(name.endswith(".wandb") for _, _, names in os.walk(tmp_path) for name in names)
