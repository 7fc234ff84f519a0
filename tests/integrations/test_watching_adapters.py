"""RefitLog in every adapter, and SB3's TensorBoard files: the same names everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay.watching import PREFIX, RefitLog, TensorBoardWriter, read_history

SMALL = {"width": 16, "depth": 1, "steps": 20, "refit_steps": 10, "batch_size": 32, "sampling_steps": 4}
SCHEDULE = {"every": 60, "rows": 100, "start": 60}
HISTOGRAMS = {f"{PREFIX}{name}" for name in ("rewards_real", "rewards_synthetic", "marginals")}


def check(log: RefitLog, folder: Path) -> None:
    """The refit is in the history, with its fidelity."""
    (refit,) = read_history(folder)
    assert log.last is not None and refit["step"] == log.last.step
    names = {"refits", "store_size", "fit_loss", "marginal", "termination_rate_real", "failures"}
    assert {f"{PREFIX}{name}" for name in names} <= refit["scalars"].keys()
    assert log.last.histograms().keys() == HISTOGRAMS


def sac(**options: Any) -> Any:
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from synther_replay.adapters.sb3 import SynthERBuffer

    return stable_baselines3.SAC(
        "MlpPolicy",
        "Pendulum-v1",
        replay_buffer_class=SynthERBuffer,
        replay_buffer_kwargs={"generator": SMALL, "schedule": SCHEDULE, **options},
        policy_kwargs={"net_arch": [16]},
        learning_starts=50,
        batch_size=16,
        seed=0,
        device="cpu",
    )


def test_stable_baselines3(tmp_path: Path):
    log = RefitLog(folder=tmp_path)
    sac(on_refit=log).learn(65)
    check(log, tmp_path)


def test_a_saved_model_goes_on_logging_where_it_is_loaded(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = sac(on_refit=RefitLog(TensorBoardWriter(tmp_path / "run"), folder=tmp_path / "run"))
    model.learn(65)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "rows")
    loaded = type(model).load(tmp_path / "model", env=model.get_env())
    loaded.load_replay_buffer(tmp_path / "rows")
    loaded.learn(65, reset_num_timesteps=False)
    steps = [refit["step"] for refit in read_history(tmp_path / "run")]
    assert len(steps) == 2
    found = EventAccumulator(str(tmp_path / "run"))
    found.Reload()
    assert [event.step for event in found.Scalars(f"{PREFIX}marginal")] == steps


def test_callback_writes_the_same_names_to_tensorboard(tmp_path: Path):
    pytest.importorskip("tensorboard")
    model = sac()
    from stable_baselines3.common.logger import configure
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from synther_replay.adapters.sb3 import SynthERCallback

    model.set_logger(configure(str(tmp_path), ["tensorboard", "csv", "json", "log"]))
    model.learn(70, callback=(callback := SynthERCallback()), log_interval=None)
    model.logger.dump(70)
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    record = callback._log.last
    assert record is not None
    assert record.scalars().keys() <= set(found.Tags()["scalars"])
    assert set(found.Tags()["histograms"]) == record.histograms().keys() == HISTOGRAMS


def test_torchrl(tmp_path: Path):
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from torchrl.data import Bounded, LazyTensorStorage, TensorDictReplayBuffer

    from synther_replay.adapters.torchrl import SynthERReplayBuffer

    log = RefitLog(folder=tmp_path)
    buffer = SynthERReplayBuffer(
        TensorDictReplayBuffer(storage=LazyTensorStorage(200), batch_size=16),
        action_spec=Bounded(-1, 1, (1,)),
        generator=SMALL,
        schedule=SCHEDULE,
        on_refit=log,
    )
    flags = {name: torch.zeros(100, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
    data = {"observation": torch.randn(100, 2), "action": torch.rand(100, 1), **flags}
    following = {"observation": torch.randn(100, 2), "reward": torch.randn(100, 1), **flags}
    buffer.extend(TensorDict({**data, "next": following}, [100]))
    buffer.sample()
    check(log, tmp_path)


def test_skrl(tmp_path: Path):
    pytest.importorskip("skrl")
    from synther_replay.adapters.skrl import SynthERMemory

    log = RefitLog(folder=tmp_path)
    memory = SynthERMemory(memory_size=200, device="cpu", generator=SMALL, schedule=SCHEDULE, on_refit=log)
    spaces = {"observations": gym.spaces.Box(-9, 9, (2,)), "actions": gym.spaces.Box(-1, 1, (1,))}
    spaces["next_observations"] = spaces["observations"]
    flags = {"terminated": torch.bool, "truncated": torch.bool}
    for name in ("observations", "actions", "rewards", "next_observations", *flags):
        memory.create_tensor(name=name, size=spaces.get(name, 1), dtype=flags.get(name, torch.float32))
    for _ in range(100):
        values = {name: torch.rand(1, 2 if "observations" in name else 1) for name in spaces}
        memory.add_samples(**values, rewards=torch.randn(1, 1), **dict.fromkeys(flags, torch.zeros(1, 1).bool()))
    memory.sample(["observations", "actions", "rewards", "next_observations", "terminated"], batch_size=16)
    check(log, tmp_path)


def test_corl(tmp_path: Path):
    from synther_replay.adapters.corl import ReplayBuffer

    log = RefitLog(folder=tmp_path)
    buffer = ReplayBuffer(2, 1, 200, generator=SMALL, on_refit=log)
    rng = np.random.default_rng(0)
    sizes = {"observations": (100, 2), "actions": (100, 1), "rewards": (100,), "next_observations": (100, 2)}
    rows = {name: rng.uniform(-1, 1, size) for name, size in sizes.items()}
    buffer.load_d4rl_dataset({**rows, "terminals": np.zeros(100, bool)})
    buffer.upsample(100)
    check(log, tmp_path)
