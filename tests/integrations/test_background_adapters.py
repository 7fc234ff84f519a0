"""Refits in the background through every adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_buffers import corl_buffer, corl_step, skrl_memory, skrl_step, torchrl_buffer, torchrl_step

from synther_replay import DiffusionGenerator
from synther_replay.replay.background import BackgroundRefit
from synther_replay.watching import RefitLog

OPTIONS: dict[str, Any] = {
    "generator": {"width": 16, "depth": 1, "steps": 20, "refit_steps": 10, "batch_size": 32, "sampling_steps": 4},
    "schedule": {"every": 60, "rows": 100, "start": 60},
    "refit": "background",
    "lag": 20,
}


@pytest.fixture
def in_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process takes seconds to start; tests/library/test_background.py and the first test here have some."""
    monkeypatch.setattr(DiffusionGenerator, "background", "thread", raising=False)


def sac(**options: Any) -> Any:
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from synther_replay.adapters.sb3 import SynthERBuffer

    return stable_baselines3.SAC(
        "MlpPolicy",
        "Pendulum-v1",
        replay_buffer_class=SynthERBuffer,
        replay_buffer_kwargs={**OPTIONS, **options},
        policy_kwargs={"net_arch": [16]},
        learning_starts=50,
        batch_size=16,
        seed=0,
        device="cpu",
    )


def policy(model: Any) -> torch.Tensor:
    return torch.cat([weights.detach().flatten() for weights in model.policy.parameters()])


def test_stable_baselines3_in_a_process():
    log = RefitLog(fidelity_rows=0)
    model = sac(on_refit=log)
    model.learn(75)
    source = model.replay_buffer.source
    assert (source.refits, source.steps) == (0, 75)
    model.learn(10, reset_num_timesteps=False)
    assert source.refits == 1
    assert log.last is not None and log.last.step == 60
    assert log.pauses == pytest.approx(log.last.pause_seconds)


@pytest.mark.usefixtures("in_thread")
def test_two_runs_of_stable_baselines3_agree():
    models = [sac().learn(150) for _ in range(2)]  # one after the other: both seed torch
    assert [model.replay_buffer.source.refits for model in models] == [2, 2]
    assert torch.equal(*map(policy, models))


@pytest.mark.usefixtures("in_thread")
def test_a_buffer_saved_in_the_middle_of_a_refit_holds_its_rows(tmp_path: Path):
    model, other = sac(), sac()
    model.learn(70)
    assert model.replay_buffer.source._pending is not None
    model.save_replay_buffer(tmp_path / "rows")
    other.load_replay_buffer(tmp_path / "rows")
    for each in (model, other):
        each.replay_buffer.source.steps = 80
        each.replay_buffer.source.refit_if_due()
    stores = [each.replay_buffer.source.store.rows for each in (model, other)]
    assert torch.equal(*stores) and len(stores[0]) == 100


@pytest.mark.usefixtures("in_thread")
def test_an_interrupted_wait_before_a_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(self: BackgroundRefit) -> None:
        raise KeyboardInterrupt

    model, file = sac(), tmp_path / "rows.pkl"
    model.learn(50).save_replay_buffer(file)
    saved = file.read_bytes()
    model.learn(20, reset_num_timesteps=False)  # a refit begins at 60
    with monkeypatch.context() as patch:
        patch.setattr(BackgroundRefit, "is_over", False)
        patch.setattr(BackgroundRefit, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.save_replay_buffer(file)
    assert file.read_bytes() == saved
    model.save_replay_buffer(file)
    assert file.read_bytes() != saved


@pytest.mark.usefixtures("in_thread")
def test_torchrl():
    buffer = torchrl_buffer(seed=0, **OPTIONS)
    torchrl_step(buffer, 60)
    assert buffer.source.refits == 0
    again = torchrl_buffer(seed=0, **OPTIONS)
    again.load_state_dict(buffer.state_dict())
    for each in (buffer, again):
        torchrl_step(each, 20)
        assert each.source.refits == 1
    assert torch.equal(buffer.source.store.rows, again.source.store.rows)


@pytest.mark.usefixtures("in_thread")
def test_skrl():
    memory, refits = skrl_memory(**OPTIONS), []
    for _ in range(80):
        skrl_step(memory)
        refits.append(memory.source.refits)
    assert (refits[78], refits[79]) == (0, 1)


@pytest.mark.usefixtures("in_thread")
def test_corl():
    buffer, rng, refits = corl_buffer(real_ratio=0.5, **OPTIONS), np.random.default_rng(0), []
    for _ in range(80):
        corl_step(buffer, rng)
        refits.append(buffer._source.refits)
    assert (refits[78], refits[79]) == (0, 1)
    assert buffer.upsample(50).pause_seconds is not None  # waits, whatever `refit` says
