"""TorchRL: collectors in other processes write to the buffer that this process samples from."""

import copy
import os
import pickle
import time
from multiprocessing import context

import pytest
import torch

pytest.importorskip("torchrl")

import torchrl.collectors
from tensordict import TensorDict
from torch import multiprocessing
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.envs.utils import RandomPolicy

from synther_replay.adapters.torchrl import SynthERReplayBuffer

TINY = {"preset": "tiny", "width": 16, "depth": 1, "steps": 20, "batch_size": 32, "sampling_steps": 2}
KINDS = {"sync": "MultiSyncCollector", "async": "MultiAsyncCollector", "one": "AsyncCollector"}


def make_env():
    return GymEnv("Pendulum-v1")


def make_buffer(storage=LazyTensorStorage, **options):
    real = TensorDictReplayBuffer(storage=storage(2_000), batch_size=32)
    settings = {"generator": TINY, "schedule": {"start": 100, "every": 100, "rows": 200}, "seed": 0} | options
    return SynthERReplayBuffer(real, action_spec=make_env().action_spec, **settings)


def rewards_of(batch):
    """Pendulum's reward, computed from observation and action."""
    cosine, sine, speed = batch["observation"].unbind(1)
    return -(torch.atan2(sine, cosine) ** 2 + 0.1 * speed**2 + 0.001 * batch["action"][:, 0] ** 2)


def transitions(n):
    down = torch.zeros(n, 1, dtype=torch.bool)
    after = {"observation": torch.rand(n, 3), "reward": torch.rand(n, 1), "done": down, "terminated": down}
    return TensorDict({"observation": torch.rand(n, 3), "action": torch.rand(n, 1), "next": after}, [n])


def collector_of(kind, buffer, **options):
    envs = [make_env, make_env] if kind != "one" else make_env
    policy = RandomPolicy(make_env().action_spec)
    cls = getattr(torchrl.collectors, KINDS[kind])
    return cls(envs, policy, frames_per_batch=50, replay_buffer=buffer, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "storage", "given"),
    [
        ("sync", LazyTensorStorage, "ours"),
        ("async", LazyTensorStorage, "ours"),
        ("one", LazyTensorStorage, "ours"),
        ("sync", LazyMemmapStorage, "ours"),
        ("sync", LazyTensorStorage, "real"),
    ],
)
def test_collectors_of_other_processes_fill_the_buffer(kind, storage, given):
    buffer = make_buffer(storage)
    collector = collector_of(kind, buffer if given == "ours" else buffer.real, total_frames=400)
    try:
        for _ in collector:
            batch = buffer.sample()
            real = ~batch["is_synthetic"]
            torch.testing.assert_close(batch["next", "reward"][real, 0], rewards_of(batch)[real], rtol=1e-3, atol=1e-3)
        assert len(buffer) >= 400
        assert buffer.source.refits >= 3
        assert int(real.sum()) == 16
        buffer.sample()
        assert buffer.source.steps <= buffer.write_count
    finally:
        collector.shutdown()


@pytest.mark.slow
def test_rows_are_whole_while_collectors_write_all_the_time():
    buffer = make_buffer()
    collector = collector_of("async", buffer, total_frames=-1)
    try:
        collector.start()
        while not len(buffer):
            time.sleep(0.05)
        while len(buffer) < 2_000:
            batch = buffer.sample()
            real = ~batch["is_synthetic"]
            torch.testing.assert_close(batch["next", "reward"][real, 0], rewards_of(batch)[real], rtol=1e-3, atol=1e-3)
        assert buffer.source.refits > 1
    finally:
        collector.shutdown()


def write_and_sample(buffer, answers):
    """Runs in another process."""
    buffer.extend(transitions(50))
    try:
        buffer.sample(8)
    except RuntimeError as error:
        answers.put((str(error), buffer.source is None, len(buffer)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_process_with_the_buffer_writes_and_does_not_sample(method):
    buffer = make_buffer()
    buffer.share()
    buffer.extend(transitions(150))
    buffer.sample()
    processes = multiprocessing.get_context(method)
    answers = processes.Queue()
    process = processes.Process(target=write_and_sample, args=(buffer, answers))
    process.start()
    error, without_source, rows = answers.get(timeout=120)
    process.join()
    assert "process" in error
    assert without_source == (method == "spawn")
    assert rows == len(buffer) == 200
    buffer.sample()
    assert buffer.source.steps == 200


@pytest.fixture
def starting():
    """As if a process were being started."""
    context.set_spawning_popen(object())
    yield
    context.set_spawning_popen(None)


def test_a_started_process_gets_neither_generator_nor_synthetic_rows(starting):
    buffer = make_buffer(generator={**TINY, "width": 512})
    buffer.extend(transitions(150))
    buffer.sample()
    state = buffer.__getstate__()
    assert state["source"] is None
    assert "_rows" not in state
    assert state["_process"] == os.getpid()
    assert state["_options"].generator is None


def test_copies_and_pickles_sample_where_they_are():
    buffer = make_buffer()
    buffer.extend(transitions(150))
    buffer.sample()
    copies = copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))
    expected = buffer.sample()
    for twin in copies:
        assert twin.source.refits == 1
        assert int(twin.sample()["is_synthetic"].sum()) == int(expected["is_synthetic"].sum())
    buffer._process = -1
    with pytest.raises(RuntimeError, match="process"):
        buffer.sample()
