"""RealRows: the mirror of SB3's arrays on the GPU, and the fallback if it does not fit."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

from synther_replay import RetrainSchedule
from synther_replay.adapters.sb3 import SynthERBuffer
from synther_replay.adapters.sb3 import rows as _sb3_rows

PLACE, FORCE = spaces.Box(-2, 2, (3,)), spaces.Box(-1, 1, (2,))
NEVER = RetrainSchedule(every=10**6, start=10**6)


def filled(steps, size=5_000, n_envs=1):
    buffer = SynthERBuffer(size, PLACE, FORCE, device="cpu", n_envs=n_envs, schedule=NEVER, seed=0)
    return add(buffer, steps)


def add(buffer, steps):
    rng, n = np.random.default_rng(0), buffer.n_envs
    for _ in range(steps):
        place, following = rng.normal(size=(2, n, 3))
        buffer.add(place, following, rng.uniform(-1, 1, (n, 2)), rng.normal(size=n), np.zeros(n), [{}] * n)
    return buffer


@pytest.fixture
def mirrored(monkeypatch):
    """Forces the mirror on a CPU."""
    monkeypatch.setattr(_sb3_rows.RealRows, "_mirrors", lambda self: True)


@pytest.fixture
def room(monkeypatch):
    """Limits the mirror to a number of rows; a larger one raises an out-of-memory error."""
    sizes, empty = {"rows": 10**9}, torch.empty

    def limited(*size, **options):
        if isinstance(size[0], int) and size[0] > sizes["rows"]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty(*size, **options)

    monkeypatch.setattr(_sb3_rows.torch, "empty", limited)
    return sizes


def test_rows_are_the_same_with_and_without_a_mirror(monkeypatch, mirrored):
    buffer = filled(1_500)
    with_mirror = [buffer.sample(8) for _ in range(40)]
    monkeypatch.setattr(_sb3_rows.RealRows, "_mirrors", lambda self: False)
    twin = filled(1_500)
    for one, other in zip(with_mirror, [twin.sample(8) for _ in range(40)], strict=True):
        for field, same in zip(one[:5], other[:5], strict=True):
            assert torch.equal(field, same)


def test_without_room_rows_come_from_the_host_with_one_warning(mirrored, room):
    buffer, twin = filled(1_000), filled(1_000)
    room["rows"] = 1_024
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.sample(8)
    twin.sample(8)
    add(buffer, 100)
    add(twin, 100)
    with pytest.warns(RuntimeWarning, match="1100 real rows do not fit into the memory of cpu"):
        batch = buffer.sample(8)
    room["rows"] = 10**9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(40):
            assert torch.equal(batch.observations, twin.sample(8).observations), "the same rows as with a mirror"
            batch = buffer.sample(8)
    assert torch.equal(buffer.source.real.transitions().rows, twin.source.real.transitions().rows)
    assert buffer.source.real._mirror is None


def test_there_is_another_try_after_a_new_start(mirrored, room):
    buffer = filled(1_100)
    room["rows"] = 1_024
    with pytest.warns(RuntimeWarning, match="do not fit"):
        buffer.sample(8)
    room["rows"] = 10**9
    for twin in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        twin.sample(8)
        assert len(twin.source.real._mirror) == 2_048
    buffer.refresh_mirror()
    buffer.sample(8)
    assert len(buffer.source.real._mirror) == 2_048


def test_other_errors_are_passed_on(mirrored, monkeypatch):
    def broken(*size, **options):
        raise RuntimeError("device-side assert triggered")

    buffer = filled(10)
    monkeypatch.setattr(_sb3_rows.torch, "empty", broken)
    with pytest.raises(RuntimeError, match="device-side assert"):
        buffer.sample(8)


def test_old_mirror_is_let_go_before_there_is_a_larger_one(mirrored, monkeypatch):
    buffer = filled(1_000)
    buffer.sample(8)
    add(buffer, 100)
    held, empty = [], torch.empty
    monkeypatch.setattr(
        _sb3_rows.torch, "empty", lambda *s, **o: held.append(buffer.source.real._mirror) or empty(*s, **o)
    )
    buffer.sample(8)
    assert held == [None]


@pytest.mark.parametrize("n_envs", [1, 3])
def test_new_rows_are_one_slice_or_two_around_the_end(mirrored, monkeypatch, n_envs):
    buffer = filled(40, size=50 * n_envs, n_envs=n_envs)
    buffer.sample(8)
    real = buffer.source.real
    asked, gather = [], real._gather
    monkeypatch.setattr(real, "_gather", lambda index: asked.append((index[0], index[-1] + 1)) or gather(index))
    for steps, expected in ((1, [(40, 41)]), (5, [(41, 46)]), (6, [(46, 50), (0, 2)]), (120, [(22, 50), (0, 22)])):
        add(buffer, steps)
        buffer.sample(8)
        assert asked == [(n_envs * start, n_envs * stop) for start, stop in expected]
        asked.clear()
    monkeypatch.undo()
    assert torch.equal(real._mirror[: len(real)], torch.from_numpy(real._gather(np.arange(len(real)))))
