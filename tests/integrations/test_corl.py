"""The CORL adapter: identical batches before `upsample`, synthetic rows after it."""

import doctest
import importlib.util
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from synther_replay import DivergedError, GenerationError, GeneratorConfig, RetrainSchedule, TransitionSpec
from synther_replay.adapters.corl import ReplayBuffer, d4rl
from synther_replay.adapters.corl import buffer as corl_buffer
from synther_replay.files import npz

TINY = GeneratorConfig.tiny(width=32, depth=1, steps=20, refit_steps=10, sampling_steps=4)
NEEDS_H5PY = pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="h5py is not installed")
HDF5 = [pytest.param("set.hdf5", marks=NEEDS_H5PY), pytest.param("set.h5", marks=NEEDS_H5PY)]
FILES = ["set.npz", *HDF5]


def dataset(n=100, first=0):
    """Rewards count up from `first`; the other fields are functions of the reward. Actions are in (-0.5, 0.5)."""
    x = np.arange(first, first + n, dtype=np.float64)
    return {
        "observations": np.stack([np.sin(x), np.cos(x), x / 50], 1),
        "actions": np.stack([np.sin(2 * x), np.cos(3 * x)], 1) / 2,
        "rewards": x,
        "next_observations": np.stack([np.sin(x + 1), np.cos(x + 1), (x + 1) / 50], 1),
        "terminals": x % 10 == 9,
    }


def filled(n=100, size=200, **options):
    buffer = ReplayBuffer(3, 2, size, **options)
    buffer.load_d4rl_dataset(dataset(n))
    return buffer


@pytest.fixture
def fake(fake):
    """The fake generator for states of 3 and actions of 2 columns: its rewards are minus the number of its fits."""
    spec = TransitionSpec.from_spaces(Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,)))
    return type(fake)(spec)


def numbers(batch):
    return batch[2][:, 0].tolist()


def synthetic(batch):
    return sum(number < 0 for number in numbers(batch))


def held(buffer):
    """A copy of the synthetic rows."""
    return buffer._source.store.rows.clone() if buffer._source else torch.empty(0)


def raising(error):
    def run():
        raise error

    return run


def test_the_example_of_the_class_runs():
    assert doctest.testmod(corl_buffer).attempted > 0
    assert doctest.testmod(corl_buffer).failed == 0


# --- as CORL's own buffer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upsampled", [False, True])
def test_real_batches_are_the_rows_that_numpy_draws(fake, upsampled):
    buffer = filled(real_ratio=1.0 if upsampled else 0.0, generator=fake)
    if upsampled:
        buffer.upsample(50)
    np.random.seed(3)
    batches = [buffer.sample(32) for _ in range(3)]
    np.random.seed(3)
    data = dataset()
    for batch in batches:
        index = np.random.randint(0, 100, size=32)
        for part, key in zip(batch, data, strict=True):
            expected = torch.tensor(data[key][index], dtype=torch.float32).reshape(32, -1)
            assert torch.equal(part, expected), key
            assert part.is_contiguous()


def test_flags_and_rewards_may_have_a_column():
    data = dataset()
    buffer = ReplayBuffer(3, 2, 100)
    buffer.load_d4rl_dataset({**data, **{key: data[key].reshape(-1, 1) for key in ("rewards", "terminals")}})
    np.random.seed(0)
    batch = buffer.sample(20)
    np.random.seed(0)
    assert numbers(batch) == np.random.randint(0, 100, size=20).tolist()
    assert batch[4].shape == (20, 1)
    assert torch.equal(batch[4], (batch[2] % 10 == 9).float())


def test_generation_can_be_guided():
    config = GeneratorConfig.tiny(width=32, depth=2, steps=300, batch_size=64, sampling_steps=8)
    means = []
    for relevance in (None, "reward"):
        buffer = filled(generator=config, relevance=relevance, synthetic_capacity=100, seed=0)
        report = buffer.upsample(1_000)
        for _ in range(2):  # generated anew when all were drawn
            means.append(float(np.mean(numbers(buffer.sample(100)))))
    assert report.relevance.share == 1
    assert min(means[2:]) > max(means[:2]) + 10


def test_added_transitions_overwrite_the_oldest():
    buffer = filled(8, size=10)
    for number in range(8, 13):
        row = {key: values[0] for key, values in dataset(1, number).items()}
        buffer.add_transition(*row.values())
    assert len(buffer) == 10
    np.random.seed(5)
    drawn = numbers(buffer.sample(40))
    np.random.seed(5)
    places = [10, 11, 12, 3, 4, 5, 6, 7, 8, 9]
    assert drawn == [places[index] for index in np.random.randint(0, 10, size=40)]


def test_parts_of_a_batch_do_not_share_memory():
    buffer = filled(1)
    states, _, rewards, *_ = buffer.sample(1)
    before = states.clone()
    version = states._version
    rewards.fill_(7)
    assert torch.equal(states, before)
    assert states._version == version
    assert numbers(buffer.sample(1)) == [0]


@pytest.mark.parametrize("size", [0, -1])
def test_batch_of_nothing_is_refused(size):
    with pytest.raises(ValueError, match=f"batch_size.*{size}"):
        filled().sample(size)


def test_batches_without_upsample_are_told_to_be_real_once():
    buffer = filled()
    with pytest.warns(RuntimeWarning, match="upsample was not called"):
        buffer.sample(8)
    for told in (buffer, filled(real_ratio=1.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            told.sample(8)


def test_upsampled_batches_tell_nothing(fake):
    buffer = filled(generator=fake)
    buffer.upsample(50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.sample(8)


def test_empty_buffer_cannot_be_sampled_or_upsampled():
    buffer = ReplayBuffer(3, 2, 10)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(2)
    with pytest.raises(ValueError, match="empty"):
        buffer.upsample(2)


def changed(key, value):
    return lambda data: {**data, key: value(data[key])}


def with_value(key, value):
    def change(data):
        values = data[key].astype(np.float64)
        values.reshape(-1)[7] = value
        return {**data, key: values}

    return change


WRONG = {
    "no next states": (lambda data: {k: v for k, v in data.items() if k[:4] != "next"}, "next_observations.*qlearning"),
    "no keys": (lambda data: {}, "observations, actions, rewards, next_observations, terminals"),
    "no rows": (lambda data: {key: values[:0] for key, values in data.items()}, "at least one transition"),
    "a number": (changed("observations", lambda values: 3.0), "observations: expected shape"),
    "narrow states": (changed("observations", lambda values: values[:, :2]), r"observations: .*3\), got \(100, 2\)"),
    "narrow next states": (changed("next_observations", lambda values: values[:, :2]), "next_observations: expected"),
    "wide actions": (changed("actions", lambda values: np.ones((100, 3))), r"actions: .*2\), got \(100, 3\)"),
    "short actions": (changed("actions", lambda values: values[:-1]), r"actions: .*got \(99, 2\)"),
    "short rewards": (changed("rewards", lambda values: values[:-1]), r"rewards: .*got \(99,\)"),
    "wide rewards": (changed("rewards", lambda values: np.ones((100, 2))), r"rewards: .*got \(100, 2\)"),
    "long terminals": (changed("terminals", lambda values: np.zeros(101)), r"terminals: .*got \(101,\)"),
    "NaN state": (with_value("observations", np.nan), "observations: 1 of 100 rows"),
    "infinite reward": (with_value("rewards", np.inf), "rewards: 1 of 100 rows"),
    "huge action": (with_value("actions", 1e300), "actions: 1 of 100 rows"),
    "half a terminal": (with_value("terminals", 0.5), r"terminals: .*0\.5"),
    "NaN terminal": (with_value("terminals", np.nan), "terminals: .*nan"),
    "action out of bounds": (with_value("actions", -1.5), r"max_action=1\.0, got 1\.5"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_data_are_refused_and_nothing_is_loaded(case):
    change, message = WRONG[case]
    buffer = ReplayBuffer(3, 2, 200, max_action=1.0)
    with pytest.raises(ValueError, match=message):
        buffer.load_d4rl_dataset(change(dataset()))
    assert len(buffer) == 0
    buffer.load_d4rl_dataset(dataset())
    assert len(buffer) == 100


def test_data_set_is_loaded_once_and_must_fit():
    with pytest.raises(ValueError, match=r"100 transitions .* buffer_size=99"):
        filled(100, size=99)
    buffer = filled(100, size=100)
    with pytest.raises(ValueError, match="holds 100"):
        buffer.load_d4rl_dataset(dataset(1))
    assert len(buffer) == 100


def test_transition_that_is_none_is_refused():
    buffer = filled()
    row = [values[0] for values in dataset(1).values()]
    with pytest.raises(ValueError, match="observations"):
        buffer.add_transition(np.zeros(4), *row[1:])
    with pytest.raises(ValueError, match="rewards"):
        buffer.add_transition(*row[:2], np.nan, *row[3:])
    assert len(buffer) == 100


WRONG_OPTIONS = {
    "state_dim": (0, ValueError),
    "buffer_size": (0, ValueError),
    "device": ("nowhere", ValueError),
    "real_ratio": (1.5, ValueError),
    "generator": ("papers", ValueError),
    "schedule": (0, ValueError),
    "synthetic_capacity": (0, ValueError),
    "max_action": (-1.0, ValueError),
    "seed": (-1, ValueError),
}


@pytest.mark.parametrize("name", WRONG_OPTIONS)
def test_wrong_options_are_refused_by_name(name):
    value, error = WRONG_OPTIONS[name]
    options = {"state_dim": 3, "action_dim": 2, "buffer_size": 10, name: value}
    with pytest.raises(error, match=name):
        ReplayBuffer(**options)


def test_generator_of_other_sizes_is_refused(fake):
    with pytest.raises(ValueError, match=r"generator: got .*3 state .*expected 4 and 2"):
        ReplayBuffer(4, 2, 10, generator=fake)


def test_repr_shows_sizes(fake):
    buffer = filled(generator=fake, real_ratio=0.25)
    assert repr(buffer) == "ReplayBuffer(100 of 200 real, 0 synthetic, real_ratio=0.25, device='cpu')"
    buffer.upsample(30)
    assert "30 synthetic" in repr(buffer)


def test_the_ratio_can_be_changed_between_batches(fake):
    buffer = filled(generator=fake)
    buffer.upsample(50)
    for ratio, expected in ((0.0, 16), (0.25, 12), (1.0, 0), (0.5, 8)):
        buffer.real_ratio = ratio
        assert (buffer.real_ratio, synthetic(buffer.sample(16))) == (ratio, expected)
        assert f"real_ratio={ratio}" in repr(buffer)
    buffer.upsample(50)
    assert synthetic(buffer.sample(16)) == 8
    for wrong in (5, "x", None, True):
        with pytest.raises(ValueError, match="real_ratio"):
            buffer.real_ratio = wrong
    assert buffer.real_ratio == 0.5


@pytest.mark.parametrize("scale", [0, "x", float("inf")])
def test_a_scale_of_rewards_that_loses_them_is_refused(fake, scale):
    buffer = filled(generator=fake)
    with pytest.raises(ValueError, match="scale"):
        buffer.normalise_rewards(scale=scale)


# --- upsampling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("real_ratio", "expected"), [(0.0, 16), (0.25, 12), (0.5, 8), (1.0, 0)])
def test_batches_hold_exactly_their_share_of_synthetic_rows(fake, real_ratio, expected):
    buffer = filled(generator=fake, real_ratio=real_ratio)
    assert synthetic(buffer.sample(16)) == 0
    report = buffer.upsample(50)
    assert (report.fit, report.rows, fake.learnt) == ("fit 1", 50, [100])
    np.random.seed(1)
    batch = buffer.sample(16)
    np.random.seed(1)
    assert synthetic(batch) == expected
    real = [number for number in numbers(batch) if number >= 0]
    assert sorted(real) == sorted(np.random.randint(0, 100, size=16 - expected))
    assert [tuple(part.shape) for part in batch] == [(16, 3), (16, 2), (16, 1), (16, 3), (16, 1)]
    assert all(part.dtype == torch.float32 for part in batch)


def test_real_and_synthetic_rows_are_shuffled(fake):
    buffer = filled(generator=fake, real_ratio=0.5)
    buffer.upsample(50)
    patterns = {tuple(number < 0 for number in numbers(buffer.sample(64))) for _ in range(5)}
    assert len(patterns) == 5


def test_upsampling_again_replaces_the_rows(fake):
    buffer = filled(generator=fake)
    buffer.upsample(50)
    buffer.upsample(80)
    assert held(buffer).shape == (80, 10)
    assert set(numbers(buffer.sample(64))) == {-2.0}


def test_synthetic_rows_can_be_had_as_they_were_generated(fake):
    buffer = filled(generator=fake)
    assert buffer.synthetic is None
    buffer.upsample(50)
    buffer.normalise_states()
    buffer.normalise_rewards(2.0)  # stored rows do not change
    found = buffer.synthetic
    assert found.spec == fake.spec
    assert found.rows[:, 0].tolist() == list(range(50))
    assert found.rewards.unique().tolist() == [-1.0]
    buffer.upsample(30)
    assert buffer.synthetic.rows[:, 0].tolist() == list(range(50, 80))
    assert buffer.synthetic.rewards.unique().tolist() == [-2.0]


def test_same_seed_same_rows_and_another_seed_others():
    def batches(seed):
        buffer = filled(generator=TINY, real_ratio=0.5, seed=seed)
        buffer.upsample(64)
        np.random.seed(0)
        return torch.cat([torch.cat(buffer.sample(8), 1) for _ in range(3)])

    first = batches(1)
    assert torch.equal(first, batches(1))
    assert not torch.equal(first, batches(2))


def test_upsampling_leaves_the_global_generators_alone():
    np.random.seed(0)
    torch.manual_seed(0)
    expected = np.random.rand(), torch.rand(1).item()
    np.random.seed(0)
    torch.manual_seed(0)
    buffer = filled(generator=TINY)
    buffer.upsample(64)
    buffer.sample(8)
    assert (np.random.rand(), torch.rand(1).item()) == expected


def test_actions_stay_in_their_range():
    buffer = filled(generator=TINY, max_action=0.5)
    report = buffer.upsample(64)
    assert report.fit.from_scratch
    assert buffer.sample(500)[1].abs().max() <= 0.5
    assert buffer._source.spec.field("actions").leaves[0].high.tolist() == [0.5, 0.5]
    assert not buffer.upsample(64).fit.from_scratch


def test_range_of_actions_is_that_of_the_data_unless_given():
    data = dataset()
    data["actions"][:, 1] = 0.25  # a motor that is never used otherwise
    buffer = ReplayBuffer(3, 2, 200, generator=TINY)
    buffer.load_d4rl_dataset(data)
    buffer.upsample(64)
    actions = buffer.sample(500)[1]
    assert actions[:, 0].min() >= np.float32(data["actions"][:, 0].min())
    assert actions[:, 0].max() <= np.float32(data["actions"][:, 0].max())
    assert set(actions[:, 1].tolist()) == {0.25}
    assert not buffer.upsample(64).fit.from_scratch
    buffer.add_transition(np.zeros(3), [0.9, 0.25], 0.0, np.zeros(3), False)
    assert buffer.upsample(64).fit.from_scratch  # the action range, and so the spec, has changed
    assert buffer._source.spec.field("actions").leaves[0].high[0] == np.float32(0.9)


def test_default_generator_is_offline_only_without_schedule_on_a_gpu(monkeypatch):
    gpu = torch.device("cuda")
    assert corl_buffer._fitted_once(None, gpu) == GeneratorConfig.offline()
    assert corl_buffer._fitted_once({"steps": 7}, gpu) == GeneratorConfig.offline(steps=7)
    assert corl_buffer._fitted_once("fast", gpu) == GeneratorConfig.fast()
    assert corl_buffer._fitted_once(None, torch.device("cpu")) is None
    monkeypatch.setattr(corl_buffer, "_fitted_once", lambda generator, device: TINY)
    once, again = filled(), filled(schedule=RetrainSchedule.tiny(), max_action=1.0)
    once.upsample(10)
    assert once._source.generator.config == TINY
    assert again._source.generator.config == GeneratorConfig.tiny()


def test_too_few_rows_to_fit_are_refused():
    buffer = filled(10, generator=TINY)
    with pytest.raises(ValueError, match="at least 32"):
        buffer.upsample(50)
    assert numbers(buffer.sample(4))


# --- bounded memory ---------------------------------------------------------------------------------------------------


def test_rows_are_replaced_when_as_many_were_drawn_as_are_held(fake):
    buffer = filled(generator=fake, synthetic_capacity=20, real_ratio=0.5)
    assert buffer.upsample(50).rows == 20
    for block in range(4):  # more than the requested 50
        for _ in range(4):  # 4 batches draw 20 synthetic rows
            states, _, rewards, *_ = buffer.sample(10)
            drawn = states[rewards[:, 0] < 0, 0]
            assert ((drawn >= 20 * block) & (drawn < 20 * (block + 1))).all()
        assert held(buffer).shape == (20, 10)
    assert fake.fits == 1


def test_rows_of_another_upsampling_are_unused(fake):
    buffer = filled(generator=fake, synthetic_capacity=20)
    buffer.upsample(50)
    buffer.sample(20)
    buffer.upsample(50)
    buffer.sample(10)
    assert held(buffer)[:, 0].tolist() == list(range(20, 40))
    buffer.sample(10)
    buffer.sample(1)
    assert held(buffer)[:, 0].tolist() == list(range(40, 60))


def test_rows_that_are_all_held_are_not_replaced(fake):
    buffer = filled(generator=fake, synthetic_capacity=20)
    buffer.upsample(20)
    for _ in range(10):
        buffer.sample(10)
    assert fake.drawn == 20


@pytest.mark.parametrize(
    "error", [GenerationError("no good"), MemoryError(), RuntimeError("CUDA error: out of memory"), KeyError("bug")]
)
def test_failure_to_replace_them_keeps_them(fake, error):
    buffer = filled(generator=fake, synthetic_capacity=20)
    buffer.upsample(50)
    before = held(buffer)
    buffer.sample(20)
    fake.during_sample = raising(error)
    with pytest.warns(RuntimeWarning, match="keeping the previous"):
        assert synthetic(buffer.sample(20)) == 20
    assert torch.equal(held(buffer), before)
    fake.during_sample = lambda: None
    buffer.sample(1)
    assert not torch.equal(held(buffer), before)


def test_interrupt_while_replacing_them_is_passed_on(fake):
    buffer = filled(generator=fake, synthetic_capacity=20)
    buffer.upsample(50)
    before = held(buffer)
    buffer.sample(20)
    fake.during_sample = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        buffer.sample(20)
    assert torch.equal(held(buffer), before)


# --- faults -----------------------------------------------------------------------------------------------------------

FAULTS = {
    "diverged": (DivergedError("loss is NaN"), DivergedError, "loss is NaN"),
    "no rows": (GenerationError("all rejected"), GenerationError, "all rejected"),
    "interrupt": (KeyboardInterrupt(), KeyboardInterrupt, None),
    "bug": (ZeroDivisionError("oops"), ZeroDivisionError, "oops"),
    "host memory": (MemoryError(), MemoryError, "40 rows; .*synthetic_capacity"),
    "device memory": (torch.OutOfMemoryError("CUDA out of memory"), MemoryError, "synthetic_capacity"),
}


@pytest.mark.parametrize("moment", ["during_fit", "during_sample"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("upsamples", [0, 1])
def test_fault_in_upsample_leaves_the_buffer_as_before(fake, same, upsamples, fault, moment):
    error, expected, message = FAULTS[fault]
    buffer = filled(generator=fake, synthetic_capacity=40, real_ratio=0.5)
    for _ in range(upsamples):
        buffer.upsample(40)
    before, model = held(buffer), fake.state_dict()
    setattr(fake, moment, raising(error))
    with pytest.raises(expected, match=message):
        buffer.upsample(100)
    assert torch.equal(held(buffer), before)
    assert same(fake.state_dict(), model)
    assert synthetic(buffer.sample(10)) == 5 * upsamples
    setattr(fake, moment, lambda: None)
    buffer.upsample(40)
    assert synthetic(buffer.sample(10)) == 5


def test_invalid_generated_rows_are_refused(fake):
    buffer = filled(generator=fake)
    fake.sample = lambda n: type(buffer._ring.transitions())(fake.spec, torch.full((n, 10), np.nan))
    with pytest.raises(GenerationError, match="non-finite"):
        buffer.upsample(10)
    assert synthetic(buffer.sample(10)) == 0


# --- refits on schedule -----------------------------------------------------------------------------------------------


def add(buffer, n):
    for number in range(n):
        buffer.add_transition(*(values[0] for values in dataset(1, number).values()))


def test_without_a_schedule_nothing_is_refitted(fake):
    buffer = filled(generator=fake)
    buffer.upsample(20)
    for _ in range(20):
        add(buffer, 30)
        buffer.sample(4)
    assert fake.fits == 1


def test_schedule_refits_as_transitions_are_added(fake):
    buffer = filled(generator=fake, schedule=RetrainSchedule(every=10, rows=30, start=100))
    assert set(numbers(buffer.sample(4))) == {-1.0}  # 100 rows are there
    add(buffer, 9)
    assert set(numbers(buffer.sample(4))) == {-1.0}
    add(buffer, 1)
    assert set(numbers(buffer.sample(4))) == {-2.0}
    assert fake.learnt == [100, 110]
    assert held(buffer).shape == (30, 10)


def test_upsampling_counts_as_a_refit_and_has_its_own_number_of_rows(fake):
    buffer = filled(generator=fake, schedule=RetrainSchedule(every=10, rows=30, start=100))
    buffer.upsample(50)
    buffer.sample(4)
    assert (fake.fits, len(held(buffer))) == (1, 50)
    add(buffer, 10)
    buffer.sample(4)
    assert (fake.fits, len(held(buffer))) == (2, 30)


def test_refit_on_schedule_that_diverges_is_a_warning(fake):
    buffer = filled(generator=fake, schedule=RetrainSchedule(every=10, rows=30, start=100))
    buffer.sample(4)
    add(buffer, 10)
    fake.during_fit = raising(DivergedError("loss is NaN"))
    with pytest.warns(RuntimeWarning, match="loss is NaN"):
        assert set(numbers(buffer.sample(4))) == {-1.0}


def test_schedule_needs_the_range_of_actions():
    with pytest.raises(ValueError, match="max_action"):
        ReplayBuffer(3, 2, 100, schedule=RetrainSchedule.tiny())
    ReplayBuffer(3, 2, 100, generator=TINY, schedule=RetrainSchedule.tiny(), max_action=1.0)


# --- normalisation ----------------------------------------------------------------------------------------------------


def test_states_are_normalised_by_the_real_rows_on_the_way_out():
    data = dataset()
    buffer = filled()
    mean, std = buffer.normalise_states()
    np.testing.assert_allclose(mean, data["observations"].mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(std, data["observations"].std(0) + 1e-3, rtol=1e-5)
    np.random.seed(2)
    states, _, _, next_states, _ = buffer.sample(30)
    np.random.seed(2)
    index = np.random.randint(0, 100, size=30)
    for part, key in ((states, "observations"), (next_states, "next_observations")):
        np.testing.assert_allclose(part, (data[key][index] - mean) / std, rtol=1e-4, atol=1e-5)
    mean.fill(9)  # a copy
    np.random.seed(2)
    assert torch.equal(buffer.sample(30)[0], states)


def test_synthetic_rows_are_normalised_alike_and_saved_raw(fake, tmp_path):
    buffer = filled(generator=fake)
    buffer.upsample(1)  # a row of zeros but for its reward, -1
    mean, std = buffer.normalise_states([1.0, 2.0, 3.0], 2.0)
    assert (mean.tolist(), std.tolist()) == ([1, 2, 3], [2, 2, 2])
    buffer.normalise_rewards(scale=10.0, shift=0.5)
    states, actions, rewards, next_states, dones = buffer.sample(1)
    assert states.tolist() == next_states.tolist() == [[-0.5, -1.0, -1.5]]
    assert (actions.tolist(), rewards.tolist(), dones.tolist()) == ([[0, 0]], [[-9.5]], [[0]])
    buffer.save(tmp_path / "set.npz")
    saved = np.load(tmp_path / "set.npz")
    assert (saved["rewards"].tolist(), saved["observations"].tolist()) == ([-1], [[0, 0, 0]])


def test_normalisation_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="empty"):
        ReplayBuffer(3, 2, 10).normalise_states(mean=0.0)
    buffer = filled()
    for arguments, message in (
        ((0.0, 0.0), "std"),
        (([1, 2], 1.0), "mean"),
        ((np.nan, 1.0), "mean"),
        ((0, [1, 1]), "std"),
    ):
        with pytest.raises(ValueError, match=f"{message}: "):
            buffer.normalise_states(*arguments)
    with pytest.raises(ValueError, match="nan"):
        buffer.normalise_rewards(np.nan)
    np.random.seed(0)
    index = np.random.randint(0, 100, size=8)
    np.random.seed(0)
    assert numbers(buffer.sample(8)) == index.tolist()


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_saved_rows_come_back(tmp_path, monkeypatch, name):
    monkeypatch.setattr(d4rl, "BLOCK", 30)
    buffer = filled(generator=TINY)
    buffer.upsample(64)
    buffer.save(tmp_path / name)
    assert os.listdir(tmp_path) == [name]
    other = ReplayBuffer(3, 2, 10)  # neither rows nor a fitted generator
    other.load(tmp_path / name)
    assert torch.equal(held(other), held(buffer))
    assert other.sample(16)[0].shape == (16, 3)


@pytest.mark.parametrize("name", HDF5)
def test_new_rows_are_streamed_in_blocks(tmp_path, monkeypatch, fake, name):
    monkeypatch.setattr(d4rl, "BLOCK", 30)
    buffer = filled(generator=fake, synthetic_capacity=20)
    buffer.upsample(20)
    asked, sample = [], fake.sample
    monkeypatch.setattr(fake, "sample", lambda n: asked.append(n) or sample(n))
    buffer.save(tmp_path / name, rows=100)
    assert asked == [30, 30, 30, 10]
    arrays = d4rl.read(tmp_path / name)
    assert arrays["observations"][:, 0].tolist() == list(range(20, 120))
    assert held(buffer)[:, 0].tolist() == list(range(20))  # still those


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("name", HDF5)
def test_failed_save_keeps_the_old_file_only(tmp_path, monkeypatch, fake, name, before):
    monkeypatch.setattr(d4rl, "BLOCK", 30)
    buffer = filled(generator=fake)
    buffer.upsample(20)
    if before:
        (tmp_path / name).write_bytes(before)
    fake.during_sample = lambda: fake.drawn > 60 and raising(KeyboardInterrupt())()
    with pytest.raises(KeyboardInterrupt):
        buffer.save(tmp_path / name, rows=100)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == ({name: before} if before else {})


def test_failed_save_of_an_npz_leaves_nothing(tmp_path, monkeypatch, fake):
    buffer = filled(generator=fake)
    buffer.upsample(20)
    monkeypatch.setattr(npz, "_write_array", lambda *_: raising(OSError("disk full"))())
    with pytest.raises(OSError, match="disk full"):
        buffer.save(tmp_path / "set.npz")
    assert not list(tmp_path.iterdir())


FULL_DISK = """
import random, resource, sys
from pathlib import Path
import torch
from gymnasium.spaces import Box
from synther_replay import TransitionSpec
from synther_replay.adapters.corl import d4rl

spec = TransitionSpec.from_spaces(Box(-1, 1, (3,)), Box(-1, 1, (2,)))
random.seed(0)
for _ in range(20):
    resource.setrlimit(resource.RLIMIT_FSIZE, (random.randrange(700_000), resource.RLIM_INFINITY))  # maximum file size
    try:
        d4rl.write(Path(sys.argv[1]), spec, 20_000, (torch.rand(5_000, spec.dim) for _ in range(4)))
    except OSError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_full_disk_raises_an_error_without_crashing(tmp_path, name):
    pytest.importorskip("resource")
    (tmp_path / name).write_bytes(b"old")
    ended = subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path / name], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("too large") == 20
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {name: b"old"}


def test_save_refuses_invalid_arguments(tmp_path, fake):
    buffer = filled(generator=fake)
    with pytest.raises(ValueError, match="call upsample first"):
        buffer.save(tmp_path / "set.npz")
    buffer.upsample(20)
    with pytest.raises(ValueError, match=r"use \.hdf5"):
        buffer.save(tmp_path / "set.npz", rows=100)
    with pytest.raises(ValueError, match=r"path: .*set\.csv"):
        buffer.save(tmp_path / "set.csv")
    with pytest.raises(ValueError, match=r"rows: .*0"):
        buffer.save(tmp_path / "set.hdf5", rows=0)
    with pytest.raises(FileNotFoundError):
        buffer.save(tmp_path / "nowhere" / "set.npz")
    assert not list(tmp_path.iterdir())


def test_rows_that_were_only_loaded_cannot_be_multiplied(tmp_path):
    np.savez(tmp_path / "set.npz", **dataset())
    buffer = filled()
    buffer.load(tmp_path / "set.npz")
    with pytest.raises(ValueError, match="call upsample first"):
        buffer.save(tmp_path / "more.hdf5", rows=10)


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def one_byte_flipped(path):
    data = bytearray(path.read_bytes())
    rewards = np.float32(-1).tobytes()
    pair = rewards if path.suffix == ".npz" else rewards + bytes(4)
    first = data.index(pair * 10)  # among the rewards
    data[first + 5] ^= 64
    path.write_bytes(data)


DAMAGE = {
    "truncated": truncated,
    "emptied": lambda path: path.write_bytes(b""),
    "foreign": lambda path: path.write_bytes(b"not a data set" * 100),
    "one byte": one_byte_flipped,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_file_is_refused_and_changes_nothing(tmp_path, fake, damage, name):
    buffer = filled(generator=fake, synthetic_capacity=40)
    buffer.upsample(100)
    buffer.save(tmp_path / name)
    DAMAGE[damage](tmp_path / name)
    before = held(buffer)
    with pytest.raises(ValueError, match=name):
        buffer.load(tmp_path / name)
    assert torch.equal(held(buffer), before)
    buffer.sample(40)
    buffer.sample(40)
    assert not torch.equal(held(buffer), before)  # rows are still regenerated after all were drawn


@pytest.mark.parametrize("case", WRONG)
def test_file_of_wrong_data_is_refused(tmp_path, case):
    change, message = WRONG[case]
    np.savez(tmp_path / "set.npz", **change(dataset()))
    buffer = ReplayBuffer(3, 2, 200, max_action=1.0)
    with pytest.raises(ValueError, match=rf"set\.npz.*{message}"):
        buffer.load(tmp_path / "set.npz")
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(4)


def test_load_refuses_more_rows_than_may_be_held_pickles_and_missing_files(tmp_path):
    buffer = filled(synthetic_capacity=99)
    np.savez(tmp_path / "set.npz", **dataset())
    with pytest.raises(ValueError, match=r"100 rows .*synthetic_capacity=99"):
        buffer.load(tmp_path / "set.npz")
    np.savez(tmp_path / "set.npz", **{**dataset(), "rewards": np.array([object()])})
    with pytest.raises(ValueError, match="pickle"):
        buffer.load(tmp_path / "set.npz")
    with pytest.raises(FileNotFoundError):
        buffer.load(tmp_path / "none.npz")
    assert numbers(buffer.sample(4))


def test_loaded_rows_replace_generated_ones_and_are_not_renewed(tmp_path, fake):
    data = dataset(10)
    np.savez(tmp_path / "set.npz", **{**data, "rewards": -100 - data["rewards"]})
    buffer = filled(generator=fake, synthetic_capacity=20, real_ratio=0.5)
    buffer.upsample(100)
    buffer.load(tmp_path / "set.npz")
    for _ in range(10):
        batch = buffer.sample(10)
        assert synthetic(batch) == 5
        assert min(numbers(batch)) <= -100
    assert len(held(buffer)) == 10
    buffer.upsample(20)
    assert {number for number in numbers(buffer.sample(20)) if number < 0} == {-2.0}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_everything_lives_on_the_gpu(tmp_path):
    buffer = filled(device="cuda", generator=TINY, real_ratio=0.5, synthetic_capacity=64, max_action=1.0, seed=0)
    np.random.seed(0)
    before = buffer.sample(16)
    np.random.seed(0)
    assert numbers(before) == np.random.randint(0, 100, size=16).tolist()
    buffer.upsample(200)
    buffer.normalise_states()
    buffer.normalise_rewards(2.0, 1.0)
    buffer.save(tmp_path / "set.npz")
    buffer.add_transition(*(values[0] for values in dataset(1).values()))
    for _ in range(10):  # more rows than are in memory
        batch = buffer.sample(32)
    for part in (*before, *batch):
        assert part.device == torch.device("cuda", torch.cuda.current_device())
        assert part.isfinite().all()
    other = ReplayBuffer(3, 2, 10, "cuda")
    other.load(tmp_path / "set.npz")
    assert held(other).device.type == "cuda"
    assert other.sample(8)[0].shape == (8, 3)


def test_one_transition_is_stored_alike_on_the_short_and_the_careful_way():
    rng = np.random.default_rng(0)
    short, careful = ReplayBuffer(3, 2, 10), ReplayBuffer(3, 2, 10, max_action=1.0)
    for done in (False, True, np.bool_(True), 0.0):
        fields = rng.normal(size=3), rng.uniform(-1, 1, 2), float(rng.normal()), rng.normal(size=3), done
        short.add_transition(*fields)
        careful.add_transition(*fields)
    np.random.seed(0)
    one = short.sample(50)
    np.random.seed(0)
    for a, b in zip(one, careful.sample(50), strict=True):
        assert torch.equal(a, b)
