"""The mirror of TorchRL's storage on a GPU, here on a CPU: batches are those without it, whatever is written."""

import copy
import pickle

import pytest
import torch

pytest.importorskip("torchrl")

from tensordict import TensorDict
from torchrl.data import Bounded, LazyTensorStorage, TensorDictReplayBuffer

from synther_replay.adapters.torchrl import SynthERReplayBuffer, mirror
from synther_replay.adapters.torchrl.rows import RealEntries

TINY = {"preset": "tiny", "width": 16, "depth": 1, "steps": 10, "batch_size": 32, "sampling_steps": 2}
FLAGS = "done", "terminated", "truncated"


def transitions(n, first=0):
    """Numbered transitions with flags of their own."""
    number = torch.arange(first, first + n, dtype=torch.float32)[:, None]
    down = {name: (number % (k + 3)) == 0 for k, name in enumerate(FLAGS)}
    after = {"observation": number.repeat(1, 3) + 0.5, "reward": number, **{name: ~flag for name, flag in down.items()}}
    return TensorDict({"observation": number.repeat(1, 3), "action": torch.cos(number), "next": after, **down}, [n])


def make(capacity=100, **options):
    real = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=16)
    settings = {"generator": TINY, "schedule": {"start": 40, "every": 10**6, "rows": 64}, "seed": 0} | options
    return SynthERReplayBuffer(real, action_spec=Bounded(-1, 1, (1,)), **settings)


@pytest.fixture
def pair(monkeypatch):
    """Two buffers with the same rows; the first reads its mirror."""
    buffers = make(), make()
    monkeypatch.setattr(RealEntries, "_pays", lambda self: self is buffers[0]._rows)
    for buffer in buffers:
        buffer.extend(transitions(60))
        buffer.sample()
    return buffers


def assert_same(buffers, batches=5):
    """Compare batches; both must draw the same real rows."""
    for _ in range(batches):
        drawn = []
        for buffer in buffers:
            torch.manual_seed(1)
            drawn.append(buffer.sample())
        assert set(drawn[0].keys(True, True)) == set(drawn[1].keys(True, True))
        for key in drawn[0].keys(True, True):
            assert torch.equal(drawn[0][key], drawn[1][key]), key
    assert buffers[0]._rows._mirror is not None
    assert buffers[1]._rows._mirror is None


def change_an_entry(buffer):
    rewards = torch.rand(60, 1, generator=torch.Generator().manual_seed(0))
    buffer.real[:].set_(("next", "reward"), rewards)


def assign_and_extend(buffer):
    buffer[:9] = transitions(9, 500)
    buffer.extend(transitions(9, 600))


def begin_again(buffer):
    buffer.empty()
    buffer.extend(transitions(50, 500))
    buffer.source.refit()


WRITES = {
    "nothing": lambda buffer: None,
    "add": lambda buffer: buffer.add(transitions(1, 500)[0]),
    "extend": lambda buffer: buffer.extend(transitions(30, 500)),
    "wrap around": lambda buffer: buffer.extend(transitions(70, 500)),
    "more than the capacity": lambda buffer: buffer.extend(transitions(130, 500)),
    "directly": lambda buffer: buffer.real.extend(transitions(30, 500)),
    "by assignment": lambda buffer: buffer.__setitem__(slice(0, 30), transitions(30, 500)),
    "one entry": change_an_entry,
    "assignment and extend": assign_and_extend,
    "many": lambda buffer: [buffer.add(transitions(1, 500 + k)[0]) for k in range(mirror._MOST_NOTES + 5)],
    "emptied": begin_again,
    "the storage": lambda buffer: buffer.real.storage._storage["action"].mul_(0.5),
    "loaded": lambda buffer: buffer.real.load_state_dict(other_state()),
}


def other_state():
    other = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=16)
    other.extend(transitions(80, 900))
    return other.state_dict()


@pytest.mark.parametrize("how", WRITES)
def test_batches_are_those_without_a_mirror_whatever_is_written(pair, how):
    assert_same(pair)
    for buffer in pair:
        WRITES[how](buffer)
    assert_same(pair)
    for buffer in pair:
        buffer.extend(transitions(7, 2_000))
    assert_same(pair)


def test_only_written_rows_are_copied_again(pair, monkeypatch):
    assert_same(pair)
    copied = []
    monkeypatch.setattr(
        torch,
        "cat",
        lambda parts, *args, cat=torch.cat, **out: copied.append(parts[0].shape) or cat(parts, *args, **out),
    )
    pair[0].extend(transitions(3, 500))
    pair[0].sample()
    assert max(shape[0] for shape in copied if len(shape) == 2) == 3  # matrices: the rows that were written


def test_a_copy_has_a_mirror_of_its_own(monkeypatch):
    monkeypatch.setattr(RealEntries, "_pays", lambda self: True)
    buffer = make()
    buffer.extend(transitions(60))
    buffer.sample()
    twins = copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))
    buffer[:60] = transitions(60, 700)
    for twin in twins:
        batch = twin.sample()
        assert batch["next", "reward"][~batch["is_synthetic"]].max() < 60


def test_a_mirror_that_does_not_fit_is_done_without(monkeypatch):
    monkeypatch.setattr(RealEntries, "_pays", lambda self: True)
    monkeypatch.setattr(
        mirror.PackedMirror, "__init__", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("full"))
    )
    buffer = make()
    buffer.extend(transitions(60))
    with pytest.warns(RuntimeWarning, match="memory"):
        buffer.sample()
    assert int(buffer.sample()["is_synthetic"].sum()) == 8


def test_a_storage_that_is_shared_between_processes_has_none(monkeypatch):
    monkeypatch.setattr(RealEntries, "_pays", lambda self: True)
    buffer = make()
    buffer.share()
    buffer.extend(transitions(60))
    assert int(buffer.sample()["is_synthetic"].sum()) == 8
    assert buffer._rows._mirror is None
