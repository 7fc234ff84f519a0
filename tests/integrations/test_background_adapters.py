"""Refits in the background through every adapter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay import DiffusionGenerator
from synther_replay.replay.background import BackgroundRefit
from synther_replay.watching import RefitLog

OPTIONS: dict[str, Any] = {
    "generator": {"width": 16, "depth": 1, "steps": 20, "refit_steps": 10, "batch_size": 32, "sampling_steps": 4},
    "schedule": {"every": 60, "rows": 100, "start": 60},
    "refit": "background",
    "lag": 20,
}


def sb3_buffer(**options: Any) -> Any:
    pytest.importorskip("stable_baselines3")
    from synther_replay.adapters.sb3 import SynthERBuffer

    return SynthERBuffer(200, gym.spaces.Box(-9, 9, (2,)), gym.spaces.Box(-1, 1, (1,)), device="cpu", **options)


def torchrl_buffer(**options: Any) -> Any:
    pytest.importorskip("torchrl")
    from torchrl.data import Bounded, LazyTensorStorage, TensorDictReplayBuffer

    from synther_replay.adapters.torchrl import SynthERReplayBuffer

    real = TensorDictReplayBuffer(storage=LazyTensorStorage(200), batch_size=16)
    return SynthERReplayBuffer(real, action_spec=Bounded(-1, 1, (1,)), **options)


def skrl_memory(**options: Any) -> Any:
    pytest.importorskip("skrl")
    from synther_replay.adapters.skrl import SynthERMemory

    return SynthERMemory(memory_size=200, device="cpu", **options)


def corl_buffer(**options: Any) -> Any:
    from synther_replay.adapters.corl import ReplayBuffer

    return ReplayBuffer(2, 1, 200, max_action=1.0, **options)


@pytest.mark.parametrize("make", [sb3_buffer, torchrl_buffer, skrl_memory, corl_buffer])
def test_a_lag_without_refits_in_the_background_is_refused(make: Callable[..., Any]):
    with pytest.raises(ValueError, match=r"lag: applies to refit='background' only, got 20"):
        make(**{**OPTIONS, "refit": "inline"})


def test_refits_of_corl_in_the_background_need_a_schedule():
    with pytest.raises(ValueError, match="refit: 'background' requires a schedule"):
        corl_buffer(refit="background")


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
    pytest.importorskip("torchrl")
    from tensordict import TensorDict

    def extend(buffer: Any, n: int) -> None:
        flags = {name: torch.zeros(n, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        data = {"observation": torch.randn(n, 2), "action": torch.rand(n, 1), **flags}
        following = {"observation": torch.randn(n, 2), "reward": torch.randn(n, 1), **flags}
        buffer.extend(TensorDict({**data, "next": following}, [n]))
        buffer.sample()

    buffer = torchrl_buffer(seed=0, **OPTIONS)
    extend(buffer, 60)
    assert buffer.source.refits == 0
    again = torchrl_buffer(seed=0, **OPTIONS)
    again.load_state_dict(buffer.state_dict())
    for each in (buffer, again):
        extend(each, 20)
        assert each.source.refits == 1
    assert torch.equal(buffer.source.store.rows, again.source.store.rows)


@pytest.mark.usefixtures("in_thread")
def test_skrl():
    memory = skrl_memory(**OPTIONS)
    spaces = {"observations": gym.spaces.Box(-9, 9, (2,)), "actions": gym.spaces.Box(-1, 1, (1,))}
    spaces["next_observations"] = spaces["observations"]
    flags = {"terminated": torch.bool, "truncated": torch.bool}
    for name in ("observations", "actions", "rewards", "next_observations", *flags):
        memory.create_tensor(name=name, size=spaces.get(name, 1), dtype=flags.get(name, torch.float32))
    refits = []
    for _ in range(80):
        values = {name: torch.rand(1, 2 if "observations" in name else 1) for name in spaces}
        memory.add_samples(**values, rewards=torch.randn(1, 1), **dict.fromkeys(flags, torch.zeros(1, 1).bool()))
        memory.sample(["observations", "actions", "rewards", "next_observations", "terminated"], batch_size=16)
        refits.append(memory.source.refits if memory.source is not None else 0)
    assert (refits[78], refits[79]) == (0, 1)


@pytest.mark.usefixtures("in_thread")
def test_corl():
    buffer = corl_buffer(real_ratio=0.5, **OPTIONS)
    rng, refits = np.random.default_rng(0), []
    for _ in range(80):
        state, following = rng.normal(size=(2, 2))
        buffer.add_transition(state, rng.uniform(-1, 1, 1), 0.5, following, False)
        buffer.sample(16)
        refits.append(buffer._source.refits if buffer._source is not None else 0)
    assert (refits[78], refits[79]) == (0, 1)
    assert buffer.upsample(50).pause_seconds is not None  # waits, whatever `refit` says
