"""TorchRL: a generator in an actor of Ray, and a buffer in TorchRL's own actor."""

from __future__ import annotations

import functools

import pytest
import torch
from small_cluster import CONFIG

pytest.importorskip("ray")
pytest.importorskip("torchrl")
from tensordict import TensorDict
from torchrl.data import Bounded, LazyTensorStorage, RayReplayBuffer, TensorDictReplayBuffer

from synther_replay.adapters.torchrl import HostedSynthERReplayBuffer, SynthERReplayBuffer
from synther_replay.distributed import RayGenerator

pytestmark = pytest.mark.slow
OPTIONS = {"action_spec": Bounded(-1, 1, (1,)), "schedule": {"every": 100, "start": 100, "rows": 500}, "device": "cpu"}


def rows(n: int) -> TensorDict:
    flags = {name: torch.zeros(n, 1, dtype=torch.bool) for name in ("done", "terminated")}
    following = TensorDict({"observation": torch.rand(n, 2), "reward": torch.rand(n, 1), **flags}, [n])
    return TensorDict({"observation": torch.rand(n, 2), "action": torch.rand(n, 1), "next": following}, [n])


def real() -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(1_000), batch_size=32)


def test_a_buffer_with_a_generator_elsewhere(worker):
    plain = SynthERReplayBuffer(real(), generator=CONFIG, **OPTIONS)
    plain.extend(rows(50))
    plain.sample()
    generator = RayGenerator(plain.source.spec, CONFIG, worker=worker)
    buffer = SynthERReplayBuffer(real(), generator=generator, **OPTIONS)
    buffer.extend(rows(150))
    assert buffer.sample()["is_synthetic"].sum() == 16
    assert buffer.source.refits == 1


def test_the_buffer_in_an_actor(cluster):
    buffer = RayReplayBuffer(
        replay_buffer_cls=HostedSynthERReplayBuffer,
        real=functools.partial(TensorDictReplayBuffer, storage=LazyTensorStorage(1_000), batch_size=32),
        generator=CONFIG,
        remote_config={"num_cpus": 1, "num_gpus": 0, "resources": {"second": 1}},
        ray_init_config={"address": "auto"},
        **OPTIONS,
    )
    try:
        buffer.extend(rows(150))
        assert len(buffer) == 150
        assert buffer.sample()["is_synthetic"].sum() == 16
        assert buffer.client().write_count == 150
        with pytest.raises(TypeError, match="HostedSynthERReplayBuffer"):
            SynthERReplayBuffer(buffer, **OPTIONS)
    finally:
        buffer.close()
