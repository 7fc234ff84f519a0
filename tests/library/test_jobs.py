"""Fits and refits as jobs: begin, run, commit; the hook; schedules by protocol; reseeding."""

from __future__ import annotations

import copy
import pickle
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay import (
    DiffusionGenerator,
    GeneratorConfig,
    NotFittedError,
    RefitReport,
    RetrainSchedule,
    RingBuffer,
    SyntheticReplayBuffer,
    Transitions,
    TransitionSpec,
)
from synther_replay.errors import CheckpointError, DivergedError

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Box(-1, 1, (1,)))
CONFIG = GeneratorConfig.tiny(width=16, depth=1, steps=30, refit_steps=20, batch_size=32, sampling_steps=4)


def rows(n: int = 200, seed: int = 0) -> Transitions:
    x = torch.randn(n, SPEC.dim, generator=torch.Generator().manual_seed(seed))
    x[:, SPEC.actions] = x[:, SPEC.actions].clamp(-1, 1)
    x[:, SPEC.terminated] = (x[:, SPEC.terminated] > 1).float()
    return Transitions(SPEC, x)


def make(seed: int = 0) -> DiffusionGenerator:
    return DiffusionGenerator(SPEC, CONFIG, device="cpu", seed=seed)


def buffer(**options: Any) -> SyntheticReplayBuffer:
    schedule = options.pop("schedule", RetrainSchedule(every=100, rows=300, start=100))
    made = SyntheticReplayBuffer(RingBuffer(SPEC, 1_000, device="cpu"), make(), schedule=schedule, **options)
    made.add(rows())
    return made


# --- fits


def test_begin_and_commit_in_a_row_are_a_fit():
    one, two = make(), make()
    for seed in (0, 1):
        job = two.begin(rows(seed=seed))
        assert two.commit(job).losses == one.fit(rows(seed=seed)).losses
        assert torch.equal(one.sample(20).rows, two.sample(20).rows)


def test_nothing_changes_before_the_commit(same: Any):
    generator, data = make(), rows()
    generator.fit(data)
    before, model = generator.state_dict(), generator.model
    job = generator.begin(data)
    data.rows.zero_()  # the job has its own copy
    job.run()
    assert same(generator.state_dict(), before)
    generator.commit(job)
    assert generator.model is job.model is not model
    assert generator.sample(100).rows.std() > 0.1


def test_a_job_runs_in_another_thread_while_rows_are_drawn():
    one, two = make(), make()
    for generator in (one, two):
        generator.fit(rows())
    job = one.begin(rows(seed=1))
    thread = threading.Thread(target=job.run)
    thread.start()
    drawn = [one.sample(50).rows for _ in range(5)]
    thread.join()
    one.commit(job)
    expected = [two.sample(50).rows for _ in range(5)]
    two.fit(rows(seed=1))
    assert all(torch.equal(a, b) for a, b in zip(drawn, expected, strict=True))
    assert torch.equal(one.sample(20).rows, two.sample(20).rows)


def test_rows_of_a_job_are_those_of_the_committed_model():
    one, two = make(), make()
    job = one.begin(rows())
    with pytest.raises(NotFittedError):
        job.sample(3)
    job.run()
    two.fit(rows())
    assert torch.equal(job.sample(10).rows, two.sample(10).rows)


def test_a_reverted_commit_leaves_the_generator_as_before(same: Any):
    generator = make()
    generator.fit(rows())
    before = generator.state_dict()
    job = generator.begin(rows(seed=2))
    generator.commit(job)
    generator.revert(job)
    assert same(generator.state_dict(), before)
    with pytest.raises(ValueError, match="job"):
        generator.revert(job)


@pytest.mark.parametrize("case", ["twice", "overtaken", "other", "loaded", "no job"])
def test_jobs_that_do_not_belong_are_refused_and_change_nothing(case: str, same: Any):
    generator = make()
    generator.fit(rows())
    job: Any = generator.begin(rows(seed=1))
    if case == "twice":
        generator.commit(job)
    elif case == "overtaken":
        generator.fit(rows(seed=2))
    elif case == "other":
        job = make().begin(rows())
    elif case == "loaded":
        generator.load_state_dict(generator.state_dict())
    else:
        job = 3
    before = generator.state_dict()
    with pytest.raises((TypeError, ValueError), match="job"):
        generator.commit(job)
    assert same(generator.state_dict(), before)


def test_a_job_in_another_thread_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    made, runs = buffer(), []
    job, train = made.begin(), made.generator._engine.train
    other = threading.Thread(target=job.run)

    def trains_once(*arguments: Any) -> Any:
        runs.append(threading.current_thread())
        if len(runs) == 1:
            other.start()
            other.join(0.2)  # it would train now if it did not wait
        return train(*arguments)

    monkeypatch.setattr(made.generator._engine, "train", trains_once)
    assert made.commit(job).rows == 300
    other.join()
    assert len(runs) == 1


def test_a_job_keeps_the_seed_that_it_was_begun_with():
    one, two = make(), make()
    job = two.begin(rows())
    two.reseed(5)
    assert two.commit(job).losses == one.fit(rows()).losses


def test_a_reseeded_generator_starts_from_other_weights():
    one, two, third = make(), make(), make(seed=5)
    two.reseed(5)
    starts = [generator.begin(rows())._start["frequencies"] for generator in (one, two, third)]
    assert not torch.equal(starts[0], starts[1])
    assert torch.equal(starts[1], starts[2])
    assert two.fit(rows()).losses == third.fit(rows()).losses


def test_reseeded_copies_differ():
    one = make()
    one.fit(rows())
    two = copy.deepcopy(one)
    assert torch.equal(one.sample(5).rows, two.sample(5).rows)
    two.reseed(7)
    assert not torch.equal(one.sample(5).rows, two.sample(5).rows)
    assert one.fit(rows()).losses != two.fit(rows()).losses
    with pytest.raises(ValueError, match="seed"):
        two.reseed(-1)


# --- refits


def test_a_refit_is_begun_and_committed():
    one, two = buffer(), buffer()
    one.refit()
    job = two.begin()
    two.add(rows(seed=3))
    job.run()
    assert len(two.store) == two.refits == 0
    report = two.commit(job)
    assert (two.refits, two.last_refit, report.steps) == (1, report, 200)
    assert two.store_age == 200
    assert torch.equal(one.store.rows, two.store.rows)


@pytest.mark.parametrize("wrong", [0, -5, 2.5, True])
def test_a_wrong_number_of_rows_is_refused_before_the_fit(wrong: Any):
    one = buffer()
    with pytest.raises((ValueError, TypeError), match="rows"):
        one.begin(wrong)
    assert one.refit(30).rows == len(one.store) == 30


def test_jobs_of_refits_that_do_not_belong_are_refused():
    one, two = buffer(), buffer()
    job = one.begin()
    with pytest.raises(ValueError, match="another buffer"):
        two.commit(job)
    with pytest.raises(ValueError, match="another buffer"):
        copy.deepcopy(one).commit(job)
    one.commit(job)
    store = one.store.rows
    with pytest.raises(ValueError, match="before"):
        one.commit(job)
    assert (one.refits, len(two.store)) == (1, 0)
    assert one.store.rows is store


def test_an_overtaken_refit_is_refused_and_changes_nothing(same: Any):
    one = buffer()
    job = one.begin()
    one.refit()
    before = one.state_dict()
    with pytest.raises(ValueError, match="job"):
        one.commit(job)
    assert same(one.state_dict(), before)


def test_an_overtaken_refit_of_a_plain_generator_is_refused():
    one = SyntheticReplayBuffer(RingBuffer(SPEC, 300, device="cpu"), Mean(), schedule=50)
    one.add(rows(60))
    job = one.begin()
    one.add(rows(60, seed=1))
    one.refit()
    mean, store = one.generator.mean.clone(), one.store.rows
    with pytest.raises(ValueError, match="job"):
        one.commit(job)
    assert torch.equal(one.generator.mean, mean)
    assert one.store.rows is store


@pytest.mark.parametrize("case", ["loaded", "emptied"])
def test_a_job_of_a_plain_generator_begun_before_is_refused(case: str):
    one = SyntheticReplayBuffer(RingBuffer(SPEC, 300, device="cpu"), Mean(), schedule=50)
    one.add(rows(60))
    one.refit()
    job = one.begin()
    if case == "loaded":
        one.load_state_dict(one.state_dict())
    else:
        one.clear()
    held = len(one.store)
    with pytest.raises(ValueError, match="job"):
        one.commit(job)
    assert (one.refits, len(one.store)) == (1, held)


def test_no_refit_is_due_while_a_job_is_open():
    made = buffer()
    made.refit()
    job = made.begin()
    for seed in range(3):
        made.add(rows(seed=seed))
        made.sample(8)
    assert made.refits == 1
    made.commit(job)
    assert made.last_refit is not None
    assert (made.refits, made.last_refit.steps) == (2, 200)
    made.sample(8)  # the schedule counts from the begin of the job
    assert (made.refits, made.last_refit.steps) == (3, 800)


@pytest.mark.parametrize("case", ["dropped", "failed", "overtaken"])
def test_a_job_that_is_over_keeps_no_refit_from_being_due(case: str, monkeypatch: pytest.MonkeyPatch):
    made = buffer()
    job: Any = made.begin()
    if case == "dropped":
        job = None
    elif case == "failed":
        with monkeypatch.context() as patch:
            patch.setattr(made.generator._engine, "train", lambda *_: (_ for _ in ()).throw(DivergedError("diverged")))
            with pytest.raises(DivergedError):
                job.run()
    else:
        made.refit()
    refits = made.refits
    made.add(rows(seed=1))
    made.sample(8)
    assert made.refits == refits + 1
    assert case == "dropped" or not made._has_open_job()


def test_a_job_that_failed_and_runs_again_is_open(monkeypatch: pytest.MonkeyPatch):
    made = buffer()
    job, train, seen = made.begin(), made.generator._engine.train, []
    attempts = iter([DivergedError("diverged"), None])

    def training(*arguments: Any) -> Any:
        seen.append(made._has_open_job())
        if (error := next(attempts)) is not None:
            raise error
        return train(*arguments)

    monkeypatch.setattr(made.generator._engine, "train", training)
    with pytest.raises(DivergedError):
        job.run()
    assert not made._has_open_job()
    job.run()
    assert made._has_open_job()
    assert seen == [True, True]


def test_a_copy_has_no_open_job():
    made = buffer()
    job = made.begin()
    again = pickle.loads(pickle.dumps(made))
    again.add(rows())
    again.sample(8)
    assert again.refits == 1
    assert not job.is_committed


def test_a_job_that_fails_changes_nothing(same: Any, monkeypatch: pytest.MonkeyPatch):
    one = buffer()
    one.refit()
    before = one.state_dict()
    job = one.begin()
    with monkeypatch.context() as patch:
        patch.setattr(one.generator._engine, "train", lambda *_: (_ for _ in ()).throw(DivergedError("diverged")))
        with pytest.raises(DivergedError):
            one.commit(job)
    assert same(one.state_dict(), before)
    assert one.commit(job).rows == 300  # it may be tried again


class Mean:
    """A generator with `fit` and `sample` alone."""

    spec = SPEC

    def __init__(self) -> None:
        self.mean = torch.zeros(SPEC.dim)

    def fit(self, transitions: Transitions) -> str:
        self.mean = transitions.rows.mean(0)
        self.mean[SPEC.terminated] = 0
        return "done"

    def sample(self, n: int) -> Transitions:
        return Transitions(SPEC, self.mean.repeat(n, 1))

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"].clone()


def test_a_plain_generator_is_refitted_by_a_job_too():
    made = SyntheticReplayBuffer(RingBuffer(SPEC, 100, device="cpu"), Mean(), schedule=50)
    made.add(rows(60))
    job = made.begin()
    assert made.commit(job).fit == "done"
    assert len(made.store) == made.schedule.rows


class Clipped(DiffusionGenerator):
    """Overrides `sample` without any job."""

    def sample(self, n: int, **options: Any) -> Transitions:
        drawn = super().sample(n, **options)
        drawn.rows[:, SPEC.rewards] = 5.0
        return drawn


def test_an_overridden_method_of_a_generator_is_used():
    made = SyntheticReplayBuffer(RingBuffer(SPEC, 300, device="cpu"), Clipped(SPEC, CONFIG, device="cpu"), schedule=50)
    made.add(rows())
    made.refit()
    assert made.store.rows[:, SPEC.rewards].eq(5.0).all()


class Wrapped:
    """Passes on what it does not do itself."""

    def __init__(self, generator: DiffusionGenerator) -> None:
        self.inner, self.fits = generator, 0

    def fit(self, transitions: Transitions) -> Any:
        self.fits += 1
        return self.inner.fit(transitions)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


def test_a_wrapper_that_passes_calls_on_is_a_plain_generator():
    made = SyntheticReplayBuffer(RingBuffer(SPEC, 300, device="cpu"), Wrapped(make()), schedule=50)
    made.add(rows())
    made.refit(100)
    assert (made.generator.fits, len(made.store)) == (1, 100)


def test_a_job_begun_before_the_buffer_started_over_is_refused():
    made = buffer()
    job = made.begin()
    made.start_over()
    with pytest.raises(ValueError, match="started over"):
        made.commit(job)
    assert len(made.store) == 0


# --- the hook


def test_the_hook_is_called_after_every_refit():
    seen: list[RefitReport] = []
    made = buffer(on_refit=seen.append)
    for seed in range(3):
        made.add(rows(seed=seed))
        made.sample(8)
    assert [report.steps for report in seen] == [400, 600, 800]
    assert seen[-1] is made.last_refit


def test_a_hook_that_raises_undoes_the_refit(same: Any):
    def veto(report: RefitReport) -> None:
        raise RuntimeError(f"no to {report.rows}")

    made = buffer()
    made.refit()
    made.on_refit = veto
    before, store = made.state_dict(), made.store.rows
    with pytest.raises(RuntimeError, match="no to 300"):
        made.refit()
    assert same({**made.state_dict(), "last_attempt": 0}, {**before, "last_attempt": 0})
    assert made.store.rows is store
    made.add(rows(seed=4))
    with pytest.warns(RuntimeWarning, match="no to 300.*on_refit"):  # a training run goes on
        assert len(made.sample(16)) == 16
    assert made.refits == 1


def test_a_hook_that_raises_undoes_the_refit_of_a_plain_generator():
    made = SyntheticReplayBuffer(RingBuffer(SPEC, 100, device="cpu"), Mean(), on_refit=lambda report: 1 / 0)
    made.add(rows(60))
    with pytest.raises(ZeroDivisionError):
        made.refit()
    assert made.generator.mean.eq(0).all()
    assert len(made.store) == 0


def test_a_plain_generator_is_fitted_again_after_the_hook_undid_it():
    made = SyntheticReplayBuffer(RingBuffer(SPEC, 100, device="cpu"), Mean(), on_refit=lambda report: 1 / 0)
    made.add(rows(60))
    job = made.begin()
    with pytest.raises(ZeroDivisionError):
        made.commit(job)
    made.on_refit = None
    made.commit(job)
    assert torch.equal(made.generator.mean, made.store.rows[0])


def test_rows_that_are_added_while_the_hook_runs_are_counted():
    def add_and_raise(report: RefitReport) -> None:
        made.add(rows(10))  # as another thread may
        raise RuntimeError

    made = buffer(on_refit=add_and_raise)
    with pytest.raises(RuntimeError):
        made.refit()
    assert made.steps == len(made) == 210


def test_a_hook_must_not_refit(same: Any):
    calls = []

    def refit(report: RefitReport) -> None:
        calls.append(pickle.loads(pickle.dumps(made)))  # a copy that the hook saves is free to refit
        if len(calls) < 3:
            made.refit()

    made = buffer(on_refit=refit)
    with pytest.raises(RuntimeError, match="hook"):
        made.refit()
    assert (len(calls), made.refits, made.generator.is_fitted) == (1, 0, False)
    calls[0].refit()
    assert calls[0].refits == 2


def test_the_hook_must_be_callable_and_is_not_pickled():
    with pytest.raises(TypeError, match="on_refit"):
        buffer(on_refit=3)
    made = buffer(on_refit=lambda report: None)
    assert pickle.loads(pickle.dumps(made)).on_refit is None


# --- schedules


@dataclass
class Once:
    """Refits once, after the first hundred steps."""

    rows: int = 50

    def is_due(self, steps: int, last_refit: int | None) -> bool:
        return last_refit is None and steps >= 100


class Counting(Once):
    """Counts how often it is asked, and saves that."""

    asked = 0

    def is_due(self, steps: int, last_refit: int | None) -> bool:
        self.asked += 1
        return super().is_due(steps, last_refit)

    def state_dict(self) -> dict[str, Any]:
        return {"asked": self.asked}

    def restored(self, state: dict[str, Any]) -> Counting:
        other = Counting()
        other.asked = state["asked"]
        return other


def test_any_object_with_rows_and_is_due_is_a_schedule(tmp_path: Path):
    made = buffer(schedule=Once())
    for seed in range(3):
        made.sample(8)
        made.add(rows(seed=seed))
    assert (made.refits, len(made.store)) == (1, 50)
    made.save(tmp_path / "file")
    again = buffer(schedule=Once())
    again.load(tmp_path / "file")
    assert again.refits == 1
    with pytest.raises(CheckpointError, match="schedule"):
        buffer().load(tmp_path / "file")


def test_a_schedule_is_saved_by_its_own_state(tmp_path: Path):
    made = buffer(schedule=Counting())
    made.sample(8)
    made.sample(8)
    made.save(tmp_path / "file")
    again = buffer(schedule=Counting())
    again.load(tmp_path / "file")
    assert again.schedule.asked == 2


class Resumable(Once):
    """Has the methods of a part, but no `restored`: it is not saved."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("never called")


def test_a_schedule_that_cannot_be_restored_is_not_saved():
    made, again = buffer(schedule=Resumable()), buffer(schedule=Resumable())
    again.load_state_dict(made.state_dict())
    assert again.steps == made.steps


class Broken(Once):
    """Raises an error once it is asked after so many steps."""

    def is_due(self, steps: int, last_refit: int | None) -> bool:
        if steps >= 300:
            raise ZeroDivisionError("no schedule")
        return super().is_due(steps, last_refit)


def test_a_schedule_that_raises_does_not_end_the_training():
    made = buffer(schedule=Broken())
    made.sample(8)
    made.add(rows())
    with pytest.warns(RuntimeWarning, match="no schedule"):
        batch = made.sample(8)
    assert batch.is_synthetic.sum() == 4
    assert made.refits == 1


def test_a_generator_that_cannot_be_made_does_not_end_the_training():
    calls = []

    def factory(device: Any) -> Any:
        calls.append(device)
        raise OSError("no weights")

    made = SyntheticReplayBuffer(RingBuffer(SPEC, 1_000, device="cpu"), factory, spec=SPEC, schedule=100, device="cpu")
    made.schedule = RetrainSchedule(every=100, rows=50, start=100)
    made.add(rows())
    with pytest.warns(RuntimeWarning, match="no weights"):
        made.sample(8)
    made.sample(8)
    assert len(calls) == 1  # not at every batch
    made.add(rows())
    assert len(made.sample(8)) == 8
    assert len(calls) == 2


# --- copies in workers


def test_reseeded_buffers_draw_different_rows():
    one = buffer(real_ratio=0.0)
    one.refit()
    two = copy.deepcopy(one)
    assert torch.equal(one.sample(16).rows, two.sample(16).rows)
    two.reseed(5)
    assert not torch.equal(one.sample(16).rows, two.sample(16).rows)


def test_reseeded_buffers_draw_different_real_rows():
    one = buffer(real_ratio=1.0)
    two = copy.deepcopy(one)
    two.reseed(5)
    assert not torch.equal(one.sample(16).rows, two.sample(16).rows)


def test_a_generator_that_is_made_later_has_the_new_seed():
    made = SyntheticReplayBuffer(RingBuffer(SPEC, 100, device="cpu"), "tiny", device="cpu", real_ratio=1.0)
    made.reseed(5)
    assert made.generator.seed == 5


# --- versions of the real rows


class Versioned(RingBuffer):
    """Real rows whose meaning changes with their version."""

    version: int | str = 0


def test_another_version_of_the_real_rows_drops_synthetic_rows_and_model():
    real = Versioned(SPEC, 1_000, device="cpu")
    made = SyntheticReplayBuffer(real, make(), schedule=RetrainSchedule(every=10_000, rows=300, start=100))
    made.add(rows())
    made.sample(8)
    assert made.refits == 1
    job = made.begin()
    real.version = 1
    with pytest.raises(ValueError, match="version"):
        made.commit(job)
    made.sample(8)
    assert made.refits == 2  # at once, although the schedule says every 10,000
    assert made.last_refit is not None
    assert made.last_refit.fit.from_scratch
    made.refit()
    assert not made.last_refit.fit.from_scratch


def test_a_version_that_cannot_be_read_does_not_end_the_training():
    class Real(Versioned):
        version = property(lambda self: 1 / 0 if len(self) > 250 else 0)  # type: ignore[assignment]

    made = SyntheticReplayBuffer(Real(SPEC, 1_000, device="cpu"), make(), schedule=RetrainSchedule(100, 300, 100))
    made.add(rows())
    made.sample(8)
    made.add(rows())
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        batch = made.sample(8)
    assert batch.is_synthetic.sum() == 4


@pytest.mark.parametrize("version", [1.5, [1], torch.zeros(2)])
def test_a_version_of_another_type_is_refused(version: Any):
    real = Versioned(SPEC, 1_000, device="cpu")
    real.version = version
    with pytest.raises(TypeError, match="version"):
        SyntheticReplayBuffer(real, make())


def test_a_version_that_changes_its_type_does_not_end_the_training():
    real = Versioned(SPEC, 1_000, device="cpu")
    made = SyntheticReplayBuffer(real, make(), schedule=RetrainSchedule(100, 300, 100))
    made.add(rows())
    made.sample(8)
    real.version = torch.zeros(2)  # type: ignore[assignment]
    with pytest.warns(RuntimeWarning, match="version"):
        assert made.sample(8).is_synthetic.sum() == 4


def test_a_refit_asked_for_after_another_version_is_not_repeated():
    real = Versioned(SPEC, 1_000, device="cpu")
    made = SyntheticReplayBuffer(real, make(), schedule=RetrainSchedule(every=10_000, rows=300, start=100))
    made.add(rows())
    made.sample(8)
    real.version = 1
    made.refit()
    made.sample(8)
    assert made.refits == 2


def test_a_model_of_another_version_stays_one_in_a_file():
    parts = [
        (real, SyntheticReplayBuffer(real, make())) for real in (Versioned(SPEC, 1_000, device="cpu") for _ in "ab")
    ]
    (real, made), (again_real, again) = parts
    made.add(rows())
    made.refit(100)
    real.version = again_real.version = 1
    made.real.load_state_dict(RingBuffer(SPEC, 1_000, device="cpu").state_dict())  # too few rows for a refit
    with pytest.raises(ValueError, match="valid rows"):
        made.refit()
    again.load_state_dict(made.state_dict())
    again.add(rows())
    assert again.refit(100).fit.from_scratch
