"""Refits in the background: when rows are taken, that runs agree, what goes wrong, saving, processes."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay import (
    DiffusionGenerator,
    GeneratorConfig,
    RefitReport,
    RetrainSchedule,
    RingBuffer,
    SyntheticReplayBuffer,
    Transitions,
    TransitionSpec,
)
from synther_replay.common.requests import in_learners_thread
from synther_replay.errors import DivergedError
from synther_replay.relevance import Curiosity
from synther_replay.replay.background import BackgroundRefit
from synther_replay.replay.worker import write
from synther_replay.watching import RefitLog, read_history

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Box(-1, 1, (1,)))
CONFIG = GeneratorConfig.tiny(width=16, depth=1, steps=30, refit_steps=20, batch_size=32, sampling_steps=4)
SCHEDULE = RetrainSchedule(every=100, rows=300, start=100)


def rows(n: int = 25, seed: int = 0) -> Transitions:
    x = torch.randn(n, SPEC.dim, generator=torch.Generator().manual_seed(seed))
    x[:, SPEC.actions] = x[:, SPEC.actions].clamp(-1, 1)
    x[:, SPEC.terminated] = (x[:, SPEC.terminated] > 1).float()
    return Transitions(SPEC, x)


class InThread(DiffusionGenerator):
    """Refitted in a thread, as on a GPU; a process takes seconds to start."""

    background = "thread"


def buffer(generator: type[DiffusionGenerator] = InThread, **options: Any) -> SyntheticReplayBuffer:
    options = {"lag": 50, "refit": "background", "schedule": SCHEDULE, **options}
    real = RingBuffer(SPEC, 1_000, device="cpu")
    return SyntheticReplayBuffer(real, generator(SPEC, CONFIG, device="cpu"), **options)


def curious() -> Curiosity:
    return Curiosity(hidden=16, batch_size=16)


def learn(own: SyntheticReplayBuffer, calls: int, first: int = 0) -> list[torch.Tensor]:
    """Add 25 rows and draw a batch, several times; return the batches."""
    batches = []
    for number in range(first, first + calls):
        own.add(rows(seed=number))
        batches.append(own.sample(8).rows.clone())
    return batches


@cache
def undisturbed() -> list[torch.Tensor]:
    """The batches of a run that is never saved."""
    return learn(buffer(), 14)


def same_batches(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


# --- when rows are taken


def test_rows_are_taken_after_the_lag_and_batches_are_real_until_then():
    own, seen = buffer(), []
    for number in range(10):
        learn(own, 1, number)
        seen.append((own.steps, own.refits, len(own.store)))
    assert seen[4:6] == [(125, 0, 0), (150, 1, 300)]  # begun at 100
    assert seen[8:10] == [(225, 1, 300), (250, 2, 300)]  # the schedule counts from the begin
    assert own.last_refit is not None and own.last_refit.steps == 200
    assert own.store_age == 50


class UntilWaitedFor:
    """Keeps the training of a buffer from starting until the learner waits for it."""

    def __init__(self, own: SyntheticReplayBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits, engine = threading.Event(), own.generator._engine
        train, wait = engine.train, BackgroundRefit.wait

        def training(*arguments: Any) -> Any:
            self.waits.wait()
            return train(*arguments)

        def waiting(pending: BackgroundRefit) -> None:
            self.waits.set()
            wait(pending)

        monkeypatch.setattr(engine, "train", training)
        monkeypatch.setattr(BackgroundRefit, "wait", waiting)


def test_the_learner_waits_at_that_step_and_not_before(monkeypatch: pytest.MonkeyPatch):
    own = buffer()
    blocked = UntilWaitedFor(own, monkeypatch)
    learn(own, 5)
    assert not blocked.waits.is_set()  # the job is under way, and the learner goes on
    assert own.refits == 0
    learn(own, 1, 5)
    assert blocked.waits.is_set()
    assert own.refits == 1


def test_two_runs_of_one_seed_agree_however_late_a_job_is(monkeypatch: pytest.MonkeyPatch):
    own, early = buffer(), undisturbed()
    UntilWaitedFor(own, monkeypatch)
    assert same_batches(early, learn(own, 14))
    assert own.refits == 3


def test_a_refit_in_the_background_is_the_inline_one_later():
    inline, own = buffer(refit="inline", lag=None), buffer()
    learn(inline, 4)
    learn(own, 6)
    assert torch.equal(inline.store.rows, own.store.rows)
    assert inline.last_refit is not None
    seconds = inline.last_refit.fit_seconds + inline.last_refit.sample_seconds
    assert inline.last_refit.pause_seconds == pytest.approx(seconds, rel=0.5, abs=0.05)


@pytest.mark.parametrize("device", ["process", "thread"])
def test_the_default_lag_is_half_of_the_interval(device: str):
    own = buffer(InThread if device == "thread" else DiffusionGenerator, lag=None, schedule=5_000)
    assert own.lag == 2_500


@pytest.mark.parametrize(
    ("options", "word"),
    [({"refit": "later"}, "refit"), ({"lag": 0}, "lag"), ({"lag": 1.5}, "lag"), ({"refit": "inline"}, "lag: .*inline")],
)
def test_bad_options_are_refused(options: dict[str, Any], word: str):
    with pytest.raises((TypeError, ValueError), match=word):
        buffer(**options)


def test_a_lag_beyond_the_interval_is_warned_of():
    with pytest.warns(RuntimeWarning, match="lag: got 101, more than every=100"):
        own = buffer(lag=101)
    learn(own, 9)
    assert own.refits == 1  # begun at step 100, taken at 201
    with pytest.warns(RuntimeWarning, match="lag: got 101, more than every=50"):
        own.schedule = 50
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.schedule = 101


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path):
    with pytest.raises(OSError, match=r"task\.pt: cannot be written .*TMPDIR"):
        write(rows(), tmp_path / "gone" / "task.pt")


class Plain:
    """`fit` and `sample` alone, and a state that pickle cannot hold."""

    spec = SPEC

    def __init__(self, background: str) -> None:
        self.background, self.function = background, lambda: None

    def fit(self, transitions: Transitions) -> None:
        """Nothing."""

    def sample(self, n: int) -> Transitions:
        return rows(n)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


@pytest.mark.parametrize("background", ["process", "thread"])
def test_a_generator_that_cannot_go_to_the_background_is_refused_at_the_door(background: str):
    real = RingBuffer(SPEC, 100, device="cpu")
    SyntheticReplayBuffer(real, Plain(background))
    with pytest.raises(TypeError, match="inline"):
        SyntheticReplayBuffer(real, Plain(background), refit="background")


def test_what_a_job_needs_of_the_learners_thread_is_done_there(monkeypatch: pytest.MonkeyPatch):
    own, threads = buffer(), []
    train = own.generator._engine.train

    def training(*arguments: Any) -> Any:
        for _ in range(2):  # as a capture of a CUDA graph
            in_learners_thread(lambda: threads.append(threading.current_thread()))
        with pytest.raises(ZeroDivisionError):
            in_learners_thread(lambda: 1 / 0)
        return train(*arguments)

    monkeypatch.setattr(own.generator._engine, "train", training)
    learn(own, 6)
    assert own.refits == 1
    assert threads == [threading.current_thread()] * 2


# --- what goes wrong


def ask_the_learner(own: SyntheticReplayBuffer, monkeypatch: pytest.MonkeyPatch, request: Any = lambda: None) -> None:
    """Let jobs ask for the learner's thread while they hold the locks of training, as to capture a CUDA graph."""
    engine = own.generator._engine
    trainer = engine.trainer(0)
    fit = trainer.fit
    monkeypatch.setattr(trainer, "fit", lambda *arguments: in_learners_thread(request) or fit(*arguments))


@pytest.mark.parametrize("way", ["load", "refit", "save", "generate"])
def test_a_job_that_asks_for_the_learner_does_not_lock_it_out(way: str, monkeypatch: pytest.MonkeyPatch):
    own = buffer(relevance=curious())
    learn(own, 10)  # begun and taken
    state = own.state_dict()
    ask_the_learner(own, monkeypatch)
    learn(own, 2, 10)  # begun again
    done = threading.Event()

    def act() -> None:
        if way == "load":
            own.load_state_dict(state)
        elif way == "refit":
            own.refit()
        elif way == "save":
            own.state_dict()
        else:
            own.generate(10)
        done.set()

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    assert done.wait(60)


def test_an_interrupt_in_the_learners_part_does_not_leave_the_job_waiting(monkeypatch: pytest.MonkeyPatch):
    own = buffer()

    def interrupt() -> None:
        raise KeyboardInterrupt

    ask_the_learner(own, monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        learn(own, 20)
    pickle.dumps(own)  # waits for the job, which has failed


def test_refits_go_on_after_a_hook_that_raised_and_whose_error_is_kept():
    own, kept = buffer(), []

    def hook(report: RefitReport) -> None:
        error = ValueError("hook")
        kept.append(error)
        raise error

    own.on_refit = hook
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn(own, 20)
    assert len(kept) > 2


def test_a_failed_job_holds_no_memory(monkeypatch: pytest.MonkeyPatch):
    class Large:
        """Stands for tensors."""

    own, seen = buffer(), []

    def train(*_: Any) -> Any:
        large = Large()
        seen.append(weakref.ref(large))
        raise RuntimeError("out of memory")

    monkeypatch.setattr(own.generator._engine, "train", train)
    gc.disable()
    try:
        learn(own, 5)
        own._pending.wait()
        assert seen[0]() is None
    finally:
        gc.enable()


def test_a_group_of_processes_is_refused():
    own = InThread(SPEC, CONFIG, device="cpu")
    own.group = object()
    with pytest.raises(TypeError, match="inline"):
        SyntheticReplayBuffer(RingBuffer(SPEC, 1_000, device="cpu"), own, refit="background")


def failing(*_: Any) -> Any:
    raise DivergedError("diverged")


def test_a_job_that_fails_is_told_and_the_old_rows_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = RefitLog(folder=tmp_path)
    own = buffer(on_refit=log)
    learn(own, 6)
    store = own.store.rows
    with monkeypatch.context() as patch:
        patch.setattr(own.generator._engine, "train", failing)
        learn(own, 3, 6)
        with pytest.warns(RuntimeWarning, match="step 200 failed.*diverged"):
            learn(own, 1, 9)
    assert own.store.rows is store
    assert (log.failed, [entry["step"] for entry in read_history(tmp_path)]) == (1, [100, 200])
    assert "diverged" in read_history(tmp_path)[1]["line"]
    learn(own, 4, 10)
    assert own.refits == 2  # the next one comes on schedule


def test_hooks_get_failures_only_if_they_ask_for_them(monkeypatch: pytest.MonkeyPatch):
    class Hook:
        def __init__(self, takes_failures: bool) -> None:
            self.takes_failures, self.reports = takes_failures, list[RefitReport]()

        def __call__(self, report: RefitReport) -> None:
            self.reports.append(report)

    hooks = Hook(True), Hook(False)
    for hook in hooks:
        own = buffer(on_refit=hook)
        monkeypatch.setattr(own.generator._engine, "train", failing)
        with pytest.warns(RuntimeWarning, match="diverged"):
            learn(own, 6)
    assert [report.error for report in hooks[0].reports] == ["DivergedError: diverged"]
    assert hooks[1].reports == []


def test_a_job_that_another_refit_overtakes_is_told():
    own = buffer()
    learn(own, 4)
    own.refit()
    store = own.store.rows
    with pytest.warns(RuntimeWarning, match="discarded: another refit, a load or a removal"):
        learn(own, 1, 4)
    learn(own, 1, 5)
    assert own.refits == 1
    assert own.store.rows is store


def test_a_dropped_job_ends():
    own = buffer()
    learn(own, 4)
    assert own._pending is not None
    thread = own._pending._thread
    own.clear()
    with pytest.warns(RuntimeWarning, match="discarded: another refit, a load or a removal"):
        learn(own, 1, 4)
    thread.join(10)
    assert not thread.is_alive()


# --- saving in the middle


@pytest.mark.parametrize("way", ["file", "pickle", "copy"])
@pytest.mark.parametrize("calls", [4, 5, 6])
def test_a_resumed_run_is_the_run(way: str, calls: int, tmp_path: Path):
    own, expected = buffer(), undisturbed()
    learn(own, calls)
    if way == "file":
        own.save(tmp_path / "run")
        again = buffer()
        again.load(tmp_path / "run")
    else:
        again = pickle.loads(pickle.dumps(own)) if way == "pickle" else copy.deepcopy(own)
    assert same_batches(learn(own, 14 - calls, calls), expected[calls:])  # goes on as if it had not been saved
    assert same_batches(learn(again, 14 - calls, calls), expected[calls:])
    assert again.refits == 3


def test_a_resumed_run_takes_as_many_rows_as_there_is_room_for():
    own = buffer(capacity=100)  # the schedule asks for more
    learn(own, 5)
    again = copy.deepcopy(own)
    assert same_batches(learn(own, 5, 5), learn(again, 5, 5))
    assert again.refits == own.refits > 0
    assert len(again.store) == 100


@pytest.mark.parametrize("way", ["copy", "file"])
def test_a_schedule_that_changes_during_a_refit_does_not_lose_it(way: str, tmp_path: Path):
    own = buffer()
    learn(own, 5)
    assert own.refits == 0  # begun and not taken
    own.schedule = RetrainSchedule(every=100, rows=200, start=100)
    if way == "copy":
        again = copy.deepcopy(own)
    else:
        own.save(tmp_path / "run")
        again = buffer()
        again.load(tmp_path / "run")
    assert same_batches(learn(own, 9, 5), learn(again, 9, 5))
    assert again.refits == own.refits == 3
    assert len(again.store) == 200


def test_a_result_taken_from_a_file_sets_no_count_of_draws_back(tmp_path: Path):
    own = buffer()
    learn(own, 9)  # the second refit is under way
    own.save(tmp_path / "run")
    again = buffer()
    again.load(tmp_path / "run")
    for _ in range(5):
        again.generator.sample(8)
    before = again.generator.state_dict()["draws"]
    learn(again, 1, 9)
    assert again.refits == 2
    assert again.generator.state_dict()["draws"] == before


def test_a_failure_before_the_save_is_told_by_the_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own, again = buffer(), buffer()
    with monkeypatch.context() as patch:
        patch.setattr(own.generator._engine, "train", failing)
        learn(own, 4)
        own.save(tmp_path / "run")
    again.load(tmp_path / "run")
    learn(again, 1, 4)
    with pytest.warns(RuntimeWarning, match="diverged"):
        learn(again, 1, 5)


def test_a_run_that_was_saved_in_the_background_goes_on_inline(tmp_path: Path):
    own, inline = buffer(), buffer(refit="inline", lag=None)
    learn(own, 5)
    own.save(tmp_path / "run")
    inline.load(tmp_path / "run")
    learn(inline, 1, 5)
    assert inline.refits == 1
    learn(inline, 2, 6)
    assert (inline.refits, inline.steps) == (2, 200)


def test_a_seed_given_meanwhile_is_that_of_the_model_afterwards():
    own = buffer()
    learn(own, 4)
    own.reseed(5)
    again = pickle.loads(pickle.dumps(own))
    for each in (own, again):
        learn(each, 2, 4)
        assert (each.refits, each.generator.seed) == (1, 5)


# --- processes


def test_in_a_process_runs_agree_and_go_on_from_a_file(tmp_path: Path):
    one, two = (buffer(DiffusionGenerator, relevance=curious()) for _ in range(2))
    expected = learn(one, 7)
    learn(two, 5)
    two.save(tmp_path / "run")
    again = buffer(DiffusionGenerator, relevance=curious())
    again.load(tmp_path / "run")
    assert same_batches(learn(again, 2, 5), expected[5:])
    assert one.refits == again.refits == 1
    assert one.last_refit is not None and one.last_refit.relevance is not None
    assert one._guide is not None and again._guide is not None
    weights = [own._guide.relevance._model.weights for own in (one, again)]  # trained in the process, and back
    assert torch.equal(*weights)


def started(own: SyntheticReplayBuffer) -> int:
    """Number of the process of the refit that is under way."""
    assert own._pending is not None
    process = own._pending.job._fit._compute.__self__
    until = time.monotonic() + 60
    while process.pid is None and time.monotonic() < until:
        time.sleep(0.01)
    assert process.pid is not None
    return int(process.pid)


def has_ended(pid: int) -> bool:
    """Whether a process ends within seconds."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True  # nobody waits for it here, because its parent was killed
            os.kill(pid, 0)
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc")
def test_a_killed_process_is_told_and_a_dropped_one_ends():
    own = buffer(DiffusionGenerator)
    learn(own, 4)
    os.kill(started(own), signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="SIGKILL"):
        learn(own, 2, 4)
    assert (own.refits, len(own.store)) == (0, 0)
    learn(own, 2, 6)
    pid = started(own)
    own.clear()
    with pytest.warns(RuntimeWarning, match="discarded: another refit, a load or a removal"):
        learn(own, 1, 8)
    assert has_ended(pid)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_computes_the_job_again(monkeypatch: pytest.MonkeyPatch):
    """It happens while the job's thread holds its locks, which nobody releases in the new process."""
    own, is_training, go_on = buffer(), threading.Event(), threading.Event()
    trainer = own.generator._engine.trainer(0)
    fit = trainer.fit
    monkeypatch.setattr(trainer, "fit", lambda *arguments: is_training.set() or (go_on.wait() and fit(*arguments)))
    learn(own, 4)
    assert is_training.wait(60)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)  # ends a process that hangs
            go_on.set()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                learn(own, 2, 4)
            os._exit(0 if own.refits == 1 else 1)
        except BaseException:
            os._exit(2)
    go_on.set()
    learn(own, 2, 4)
    assert os.waitpid(child, 0)[1] == 0
    assert own.refits == 1


SCRIPT = """
import os, signal, sys, time
sys.path.insert(0, {here!r})
from synther_replay import DiffusionGenerator, GeneratorConfig
from test_background import SPEC, buffer, learn, started

own = buffer(DiffusionGenerator)
learn(own, 4)
print(started(own), flush=True)
{ending}
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc")
@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGINT); learn(own, 2, 4)", -signal.SIGINT),
        # A fork that lives on holds the pipe to the process open.
        ("(os.fork() or time.sleep(30)) and os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_the_process_ends_with_the_run(ending: str, code: int, tmp_path: Path):
    script = tmp_path / "script.py"  # not guarded by `__name__`, as many scripts
    script.write_text(textwrap.dedent(SCRIPT).format(here=str(Path(__file__).parent), ending=ending))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    assert run.wait(60) == code
    assert has_ended(pid)
    assert not list(tmp_path.glob("synther-refit-*"))


# --- what the learner does with the generator meanwhile


@pytest.mark.parametrize("kind", [InThread, DiffusionGenerator])
def test_a_generator_that_was_fitted_meanwhile_does_not_prevent_saving(kind: type[DiffusionGenerator], tmp_path: Path):
    own, again = buffer(kind), buffer(kind)
    learn(own, 4)
    own.generator.fit(rows(64))
    own.save(tmp_path / "run")
    assert copy.deepcopy(own).steps == own.steps
    again.load(tmp_path / "run")
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        learn(again, 4, 4)
    told = [str(warning.message) for warning in given if "refit at step 100 failed" in str(warning.message)]
    assert (again.refits, len(told)) == ((0, 1) if kind is InThread else (1, 0))


def test_a_learner_that_waits_for_a_lock_of_the_job_does_what_the_job_asks(monkeypatch: pytest.MonkeyPatch):
    own, is_inside, done = buffer(), threading.Event(), threading.Event()
    learn(own, 7)
    sampler = own.generator._engine.sampler(0)
    draw = sampler.draw

    def drawing(*arguments: Any) -> Any:
        if threading.current_thread().name == "refit":
            is_inside.set()
            time.sleep(0.1)
            in_learners_thread(lambda: None)  # as `capture` does on a GPU, with the lock of sampling
        return draw(*arguments)

    monkeypatch.setattr(sampler, "draw", drawing)

    def act() -> None:
        learn(own, 1, 7)  # begins the second refit
        is_inside.wait(20)
        own.generator.sample(5)
        done.set()

    threading.Thread(target=act, daemon=True).start()
    assert done.wait(30)


def test_a_load_tells_of_the_job_that_it_drops():
    own, state = buffer(), buffer().state_dict()
    learn(own, 4)
    with pytest.warns(RuntimeWarning, match="refit at step 100 failed.*discarded: a load came first"):
        own.load_state_dict(state)
    assert own._pending is None


def test_the_report_of_a_resumed_refit_has_the_losses_of_each_model(tmp_path: Path):
    own, seen = buffer(), list[Any]()
    learn(own, 4)
    own.save(tmp_path / "run")
    again = buffer(on_refit=lambda report: seen.append((report.fit.losses, report.fit.held_out_losses)))
    again.load(tmp_path / "run")
    learn(again, 3, 4)
    learn(own, 3, 4)
    assert own.last_refit is not None
    assert seen == [(own.last_refit.fit.losses, own.last_refit.fit.held_out_losses)]


def test_a_relevance_that_cannot_go_to_a_process_is_refused_at_the_door(monkeypatch: pytest.MonkeyPatch):
    mine = type("Mine", (Curiosity,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Mine", mine, raising=False)
    with pytest.raises(TypeError, match=r"Mine cannot be sent .*defined in the script itself"):
        buffer(DiffusionGenerator, relevance=mine(hidden=16, batch_size=16))


@pytest.mark.parametrize("added", [25, 1_000, 1_025])
def test_rows_that_are_said_to_be_copies_are_not_written_to_later(added: int):
    ring = RingBuffer(SPEC, 1_000, device="cpu")
    ring.add(rows(added))
    held = ring.transitions().rows
    before = held.clone()
    ring.add(rows(1_000, seed=1))
    assert ring.gives_copies
    assert torch.equal(held, before)
