"""n-step transitions in TorchRL: MultiStepTransform on the buffer, MultiStep after a collector."""

import pytest
import torch
from torch import nn

pytest.importorskip("torchrl")

from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import (
    Bounded,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.data.postprocs import MultiStep
from torchrl.envs import GymEnv
from torchrl.envs.transforms import MultiStepTransform
from torchrl.modules import RandomPolicy
from torchrl.objectives.value import TD0Estimator

from synther_replay import GeneratorConfig, RetrainSchedule
from synther_replay.adapters.torchrl import SynthERReplayBuffer

SIZES = {"width": 16, "depth": 1, "embedding": 16, "steps": 20, "refit_steps": 10, "batch_size": 32}
TINY = GeneratorConfig.tiny(**SIZES, sampling_steps=4)
ACTION = Bounded(-1, 1, (1,))
GAMMA = 0.9
REWARD, STEPS = ("next", "reward"), "steps_to_next_obs"


def single(n, first=0):
    """Steps number `first` to `first + n` of a run with episodes of 7 steps."""
    k = torch.arange(first, first + n).float()[:, None]
    done = k.long() % 7 == 6
    following = {"observation": torch.cat([(k + 1).sin(), (k + 1).cos()], 1), "reward": k, "done": done}
    flags = {"terminated": done.clone(), "truncated": torch.zeros_like(done)}
    none = {key: torch.zeros_like(done) for key in ("done", "terminated", "truncated")}
    data = {"observation": torch.cat([k.sin(), k.cos()], 1), "action": k.sin() / 2, "next": {**following, **flags}}
    return TensorDict({**data, **none}, [n])


def transform(n=3):
    return MultiStepTransform(n_steps=n, gamma=GAMMA)


def wrap(real, **options):
    schedule = RetrainSchedule(every=40, rows=64, start=40)
    options = {"action_spec": ACTION, "generator": TINY, "schedule": schedule, "seed": 0, **options}
    return SynthERReplayBuffer(real, **options)


def by_transform():
    return TensorDictReplayBuffer(storage=LazyTensorStorage(200), batch_size=32, transform=transform())


REAL = {
    "transform": (by_transform, lambda data: data),
    "plain buffer": (lambda: ReplayBuffer(storage=LazyTensorStorage(200), batch_size=32, transform=transform()), None),
    "list": (lambda: TensorDictReplayBuffer(storage=ListStorage(200), batch_size=32, transform=transform()), None),
    "collector": (
        lambda: TensorDictReplayBuffer(storage=LazyTensorStorage(200), batch_size=32),
        MultiStep(gamma=GAMMA, n_steps=3),
    ),
}


def fill(buffer, rows, first=0, process=None):
    for start in range(first, first + rows, 20):
        data = single(20, start)
        buffer.extend(process(data) if process else data)
    return buffer


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("real_ratio", [0.0, 0.5])
def test_synthetic_rows_have_the_entries_of_n_step_rows(kind, real_ratio):
    make, process = REAL[kind]
    buffer = fill(wrap(make(), real_ratio=real_ratio), 100, process=process)
    batch = buffer.sample()
    assert buffer.source.refits == 1
    assert batch["is_synthetic"].sum() == 32 - round(32 * real_ratio)
    assert batch[STEPS].dtype == torch.int64
    assert batch[STEPS].shape == batch["gamma"].shape == batch["nonterminal"].shape == (32,)
    assert set(batch[STEPS].tolist()) <= {1, 2, 3}
    assert torch.allclose(batch["gamma"], GAMMA ** batch[STEPS].float())
    assert torch.equal(batch["nonterminal"], batch[STEPS] != 1)
    assert ("next", "original_reward") not in batch.keys(True)  # not modelled


@pytest.mark.parametrize("kind", REAL)
def test_the_generator_gets_n_step_rows(kind):
    make, process = REAL[kind]
    buffer = fill(wrap(make()), 60, process=process)
    buffer.sample()
    rows, stored = buffer.source.real.transitions(), buffer.real[:]
    assert torch.equal(rows.rewards, stored[REWARD][:, 0])
    assert torch.equal(rows.field(STEPS), stored[STEPS])
    assert torch.equal(rows.next_observations, stored["next", "observation"])
    expected = [k + GAMMA * (k + 1) + GAMMA**2 * (k + 2) for k in range(5)]  # the first of an episode of 7
    assert torch.allclose(rows.rewards[:5], torch.tensor(expected))
    assert rows.field(STEPS)[:7].tolist() == [3, 3, 3, 3, 3, 2, 1]


def test_numbers_of_steps_keep_their_shares():
    config = GeneratorConfig.tiny(steps=400, width=64)
    buffer = fill(wrap(by_transform(), generator=config, real_ratio=0.0, schedule={"start": 40, "rows": 2_000}), 180)
    buffer.sample()
    steps = buffer.source.store.rows[:, buffer.source.spec.field(STEPS).columns.start]
    for number, share in ((1, 1 / 7), (2, 1 / 7), (3, 5 / 7)):
        assert (steps == number).float().mean() == pytest.approx(share, abs=0.1)


def test_storage_of_several_environments():
    real = TensorDictReplayBuffer(storage=LazyTensorStorage(200, ndim=2), batch_size=32, transform=transform())
    buffer = wrap(real)
    for start in range(0, 100, 20):
        buffer.extend(torch.stack([single(20, start), single(20, start + 3)]))
    batch = buffer.sample()
    assert batch["is_synthetic"].sum() == 16
    assert set(batch[STEPS].tolist()) <= {1, 2, 3}
    assert torch.allclose(batch["gamma"], GAMMA ** batch[STEPS].float())


@pytest.mark.parametrize("real_ratio", [0.0, 0.5])
def test_losses_discount_each_row_by_its_own_steps(real_ratio):
    value = TensorDictModule(nn.Linear(2, 1), in_keys=["observation"], out_keys=["state_value"])
    estimator = TD0Estimator(gamma=GAMMA, value_network=value)
    batch = fill(wrap(by_transform(), real_ratio=real_ratio), 100).sample(64)
    target = estimator.value_estimate(batch)
    following = value.module(batch["next", "observation"]) * ~batch["next", "terminated"]
    expected = batch[REWARD] + GAMMA ** batch[STEPS][:, None] * following
    assert torch.allclose(target, expected, atol=1e-4)


def test_real_rows_alone_are_those_of_torchrl():
    ours, theirs = fill(wrap(by_transform(), real_ratio=1.0), 60), fill(by_transform(), 60)
    torch.manual_seed(1)
    batch = ours.sample()
    torch.manual_seed(1)
    expected = theirs.sample()
    assert sorted(map(str, batch.keys(True, True))) == sorted(map(str, expected.keys(True, True)))
    assert (batch == expected).all()


@pytest.mark.parametrize("way", ["state_dict", "dumps"])
def test_saved_buffer_goes_on(tmp_path, way):
    buffer = fill(wrap(by_transform()), 60)
    buffer.sample()
    other = wrap(by_transform())
    if way == "dumps":
        buffer.dumps(tmp_path)
        other.loads(tmp_path)
    else:
        other.load_state_dict(buffer.state_dict())
    assert torch.equal(other.source.store.rows, buffer.source.store.rows)
    batch = other.sample()
    assert batch["is_synthetic"].sum() == 16
    assert set(batch[STEPS].tolist()) <= {1, 2, 3}


def test_more_steps_later():
    buffer = fill(wrap(by_transform()), 60)
    buffer.sample()
    buffer.real.transform[0].n_steps = 5
    fill(buffer, 60, first=60)
    buffer.sample()
    assert buffer.source.refits == 2
    assert buffer.source.real.transitions().field(STEPS).max() == 5


@pytest.mark.slow
def test_collector_with_n_step_returns():
    env = GymEnv("Pendulum-v1")
    collector = Collector(
        env,
        RandomPolicy(env.action_spec),
        frames_per_batch=40,
        total_frames=120,
        postproc=MultiStep(gamma=GAMMA, n_steps=3),
    )
    real = TensorDictReplayBuffer(storage=LazyTensorStorage(200), batch_size=32)
    buffer = wrap(real, action_spec=env.action_spec)
    for data in collector:
        buffer.extend(data)
        batch = buffer.sample()
        assert set(batch[STEPS].tolist()) <= {1, 2, 3}
    collector.shutdown()
    assert buffer.source.refits == 3
