"""SynthERReplayBuffer in TorchRL; fake generators for mixing, tiny diffusion models elsewhere."""

import copy
import gc
import math
import pickle
import threading
import warnings
import weakref

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("torchrl")

from tensordict import TensorDict, assert_close
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl import collectors
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReplayBufferEnsemble,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.data.replay_buffers.samplers import (
    PrioritizedSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from torchrl.data.replay_buffers.writers import TensorDictRoundRobinWriter
from torchrl.envs import GymEnv, GymWrapper, RenameTransform, RewardScaling, SerialEnv
from torchrl.modules import MLP, ProbabilisticActor, QValueActor, TanhNormal
from torchrl.objectives import DQNLoss, SACLoss

from synther_replay import (
    CheckpointError,
    DivergedError,
    GeneratorConfig,
    RetrainSchedule,
    TransitionSpec,
)
from synther_replay.adapters.torchrl import SynthERReplayBuffer

TINY = GeneratorConfig.tiny(width=16, depth=1, embedding=16, steps=20, refit_steps=10, batch_size=32, sampling_steps=4)
ACTION = Bounded(-1, 1, (1,))
INFINITY = float("inf")
SPEC = TransitionSpec.from_spaces(spaces.Box(-INFINITY, INFINITY, (2,)), spaces.Box(-1, 1, (1,)))
REWARD, TERMINATED = ("next", "reward"), ("next", "terminated")


def _table(n):
    """Transition k, whose reward is k; every fifth is terminated, others are truncated."""
    k = torch.arange(n, dtype=torch.float32)
    observation, following = (torch.stack([x.sin(), x.cos()], -1) for x in (k, k + 0.1))
    number = k.unsqueeze(-1)
    terminated, truncated = number % 5 == 0, number % 7 == 3
    flags = {name: torch.zeros_like(terminated) for name in ("done", "terminated", "truncated")}
    return TensorDict(
        {
            "observation": observation,
            "action": (3 * number).sin(),
            "sample_log_prob": -k,
            **flags,
            "next": {
                "observation": following,
                "reward": number,
                "done": terminated | truncated,
                "terminated": terminated,
                "truncated": truncated,
            },
        },
        [n],
    )


TABLE = _table(300)
MODELLED = {key for key in TABLE.keys(True, True) if key != "sample_log_prob"}


def numbered(n, first=0):
    """Transitions `first` to ``first + n``."""
    return TABLE[first : first + n].clone()


def fill(buffer, n=20, first=0):
    """Extend a buffer by numbered transitions, as a batch of two environments if its storage is two-dimensional."""
    data = numbered(n, first)
    buffer.extend(data.reshape(2, n // 2) if buffer.storage.ndim == 2 else data)
    return buffer


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def tensor_buffer(**options):
    options = {"storage": LazyTensorStorage(100), "batch_size": 16} | options
    return TensorDictReplayBuffer(**options)


def prioritised(**options):
    options = {"storage": LazyTensorStorage(100), "batch_size": 16, "alpha": 1.0, "beta": 0.9} | options
    return TensorDictPrioritizedReplayBuffer(**options)


# Buffers with different sampling code paths.
REAL = {
    "tensor": tensor_buffer,
    "list": lambda **options: tensor_buffer(storage=ListStorage(100), **options),
    "memmap": lambda **options: tensor_buffer(storage=LazyMemmapStorage(100), **options),
    "two axes": lambda **options: tensor_buffer(storage=LazyTensorStorage(100, ndim=2), **options),
    "prefetch": lambda **options: tensor_buffer(prefetch=2, **options),
    "collate_fn": lambda **options: tensor_buffer(collate_fn=lambda x: x, **options),
    "transform": lambda **options: tensor_buffer(transform=lambda x: x, **options),
    "generations": lambda **options: tensor_buffer(
        writer=TensorDictRoundRobinWriter(track_generations=True), **options
    ),
    "untyped": lambda **options: ReplayBuffer(storage=LazyTensorStorage(100), batch_size=16, **options),
    "untyped list": lambda **options: ReplayBuffer(storage=ListStorage(100), batch_size=16, **options),
}
DIRECT = {"tensor", "memmap", "untyped"}  # read directly from the storage


def _priorities_work():
    try:
        PrioritizedSampler(10, 1.0, 1.0)
    except RuntimeError:
        return False
    return True


needs_priorities = pytest.mark.skipif(
    not _priorities_work(), reason="the compiled extension of the installed torchrl does not load"
)


@pytest.fixture
def make_generator(fake):
    """Makes a fake generator: negative rewards, alternating terminations; keeps the rows it was fitted to."""

    class Learner(type(fake)):
        def fit(self, transitions):
            self.seen = transitions
            return super().fit(transitions)

        def sample(self, n):
            batch = super().sample(n)
            batch.rows[:, self.spec.terminated] = (torch.arange(n) % 2).unsqueeze(-1).float()
            return batch

    return lambda spec=SPEC: Learner(spec)


@pytest.fixture
def wrap(make_generator):
    """Wraps a TorchRL buffer; refitted at 10 transitions and every 10 more, 40 synthetic rows each time."""

    def build(real=None, generator=None, **options):
        real = tensor_buffer() if real is None else real
        schedule = RetrainSchedule(every=10, rows=40, start=10)
        options = {"action_spec": ACTION, "schedule": schedule, "seed": 0} | options
        return SynthERReplayBuffer(real, generator=generator or make_generator(), **options)

    return build


def names(batch):
    """All entries of a batch."""
    return set(batch.keys(True, True))


def equal(a, b):
    """Whether two batches agree bit by bit."""
    if isinstance(a, tuple):
        return all(map(equal, a, b))
    if isinstance(a, TensorDict):
        keys = names(a)
        return keys == names(b) and all(equal(a[key], b[key]) for key in keys)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return a.dtype == b.dtype and torch.equal(a, b)


def assert_whole_rows(buffer, batch, info):
    """Every row of a batch is a stored one at its index, or one of the synthetic rows with index -1."""
    synthetic = batch["is_synthetic"]
    numbers = batch[REWARD].squeeze(-1)
    assert torch.equal(synthetic, numbers < 0)
    expected = TABLE[numbers[~synthetic].long()]
    for key in MODELLED:
        assert torch.equal(batch[key][~synthetic], expected[key]), key
    index = info["index"]
    index = torch.stack(index, -1) if isinstance(index, tuple) else index
    assert (index[synthetic] == -1).all()
    where = index[~synthetic]
    for place, number in zip(where, numbers[~synthetic], strict=True):
        held = buffer.storage[tuple(place.tolist()) if place.ndim else int(place)]
        assert held[REWARD].item() == number
    if buffer.source is not None and synthetic.any():
        rows = buffer.source.store.rows
        found = rows[(batch["observation"][synthetic][:, 0] - rows[0, 0]).long()]
        assert torch.equal(batch["observation"][synthetic], found[:, SPEC.observations])
        assert torch.equal(batch[TERMINATED][synthetic], found[:, SPEC.terminated] > 0)


# --- what a user of a TorchRL buffer calls ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tensor", "list", "two axes"])
def test_transitions_are_the_oldest_first(wrap, kind):
    buffer = wrap(REAL[kind]())
    for first in range(0, 260, 20):
        fill(buffer, 20, first).sample()
        rewards = buffer.source.real.transitions().rewards
        order = torch.arange(first + 20).view(-1, 20)
        order = order.view(-1, 2, 10).mT if kind == "two axes" else order  # two environments take turns
        assert rewards.tolist() == order.flatten()[-100:].tolist()


def test_add_and_extend_store_the_same_as_the_plain_buffer(wrap):
    ours, plain = wrap(), tensor_buffer()
    for buffer in (ours, plain):
        indices = [buffer.extend(numbered(5)).tolist(), buffer.add(numbered(1, 5)[0])]
        assert [list(indices[0]), int(indices[1])] == [[0, 1, 2, 3, 4], 5]
    assert len(ours) == len(plain) == 6
    assert_close(ours.storage[:], plain.storage[:], rtol=0, atol=0)


def test_extend_passes_options_on(wrap):
    buffer = wrap()
    buffer.extend(numbered(5), update_priority=False)
    with pytest.raises(TypeError, match="unheard"):
        buffer.extend(numbered(5), unheard=1)


def test_sample_takes_a_batch_size_and_returns_info_when_asked(wrap):
    buffer = fill(wrap())
    assert buffer.sample().shape == (16,)
    assert buffer.sample(6).shape == (6,)
    batch, info = buffer.sample(6, return_info=True)
    assert batch.shape == info["index"].shape == (6,)
    batch, info = buffer.sample(batch_size=4, return_info=True)
    assert torch.equal(batch["index"], info["index"])


def test_the_share_of_real_rows_can_be_changed_during_a_run(wrap):
    buffer = wrap(tensor_buffer(batch_size=8))
    for ratio in (1.0, 0.25):  # before the first rows, too
        buffer.real_ratio = ratio
    fill(buffer)
    mixed = names(buffer.sample(8))
    for ratio, synthetic in ((0.25, 6), (1.0, 0), (0.5, 4)):
        buffer.real_ratio = ratio
        for batch in (buffer.sample(8), buffer.next()):
            assert buffer.real_ratio == ratio
            assert names(batch) == mixed
            assert int(batch["is_synthetic"].sum()) == synthetic
    assert buffer.source.steps == 20
    plain = wrap(real_ratio=1)
    plain.real_ratio = 1
    with pytest.raises(ValueError, match="real_ratio: this buffer was made with 1"):
        plain.real_ratio = 0.5


def test_index_is_in_the_batches_of_tensordict_buffers_only(wrap):
    assert "index" in names(fill(wrap()).sample())
    batch, info = fill(wrap(REAL["untyped"]())).sample(return_info=True)
    assert "index" not in names(batch)
    assert info["index"].shape == (16,)


def test_iteration_gives_batches_of_the_buffers_size(wrap):
    buffer = fill(wrap())
    batches = [batch for _, batch in zip(range(3), buffer, strict=False)]
    assert [batch.shape for batch in batches] == [(16,)] * 3
    assert [int(batch["is_synthetic"].sum()) for batch in batches] == [8] * 3


def test_iteration_needs_a_batch_size(wrap):
    buffer = fill(wrap(tensor_buffer(batch_size=None)))
    with pytest.raises(RuntimeError, match="batch_size"):
        next(iter(buffer))
    with pytest.raises(RuntimeError, match="batch_size"):
        buffer.sample()
    assert buffer.sample(4).shape == (4,)


def test_items_are_the_real_ones_and_can_be_set(wrap):
    buffer = fill(wrap())
    assert buffer[3][REWARD].item() == 3
    assert buffer[:4]["action"].shape == (4, 1)
    buffer[3] = numbered(1, 50)[0]
    assert buffer[3][REWARD].item() == buffer.real[3][REWARD].item() == 50


def test_empty_takes_synthetic_rows_along(wrap):
    buffer = fill(wrap())
    buffer.sample()
    assert len(buffer.source.store) == 40
    buffer.empty()
    assert (len(buffer), len(buffer.source.store)) == (0, 0)
    fill(buffer, 4, first=30)
    batch = buffer.sample(8)
    assert not batch["is_synthetic"].any()
    assert set(batch[REWARD].flatten().tolist()) <= {30.0, 31.0, 32.0, 33.0}


def test_repr_shows_sizes(wrap):
    buffer = fill(wrap())
    assert repr(buffer).startswith("SynthERReplayBuffer(20 real, 0 synthetic, real_ratio=0.5, TensorDictReplayBuffer(")
    buffer.sample()
    assert repr(buffer).startswith("SynthERReplayBuffer(20 real, 40 synthetic, real_ratio=0.5, TensorDictReplayBuffer(")


def test_everything_else_is_asked_of_the_real_buffer(wrap):
    buffer = fill(wrap())
    assert buffer.storage is buffer.real.storage
    assert buffer.batch_size == 16
    assert buffer.write_count == 20
    assert buffer.stats()["size"] == 20
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = buffer.no_such_thing
    assert not hasattr(buffer, "__array__")


@pytest.mark.parametrize("name", ["client", "start", "share"])
def test_methods_that_return_the_buffer_return_ours(wrap, name):
    buffer = fill(wrap())
    assert getattr(buffer, name)() is buffer


def test_next_gives_mixed_batches(wrap):
    batch = fill(wrap()).next()
    assert batch["is_synthetic"].sum() == 8


def test_setting_an_attribute_of_the_real_buffer_reaches_it(wrap):
    buffer = fill(wrap())
    buffer.priority_key = "error"
    assert buffer.real.priority_key == "error"


def test_generation_can_be_guided():
    small = {"width": 16, "depth": 1, "steps": 20, "batch_size": 32, "sampling_steps": 3}
    options = {"action_spec": ACTION, "generator": small, "schedule": {"start": 40, "rows": 30}, "seed": 0}
    buffer = fill(SynthERReplayBuffer(tensor_buffer(), relevance={"name": "reward", "share": 0.5}, **options), 40)
    buffer.sample()
    report = buffer.source.last_refit.relevance
    assert report.share == 0.5
    assert report.chosen > report.real
    with pytest.raises(ValueError, match="did you mean 'reward'"):
        SynthERReplayBuffer(tensor_buffer(), relevance="rewards", **options)


@pytest.mark.parametrize("real_ratio", [0.5, 1.0])
def test_sample_takes_include_info(wrap, real_ratio):
    buffer = fill(wrap(real_ratio=real_ratio))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "index" in names(buffer.sample(include_info=True))


def test_wrapping_does_not_initialise_a_delayed_buffer(wrap):
    buffer = wrap(tensor_buffer(delayed_init=True), real_ratio=1.0)
    assert not buffer.initialized


def test_shut_down_buffer_cannot_be_sampled(wrap):
    buffer = fill(wrap())
    buffer.sample()
    buffer.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        buffer.sample()


# --- real_ratio=1: the real buffer and nothing else -------------------------------------------------------------------

PLAIN = {
    **REAL,
    "without replacement": lambda **options: tensor_buffer(sampler=SamplerWithoutReplacement(), **options),
    "prioritised": pytest.param(prioritised, marks=needs_priorities),
}
WITHOUT_THREADS = [name for name in PLAIN if name != "prefetch"]


def params(table, names=None):
    """The values of a table as parameters with their names."""
    chosen = table if names is None else {name: table[name] for name in names}
    return [
        pytest.param(*value.values, marks=value.marks, id=name)
        if isinstance(value, type(pytest.param()))
        else pytest.param(value, id=name)
        for name, value in chosen.items()
    ]


@pytest.mark.parametrize("make", params(PLAIN, WITHOUT_THREADS))
def test_ratio_1_gives_the_batches_of_the_plain_buffer(make):
    ours, plain = fill(SynthERReplayBuffer(make(), real_ratio=1.0), 50), fill(make(), 50)
    drawn = []
    for buffer in (ours, plain):
        torch.manual_seed(3)
        np.random.seed(3)  # priorities are drawn from NumPy's global state
        drawn.append([buffer.sample(), *buffer.sample(return_info=True), buffer.sample(16)])
    assert all(map(equal, *drawn))
    assert "is_synthetic" not in names(drawn[0][0])
    assert "sample_log_prob" in names(drawn[0][0])
    assert ours.source is None


@pytest.mark.parametrize(
    ("storage", "data"),
    [
        (ListStorage, [f"row {k}" for k in range(20)]),
        (LazyTensorStorage, torch.arange(20)),
        (LazyTensorStorage, {"a": torch.arange(20), "b": (torch.arange(20.0),)}),
    ],
    ids=["strings", "tensor", "pytree"],
)
def test_ratio_1_takes_any_data(storage, data):
    drawn = []
    for buffer in (
        SynthERReplayBuffer(ReplayBuffer(storage=storage(50), batch_size=4, collate_fn=lambda x: x), real_ratio=1.0),
        ReplayBuffer(storage=storage(50), batch_size=4, collate_fn=lambda x: x),
    ):
        torch.manual_seed(0)
        buffer.extend(data)
        assert len(buffer) == 20
        drawn.append([buffer.sample() for _ in range(3)])
    assert repr(drawn[0]) == repr(drawn[1])


def test_ratio_1_needs_no_specs_and_takes_any_sampler():
    real = tensor_buffer(sampler=SliceSampler(num_slices=2, end_key=("next", "done"), strict_length=False))
    assert fill(SynthERReplayBuffer(real, real_ratio=1.0), 50).sample().shape[0] <= 16


def test_ratio_1_iterates_with_any_sampler():
    real = tensor_buffer(sampler=SliceSampler(num_slices=2, end_key=("next", "done"), strict_length=False))
    buffer = fill(SynthERReplayBuffer(real, real_ratio=1.0), 50)
    assert len([batch for _, batch in zip(range(3), buffer, strict=False)]) == 3


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_ratio_1_iterates_as_often_as_the_plain_buffer(prefetch, drop_last):
    def make():
        return tensor_buffer(sampler=SamplerWithoutReplacement(drop_last=drop_last), prefetch=prefetch, batch_size=8)

    ours, plain = fill(SynthERReplayBuffer(make(), real_ratio=1.0)), fill(make())
    expected = [len(batch) for batch in plain]
    assert expected == [8, 8] + [4] * (not drop_last)
    lengths = []
    for batch in ours:
        lengths.append(len(batch))
        ours.synchronize()  # wait for prefetched batches
    assert lengths == expected


# --- batches with synthetic rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", params(REAL))
@pytest.mark.parametrize("real_ratio", [0.25, 0.5])
def test_batches_are_whole_rows_in_exact_shares(wrap, make, real_ratio):
    buffer = fill(wrap(make(), real_ratio=real_ratio), 60)
    masks = []
    for _ in range(10):
        batch, info = buffer.sample(return_info=True)
        assert batch["is_synthetic"].dtype == torch.bool
        assert batch["is_synthetic"].sum() == 16 * (1 - real_ratio)
        assert_whole_rows(buffer, batch, info)
        masks.append(batch["is_synthetic"])
    assert len(torch.stack(masks).unique(dim=0)) > 5
    assert buffer.source.refits == 1


@pytest.mark.parametrize("name", REAL)
def test_plain_storages_are_read_directly(wrap, name):
    buffer = fill(wrap(REAL[name]()))
    asked = []
    sample = buffer.real.sample
    buffer.real.sample = lambda *args, **options: asked.append(args) or sample(*args, **options)
    buffer.sample()
    assert bool(asked) == (name not in DIRECT)


def test_direct_and_general_path_give_the_same_batches(wrap):
    buffers = [fill(wrap(REAL[name](generator=seeded())), 60) for name in ("tensor", "transform")]
    for _ in range(5):
        assert equal(*(buffer.sample() for buffer in buffers))


@pytest.mark.parametrize("make", params(REAL))
def test_entries_are_the_same_before_and_after_the_first_refit(wrap, make):
    buffer = fill(wrap(make(), schedule=RetrainSchedule(every=10, rows=40, start=40)))
    before, info_before = buffer.sample(return_info=True)
    after, info_after = fill(buffer, 20, first=20).sample(return_info=True)
    assert not before["is_synthetic"].any()
    assert after["is_synthetic"].sum() == 8
    assert_whole_rows(buffer, before, info_before)
    assert names(before) == names(after)
    assert info_before.keys() == info_after.keys()
    assert names(before) & MODELLED == MODELLED
    assert {key: before[key].dtype for key in before.keys(True, True)} == {
        key: after[key].dtype for key in after.keys(True, True)
    }


def test_entries_that_are_not_modelled_are_left_out(wrap):
    buffer = fill(wrap())
    assert "sample_log_prob" in names(buffer.storage[:])
    assert "sample_log_prob" not in names(buffer.sample())


def test_batches_without_any_real_row(wrap):
    batch, info = fill(wrap(real_ratio=0.0)).sample(return_info=True)
    assert batch["is_synthetic"].all()
    assert (info["index"] == -1).all()
    assert names(batch) & MODELLED == MODELLED


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(REAL["two axes"], id="two axes"),
        pytest.param(prioritised, id="prioritised", marks=needs_priorities),
    ],
)
def test_batches_without_any_real_row_have_the_same_entries(wrap, make):
    buffer = fill(wrap(make(), real_ratio=0.0, schedule=RetrainSchedule(every=10, rows=40, start=40)))
    before = buffer.sample()
    after = fill(buffer, 20, first=20).sample()
    assert {key: before[key].shape for key in before.keys(True, True)} == {
        key: after[key].shape for key in after.keys(True, True)
    }


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_entries_that_collate_fn_leaves_out_are_left_out(wrap, storage):
    def collate(data):
        return (torch.stack(data) if isinstance(data, list) else data).exclude("done")

    buffer = fill(wrap(tensor_buffer(storage=storage(100), collate_fn=collate)))
    assert names(buffer.sample()) & MODELLED == MODELLED - {"done"}


def test_packed_and_other_data_are_mixed_alike(wrap):
    """The fast path (two matrices) and the general path (entry by entry) give the same rows."""
    options = {"schedule": RetrainSchedule(every=10, rows=40, start=10)}
    packed, other = (wrap(tensor_buffer(generator=seeded()), **options) for _ in range(2))
    for buffer in (packed, other):
        buffer.extend(numbered(20))
        buffer.sample()
    assert packed.source.real.layout.is_packed
    other.source.real.layout.is_packed = False
    for buffer in (packed, other):
        buffer.real.set_rng(seeded(1))
    for size in (16, 5, 16):
        one, two = packed.sample(size), other.sample(size)
        assert names(one) == names(two)
        for key in one.keys(True, True):
            assert torch.equal(one[key], two[key]), key
            assert one[key].dtype == two[key].dtype


class Derived(SynthERReplayBuffer):
    """A buffer with an additional attribute."""

    label: str = "derived"


def test_a_derived_buffer_leaves_the_real_one_alone_and_can_be_copied(make_generator):
    schedule = RetrainSchedule(every=10, rows=40, start=10)
    buffer = fill(Derived(tensor_buffer(), action_spec=ACTION, generator=make_generator(), schedule=schedule))
    assert "is_synthetic" in buffer.next()
    twin = copy.deepcopy(buffer)
    assert "is_synthetic" in twin.next()
    assert "is_synthetic" not in buffer.real.next()


def test_batches_may_be_kept_and_changed(wrap):
    buffer = fill(wrap(tensor_buffer(generator=seeded())), 60)
    twin = copy.deepcopy(buffer)
    for _ in range(5):
        batch, expected = buffer.sample(), twin.sample()
        assert equal(batch, expected)
        batch.apply_(lambda x: x.zero_())
    assert_close(buffer.storage[:], twin.storage[:], rtol=0, atol=0)


def test_real_rows_of_the_last_write_are_sampled(wrap):
    buffer = fill(wrap(tensor_buffer(storage=LazyTensorStorage(10))), 20)
    rewards = torch.cat([buffer.sample()[REWARD] for _ in range(10)])
    assert set(rewards[rewards >= 0].tolist()) == set(range(10, 20))
    assert torch.equal(buffer.source.generator.seen.rewards, torch.arange(10.0, 20))


def test_without_replacement_every_real_row_comes_once_and_the_last_batch_is_filled_up(wrap):
    real = tensor_buffer(sampler=SamplerWithoutReplacement(drop_last=False), batch_size=8)
    buffer = fill(wrap(real), 18)
    batches = list(buffer)
    assert [len(batch) for batch in batches] == [8] * 5
    assert [int((~batch["is_synthetic"]).sum()) for batch in batches] == [4, 4, 4, 4, 2]
    rewards = torch.cat([batch[REWARD] for batch in batches]).flatten()
    assert rewards[rewards >= 0].sort().values.tolist() == list(range(18))
    assert len(list(buffer)) == 5


def test_without_replacement_the_last_batch_is_short_while_everything_is_real(wrap):
    real = tensor_buffer(sampler=SamplerWithoutReplacement(drop_last=False), batch_size=8)
    buffer = fill(wrap(real, schedule=RetrainSchedule(start=100, every=100, rows=40)), 18)
    assert [len(batch) for batch in buffer] == [8, 8, 2]


def test_batches_fetched_ahead_are_cut_when_fewer_real_rows_are_wanted(wrap):
    buffer = fill(wrap(REAL["prefetch"](), schedule=RetrainSchedule(every=10, rows=40, start=40)))
    buffer.sample()
    fill(buffer, 20, first=20)
    for _ in range(4):
        batch, info = buffer.sample(return_info=True)
        assert batch["is_synthetic"].sum() == 8
        assert_whole_rows(buffer, batch, info)


def test_batches_fetched_ahead_are_filled_up_when_more_real_rows_are_wanted(wrap):
    buffer = fill(wrap(REAL["prefetch"]()))
    buffer.sample()
    buffer.synchronize()
    buffer.empty()
    fill(buffer, 8)
    assert [len(buffer.sample()) for _ in range(3)] == [16] * 3


def test_consumed_rows_do_not_come_back(wrap):
    buffer = fill(wrap(tensor_buffer(consume_after_n_samples=1)))
    rewards = torch.cat([buffer.sample()[REWARD] for _ in range(2)]).flatten()
    real = rewards[rewards >= 0].tolist()
    assert len(real) == len(set(real)) == 16
    assert len(buffer) == 4


# --- transforms -------------------------------------------------------------------------------------------------------


def scaling():
    return RewardScaling(loc=5.0, scale=2.0, in_keys=[REWARD])


def add_entry(data):
    return data.set("doubled", data["observation"] * 2)


def at_construction(wrap, transform):
    return fill(wrap(tensor_buffer(transform=transform)), 60)


def appended(wrap, transform):
    buffer = fill(wrap(), 60)
    buffer.sample()  # the cached keys of a batch must be updated
    assert buffer.append_transform(transform) is buffer
    return buffer


def inserted(wrap, transform):
    buffer = fill(wrap(tensor_buffer(transform=lambda data: data.set("first", data["action"] + 1))), 60)
    buffer.sample()
    assert buffer.insert_transform(0, transform) is buffer
    return buffer


@pytest.mark.parametrize("attach", [at_construction, appended, inserted])
def test_transforms_apply_once_to_every_row(wrap, attach):
    buffer = attach(wrap, scaling())
    for _ in range(3):
        batch = buffer.sample()
        untransformed = (batch[REWARD].flatten() - 5) / 2
        synthetic = batch["is_synthetic"]
        assert synthetic.sum() == 8
        assert (untransformed[synthetic] == -1).all()
        assert torch.equal(untransformed[~synthetic], buffer.storage[batch["index"][~synthetic]][REWARD].flatten())
    assert torch.equal(buffer.source.generator.seen.rewards, torch.arange(60.0))


@pytest.mark.parametrize("attach", [at_construction, appended])
def test_transforms_may_add_entries(wrap, attach):
    batch = attach(wrap, add_entry).sample()
    assert torch.equal(batch["doubled"], batch["observation"] * 2)
    assert batch["is_synthetic"].sum() == 8


def test_transforms_may_rename_entries(wrap):
    buffer = appended(wrap, RenameTransform(in_keys=["observation"], out_keys=["state"]))
    batch = buffer.sample()
    assert "observation" not in names(batch)
    real = ~batch["is_synthetic"]
    assert torch.equal(batch["state"][real], TABLE["observation"][batch[REWARD][real].flatten().long()])


def test_transforms_of_two_axes_apply_once(wrap):
    buffer = fill(wrap(REAL["two axes"]()), 60)
    buffer.append_transform(scaling())
    rewards = (buffer.sample()[REWARD].flatten() - 5) / 2
    assert (rewards == -1).sum() == 8
    assert (rewards[rewards != -1] == rewards[rewards != -1].round()).all()


def test_entries_agree_before_and_after_the_first_refit_with_transforms(wrap):
    real = tensor_buffer(transform=add_entry)
    buffer = fill(wrap(real, schedule=RetrainSchedule(every=10, rows=40, start=40)))
    before = names(buffer.sample())
    assert "doubled" in before
    assert names(fill(buffer, 20, first=20).sample()) == before


def test_transforms_that_work_in_place_leave_the_storage_alone(wrap):
    def double(data):
        data[REWARD].mul_(2)
        return data

    buffer = wrap(tensor_buffer(transform=double))
    buffer.extend(numbered(20, first=1))
    buffer.sample()
    assert buffer.storage[:][REWARD].flatten().tolist() == list(range(1, 21))


# --- priorities -------------------------------------------------------------------------------------------------------


def priorities(buffer, n):
    return torch.tensor([float(buffer.sampler._sum_tree[k]) for k in range(n)])


@needs_priorities
@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage, LazyMemmapStorage])
def test_priorities_of_a_batch_reach_exactly_its_real_rows(wrap, storage):
    buffer = fill(wrap(prioritised(storage=storage(100))))
    batch = buffer.sample()
    real = ~batch["is_synthetic"]
    batch["td_error"] = torch.where(real, 3.0, 77.0)
    before = priorities(buffer, 100)
    buffer.update_tensordict_priority(batch)
    changed = priorities(buffer, 100)
    updated = torch.zeros(100, dtype=torch.bool).index_fill_(0, batch["index"][real], True)
    assert torch.allclose(changed[updated], torch.tensor(3.0))
    assert torch.equal(changed[~updated], before[~updated])


@needs_priorities
def test_synthetic_rows_weigh_1_and_have_no_index(wrap):
    buffer = fill(wrap(prioritised()), 60)
    buffer.update_priority(torch.arange(60), torch.rand(60) + 0.1)
    batch, info = buffer.sample(return_info=True)
    synthetic = batch["is_synthetic"]
    assert synthetic.sum() == 8
    assert_whole_rows(buffer, batch, info)
    assert (batch["priority_weight"][synthetic] == 1).all()
    assert (batch["priority_weight"][~synthetic] != 1).any()
    assert torch.equal(batch["priority_weight"], info["priority_weight"])


@needs_priorities
def test_rows_of_high_priority_are_drawn_more_often(wrap):
    buffer = fill(wrap(prioritised()))
    buffer.update_priority(torch.arange(20), torch.ones(20) * 1e-3)
    buffer.update_priority(torch.tensor([7]), torch.tensor([10.0]))
    rewards = torch.cat([buffer.sample()[REWARD] for _ in range(5)]).flatten()
    assert (rewards[rewards >= 0] == 7).float().mean() > 0.9


@needs_priorities
def test_each_real_row_gets_the_priority_at_its_own_place_in_the_batch(wrap):
    buffer = fill(wrap(prioritised()))
    _, info = buffer.sample(16, return_info=True)
    priority = torch.arange(1.0, 17.0)
    buffer.update_priority(info["index"], priority)
    found = priorities(buffer, 100)
    index = info["index"]
    assert (index < 0).any()
    for row in set(index[index >= 0].tolist()):
        assert found[row] in priority[index == row]  # a row drawn twice has one of its two


@needs_priorities
@pytest.mark.parametrize(
    "priority", [3.0, torch.tensor(3.0), torch.full((16,), 3.0)], ids=["float", "number", "vector"]
)
def test_priorities_by_index_skip_synthetic_rows(wrap, priority):
    buffer = fill(wrap(PrioritizedReplayBuffer(storage=LazyTensorStorage(100), alpha=1.0, beta=0.9, batch_size=16)))
    _, info = buffer.sample(return_info=True)
    buffer.update_priority(info["index"], priority)
    changed = set(priorities(buffer, 100).isclose(torch.tensor(3.0)).nonzero().flatten().tolist())
    assert changed == set(info["index"].tolist()) - {-1}


@needs_priorities
@pytest.mark.parametrize("form", ["tuple", "matrix", "batch"])
def test_priorities_of_two_axes_skip_synthetic_rows(wrap, form):
    buffer = fill(wrap(prioritised(storage=LazyTensorStorage(100, ndim=2))))
    batch, info = buffer.sample(return_info=True)
    assert isinstance(info["index"], tuple)
    assert batch["index"].shape == (16, 2)
    assert_whole_rows(buffer, batch, info)
    priority = torch.full((16,), 3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's, about TorchRL
        if form == "batch":
            buffer.update_tensordict_priority(batch.set("td_error", priority))
        else:
            buffer.update_priority(info["index"] if form == "tuple" else batch["index"], priority)
    changed = priorities(buffer, 100).isclose(torch.tensor(3.0)).nonzero().flatten().tolist()
    flat = {int(time * 2 + env) for time, env in batch["index"][~batch["is_synthetic"]].tolist()}
    assert set(changed) == flat


@needs_priorities
def test_single_priority_is_passed_on(wrap):
    buffer = fill(wrap(prioritised()))
    buffer.update_priority(4, 3.0)
    assert priorities(buffer, 20).tolist() == [3.0 if k == 4 else 1.0 for k in range(20)]


@needs_priorities
@pytest.mark.parametrize(("batch_size", "start"), [(1, 10), (2, 10), (1, 100)])
def test_weight_of_a_single_real_row_is_one_of_its_batch(wrap, batch_size, start):
    buffer = fill(wrap(prioritised(), real_ratio=0.6, schedule=RetrainSchedule(every=10, rows=40, start=start)))
    batch = buffer.sample(batch_size)
    assert batch["priority_weight"].shape == batch["index"].shape == (batch_size,)
    buffer.update_tensordict_priority(batch.set("td_error", torch.ones(batch_size)))


@needs_priorities
def test_batch_of_synthetic_rows_only_updates_nothing(wrap):
    buffer = fill(wrap(prioritised(), real_ratio=0.0))
    before = priorities(buffer, 20)
    batch, info = buffer.sample(return_info=True)
    buffer.update_tensordict_priority(batch.set("td_error", torch.full((16,), 3.0)))
    buffer.update_priority(info["index"], torch.full((16,), 3.0))
    assert torch.equal(priorities(buffer, 20), before)


@needs_priorities
def test_priorities_of_two_axes_in_the_shape_of_the_data(wrap):
    real = ReplayBuffer(
        storage=LazyTensorStorage(100, ndim=2), sampler=PrioritizedSampler(100, 1.0, 0.9), batch_size=16
    )
    buffer = SynthERReplayBuffer(real, real_ratio=1.0)
    index = buffer.extend(numbered(20).reshape(2, 10))
    buffer.update_priority(index, torch.full((2, 10), 3.0))
    assert (priorities(buffer, 20) == 3).all()


# --- saving and copying -----------------------------------------------------------------------------------------------


def through_state_dict(buffer, fresh, _folder):
    fresh.load_state_dict(buffer.state_dict())
    return fresh


def through_file(buffer, fresh, folder):
    torch.save(buffer.state_dict(), folder / "state.pt")
    fresh.load_state_dict(torch.load(folder / "state.pt", weights_only=False))
    return fresh


def through_dumps(buffer, fresh, folder):
    buffer.dumps(folder / "buffer")
    fresh.loads(folder / "buffer")
    return fresh


def through_pickle(buffer, _fresh, _folder):
    return pickle.loads(pickle.dumps(buffer))


def through_deepcopy(buffer, _fresh, _folder):
    return copy.deepcopy(buffer)


WAYS = [through_state_dict, through_file, through_dumps, through_pickle, through_deepcopy]
STORED = {name: REAL[name] for name in ("tensor", "two axes", "untyped")}
STORED["prefetch"] = lambda **options: tensor_buffer(prefetch=1, **options)
STORED["prioritised"] = pytest.param(prioritised, marks=needs_priorities)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__[8:])
@pytest.mark.parametrize("make", params(STORED))
@pytest.mark.parametrize("filled", [False, True], ids=["fresh", "with data"])
def test_batches_go_on_as_they_would_have(tmp_path, make, way, filled):
    if filled and way in (through_pickle, through_deepcopy):
        pytest.skip("makes a buffer of its own")

    def build(seed):
        options = {"generator": TINY, "schedule": RetrainSchedule(every=40, rows=40, start=40), "seed": seed}
        return SynthERReplayBuffer(make(generator=seeded(seed)), action_spec=ACTION, **options)

    buffer, other = fill(build(0), 50), build(1)
    buffer.sample()
    if filled:
        fill(other, 60, first=100).sample()
    other = way(buffer, other, tmp_path)
    assert (len(other), len(other.source.store)) == (50, 40)
    for first in (50, 70, 90):  # the next refit comes in between
        for _ in range(2):
            assert equal(buffer.sample(return_info=True), other.sample(return_info=True))
        for one in (buffer, other):
            one.synchronize()  # prefetched batches depend on the timing
            fill(one, 20, first)
    assert buffer.source.refits == other.source.refits == 2


def test_copies_are_independent(wrap):
    buffer = fill(wrap())
    buffer.sample()
    copied = copy.deepcopy(buffer)
    fill(copied, 20, first=20)
    copied.sample()
    assert (len(buffer), buffer.source.refits) == (20, 1)
    assert (len(copied), copied.source.refits) == (40, 2)
    assert copied.source.real.real is copied.real


def test_pickle_made_on_a_gpu_holds_no_gpu_tensor_of_ours(wrap, on_gpu):
    buffer = fill(wrap(real_ratio=0.0, generator=TINY), 50)
    expected = buffer.sample()
    buffer._rows._empty_info, buffer._awaited = on_gpu(buffer._rows._empty_info), on_gpu({"rows": torch.ones(2)})
    loaded = pickle.loads(pickle.dumps(buffer))
    assert loaded._awaited["rows"].tolist() == [1, 1]
    loaded._awaited = None
    assert loaded.sample().keys() == expected.keys()


def test_transitions_that_were_not_sampled_yet_still_count_after_loading(wrap):
    buffer = fill(wrap(), 8)
    other = wrap()
    other.load_state_dict(buffer.state_dict())
    fill(other, 2, first=8)
    other.sample()
    assert other.source.steps == 10
    assert other.source.refits == 1


def test_plain_buffer_loads_files_of_dumps(wrap, tmp_path):
    buffer = fill(wrap())
    buffer.sample()
    buffer.dumps(tmp_path)
    plain = tensor_buffer()
    plain.loads(tmp_path)
    assert torch.equal(plain.storage[:][REWARD].flatten(), torch.arange(20.0))


def test_dumps_of_a_plain_buffer_can_be_loaded(wrap, tmp_path):
    fill(tensor_buffer()).dumps(tmp_path)
    buffer = wrap()
    buffer.loads(tmp_path)
    assert len(buffer) == 20
    assert buffer.sample()["is_synthetic"].sum() == 8
    assert buffer.source.steps == 20


def test_dumps_of_a_plain_buffer_replace_synthetic_rows(wrap, tmp_path):
    fill(tensor_buffer(), 30, first=100).dumps(tmp_path)
    buffer = fill(wrap())
    buffer.sample()
    buffer.loads(tmp_path)
    buffer.sample()
    assert buffer.source.steps == 30
    assert set(buffer.source.generator.seen.rewards.tolist()) == set(range(100, 130))


@pytest.mark.parametrize("to_ours", [True, False])
def test_states_are_exchanged_with_the_plain_buffer(wrap, to_ours):
    source, target = (tensor_buffer(), wrap()) if to_ours else (wrap(), tensor_buffer())
    target.load_state_dict(fill(source).state_dict())
    assert len(target) == 20


def test_files_of_a_plain_buffer_trigger_a_refit(wrap, tmp_path):
    fill(tensor_buffer(), 30, first=100).dumps(tmp_path)
    buffer = fill(wrap(), 60)
    buffer.sample()
    buffer.loads(tmp_path)
    assert buffer.sample()["is_synthetic"].sum() == 8
    assert set(buffer.source.generator.seen.rewards.tolist()) == set(range(100, 130))


def test_aliases_of_dumps_and_loads(wrap, tmp_path):
    buffer = fill(wrap())
    buffer.sample()
    for write, read in (("save", "load"), ("dump", "loads")):
        getattr(buffer, write)(tmp_path / write)
        other = wrap()
        getattr(other, read)(tmp_path / write)
        assert len(other.source.store) == 40


@pytest.mark.parametrize(
    "damage", [lambda file: file.write_bytes(file.read_bytes()[:-30]), lambda file: file.write_text("?")]
)
def test_damaged_file_is_refused_and_changes_nothing(wrap, tmp_path, damage):
    buffer = fill(wrap())
    buffer.sample()
    buffer.dumps(tmp_path)
    damage(tmp_path / "synther.safetensors")
    other = fill(wrap(tensor_buffer(generator=seeded())), 30, first=100)
    other.sample()
    twin = copy.deepcopy(other)
    with pytest.raises(CheckpointError, match=r"synther\.safetensors"):
        other.loads(tmp_path)
    assert len(other) == 30
    assert equal(other.sample(), twin.sample())


def test_state_of_other_specs_is_refused_and_changes_nothing(wrap, make_generator):
    buffer = fill(wrap())
    buffer.sample()
    wider = TransitionSpec.from_spaces(spaces.Box(-INFINITY, INFINITY, (2,)), spaces.Box(-2, 2, (1,)))
    real = tensor_buffer(generator=seeded())
    other = fill(wrap(real, make_generator(wider), action_spec=Bounded(-2, 2, (1,))), 30)
    other.sample()
    twin = copy.deepcopy(other)
    with pytest.raises(CheckpointError, match="spec"):
        other.load_state_dict(buffer.state_dict())
    assert equal(other.sample(), twin.sample())


def test_fresh_buffer_refuses_a_state_of_other_specs_and_stays_empty(wrap, make_generator):
    buffer = fill(wrap())
    buffer.sample()
    wider = TransitionSpec.from_spaces(spaces.Box(-INFINITY, INFINITY, (2,)), spaces.Box(-2, 2, (1,)))
    other = wrap(generator=make_generator(wider), action_spec=Bounded(-2, 2, (1,)))
    with pytest.raises(CheckpointError, match="spec"):
        other.load_state_dict(buffer.state_dict())
    assert len(other) == 0


@pytest.mark.parametrize("reason", ["other spec", "other capacity"])
def test_state_that_is_refused_leaves_data_that_were_not_sampled_yet(wrap, make_generator, reason):
    buffer = fill(wrap(tensor_buffer(prefetch=1)))
    buffer.sample()
    wider = TransitionSpec.from_spaces(spaces.Box(-INFINITY, INFINITY, (2,)), spaces.Box(-2, 2, (1,)))
    if reason == "other spec":
        options = {"generator": make_generator(wider), "action_spec": Bounded(-2, 2, (1,))}
        other = fill(wrap(tensor_buffer(prefetch=1), **options), 30, first=100)
    else:
        other = fill(wrap(tensor_buffer(prefetch=2)), 30, first=100)
    with pytest.raises((CheckpointError, RuntimeError), match=r"spec|capacity"):
        other.load_state_dict(buffer.state_dict())
    assert other.storage[:][REWARD].flatten().tolist() == list(range(100, 130))


def test_real_buffer_that_refuses_a_state_leaves_the_synthetic_rows(wrap):
    buffer = fill(wrap(tensor_buffer(prefetch=1)))
    buffer.sample()
    other = fill(wrap(tensor_buffer(prefetch=2)), 30)
    other.sample()
    before = other.source.store.rows.clone()
    state = buffer.state_dict()
    with pytest.raises(RuntimeError, match="capacity"):
        other.load_state_dict(state)
    assert torch.equal(other.source.store.rows, before)
    assert other.source.steps == 30


def test_state_of_an_emptied_buffer_can_be_loaded(wrap):
    buffer = fill(wrap())
    buffer.sample()
    buffer.empty()
    other = wrap()
    other.load_state_dict(buffer.state_dict())
    assert len(other) == 0
    assert fill(other, 4).sample(4).shape == (4,)


def test_real_ratio_is_the_one_that_was_loaded(wrap):
    buffer, other = fill(wrap(real_ratio=0.25)), wrap()
    buffer.sample()
    other.load_state_dict(buffer.state_dict())
    assert other.sample()["is_synthetic"].sum() == 12
    assert other.real_ratio == 0.25
    assert "real_ratio=0.25" in repr(other)


def test_dumps_over_an_earlier_one_leaves_nothing_of_it(wrap, tmp_path):
    earlier = fill(wrap())
    earlier.sample()
    earlier.dumps(tmp_path)
    fill(wrap(), 4).dumps(tmp_path)
    other = wrap()
    other.loads(tmp_path)
    assert len(other) == 4
    assert other.source is None or not len(other.source.store)


# --- names of the entries, and termination ----------------------------------------------------------------------------


def learnt(buffer):
    return buffer.source.generator.seen


@pytest.mark.parametrize(
    ("renamed", "options"),
    [
        ({"observation": ("agent", "state")}, {"observation_keys": ("agent", "state")}),
        ({"observation": "pixels"}, {"observation_keys": ["pixels"]}),
        ({"action": ("agent", "force")}, {"action_key": ("agent", "force")}),
        ({"reward": "gain"}, {"reward_key": "gain"}),
        ({"terminated": "over"}, {"terminated_key": "over"}),
    ],
    ids=lambda value: str(next(iter(value))),
)
def test_entries_may_have_other_names(wrap, renamed, options):
    data = numbered(20)
    for old, new in renamed.items():
        for key in (old, ("next", old)):
            if data.get(key, None) is not None:
                data.rename_key_(key, new if key == old else ("next", *((new,) if isinstance(new, str) else new)))
    buffer = wrap(**options)
    buffer.extend(data)
    batch = buffer.sample()
    assert batch["is_synthetic"].sum() == 8
    assert torch.equal(learnt(buffer).rewards, torch.arange(20.0))
    assert torch.equal(learnt(buffer).terminated, torch.arange(20) % 5 == 0)
    for old, new in renamed.items():
        key = new if old in ("observation", "action") else ("next", new)
        real = ~batch["is_synthetic"]
        expected = TABLE[old if old in ("observation", "action") else ("next", old)]
        rewards = batch[("next", "gain") if "reward" in renamed else REWARD]
        assert torch.equal(batch[key][real], expected[rewards[real].flatten().long()])


@pytest.mark.parametrize("kind", [list, dict.fromkeys, lambda keys: dict.fromkeys(keys).keys()])
def test_several_observations(make_generator, kind):
    observations = {"position": spaces.Box(-INFINITY, INFINITY, (2,)), "speed": spaces.Box(-INFINITY, INFINITY, (1,))}
    generator = make_generator(TransitionSpec.from_spaces(spaces.Dict(observations), spaces.Box(-1, 1, (1,))))
    data = numbered(20)
    for key in ("observation", ("next", "observation")):
        data.rename_key_(key, "position" if key == "observation" else ("next", "position"))
    data["speed"], data["next", "speed"] = torch.full((20, 1), 3.0), torch.full((20, 1), 4.0)
    buffer = SynthERReplayBuffer(
        tensor_buffer(),
        action_spec=ACTION,
        observation_keys=kind(["position", "speed"]),
        generator=generator,
        schedule=RetrainSchedule(every=10, rows=40, start=10),
    )
    buffer.extend(data)
    batch = buffer.sample()
    real = ~batch["is_synthetic"]
    assert real.sum() == 8
    assert (batch["speed"][real] == 3).all()
    assert (batch["next", "speed"][real] == 4).all()
    assert (batch["speed"][~real] == 0).all()
    assert torch.equal(learnt(buffer).observations["position"], TABLE["observation"][:20])
    assert (learnt(buffer).next_observations["speed"] == 4).all()


def test_termination_is_modelled_and_time_limits_are_not(wrap):
    buffer = fill(wrap())
    buffer.sample()
    done, terminated = TABLE["next", "done"][:20, 0], TABLE[TERMINATED][:20, 0]
    assert (done & ~terminated).any()
    assert torch.equal(learnt(buffer).terminated, terminated)


def test_generated_episodes_end_by_termination_only(wrap):
    batch = fill(wrap(real_ratio=0.0)).sample(40)
    assert 0 < batch[TERMINATED].sum() < 40
    assert torch.equal(batch["next", "done"], batch[TERMINATED])
    assert not batch["next", "truncated"].any()
    for name in ("done", "terminated", "truncated"):
        assert not batch[name].any()
        assert batch[name].dtype == batch["next", name].dtype == torch.bool
        assert batch[name].shape == batch["next", name].shape == (40, 1)


def test_flags_that_the_data_lack_are_not_invented(wrap):
    buffer = wrap()
    buffer.extend(numbered(20).exclude("done", "terminated", "truncated", ("next", "done"), ("next", "truncated")))
    flags = {key for key in buffer.sample().keys(True, True) if "done" in key or "truncated" in key}
    assert flags == set()


# --- specs ------------------------------------------------------------------------------------------------------------


def with_actions(action, n=40):
    return numbered(n).set("action", action)


def diffused(data, **options):
    """A batch of a real generator after a few training steps, and its training data."""
    buffer = SynthERReplayBuffer(
        tensor_buffer(),
        real_ratio=0.0,
        generator=TINY,
        schedule=RetrainSchedule(every=40, rows=64, start=40),
        seed=0,
        **options,
    )
    buffer.extend(data)
    batch = buffer.sample(64)
    assert batch["is_synthetic"].all()
    stored = buffer.storage[:]
    for key in names(batch) & MODELLED:
        assert batch[key].dtype == stored[key].dtype, key
        assert batch[key].shape[1:] == stored[key].shape[1:], key
    return batch


ACTIONS = [
    Bounded(-2, 3, (2,)),
    Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.5])),
    Bounded(-2, 3, (2,), dtype=torch.float64),
    Bounded(0, 10, (2,), dtype=torch.int64),
    Unbounded((2,)),
    Categorical(4),
    Categorical(4, shape=(1,)),
    Categorical(4, shape=(3,)),
    *(OneHot(4, dtype=dtype) for dtype in (torch.bool, torch.int64, torch.float32)),
    Binary(3),
    MultiCategorical([2, 5]),
]


@pytest.mark.parametrize("spec", ACTIONS, ids=lambda spec: f"{type(spec).__name__}-{tuple(spec.shape)}-{spec.dtype}")
@pytest.mark.parametrize("lead", [(), (5,)], ids=["single", "batched"])
def test_generated_actions_are_in_their_spec(spec, lead):
    torch.manual_seed(0)
    data = with_actions(spec.expand(40, *spec.shape).rand())
    actions = diffused(data, action_spec=spec.expand(*lead, *spec.shape))["action"]
    assert all(spec.is_in(action) for action in actions)
    assert len(actions.reshape(64, -1).unique(dim=0)) > 1
    if isinstance(spec, OneHot):
        assert (actions.sum(-1) == 1).all()
        assert set(actions.unique().tolist()) == {0, 1}


def test_action_spec_may_be_composite(wrap):
    buffer = fill(wrap(action_spec=Composite(action=ACTION)))
    assert buffer.sample()["is_synthetic"].sum() == 8


def test_action_spec_of_another_shape_is_refused(wrap):
    buffer = wrap(action_spec=Bounded(-1, 1, (3,)))
    with pytest.raises(ValueError, match="action_spec"):
        fill(buffer).sample()


def with_observations(observation):
    return numbered(40).set("observation", observation).set(("next", "observation"), observation)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.bool])
def test_observations_keep_their_type_and_shape(dtype):
    torch.manual_seed(0)
    observation = (torch.rand(40, 2, 3, 3) * 255).to(dtype) if dtype != torch.bool else torch.rand(40, 4) > 0.5
    batch = diffused(with_observations(observation), action_spec=ACTION)
    assert batch["observation"].double().isfinite().all()
    if dtype == torch.uint8:
        assert batch["observation"].unique().numel() > 10


@pytest.mark.parametrize(
    "spec",
    [
        Bounded(0, 10, (2,), dtype=torch.int64),
        Composite(observation=Bounded(0, 10, (2,), dtype=torch.int64)),
        Composite(observation=Categorical(11, shape=(2,))),
        MultiCategorical([11, 11]),
    ],
    ids=["bounded", "composite", "categorical", "multi-categorical"],
)
def test_whole_numbers_as_observations_stay_in_their_spec(spec):
    torch.manual_seed(0)
    data = with_observations(torch.randint(0, 11, (40, 2)))
    observations = diffused(data, action_spec=ACTION, observation_spec=spec)["observation"]
    assert observations.min() >= 0
    assert observations.max() <= 10


def test_whole_numbers_as_observations_need_a_spec(wrap):
    buffer = wrap()
    with pytest.raises(ValueError, match=r"observation_spec\['observation'\]: required .* torch\.int64"):
        buffer.extend(with_observations(torch.randint(0, 11, (40, 2))))
    assert len(buffer) == 0


def test_bounds_of_observations_hold():
    torch.manual_seed(0)
    data = with_observations(torch.rand(40, 2).clamp(0.2, 0.8))
    batch = diffused(data, action_spec=ACTION, observation_spec=Composite(observation=Bounded(0.2, 0.8, (2,))))
    for key in ("observation", ("next", "observation")):
        assert batch[key].min() >= 0.2 - 1e-6
        assert batch[key].max() <= 0.8 + 1e-6


def test_one_hot_observations():
    torch.manual_seed(0)
    spec = OneHot(4)
    observations = diffused(
        with_observations(spec.expand(40, 4).rand()), action_spec=ACTION, observation_spec=Composite(observation=spec)
    )["observation"]
    assert (observations.sum(-1) == 1).all()


def test_real_values_are_not_rounded_to_float32(wrap):
    data = numbered(20)
    exact = data["observation"].double() / 3
    data.set("observation", exact).set(("next", "observation"), exact)
    buffer = wrap()
    buffer.extend(data)
    batch = buffer.sample()
    real = ~batch["is_synthetic"]
    assert batch["observation"].dtype == torch.float64
    assert torch.equal(batch["observation"][real], exact[batch[REWARD][real].flatten().long()])


def test_rewards_and_flags_may_lack_their_last_axis(wrap):
    data = numbered(20)
    for key in [key for key in data.keys(True, True) if key not in ("observation", "action", ("next", "observation"))]:
        data.set(key, data[key].reshape(20))
    buffer = wrap()
    buffer.extend(data)
    batch = buffer.sample()
    assert batch[REWARD].shape == batch[TERMINATED].shape == batch["next", "done"].shape == (16,)
    assert torch.equal(batch["is_synthetic"], batch[REWARD] < 0)


# --- schedule and seeds -----------------------------------------------------------------------------------------------


def test_refits_follow_the_transitions_that_were_added(wrap):
    buffer = wrap()
    refits = []
    for k in range(40):
        buffer.add(numbered(1, k)[0])
        buffer.sample(2)
        if buffer.source.refits > len(refits):
            refits.append(k + 1)
    assert refits == [10, 20, 30, 40]


def test_every_transition_of_a_batch_of_environments_counts(wrap):
    buffer = wrap(REAL["two axes"]())
    buffer.extend(numbered(8).reshape(2, 4))
    buffer.sample()
    assert (buffer.source.steps, buffer.source.refits) == (8, 0)
    buffer.extend(numbered(4, 8).reshape(2, 2))
    buffer.sample()
    assert (buffer.source.steps, buffer.source.refits) == (12, 1)
    assert set(learnt(buffer).rewards.tolist()) == set(range(12))


def test_transitions_that_were_there_before_count(wrap):
    buffer = wrap(fill(tensor_buffer(), 10))
    assert buffer.source.spec == SPEC
    buffer.sample()
    assert (buffer.source.steps, buffer.source.refits) == (10, 1)


def test_transitions_in_the_storage_of_a_delayed_buffer_count(wrap):
    storage = LazyTensorStorage(100)
    fill(tensor_buffer(storage=storage))
    buffer = wrap(tensor_buffer(storage=storage, delayed_init=True))
    assert not buffer.initialized
    assert buffer.sample()["is_synthetic"].sum() == 8
    assert buffer.source.steps == 20


def test_extending_by_nothing_counts_nothing(wrap):
    buffer = fill(wrap())
    buffer.extend(numbered(0))
    buffer.sample()
    assert buffer.source.steps == 20


@pytest.mark.parametrize("sampled_before", [True, False])
def test_transitions_that_went_past_the_wrapper_count(wrap, sampled_before):
    buffer = wrap()
    if sampled_before:
        fill(buffer, 4)
        buffer.sample()
    for k in range(4, 24, 4):
        fill(buffer.real, 4, first=k)
    fill(buffer, 4, first=24)
    buffer.sample()
    assert buffer.source.steps == (28 if sampled_before else 24)
    again = wrap()
    again.load_state_dict(buffer.state_dict())
    fill(again.real, 3, first=28)
    again.sample()
    assert again.source.steps == buffer.source.steps + 3


@pytest.mark.slow
def test_direct_writes_of_a_collector_count():
    env, config = GymEnv("Pendulum-v1"), GeneratorConfig.tiny(width=16, depth=1, steps=10, sampling_steps=4)
    real = tensor_buffer(storage=LazyTensorStorage(100))
    schedule = RetrainSchedule(every=50, rows=40, start=50)
    buffer = SynthERReplayBuffer(real, action_spec=env.action_spec, generator=config, schedule=schedule)
    for _ in collectors.Collector(env, None, frames_per_batch=50, total_frames=200, replay_buffer=real):
        buffer.sample()
    assert (len(real), buffer.source.steps, buffer.source.refits) == (100, 200, 4)


@pytest.mark.parametrize("itself", [True, False])
def test_emptied_buffers_count_on(wrap, itself):
    buffer = fill(wrap(), 12)
    buffer.sample()
    (buffer.real if itself else buffer).empty()
    fill(buffer, 4)
    fill(buffer.real, 4, first=4)
    buffer.sample()
    assert buffer.source.steps == 20


def test_transitions_that_were_overwritten_count(wrap):
    buffer = wrap(tensor_buffer(storage=LazyTensorStorage(8)))
    for k in range(3):
        fill(buffer, 4, first=4 * k)
    buffer.sample()
    assert (len(buffer), buffer.source.steps, buffer.source.refits) == (8, 12, 1)


def test_options_reach_the_source(wrap):
    buffer = fill(wrap(synthetic_capacity=15, device="cpu"))
    batch = buffer.sample()
    assert len(buffer.source.store) == 15
    assert buffer.source.device == batch.device == torch.device("cpu")


def synthetic_rows(**options):
    buffer = SynthERReplayBuffer(
        tensor_buffer(),
        action_spec=ACTION,
        generator=TINY,
        schedule=RetrainSchedule(every=40, rows=40, start=40),
        **options,
    )
    fill(buffer, 40).sample()
    return buffer.source.store.rows


def test_seed_follows_torch_manual_seed():
    torch.manual_seed(5)
    first = synthetic_rows()
    torch.manual_seed(5)
    again = synthetic_rows()
    torch.manual_seed(6)
    other = synthetic_rows()
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_own_seed_is_independent_of_torch_manual_seed():
    torch.manual_seed(5)
    first = synthetic_rows(seed=3)
    torch.manual_seed(6)
    assert torch.equal(first, synthetic_rows(seed=3))
    assert not torch.equal(first, synthetic_rows(seed=4))


def test_refit_leaves_the_global_random_state_alone():
    buffer = fill(
        SynthERReplayBuffer(
            tensor_buffer(generator=seeded()),
            action_spec=ACTION,
            generator=TINY,
            schedule=RetrainSchedule(every=40, rows=40, start=40),
        ),
        40,
    )
    before = torch.get_rng_state()
    buffer.sample()
    assert buffer.source.refits == 1
    assert torch.equal(torch.get_rng_state(), before)


# --- training ---------------------------------------------------------------------------------------------------------


def sac(env):
    observations, actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    head = nn.Sequential(MLP(observations, 2 * actions, num_cells=[16]), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(head, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -2.0, "high": 2.0},
        return_log_prob=True,
    )
    critic = TensorDictModule(
        MLP(observations + actions, 1, num_cells=[16]),
        in_keys=["observation", "action"],
        out_keys=["state_action_value"],
    )
    loss = SACLoss(actor, critic)
    loss.make_value_estimator(gamma=0.99)
    return actor, loss


@pytest.mark.parametrize("collecting", ["by hand", "by the collector", "two environments"])
def test_sac_trains_across_refits(collecting):
    torch.manual_seed(0)
    two = collecting == "two environments"
    env = SerialEnv(2, lambda: GymEnv("Pendulum-v1")) if two else GymEnv("Pendulum-v1")
    actor, loss = sac(env)
    real = TensorDictReplayBuffer(storage=LazyTensorStorage(200, ndim=2 if two else 1), batch_size=16)
    buffer = SynthERReplayBuffer(
        real, action_spec=env.action_spec, generator=TINY, schedule=RetrainSchedule(every=40, rows=64, start=40)
    )
    filling = {"replay_buffer": buffer} if collecting == "by the collector" else {}
    collector = collectors.Collector(env, actor, frames_per_batch=20, total_frames=100, **filling)
    optimiser = torch.optim.Adam(loss.parameters(), 1e-3)
    before = [parameter.detach().clone() for parameter in actor.parameters()]
    shares = []
    for data in collector:
        assert (data is None) == bool(filling)
        if data is not None:
            buffer.extend(data)
        for _ in range(2):
            batch = buffer.sample()
            losses = loss(batch)
            total = sum(value for key, value in losses.items() if key.startswith("loss_"))
            assert total.isfinite()
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
            shares.append(int(batch["is_synthetic"].sum()))
    collector.shutdown()
    assert (len(buffer), buffer.source.steps, buffer.source.refits) == (100, 100, 2)
    assert shares == [0] * 2 + [8] * 8
    assert any(not torch.equal(old, new) for old, new in zip(before, actor.parameters(), strict=True))
    assert set(batch.keys()) >= {"observation", "action", "next", "index", "is_synthetic"}
    assert (batch["action"].abs() <= 2).all()


@pytest.mark.parametrize(
    "make", params({"uniform": tensor_buffer, "prioritised": pytest.param(prioritised, marks=needs_priorities)})
)
def test_dqn_trains_on_one_hot_actions(make):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    value = TensorDictModule(MLP(4, 2, num_cells=[16]), in_keys=["observation"], out_keys=["action_value"])
    policy = QValueActor(value.module, spec=env.action_spec, in_keys=["observation"])
    loss = DQNLoss(policy, action_space="one_hot", delay_value=False)
    buffer = SynthERReplayBuffer(
        make(storage=LazyTensorStorage(200)),
        action_spec=env.action_spec,
        generator=TINY,
        schedule=RetrainSchedule(every=40, rows=64, start=40),
    )
    collector = collectors.Collector(env, TensorDictSequential(policy), frames_per_batch=40, total_frames=80)
    for data in collector:
        buffer.extend(data)
        batch = buffer.sample()
        loss(batch)["loss"].backward()
        assert any(parameter.grad is not None for parameter in loss.parameters())
        assert batch["is_synthetic"].sum() == 8
        assert batch["action"].dtype == torch.int64
        assert (batch["action"].sum(-1) == 1).all()
        assert batch["td_error"].isfinite().all()
        buffer.update_tensordict_priority(batch)
    collector.shutdown()
    assert buffer.source.refits == 2


# --- errors -----------------------------------------------------------------------------------------------------------


def test_only_buffers_of_torchrl_can_be_wrapped():
    with pytest.raises(TypeError, match="real: expected a replay buffer of TorchRL, got list"):
        SynthERReplayBuffer([], action_spec=ACTION)


def test_action_spec_is_needed():
    with pytest.raises(ValueError, match=r"action_spec: .*env\.action_spec"):
        SynthERReplayBuffer(tensor_buffer())


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"real_ratio": 1.5}, ValueError, r"real_ratio: .* got 1\.5"),
        ({"real_ratio": math.nan}, ValueError, "real_ratio: .* got nan"),
        ({"real_ratio": "half"}, ValueError, "real_ratio: .* got 'half'"),
        ({"generator": "tyni"}, ValueError, "generator: .*'tyni'.*tiny"),
        ({"schedule": "often"}, ValueError, "schedule: .*'often'.*paper"),
        ({"synthetic_capacity": 0}, ValueError, "synthetic_capacity: .* 0"),
        ({"seed": -1}, ValueError, "seed: .* -1"),
        ({"observation_keys": []}, ValueError, r"observation_keys: .* got \[\]"),
        ({"unheard": 1}, TypeError, "unheard"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_options_are_named(options, error, match):
    with pytest.raises(error, match=match):
        SynthERReplayBuffer(tensor_buffer(), **{"action_spec": ACTION} | options)


@pytest.mark.parametrize("missing", ["observation", "action", ("next", "observation"), REWARD, TERMINATED])
@pytest.mark.parametrize("one", [True, False])
def test_missing_entries_are_named_and_nothing_is_stored(wrap, missing, one):
    buffer = wrap()
    data = numbered(20).exclude(missing)
    with pytest.raises(ValueError, match="data: missing entries") as caught:
        buffer.add(data[0]) if one else buffer.extend(data)
    assert f"missing entries [{missing!r}], got" in str(caught.value)
    assert "observation_keys, action_key, reward_key and terminated_key" in str(caught.value)
    assert ("'done' cannot replace 'terminated'" in str(caught.value)) == (missing == TERMINATED)
    assert len(buffer) == 0
    assert len(fill(buffer)) == 20


def test_missing_entries_of_a_buffer_that_was_filled_before_are_named(wrap):
    real = tensor_buffer()
    real.extend(numbered(20).exclude(TERMINATED))
    with pytest.raises(ValueError, match=r"missing entries \[\('next', 'terminated'\)\]"):
        wrap(real)


@pytest.mark.parametrize("data", [torch.zeros(20), [1, 2, 3], {"observation": torch.zeros(20)}], ids=type)
def test_synthetic_rows_need_tensordicts(wrap, data):
    buffer = wrap(ReplayBuffer(storage=ListStorage(100), batch_size=4))
    with pytest.raises(TypeError, match="data: expected a TensorDict, got"):
        buffer.extend(data)
    assert len(buffer) == 0


def test_list_of_tensordicts_is_taken(wrap):
    buffer = wrap(REAL["untyped list"]())
    buffer.extend(list(numbered(20).unbind(0)))
    assert buffer.sample()["is_synthetic"].sum() == 8
    assert buffer.source.steps == 20


@pytest.mark.parametrize("sampler", [SliceSampler, SliceSamplerWithoutReplacement])
def test_samplers_of_slices_are_refused(sampler):
    real = tensor_buffer(sampler=sampler(num_slices=2, end_key=("next", "done")))
    with pytest.raises(ValueError, match=f"real: expected .*single transitions .*{sampler.__name__}"):
        SynthERReplayBuffer(real, action_spec=ACTION)


def test_a_sampler_of_slices_that_comes_later_is_refused(wrap):
    buffer = fill(wrap())
    buffer.sample()
    buffer.set_sampler(SliceSampler(num_slices=2, end_key=("next", "done")))
    with pytest.raises(ValueError, match=r"real: .*single transitions .*SliceSampler"):
        buffer.sample()


def test_ensembles_are_refused():
    with pytest.raises(ValueError, match=r"real: .*ReplayBufferEnsemble"):
        SynthERReplayBuffer(ReplayBufferEnsemble(tensor_buffer(), tensor_buffer()), action_spec=ACTION)


def test_storages_of_trajectories_are_refused(wrap):
    buffer = wrap()
    with pytest.raises(ValueError, match=r"data: expected single transitions, got items of shape \(5,\)"):
        buffer.extend(numbered(20).reshape(4, 5))
    buffer.real.extend(numbered(20).reshape(4, 5))
    with pytest.raises(ValueError, match=r"data: expected single transitions, got items of shape \(5,\)"):
        buffer.sample()


@pytest.mark.parametrize("name", ["reward", "terminated"])
def test_several_rewards_or_flags_of_a_transition_are_refused(wrap, name):
    data = numbered(20)
    data["next", name] = data["next", name].expand(20, 2).clone()
    with pytest.raises(ValueError, match=rf"^{name}: expected one \w+ per transition, got shape \(2,\)"):
        wrap().extend(data)


def test_unsupported_specs_are_named(wrap):
    spec = MultiOneHot([2, 3])
    buffer = wrap(action_spec=spec)
    with pytest.raises(TypeError, match=r"action_spec: MultiOneHot .*not supported"):
        buffer.extend(with_actions(spec.expand(20, 5).rand(), 20))
    buffer = wrap(action_spec=NonTensor((1,)))
    with pytest.raises(TypeError, match=r"action_spec: expected a Bounded, .* got NonTensor"):
        fill(buffer).sample()


def test_composite_spec_without_the_entry_is_named(wrap):
    with pytest.raises(ValueError, match="observation_spec"):
        fill(wrap(observation_spec=Composite(pixels=Unbounded((2,)))))


@pytest.mark.parametrize("make", [make for name, make in REAL.items() if name != "transform"])
def test_images_are_refused_with_the_first_data_and_taken_by_plain_replay(make):
    data = with_observations(torch.zeros(40, 3, 64, 64, dtype=torch.uint8))
    buffer = SynthERReplayBuffer(make(), action_spec=ACTION, generator=TINY)
    data = data.reshape(2, 20) if buffer.storage.ndim == 2 else data
    for add, given in ((buffer.extend, data), (buffer.add, data[0])):
        with pytest.raises(ValueError, match="features"):
            add(given)
    assert len(buffer) == 0
    plain = SynthERReplayBuffer(make(), action_spec=ACTION, generator=TINY, real_ratio=1.0)
    plain.extend(data)
    assert len(plain.sample()) == 16


def test_empty_buffer_cannot_be_sampled(wrap):
    buffer = wrap()
    with pytest.raises(ValueError, match="empty"):
        buffer.sample()
    fill(buffer).sample()
    buffer.empty()
    with pytest.raises(ValueError, match="empty"):
        buffer.sample()


@pytest.mark.parametrize("batch_size", [0, -1, 2.5])
def test_impossible_batch_sizes_are_refused(wrap, batch_size):
    with pytest.raises((ValueError, TypeError), match="batch_size"):
        fill(wrap()).sample(batch_size)


# --- faults -----------------------------------------------------------------------------------------------------------


def raising(error):
    def hook():
        raise error

    return hook


@pytest.mark.parametrize("bad", [math.nan, INFINITY])
@pytest.mark.parametrize("key", ["observation", "action", REWARD, ("next", "observation")])
def test_values_that_are_not_finite_are_left_out_of_the_refit_and_named(key, bad):
    data = numbered(40)
    data[key][7] = bad
    buffer = SynthERReplayBuffer(
        tensor_buffer(), action_spec=ACTION, generator=TINY, schedule=RetrainSchedule(every=40, rows=40, start=40)
    )
    buffer.extend(data)
    name = {REWARD: "reward", ("next", "observation"): "next_observation"}.get(key, key)
    with pytest.warns(RuntimeWarning, match=rf"1 of 40 .*{name}.*row 7"):
        batch = buffer.sample()
    assert batch["is_synthetic"].sum() == 8
    assert buffer.source.store.rows.isfinite().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fill(buffer, 40, first=40).sample()
    assert buffer.source.refits == 2


def test_actions_out_of_range_are_reported_and_clipped_for_the_generator():
    schedule = RetrainSchedule(every=40, rows=40, start=40)
    buffer = SynthERReplayBuffer(tensor_buffer(), action_spec=ACTION, generator=TINY, schedule=schedule)
    buffer.extend(numbered(40).set("action", torch.linspace(-3, 3, 40)[:, None]))
    with pytest.warns(RuntimeWarning, match=r"action\[0\]"):
        batch = buffer.sample()
    assert batch["action"][batch["is_synthetic"]].abs().max() <= 1


def test_unknown_categories_are_left_out_of_the_refit():
    data = with_observations(torch.arange(40)[:, None] % 5)
    data["observation"][3] = 9
    options = {"action_spec": ACTION, "observation_spec": Categorical(5, shape=(1,)), "generator": TINY}
    buffer = SynthERReplayBuffer(tensor_buffer(), **options, schedule=RetrainSchedule(every=40, rows=40, start=40))
    buffer.extend(data)
    with pytest.warns(RuntimeWarning, match=r"1 of 40 .*observation.*row 3"):
        batch = buffer.sample()
    assert batch["observation"][batch["is_synthetic"]].max() <= 4


def test_a_bug_in_a_generator_is_a_warning_and_sampling_goes_on(wrap):
    buffer = fill(wrap())
    buffer.sample()
    buffer.source.generator.during_fit = raising(ZeroDivisionError("a bug"))
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError") as caught:
        for first in range(20, 80, 10):
            assert fill(buffer, 10, first=first).sample()["is_synthetic"].sum() == 8
    assert len(caught) == 1


class Faulty(gym.Wrapper):
    """Spoils the reward of one step and the observation of another."""

    taken = 0

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        self.taken += 1
        if self.taken == 35:
            observation = np.array([*observation[:2], np.inf], np.float32)
        return observation, math.nan if self.taken == 30 else reward, *rest


def test_a_run_outlives_an_environment_that_returns_no_numbers():
    torch.manual_seed(0)
    env = GymWrapper(Faulty(gym.make("Pendulum-v1")))
    _, loss = sac(env)
    buffer = SynthERReplayBuffer(
        TensorDictReplayBuffer(storage=LazyTensorStorage(200), batch_size=16),
        action_spec=env.action_spec,
        generator=TINY,
        schedule=RetrainSchedule(every=40, rows=64, start=40),
    )
    optimiser = torch.optim.Adam(loss.parameters(), 1e-3)
    collector = collectors.Collector(env, None, frames_per_batch=20, total_frames=120)
    with pytest.warns(RuntimeWarning, match=r"reward .*row 29") as caught:
        for data in collector:
            buffer.extend(data)
            batch = buffer.sample()
            synthetic = batch[batch["is_synthetic"]]
            if len(synthetic):  # what the agent makes of real rows with NaN is the affair of its loop
                losses = loss(synthetic)
                total = sum(value for key, value in losses.items() if key.startswith("loss_"))
                assert total.isfinite()
                optimiser.zero_grad()
                total.backward()
                optimiser.step()
    collector.shutdown()
    assert len([one for one in caught if issubclass(one.category, RuntimeWarning)]) == 1
    assert (len(buffer), buffer.source.refits) == (120, 3)
    assert buffer.source.store.rows.isfinite().all()


@pytest.mark.parametrize("iterated", [False, True])
def test_a_dropped_buffer_is_freed_at_once(iterated):
    buffer = SynthERReplayBuffer(
        tensor_buffer(), action_spec=ACTION, generator=TINY, schedule=RetrainSchedule(every=40, rows=40, start=40)
    )
    fill(buffer, 40)
    buffer.next() if iterated else buffer.sample()
    assert buffer.source.refits == 1
    gone = [weakref.ref(part) for part in (buffer, buffer.source, buffer.source.generator)]
    gc.collect()
    gc.disable()
    try:
        del buffer
        assert not any(ref() for ref in gone)
    finally:
        gc.enable()


@pytest.mark.parametrize("when", ["during_fit", "during_sample"])
def test_fit_that_diverges_warns_and_leaves_real_rows(wrap, make_generator, when):
    generator = make_generator()
    setattr(generator, when, raising(DivergedError("loss is nan")))
    buffer = fill(wrap(generator=generator))
    with pytest.warns(RuntimeWarning, match=r"refit .*failed; kept .* loss is nan"):
        batch, info = buffer.sample(return_info=True)
    assert not batch["is_synthetic"].any()
    assert_whole_rows(buffer, batch, info)
    setattr(generator, when, lambda: None)
    assert not buffer.sample()["is_synthetic"].any()  # until the next one is due
    assert fill(buffer, 10, first=20).sample()["is_synthetic"].sum() == 8


def test_later_fit_that_diverges_keeps_the_rows_of_the_last_one(wrap):
    buffer = fill(wrap())
    buffer.sample()
    buffer.source.generator.during_fit = raising(DivergedError("loss is nan"))
    fill(buffer, 10, first=20)
    with pytest.warns(RuntimeWarning, match="kept the previous model and 40 synthetic rows"):
        batch = buffer.sample()
    assert (batch[REWARD][batch["is_synthetic"]] == -1).all()


def test_interrupt_comes_through_and_sampling_goes_on(wrap):
    buffer = fill(wrap())
    buffer.sample()
    buffer.source.generator.during_fit = raising(KeyboardInterrupt())
    fill(buffer, 10, first=20)
    with pytest.raises(KeyboardInterrupt):
        buffer.sample()
    buffer.source.generator.during_fit = lambda: None
    batch, info = buffer.sample(return_info=True)
    assert buffer.source.refits == 2
    assert batch["is_synthetic"].sum() == 8
    assert_whole_rows(buffer, batch, info)


# --- what a review found ----------------------------------------------------------------------------------------------


def test_rows_to_learn_from_are_read_while_nobody_writes(wrap):
    buffer = fill(wrap())
    buffer.sample()
    with buffer.real._replay_lock:
        reader = threading.Thread(target=buffer.source.real.transitions)
        reader.start()
        reader.join(0.2)
        assert reader.is_alive()
    reader.join(5)
    assert not reader.is_alive()


def test_iteration_by_next_is_ours_alone(wrap):
    buffer = fill(wrap())
    buffer.next()
    assert buffer.real._iterator is None


def test_transform_appended_behind_our_back_is_noticed(wrap):
    buffer = fill(wrap())
    buffer.sample()
    buffer.transform.append(RenameTransform(in_keys=["observation"], out_keys=["seen"]))
    assert {"seen"} <= names(buffer.sample())
    assert "observation" not in names(buffer.sample())


def test_transform_of_an_entry_that_is_not_modelled_is_named(wrap):
    buffer = wrap(tensor_buffer(transform=lambda data: data.set("twice", 2 * data["sample_log_prob"])))
    with pytest.raises(ValueError, match="transform: requires an entry that synthetic rows lack"):
        fill(buffer).sample()


@pytest.mark.parametrize("make", ["tensor", "list"])
@pytest.mark.parametrize("real_ratio", [0.0, 0.5])
def test_entries_of_a_batch_stand_apart(wrap, make, real_ratio):
    batch = fill(wrap(REAL[make](), real_ratio=real_ratio)).sample()
    value = nn.Linear(2, 1)(batch["observation"])
    for key in batch.keys(True, True):
        if key != "observation":
            batch[key].zero_()
    value.sum().backward()  # fails if a saved entry was modified in place


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("storage", ["cpu", "cuda"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("transform", [None, RewardScaling(loc=1.0, scale=2.0, in_keys=[REWARD])])
def test_storage_and_batches_on_any_device(storage, device, transform):
    real = tensor_buffer(storage=LazyTensorStorage(100, device=storage), transform=transform)
    schedule = RetrainSchedule(every=10, rows=40, start=30)
    buffer = SynthERReplayBuffer(real, action_spec=ACTION, device=device, generator=TINY, schedule=schedule)
    for rows, synthetic in ((20, 0), (40, 8)):
        batch, info = fill(buffer, rows, first=rows).sample(return_info=True)
        assert {value.device.type for value in batch.values(True, True)} == {device}
        assert batch["is_synthetic"].sum() == synthetic
        held = info["index"] >= 0
        scale, shift = (2.0, 1.0) if transform else (1.0, 0.0)
        stored = buffer.storage[:][REWARD].to(device)[info["index"][held].to(device)]
        assert torch.allclose(batch[REWARD][held], stored * scale + shift)
