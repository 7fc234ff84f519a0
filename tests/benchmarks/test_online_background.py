"""An online run with refits in the background: stopped, resumed, and with refits that fail."""

import copy

import online_stand_ins
import pytest
import torch

from synther_replay import DiffusionGenerator
from synther_replay.benchmarks.online import actors as online_actors
from synther_replay.benchmarks.online.run import OnlineRun
from synther_replay.benchmarks.online.settings import Settings
from synther_replay.errors import DivergedError

CPU = torch.device("cpu")
SMALL = {"width": 16, "depth": 1, "steps": 20, "refit_steps": 10, "batch_size": 32, "sampling_steps": 3}


def settings(**changes):
    values = {"env": "Pendulum-v1", "algo": "synther", "preset": "tiny", "seeds": 2, "steps": 140, "utd": 1}
    values |= {"random_steps": 40, "episodes": 1, "schedule": {"every": 40, "rows": 100}, "generator": SMALL}
    return Settings(**{**values, "refit": "background", "lag": 25, **changes})


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    online_stand_ins.install(monkeypatch)
    monkeypatch.setattr(Settings, "evaluation_steps", lambda self: {self.steps})
    monkeypatch.setattr(DiffusionGenerator, "background", "thread", raising=False)  # a process takes seconds to start


def run_through(checkpoint, of, **limits):
    lines = []
    run = OnlineRun(of, CPU, lines.append)
    run.run(checkpoint, **limits)
    run.lines = lines
    return run


def outcome(run):
    """Everything that must not depend on stops."""
    fits = [{key: value for key, value in fit.items() if "seconds" not in key} for fit in run.progress.fits]
    parts = {"learner": run.agents.learner, "replay": run.agents.replay}
    return copy.deepcopy({"fits": fits, **{name: part.state_dict() for name, part in parts.items()}})


@pytest.mark.parametrize("relevance", [{}, {"name": "reward"}, {"name": "value"}])
def test_a_run_stopped_in_the_middle_of_refits_is_the_run(relevance, tmp_path, same):
    whole = run_through(tmp_path / "whole", settings(relevance=relevance))
    assert [fit["step"] for fit in whole.progress.fits] == [40, 80]  # that of 120 would end with the run
    assert all(fit["pause_seconds"] >= 0 and fit["job_seconds"] > 0 for fit in whole.progress.fits)
    said = []
    for _ in range(3):
        stopped = run_through(tmp_path / "stopped", settings(relevance=relevance), time_limit=0.0)
        said += stopped.lines
    assert stopped.finished
    assert same(outcome(stopped), outcome(whole))
    assert any("refit begun at step 40" in line for line in said)


def test_a_refit_that_fails_keeps_the_rows_and_the_run_continues(tmp_path, monkeypatch):
    calls = []
    begin = DiffusionGenerator.begin

    def failing(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 1:
            raise DivergedError("diverged")
        return begin(self, *arguments, **options)

    monkeypatch.setattr(DiffusionGenerator, "begin", failing)
    with pytest.warns(UserWarning, match="step 40 failed: diverged"):
        run = run_through(tmp_path / "run", settings())
    assert [fit["step"] for fit in run.progress.fits] == [80]


def test_a_refit_that_cannot_begin_keeps_the_rows_and_the_run_continues(tmp_path, monkeypatch):
    begin, calls = online_actors.new_background_fit, []

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("out of memory")
        return begin(*arguments, **options)

    monkeypatch.setattr(online_actors, "new_background_fit", failing)
    with pytest.warns(UserWarning, match="step 40 failed: out of memory"):
        run = run_through(tmp_path / "run", settings())
    assert [fit["step"] for fit in run.progress.fits] == [80]


@pytest.mark.slow
def test_in_a_process_rows_of_all_seeds_come_back(tmp_path, monkeypatch):
    monkeypatch.delattr(DiffusionGenerator, "background")
    run = run_through(tmp_path / "run", settings(steps=70))
    assert [fit["step"] for fit in run.progress.fits] == [40]
    assert run.agents.replay.has_synthetic


REFUSED = [{"refit": "later"}, {"lag": 0}, {"refit": "inline"}, {"algo": "sac", "preset": None}]


@pytest.mark.parametrize("changes", REFUSED)
def test_settings_that_do_not_go_together_are_refused(changes):
    with pytest.raises(ValueError, match=r"refit|lag"):
        settings(**changes)


def test_results_have_a_name_and_settings_of_their_own():
    background, inline = settings(), settings(refit="inline", lag=None)
    assert (background.name, inline.name) == ("synther-tiny-background", "synther-tiny")
    assert background.to_json()["lag"] == 25
    assert "refit" not in inline.to_json()
