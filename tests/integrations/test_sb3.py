"""SynthERBuffer in Stable-Baselines3, with real environments and small generators."""

import copy
import csv
import io
import pickle
import re
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy.stats import chisquare

pytest.importorskip("stable_baselines3")

from stable_baselines3 import DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from synther_replay import (
    DiffusionGenerator,
    DivergedError,
    GeneratorConfig,
    RetrainSchedule,
    Transitions,
    TransitionSpec,
)
from synther_replay.adapters.sb3 import FastSAC, SynthERBuffer, SynthERCallback, SynthERDictBuffer, transition_spec
from synther_replay.adapters.sb3.rows import RealRows

SIZES = {"width": 16, "depth": 1, "embedding": 16, "steps": 20, "refit_steps": 10, "batch_size": 32}
TINY = GeneratorConfig.tiny(**SIZES, sampling_steps=4)
SOON = RetrainSchedule(every=40, rows=64, start=40)
OPTIONS = {"generator": TINY, "schedule": SOON}
# options of every algorithm
SMALL = {
    "buffer_size": 500,
    "learning_starts": 20,
    "train_freq": 5,  # gradient steps are most of the time
    "batch_size": 16,
    "policy_kwargs": {"net_arch": [16]},
    "device": "cpu",
    "seed": 0,
}
GAMMA = 0.9

PLANE = spaces.Box(-2, 2, (2,))
FORCE = spaces.Box(-2, 2, (1,))
MIXED = spaces.Dict(
    state=spaces.Box(-2, 2, (3,), np.float64), image=spaces.Box(0, 255, (2, 3, 1), np.uint8), level=spaces.Discrete(5)
)
# the smallest image that SB3's network takes
CAMERA = spaces.Dict({**MIXED.spaces, "image": spaces.Box(0, 255, (36, 36, 1), np.uint8)})
ENV = {SAC: "Pendulum-v1", TD3: "Pendulum-v1", DDPG: "Pendulum-v1", DQN: "CartPole-v1"}


class Toy(gym.Env):
    """Random observations of any space; an episode terminates after `steps` steps (or never)."""

    def __init__(self, observation_space=PLANE, action_space=FORCE, steps=None):
        self.observation_space, self.action_space = copy.deepcopy((observation_space, action_space))
        self.steps, self.taken = steps, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.taken = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.taken += 1
        return self.observation_space.sample(), float(self.taken), self.taken == self.steps, False, {}


def model(algorithm=SAC, env=None, policy="MlpPolicy", buffer_class=SynthERBuffer, options=OPTIONS, **changes):
    env = env or ENV.get(algorithm, "Pendulum-v1")
    kwargs = {"replay_buffer_class": buffer_class, "replay_buffer_kwargs": dict(options)} if buffer_class else {}
    return algorithm(policy, env, **copy.deepcopy(SMALL) | kwargs | changes)  # SB3 changes policy_kwargs


def parameters(trained):
    return torch.cat([value.detach().reshape(-1).double() for value in trained.policy.state_dict().values()])


def row(k):
    """The fields of transition k, whose reward is k; every fifth ends an episode, every tenth by a time limit."""
    observation, following = (np.array([np.sin(x), np.cos(x)], np.float32) for x in (k, k + 0.1))
    return observation, following, np.array([np.sin(3 * k)], np.float32), k, k % 5 == 0, k % 10 == 0


def fill(buffer, steps, first=0):
    """Add one numbered transition per environment, `steps` times."""
    n = buffer.n_envs
    for step in range(first, first + steps):
        observation, following, action, reward, done, late = zip(*(row(step * n + e) for e in range(n)), strict=True)
        infos = [{"TimeLimit.truncated": by_time} for by_time in late]
        buffer.add(*map(np.array, (observation, following, action, reward, done)), infos)
    return buffer


def fill_from_spaces(buffer, steps, seed=0):
    """Add random transitions of the buffer's own spaces, actions scaled as SB3 does."""
    spec = transition_spec(buffer.observation_space, buffer.action_space)
    observation_space, action_space = copy.deepcopy((spec.observation_space, spec.action_space))
    observation_space.seed(seed)
    action_space.seed(seed)

    def batch():
        drawn = [observation_space.sample() for _ in range(buffer.n_envs)]
        if isinstance(drawn[0], dict):
            return {key: np.stack([one[key] for one in drawn]) for key in drawn[0]}
        return np.stack(drawn)

    for step in range(steps):
        actions = np.stack([action_space.sample() for _ in range(buffer.n_envs)])
        numbers = np.arange(buffer.n_envs) + step
        buffer.add(batch(), batch(), actions, numbers, numbers % 4 == 0, [{}] * buffer.n_envs)
    return buffer


@pytest.fixture
def make(fake):
    """Makes a buffer with a fake generator: the reward of its rows is minus the number of fits."""

    def build(size=100, *, observation_space=PLANE, action_space=FORCE, n_envs=1, generator=None, **options):
        spec = transition_spec(observation_space, action_space, n_steps=options.get("n_steps", 1))
        options = {"schedule": RetrainSchedule(every=10, rows=40, start=10), "device": "cpu", "seed": 0} | options
        generator = type(fake)(spec) if generator is None else generator
        return SynthERBuffer(size, observation_space, action_space, n_envs=n_envs, generator=generator, **options)

    return build


def is_real(batch):
    return batch.rewards.reshape(-1) >= 0


def flat(batch):
    """All fields of a batch as tensors by name."""
    found = {}
    for name, value in batch._asdict().items():
        if isinstance(value, dict):
            found |= {f"{name}[{key}]": part for key, part in value.items()}
        elif value is not None:
            found[name] = value
    return found


def assert_same(first, second):
    first, second = flat(first), flat(second)
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype == second[name].dtype, name
        assert torch.equal(first[name], second[name]), name


def assert_same_sequence(first, second, batches=40, size=8):
    for _ in range(batches):
        assert_same(first.sample(size), second.sample(size))


def raising(error):
    def hook(*_, **__):
        raise error

    return hook


# --- it is a drop-in --------------------------------------------------------------------------------------------------


def test_needs_no_further_argument():
    trained = SAC("MlpPolicy", gym.make("Pendulum-v1"), replay_buffer_class=SynthERBuffer, seed=0).learn(104)
    buffer = trained.replay_buffer
    assert type(buffer) is SynthERBuffer
    assert isinstance(buffer, ReplayBuffer)
    assert buffer.size() == 104
    assert buffer.source.real_ratio == 0.5
    assert isinstance(buffer.source.generator, DiffusionGenerator)
    assert buffer.device.type == trained.device.type


@pytest.mark.parametrize("name", ["SAC", "TD3", "DDPG", "DQN", "TQC", "CrossQ", "QRDQN"])
def test_every_algorithm_learns_across_refits(name):
    own = {"SAC": SAC, "TD3": TD3, "DDPG": DDPG, "DQN": DQN}
    algorithm = own.get(name) or getattr(pytest.importorskip("sb3_contrib"), name)
    env = "CartPole-v1" if "DQN" in name else "Pendulum-v1"
    trained = model(algorithm, env)
    before = parameters(trained)
    trained.learn(90)
    source = trained.replay_buffer.source
    assert source.refits == 2  # at 40 and 80 steps
    assert source.last_refit.steps == 80
    assert len(source.store) == 64
    assert parameters(trained).isfinite().all()
    assert not torch.equal(parameters(trained), before)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_with_one_seed_repeats_itself_exactly(seed):
    runs = [model(seed=seed).learn(60) for _ in range(2)]
    other = model(seed=seed + 10).learn(60)
    assert torch.equal(*map(parameters, runs))
    assert torch.equal(*(run.replay_buffer.source.store.rows for run in runs))
    assert not torch.equal(parameters(runs[0]), parameters(other))
    assert not torch.equal(runs[0].replay_buffer.source.store.rows, other.replay_buffer.source.store.rows)


def test_seed_of_the_buffer_changes_its_part_alone():
    runs = []
    for seed in (5, 5, 6):
        built = model(options={**OPTIONS, "seed": seed})
        before = parameters(built)
        runs.append((before, parameters(built.learn(50))))
    first, again, other = runs
    assert torch.equal(first[0], other[0])  # the policy has the algorithm's seed
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1], other[1])


def test_order_of_real_rows_follows_the_seed(make):
    first, again, other = (fill(make(seed=seed, real_ratio=0.9), 9) for seed in (1, 1, 2))  # no synthetic rows yet
    batch = first.sample(64)
    assert_same(batch, again.sample(64))
    assert not torch.equal(batch.rewards, other.sample(64).rewards)
    torch.manual_seed(1)
    assert_same(batch, fill(make(seed=None, real_ratio=0.9), 9).sample(64))


def test_refit_works_with_the_progress_bar_of_sb3():
    pytest.importorskip("rich")
    trained = model().learn(50, progress_bar=True)
    assert trained.replay_buffer.source.refits == 1


def test_environment_can_be_changed_between_runs():
    trained = model().learn(45)
    trained.set_env(gym.make("Pendulum-v1"))
    trained.learn(45, reset_num_timesteps=False)
    assert trained.replay_buffer.size() == 90
    assert trained.replay_buffer.source.refits == 2


# --- real_ratio=1 is SB3's own buffer ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "env", "theirs", "options", "changes"),
    [
        (SAC, lambda: "Pendulum-v1", ReplayBuffer, {}, {}),
        (DQN, lambda: DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2), ReplayBuffer, {}, {"train_freq": 1}),
        (TD3, lambda: "Pendulum-v1", NStepReplayBuffer, {"n_steps": 3, "gamma": GAMMA}, {"gamma": GAMMA}),
        (SAC, lambda: Toy(CAMERA, FORCE, steps=7), DictReplayBuffer, {}, {"policy": "MultiInputPolicy"}),
        (SAC, lambda: VecNormalize(DummyVecEnv([Toy])), ReplayBuffer, {}, {}),
        (SAC, lambda: Toy(), ReplayBuffer, {"handle_timeout_termination": False}, {"optimize_memory_usage": True}),
    ],
    ids=["SAC", "DQN", "n steps", "Dict", "VecNormalize", "memory"],
)
def test_whole_run_with_real_rows_only_is_bit_identical(algorithm, env, theirs, options, changes):
    first = model(algorithm, env(), options={**OPTIONS, **options, "real_ratio": 1.0}, **changes).learn(60)
    second = model(algorithm, env(), buffer_class=theirs, options=options, **changes).learn(60)
    assert torch.equal(parameters(first), parameters(second))
    assert first.replay_buffer.source.refits == 0
    np.random.seed(4)
    batch = first.replay_buffer.sample(32)
    np.random.seed(4)
    assert_same(batch, second.replay_buffer.sample(32))


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("options", [{}, {"optimize_memory_usage": True, "handle_timeout_termination": False}])
def test_batches_of_real_rows_only_are_bit_identical(n_envs, options):
    ours = SynthERBuffer(60, PLANE, FORCE, "cpu", n_envs, **options, real_ratio=1.0)
    theirs = ReplayBuffer(60, PLANE, FORCE, "cpu", n_envs, **options)
    for buffer in (ours, theirs):
        fill(buffer, 70)  # wraps around
    for size in (1, 7, 64):
        state = np.random.get_state()
        first = ours.sample(size)
        np.random.set_state(state)
        assert_same(first, theirs.sample(size))


def test_memory_option_is_refused_with_the_reason_unless_all_rows_are_real():
    with pytest.raises(ValueError, match=r"optimize_memory_usage: .*real_ratio=1.* got real_ratio=0\.5"):
        model(optimize_memory_usage=True)
    with pytest.raises(ValueError, match="optimize_memory_usage"):
        SynthERBuffer(10, PLANE, FORCE, optimize_memory_usage=True, handle_timeout_termination=False, real_ratio=0.99)


# --- what a batch holds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("real_ratio", [0.0, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("size", [1, 10, 33])
def test_batch_holds_exactly_the_share_of_real_rows(make, real_ratio, size):
    buffer = fill(make(real_ratio=real_ratio), 20)
    for _ in range(40):
        batch = buffer.sample(size)
        assert len(batch.rewards) == size
        assert is_real(batch).sum() == round(real_ratio * size)


def test_real_and_synthetic_rows_are_shuffled(make):
    buffer = fill(make(real_ratio=0.3), 20)
    masks = torch.stack([is_real(buffer.sample(10)) for _ in range(1_000)])
    assert len(masks.unique(dim=0)) > 50
    assert chisquare(masks.sum(0).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("steps", [20, 70])  # 70 go around a ring of 60 rows
def test_rows_are_whole_and_evenly_drawn(make, n_envs, steps):
    buffer = fill(make(60, n_envs=n_envs), steps)
    last = steps * n_envs
    first = max(0, last - 60)
    drawn = []
    for _ in range(300):
        batch = buffer.sample(16)
        real = is_real(batch)
        for field in flat(batch).values():
            assert field.shape[0] == 16
        for i in real.nonzero().flatten().tolist():
            observation, following, action, reward, done, late = row(int(batch.rewards[i]))
            assert np.array_equal(batch.observations[i], observation)
            assert np.array_equal(batch.next_observations[i], following)
            assert np.array_equal(batch.actions[i], action)
            assert float(batch.dones[i]) == float(done and not late)
            drawn.append(reward)
        synthetic = buffer.source.store.rows
        numbers = batch.observations[~real, 0].long() % len(synthetic)
        assert torch.equal(batch.observations[~real], synthetic[numbers, :2])
    counts = np.bincount(np.array(drawn) - first, minlength=last - first)
    assert len(counts) == last - first  # no overwritten rows, all environments
    assert chisquare(counts).pvalue > 1e-3


def test_all_rows_are_real_until_there_are_synthetic_ones(make):
    buffer = make(real_ratio=0.0)
    for step in range(9):
        assert is_real(fill(buffer, 1, step).sample(8)).all()
    assert not is_real(fill(buffer, 1, 9).sample(8)).any()


def test_batches_may_be_kept_and_changed(make):
    spoilt = fill(make(), 20)
    plain = copy.deepcopy(spoilt)
    for _ in range(50):
        batch, expected = spoilt.sample(8), plain.sample(8)
        assert_same(batch, expected)
        for field in flat(batch).values():
            field.fill_(0)
    assert np.array_equal(spoilt.observations, plain.observations)


def test_empty_buffer_is_refused():
    with pytest.raises(ValueError, match="empty"):
        SynthERBuffer(100, PLANE, FORCE, "cpu").sample(4)


# --- types and shapes of SB3 ------------------------------------------------------------------------------------------

DTYPES = [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64]
DTYPES += [np.float16, np.float32, np.float64]
OBSERVATIONS = {
    **{np.dtype(t).name: spaces.Box(0, 100, (3,), t) for t in DTYPES},
    "image": spaces.Box(0, 255, (2, 3, 1), np.uint8),
    "Discrete": spaces.Discrete(5),
    "from 3": spaces.Discrete(5, start=3),
    "MultiDiscrete": spaces.MultiDiscrete([3, 4]),
    "MultiBinary": spaces.MultiBinary(3),
    "Dict": MIXED,
}
ACTIONS = {
    "float32": spaces.Box(-1, 1, (2,)),
    "float64": spaces.Box(-1, 1, (2,), np.float64),
    "matrix": spaces.Box(-1, 1, (2, 3)),
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([3, 4]),
    "MultiBinary": spaces.MultiBinary(3),
}
PAIRS = [(o, "float32") for o in OBSERVATIONS] + [("float32", a) for a in ACTIONS if a != "float32"]


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize(("observations", "actions"), PAIRS)
def test_every_field_has_the_type_and_shape_of_sb3(n_envs, observations, actions):
    observation_space, action_space = OBSERVATIONS[observations], ACTIONS[actions]
    ours = SynthERBuffer(80, observation_space, action_space, "cpu", n_envs, **OPTIONS, seed=0)
    theirs = (DictReplayBuffer if observations == "Dict" else ReplayBuffer)(
        80, observation_space, action_space, "cpu", n_envs
    )
    assert isinstance(ours, type(theirs))
    expected = flat(fill_from_spaces(theirs, 39 // n_envs).sample(16))
    assert len(fill_from_spaces(ours, 39 // n_envs).source.store) == 0
    for refits, steps in ((0, 0), (1, 5)):
        batch = fill_from_spaces(ours, steps, seed=1).sample(16)
        assert ours.source.refits == refits
        assert isinstance(batch, DictReplayBufferSamples if observations == "Dict" else ReplayBufferSamples)
        found = flat(batch)
        assert found.keys() == expected.keys()
        for name, field in expected.items():
            assert (found[name].dtype, found[name].shape) == (field.dtype, field.shape), name


@pytest.mark.parametrize("observations", OBSERVATIONS)
def test_synthetic_observations_are_of_their_space(observations):
    space = OBSERVATIONS[observations]
    buffer = SynthERBuffer(80, space, FORCE, "cpu", **OPTIONS, real_ratio=0.0, seed=0)
    batch = fill_from_spaces(buffer, 40).sample(64)
    assert buffer.source.refits == 1
    for field in (batch.observations, batch.next_observations):
        for i in range(64):
            one = {k: v[i].numpy() for k, v in field.items()} if isinstance(field, dict) else field[i].numpy()
            if isinstance(one, dict):
                one["level"] = one["level"].reshape(())
            elif isinstance(space, spaces.Discrete):
                one = one.reshape(())
            assert space.contains(one), one


def test_real_rows_keep_their_values_in_every_type():
    for space in OBSERVATIONS.values():
        buffer = fill_from_spaces(SynthERBuffer(40, space, FORCE, "cpu", 2, seed=0), 12)
        batch = buffer.sample(64)
        for name in ("observations", "next_observations"):
            held, drawn = getattr(buffer, name), getattr(batch, name)
            for key in held if isinstance(held, dict) else [None]:
                array, tensor = (x if key is None else x[key] for x in (held, drawn))
                known = {np.float32(value).tobytes() for step in array for value in step}
                assert {np.float32(value.numpy()).tobytes() for value in tensor} <= known
                assert len(known) > 4


# --- Dict observations ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [SAC, DQN])
def test_dict_observations_with_an_image_learn_across_a_refit(algorithm):
    env = Toy(CAMERA, spaces.Discrete(2) if algorithm is DQN else FORCE, steps=7)
    trained = model(algorithm, env, "MultiInputPolicy").learn(50)
    assert type(trained.replay_buffer) is SynthERDictBuffer
    assert trained.replay_buffer.source.refits == 1
    assert parameters(trained).isfinite().all()


@pytest.mark.parametrize("buffer_class", [SynthERBuffer, SynthERDictBuffer])
def test_dict_buffer_can_be_built_directly(buffer_class):
    buffer = buffer_class(100, MIXED, FORCE, "cpu", **OPTIONS)
    assert type(buffer) is SynthERDictBuffer
    assert repr(fill_from_spaces(buffer, 3)).startswith("SynthERDictBuffer(3 real, 0 synthetic")
    with pytest.raises(AssertionError):
        SynthERDictBuffer(100, PLANE, FORCE, "cpu")


def test_entries_of_one_dict_row_belong_together(fake):
    space = spaces.Dict(a=spaces.Box(-1000, 1000, (2,)), b=spaces.Box(0, 255, (1, 2), np.uint8), c=spaces.Discrete(200))
    generator = type(fake)(transition_spec(space, FORCE))
    schedule = RetrainSchedule(every=200, rows=30, start=40)
    buffer = SynthERBuffer(100, space, FORCE, "cpu", generator=generator, schedule=schedule)

    def observation(k):
        return {"a": np.full((1, 2), k), "b": np.full((1, 1, 2), k), "c": np.array([k])}

    for k in range(50):
        buffer.add(observation(k), observation(k + 1), np.zeros((1, 1)), np.array([k]), np.array([0]), [{}])
    for _ in range(20):
        batch = buffer.sample(16)
        real = is_real(batch)
        assert real.sum() == 8
        numbers = batch.rewards[real, 0]
        for key in space:
            for field, ahead in ((batch.observations, 0), (batch.next_observations, 1)):
                values = field[key][real].double().reshape(8, -1)
                assert torch.equal(values, (numbers + ahead).double()[:, None].expand_as(values))


def test_discrete_observations_learn_across_a_refit():
    trained = model(DQN, Toy(spaces.Discrete(5), spaces.Discrete(2), steps=7)).learn(50)
    batch = trained.replay_buffer.sample(32)
    assert trained.replay_buffer.source.refits == 1
    assert batch.observations.dtype == torch.int64
    assert set(batch.observations.flatten().tolist()) <= set(range(5))


# --- several environments ---------------------------------------------------------------------------------------------


def test_steps_are_transitions_of_all_environments(make):
    buffer = make(n_envs=3)
    counted = []
    for step in range(12):
        fill(buffer, 1, step).sample(4)
        counted.append((buffer.source.steps, buffer.source.refits))
    assert [steps for steps, _ in counted] == list(range(3, 39, 3))
    assert [steps for (steps, n), (_, m) in zip(counted[1:], counted, strict=False) if n > m] == [12, 24, 36]
    assert buffer.source.generator.learnt == [12, 24, 36]


def test_steps_between_two_batches_are_all_counted(make):
    buffer = make(n_envs=3)
    fill(buffer, 5).sample(4)
    assert buffer.source.steps == 15
    assert buffer.source.refits == 1


@pytest.mark.parametrize("algorithm", [SAC, DQN])
def test_several_environments_learn_across_refits(algorithm):
    env = DummyVecEnv([lambda: gym.make(ENV[algorithm])] * 3)
    trained = model(algorithm, env, train_freq=1).learn(90)
    source = trained.replay_buffer.source
    assert source.steps == 90
    assert source.refits == 2
    assert source.last_refit.steps == 84  # the first multiple of 3 from 42 + 40 on
    assert len(trained.replay_buffer.source.real) == 90


# --- VecNormalize -----------------------------------------------------------------------------------------------------


def normalising(observation_space=PLANE, n_envs=2, **options):
    env = VecNormalize(DummyVecEnv([lambda: Toy(observation_space)] * n_envs), **options)
    env.seed(0)
    env.reset()
    for _ in range(20):
        env.step(np.zeros((n_envs, 1), np.float32))
    env.training = False
    return env


@pytest.mark.parametrize("real_ratio", [0.0, 0.5])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_real_and_synthetic_rows_are_normalised_as_the_environment_does(make, real_ratio, n_steps):
    env = normalising(n_envs=1, clip_reward=2.0)
    buffer = fill(make(real_ratio=real_ratio, n_steps=n_steps), 20)
    plain = copy.deepcopy(buffer)
    for _ in range(5):
        state = np.random.get_state()
        raw = plain.sample(16)
        np.random.set_state(state)
        batch = buffer.sample(16, env)
        for name in ("observations", "next_observations"):
            assert np.array_equal(getattr(batch, name).numpy(), env.normalize_obs(getattr(raw, name).numpy()))
        if n_steps == 1:
            expected = env.normalize_reward(raw.rewards.numpy()).astype(np.float32)
            assert np.array_equal(batch.rewards.numpy(), expected)
        assert torch.equal(batch.actions, raw.actions)
        assert torch.equal(batch.dones, raw.dones)


@pytest.mark.parametrize("real_ratio", [0.0, 0.5])
def test_dict_entries_are_normalised_as_the_environment_does(make, real_ratio):
    env = normalising(MIXED, n_envs=1, norm_obs_keys=["state"])
    buffer = fill_from_spaces(make(observation_space=MIXED, real_ratio=real_ratio), 20)
    plain = copy.deepcopy(buffer)
    raw, batch = plain.sample(16), buffer.sample(16, env)
    for name in ("observations", "next_observations"):
        expected = env.normalize_obs({key: value.numpy() for key, value in getattr(raw, name).items()})
        for key, value in getattr(batch, name).items():
            assert np.array_equal(value.numpy(), expected[key])
            assert value.numpy().dtype == expected[key].dtype
    assert not torch.equal(raw.observations["state"].float(), batch.observations["state"])


@pytest.mark.parametrize("options", [{}, {"norm_obs": False}, {"norm_reward": False}], ids=str)
@pytest.mark.parametrize("observations", ["float32", "float64", "image", "Dict"])
def test_normalised_fields_have_the_types_of_sb3(make, options, observations):
    # with norm_obs=False, SB3 leaves the type of observations that are not Dicts alone
    space = OBSERVATIONS[observations]
    env = normalising(space, n_envs=1, **options, **({"norm_obs_keys": ["state"]} if observations == "Dict" else {}))
    theirs = (DictReplayBuffer if observations == "Dict" else ReplayBuffer)(100, space, FORCE, "cpu")
    expected = flat(fill_from_spaces(theirs, 20).sample(8, env))
    found = flat(fill_from_spaces(make(observation_space=space), 20).sample(8, env))
    assert {k: v.dtype for k, v in found.items()} == {k: v.dtype for k, v in expected.items()}


def test_run_with_normalisation_across_a_refit():
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")] * 2))
    trained = model(SAC, env, train_freq=1).learn(60)
    assert trained.replay_buffer.source.refits == 1
    held = trained.replay_buffer.source.real.transitions().rewards
    assert held.min() < -1  # stored as the environment gave them, whose scale is 10
    assert parameters(trained).isfinite().all()


# --- n-step returns ---------------------------------------------------------------------------------------------------


def as_rows(batch):
    """All fields of a batch side by side."""
    return torch.cat([field.float() for field in flat(batch).values()], 1)


def nth_rows(buffer, env=None):
    """Every n-step row of a buffer of one environment, by SB3's own code."""
    return as_rows(NStepReplayBuffer._get_samples(buffer, np.arange(buffer.size()), env))


@pytest.mark.parametrize("mirrors", [False, True])
@pytest.mark.parametrize("handled", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 20, 29, 30, 31, 45, 60])
def test_n_step_rows_are_those_of_sb3(monkeypatch, make, steps, handled, mirrors):
    monkeypatch.setattr(RealRows, "_mirrors", lambda self: mirrors)
    buffer = make(30, n_steps=3, gamma=GAMMA, handle_timeout_termination=handled)
    for first in range(steps):
        fill(buffer, 1, first)
        rows = buffer.source.real.transitions()
    theirs = NStepReplayBuffer(30, PLANE, FORCE, "cpu", n_steps=3, gamma=GAMMA, handle_timeout_termination=handled)
    expected = fill(theirs, steps)._get_samples(np.arange(max(0, steps - 30), steps) % 30)  # the oldest first
    assert torch.equal(rows.observations, expected.observations)
    assert torch.equal(rows.actions, expected.actions)
    assert torch.equal(rows.rewards, expected.rewards[:, 0])
    assert torch.equal(rows.next_observations, expected.next_observations)
    assert torch.equal(rows.terminated, expected.dones[:, 0] > 0)
    assert torch.equal(rows.field("discount"), expected.discounts[:, 0])


@pytest.mark.parametrize("normalised", [False, True])
def test_real_part_of_n_step_batches_is_made_of_n_step_rows(make, normalised):
    env = normalising(n_envs=1, clip_reward=1e6) if normalised else None
    buffer = fill(make(n_steps=3, gamma=GAMMA), 9)  # no synthetic rows yet
    batch, theirs = buffer.sample(64, env), nth_rows(buffer, env)
    distance = torch.cdist(as_rows(batch), theirs, p=torch.inf)
    assert distance.amin(1).max() < 1e-4
    assert set(distance.argmin(1).tolist()) == set(range(9))
    expected = NStepReplayBuffer._get_samples(buffer, np.arange(9), env)
    assert [(f.dtype, f.shape[1:]) for f in batch] == [(f.dtype, f.shape[1:]) for f in expected]


def test_environments_are_not_mixed_up_in_n_step_rows(make):
    buffer = fill(make(90, n_envs=3, n_steps=3, gamma=0.5), 45)
    single = [fill_one(make(30, n_steps=3, gamma=0.5), 45, of=3, number=e) for e in range(3)]
    rows = buffer.source.real.transitions().rows.view(30, 3, -1)
    for e, alone in enumerate(single):
        assert torch.equal(rows[:, e], alone.source.real.transitions().rows)


def fill_one(buffer, steps, *, of, number):
    """What `fill` adds of environment `number` of `of` ones."""
    for step in range(steps):
        observation, following, action, reward, done, late = row(step * of + number)
        infos = [{"TimeLimit.truncated": late}]
        buffer.add(observation, following, action, np.array([reward]), np.array([done]), infos)
    return buffer


def test_clipped_rewards_of_n_steps_are_those_of_clipped_single_rewards(make):
    env = normalising(n_envs=1, clip_reward=0.01)
    buffer = fill(make(n_steps=2, gamma=0.5, real_ratio=0.9), 9)
    assert buffer.sample(64, env).rewards.max() == pytest.approx(0.01 * 1.5)


@pytest.mark.parametrize("batches", [1, 3])
def test_synthetic_rows_have_n_steps(make, batches):
    class Levels:
        """Generates the rows it was fitted to, with negative rewards."""

        def __init__(self, spec):
            self.spec = spec

        def fit(self, transitions):
            self.rows = transitions.rows.clone()
            self.rows[:, self.spec.rewards] = -1.0

        def sample(self, n):
            return Transitions(self.spec, self.rows.repeat(n, 1)[:n])

    spec = transition_spec(PLANE, FORCE, n_steps=3)
    buffer = fill(make(n_steps=3, gamma=GAMMA, generator=Levels(spec)), 20)
    batch = buffer.sample_batches(batches, 64)
    synthetic = ~is_real(batch)
    assert synthetic.sum() == 32 * batches
    assert batch.discounts.shape == (64 * batches, 1)
    levels = torch.tensor([GAMMA, GAMMA**2, GAMMA**3])
    for own in (batch.discounts[synthetic], batch.discounts[~synthetic]):
        assert torch.allclose(own.unique().sort(descending=True).values, levels)
    theirs = NStepReplayBuffer._get_samples(buffer, np.arange(20))
    nearest = torch.cdist(batch.observations[synthetic], theirs.observations).argmin(1)
    assert torch.equal(batch.discounts[synthetic], theirs.discounts[nearest])
    assert torch.equal(batch.next_observations[synthetic], theirs.next_observations[nearest])


def test_models_pass_their_n_steps_to_the_buffer(tmp_path, recwarn):
    made = model(n_steps=3, gamma=0.8)
    made.save(tmp_path / "model")
    loaded = SAC.load(tmp_path / "model", env=gym.make("Pendulum-v1"))
    for buffer in (made.replay_buffer, loaded.replay_buffer):
        assert (buffer.n_steps, buffer.gamma) == (3, 0.8)
        assert "discount" in buffer.source.spec.extra
    assert not [one for one in recwarn if "n_steps" in str(one.message)]
    assert model(n_steps=3, options={**OPTIONS, "n_steps": 2}).replay_buffer.n_steps == 2
    with pytest.warns(UserWarning, match="n_steps"):
        model(n_steps=3, buffer_class=ReplayBuffer, options={})


@pytest.mark.parametrize("algorithm", [SAC, TD3, DQN, FastSAC])
def test_n_step_run_across_a_refit(algorithm):
    changes = {"policy_delay": 2, "gradient_steps": 2} if algorithm is FastSAC else {}
    trained = model(algorithm, n_steps=3, gamma=GAMMA, **changes).learn(60)
    source = trained.replay_buffer.source
    assert source.refits == 1
    discounts = source.store.rows[:, source.spec.field("discount").columns]
    real = source.real.transitions().field("discount")
    assert set(discounts.unique().tolist()) <= set(real.unique().tolist())
    assert torch.isclose(discounts, torch.tensor(GAMMA**3)).any()
    assert trained.replay_buffer.sample(64).discounts.shape == (64, 1)
    assert parameters(trained).isfinite().all()


# --- time limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handled", [True, False])
def test_time_limits_are_terminations_only_when_not_handled(handled):
    env = gym.wrappers.TimeLimit(Toy(), 5)
    options = {**OPTIONS, "handle_timeout_termination": handled}
    buffer = model(SAC, env, options=options).learn(30).replay_buffer
    terminated = buffer.source.real.transitions().terminated
    ends = torch.arange(1, 31) % 5 == 0
    assert torch.equal(terminated, ends & (not handled))
    assert bool(buffer.sample(64).dones.any()) is not handled


@pytest.mark.parametrize("handled", [True, False])
def test_terminations_of_the_task_are_always_kept(handled):
    env = gym.wrappers.TimeLimit(Toy(steps=5), 8)
    options = {**OPTIONS, "handle_timeout_termination": handled}
    buffer = model(SAC, env, options=options).learn(30).replay_buffer
    assert torch.equal(buffer.source.real.transitions().terminated, torch.arange(1, 31) % 5 == 0)


# --- saving and loading -----------------------------------------------------------------------------------------------


def test_options_travel_with_the_model(tmp_path):
    trained = model(options={**OPTIONS, "real_ratio": 0.25, "synthetic_capacity": 50}).learn(45)
    trained.save(tmp_path / "model")
    loaded = SAC.load(tmp_path / "model", env=gym.make("Pendulum-v1"), device="cpu")
    source = loaded.replay_buffer.source
    assert type(loaded.replay_buffer) is SynthERBuffer
    assert torch.equal(parameters(loaded), parameters(trained))
    assert (source.real_ratio, source.store.capacity) == (0.25, 50)
    assert (source.schedule, source.generator.config) == (SOON, TINY)
    loaded.learn(45)
    assert source.refits == 1
    assert len(source.store) == 50


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("behind", [0, 3])
def test_loaded_buffer_goes_on_as_if_it_was_never_saved(tmp_path, n_steps, behind):
    trained = model(options={**OPTIONS, "n_steps": n_steps}).learn(45)
    buffer = trained.replay_buffer
    buffer.sample(7)  # within batches gathered in advance
    fill_from_spaces(buffer, behind)  # not counted yet
    trained.save(tmp_path / "model")
    trained.save_replay_buffer(tmp_path / "buffer")
    loaded = SAC.load(tmp_path / "model", env=gym.make("Pendulum-v1"), device="cpu")
    loaded.load_replay_buffer(tmp_path / "buffer")
    again = loaded.replay_buffer
    assert again is not buffer
    assert repr(again) == repr(buffer)
    for steps in (0, 10, 40):  # a refit is due after 40 more
        for each in (buffer, again):
            fill_from_spaces(each, steps, seed=steps)
        for size in (8, 8, 5, 16):
            state = np.random.get_state()
            batch = buffer.sample(size)
            np.random.set_state(state)
            assert_same(batch, again.sample(size))
    assert again.source.refits == buffer.source.refits == 2
    loaded.learn(10, reset_num_timesteps=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("observation_space", [PLANE, MIXED], ids=["Box", "Dict"])
def test_copies_go_on_by_themselves(copied, observation_space):
    buffer = fill_from_spaces(SynthERBuffer(100, observation_space, FORCE, "cpu", **OPTIONS, seed=0), 45)
    buffer.sample(8)
    twin = copied(buffer)
    assert type(twin) is type(buffer)
    assert twin.source.real.buffer is twin
    assert twin.source.real is not buffer.source.real
    later = copied(twin)
    assert_same_sequence(buffer, twin)
    fill_from_spaces(twin, 50, seed=3)
    twin.sample(8)
    assert buffer.size() == 45
    assert buffer.source.steps == 45
    assert_same_sequence(copied(later), later)


def test_pickled_parts_go_on_where_they_were(make):
    buffer = fill(make(), 20)
    for size in (8, 3, 8):
        buffer.sample(size)
    source = buffer.source
    parts = {"store": source.store, "shuffles": source._shuffles, "indices": source.real._indices}
    twins = {name: pickle.loads(pickle.dumps(part)) for name, part in parts.items()}
    for _ in range(100):  # more than are gathered in advance
        assert torch.equal(parts["store"].sample(8), twins["store"].sample(8))
        assert torch.equal(parts["shuffles"].draw(8, 4), twins["shuffles"].draw(8, 4))
        assert torch.equal(parts["indices"].draw(8, 20), twins["indices"].draw(8, 20))


def test_buffer_can_be_saved_to_a_stream():
    trained = model().learn(45)
    buffer, stream = trained.replay_buffer, io.BytesIO()
    trained.save_replay_buffer(stream)
    stream.seek(0)
    trained.load_replay_buffer(stream)
    assert_same_sequence(buffer, trained.replay_buffer)


def test_device_can_be_assigned_and_changes_nothing_on_the_same_one(make):
    buffer = fill(make(), 20)
    buffer.sample(8)
    twin = copy.deepcopy(buffer)
    twin.device = "cpu"
    assert twin.device == torch.device("cpu")
    assert twin.source.device == torch.device("cpu")
    assert_same_sequence(buffer, twin)


def test_reset_empties_it_and_keeps_the_generator(make):
    buffer = fill(make(), 20)
    buffer.sample(8)
    buffer.reset()
    assert (buffer.size(), len(buffer.source.store), buffer.source.generator.fits) == (0, 0, 1)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(4)
    fill(buffer, 5, first=30)
    batch = buffer.sample(32)
    assert set(batch.rewards.flatten().tolist()) == {30, 31, 32, 33, 34}  # nothing from before, no synthetic rows
    fill(buffer, 5, first=35)
    assert is_real(buffer.sample(8)).sum() == 4
    assert buffer.source.generator.fits == 2


def test_a_job_of_rows_from_before_a_reset_is_refused(make):
    buffer = fill(make(), 20)
    job = buffer.source.begin()
    buffer.reset()
    with pytest.raises(ValueError, match="job"):
        buffer.source.commit(job)
    assert len(buffer.source.store) == 0


# --- global random state ----------------------------------------------------------------------------------------------


def global_state():
    return np.random.get_state()[1].tolist(), np.random.get_state()[2], torch.random.get_rng_state().tolist()


def test_neither_building_nor_refitting_touches_global_random_state():
    before = global_state()
    buffer = fill_from_spaces(SynthERBuffer(100, PLANE, spaces.Box(-1, 1, (1,)), "cpu", **OPTIONS), 45)
    buffer.sample(8)
    assert buffer.source.refits == 1
    assert global_state() == before


# --- the callback -----------------------------------------------------------------------------------------------------

KEYS = ["refits", "fit_loss", "held_out_loss", "seconds", "refit_seconds", "pause_seconds"]
KEYS += ["store_size", "store_age", "rejected"]
KEYS = [f"synther/{key}" for key in KEYS]
FIDELITY = ["marginal", "correlation", "worst_marginal", "failures"]
FIDELITY = [f"synther/{key}" for key in [*FIDELITY, "termination_rate_real", "termination_rate_synthetic"]]


def logged(tmp_path, callback, steps=90, env=None, trained=None, train_freq=5, **options):
    measuring = GeneratorConfig.tiny(**SIZES, held_out=0.5)  # at least 16 held-out rows are needed
    options = {**OPTIONS, "generator": measuring, **options}
    trained = trained or model(env=env, options=options, train_freq=train_freq)
    trained.set_logger(configure(str(tmp_path), ["csv"]))
    trained.learn(steps, callback=callback, log_interval=None, reset_num_timesteps=False)
    trained.logger.dump(steps)
    with open(tmp_path / "progress.csv", newline="") as file:
        (values,) = csv.DictReader(file)
    return trained, {key: float(value) for key, value in values.items() if key.startswith("synther/")}


def test_callback_logs_the_documented_values(tmp_path):
    callback = SynthERCallback()
    trained, values = logged(tmp_path, callback, train_freq=1)
    source = trained.replay_buffer.source
    assert sorted(values) == sorted(KEYS + FIDELITY)
    assert values["synther/refits"] == 2
    assert values["synther/store_size"] == 64
    assert values["synther/store_age"] == 9  # the refit saw 80 steps, the last callback 89
    assert values["synther/fit_loss"] == pytest.approx(source.last_refit.fit.loss, rel=1e-3)
    assert values["synther/held_out_loss"] == pytest.approx(source.last_refit.fit.held_out_loss, rel=1e-3)
    last = source.last_refit.fit_seconds + source.last_refit.sample_seconds
    assert values["synther/seconds"] > last > 0  # both refits
    assert values["synther/rejected"] == 0
    assert 0 < values["synther/marginal"] <= 1
    assert 0 < values["synther/correlation"] <= 1
    assert 0 <= values["synther/worst_marginal"] <= 1
    assert values["synther/termination_rate_real"] == values["synther/termination_rate_synthetic"] == 0


class Sparse(Toy):
    """Rewards of 0, and of 1 at the end of an episode."""

    def step(self, action):
        observation, _, ended, *rest = super().step(action)
        return observation, float(ended), ended, *rest


def test_callback_logs_terminations_and_rewards_out_of_their_support(tmp_path):
    def spoilt(rows):
        rows = type(rows)(rows.spec, rows.rows.clone())
        rows.rows[: len(rows) // 4, rows.spec.terminated] = 1
        rows.rows[: len(rows) // 4, rows.spec.rewards] = 0.5
        return rows

    trained = model(env=Sparse(steps=10))
    generator = trained.replay_buffer.source.generator
    sample = generator.sample
    generator.sample = lambda n: spoilt(sample(n))
    _, values = logged(tmp_path, SynthERCallback(), trained=trained)
    assert values["synther/termination_rate_real"] == pytest.approx(0.1)
    assert values["synther/termination_rate_synthetic"] >= 0.25
    assert values["synther/reward_out_of_support"] >= 0.25
    assert values["synther/failures"] > 0


def test_callback_goes_on_if_fidelity_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("synther_replay.watching.record.fidelity", raising(RuntimeError("out of memory")))
    with pytest.warns(RuntimeWarning, match="fidelity.*out of memory"):
        _, values = logged(tmp_path, SynthERCallback(verbose=1))
    assert sorted(values) == sorted(KEYS)
    assert values["synther/refits"] == 2


def test_callback_logs_the_age_of_the_store_after_a_load(tmp_path):
    trained, _ = logged(tmp_path / "first", SynthERCallback(), steps=50, train_freq=1)
    source = trained.replay_buffer.source
    source.save(tmp_path / "source")  # 50 steps, generated at 40
    logged(tmp_path / "second", SynthERCallback(), steps=40, trained=trained)  # generated at 80
    source.load(tmp_path / "source")
    _, values = logged(tmp_path / "third", SynthERCallback(), steps=5, trained=trained)
    assert values["synther/store_age"] == 14  # the last callback sees 54 steps


def test_callback_can_leave_fidelity_out(tmp_path):
    _, values = logged(tmp_path, SynthERCallback(fidelity_rows=0))
    assert sorted(values) == sorted(KEYS)


@pytest.mark.parametrize("rows", [1, np.int64(2), 10**6])
def test_callback_compares_as_many_rows_as_there_are(tmp_path, rows):
    _, values = logged(tmp_path, SynthERCallback(fidelity_rows=rows))
    assert ("synther/marginal" in values) == (rows > 1)


@pytest.mark.parametrize("rows", [1e4, -1, "all"])
def test_callback_refuses_an_invalid_number_of_rows(rows):
    with pytest.raises((TypeError, ValueError), match=f"fidelity_rows: expected a whole number.*{rows!r}"):
        SynthERCallback(fidelity_rows=rows)


def test_callback_with_real_rows_only(tmp_path):
    _, values = logged(tmp_path, SynthERCallback(), real_ratio=1.0)
    assert values == {"synther/refits": 0, "synther/store_size": 0, "synther/seconds": 0}


def test_callback_counts_only_refits_since_it_was_added():
    trained = model().learn(50)
    callback = SynthERCallback(fidelity_rows=20)
    trained.learn(20, callback=callback, reset_num_timesteps=False)
    assert callback.seconds == 0
    trained.learn(20, callback=callback, reset_num_timesteps=False)
    assert callback.seconds > 0


class Never:
    """A schedule of a user, without `start`."""

    rows = 5

    def is_due(self, steps, last_refit):
        return False


class Startable(Never):
    """Its `start` is no number of steps."""

    def start(self):
        """Nothing."""


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"schedule": {"start": 10**6}}, "1,000,000 steps, 45 were added"),
        ({"schedule": Never()}, "not due, 45 were added"),
        ({"schedule": Startable()}, "not due, 45 were added"),
        ({"schedule": {"start": 40}, "refit": "background", "lag": 100}, "rows of the first are taken after 140 steps"),
    ],
)
def test_callback_says_why_there_was_no_refit(options, reason, capsys, monkeypatch):
    monkeypatch.setattr(DiffusionGenerator, "background", "thread", raising=False)
    model(options={**OPTIONS, **options}).learn(45, callback=SynthERCallback(verbose=1))
    assert reason in capsys.readouterr().out


def test_callback_prints_one_line_per_refit_if_verbose(tmp_path, capsys):
    logged(tmp_path, SynthERCallback())
    assert capsys.readouterr().out == ""
    _, values = logged(tmp_path, SynthERCallback(verbose=1))
    lines = capsys.readouterr().out.splitlines()
    expected = r"refit {} \| step {} \| loss \d\.\d\d \| marginal (\d\.\d{{3}}) \| .* \| \d+\.\d s \| 64 rows"
    for line, number, step in zip(lines, (1, 2), (40, 80), strict=True):
        assert (found := re.match(expected.format(number, step), line)), line
    assert float(found[1]) == pytest.approx(values["synther/marginal"], abs=1e-3)
    logged(tmp_path, SynthERCallback(fidelity_rows=0, verbose=1), steps=50)
    assert "marginal" not in capsys.readouterr().out


def test_callback_reports_a_refit_after_the_last_step(capsys):
    callback = SynthERCallback(fidelity_rows=0, verbose=1)
    trained = model().learn(40, callback=callback)  # the refit at step 40 happens in the training that follows it
    assert "refit 1 | step 40" in capsys.readouterr().out
    trained.learn(10, callback=callback, reset_num_timesteps=False)
    assert capsys.readouterr().out == ""  # not twice


def test_callback_says_if_there_was_no_refit(capsys):
    model().learn(30, callback=SynthERCallback(verbose=1))
    said = capsys.readouterr().out
    assert "after 40 steps, 30 were added" in said and "needs 32 real rows, of which there are 30" in said


def test_callback_refuses_another_buffer():
    with pytest.raises(TypeError, match="replay_buffer_class: SynthERCallback needs a SynthERBuffer, got ReplayBuffer"):
        model(buffer_class=None).learn(5, callback=SynthERCallback())


# --- wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"real_ratio": 1.5}, ValueError),
        ({"real_ratio": float("nan")}, ValueError),
        ({"real_ratio": "half"}, ValueError),
        ({"generator": "tyni"}, ValueError),
        ({"generator": {"stepps": 3}}, ValueError),
        ({"generator": 7}, TypeError),
        ({"schedule": "often"}, ValueError),
        ({"schedule": 2.5}, TypeError),
        ({"synthetic_capacity": 0}, ValueError),
        ({"synthetic_capacity": 1e6}, TypeError),
        ({"seed": -1}, ValueError),
        ({"seed": 0.5}, TypeError),
        ({"n_steps": 0}, ValueError),
        ({"n_steps": 2.0}, TypeError),
    ],
    ids=str,
)
def test_wrong_option_is_named_before_anything_is_built(options, error, monkeypatch):
    monkeypatch.setattr(ReplayBuffer, "__init__", raising(AssertionError("arrays allocated")))
    with pytest.raises(error, match=next(iter(options)) + ": "):
        model(options=options)


def test_generator_of_another_layout_is_refused():
    other = DiffusionGenerator(TransitionSpec.from_spaces(PLANE, FORCE), TINY, device="cpu")  # actions not scaled
    with pytest.raises(ValueError, match=r"generator: got spec .*, expected "):
        SynthERBuffer(100, PLANE, FORCE, "cpu", generator=other)
    fitting = DiffusionGenerator(transition_spec(PLANE, FORCE), TINY, device="cpu")
    assert SynthERBuffer(100, PLANE, FORCE, "cpu", generator=fitting).source.generator is fitting


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple((PLANE, PLANE)),
        spaces.Dict(a=spaces.Dict(b=PLANE)),
        spaces.Dict(a=spaces.Tuple((PLANE,))),
        spaces.Text(4),
    ],
    ids=["Tuple", "Dict in Dict", "Tuple in Dict", "Text"],
)
def test_space_that_sb3_does_not_have_is_refused(space):
    with pytest.raises(TypeError, match="observation_space"):
        SynthERBuffer(10, space, FORCE, "cpu")


def test_n_steps_are_refused_where_sb3_has_none():
    with pytest.raises(ValueError, match=r"n_steps: .* Dict observations"):
        SynthERBuffer(10, MIXED, FORCE, "cpu", n_steps=2)
    with pytest.raises(ValueError, match=r"n_steps: .* optimize_memory_usage"):
        SynthERBuffer(10, PLANE, FORCE, "cpu", n_steps=2, real_ratio=1.0, optimize_memory_usage=True)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"reward": np.zeros(2)}, r"n_envs: got .* 2 .*expected 3"),
        ({"obs": np.zeros((1, 2))}, r"^obs: got shape \(1, 2\), expected \(3, 2\)"),
        ({"obs": np.zeros((3, 1))}, r"^obs: got shape \(3, 1\), expected \(3, 2\)"),
        ({"next_obs": np.zeros((3, 5))}, r"^next_obs: got shape \(3, 5\), expected \(3, 2\)"),
        ({"action": np.zeros((3, 2))}, r"^action: got shape \(3, 2\), expected \(3, 1\)"),
    ],
    ids=["reward", "one observation", "obs", "next_obs", "action"],
)
def test_shapes_of_the_first_transition_are_checked(make, change, name):
    buffer = make(n_envs=3)
    fitting = {"obs": np.zeros((3, 2)), "next_obs": np.zeros((3, 2)), "action": np.zeros((3, 1)), "reward": np.zeros(3)}
    rest = {"done": np.zeros(3), "infos": [{}] * 3}
    with pytest.raises(ValueError, match=name):
        buffer.add(**{**fitting, **change}, **rest)
    assert buffer.size() == 0
    buffer.add(**fitting, **rest)
    assert buffer.size() == 1


def test_missing_entry_of_a_dict_is_named(make):
    buffer = make(observation_space=MIXED)
    good = {key: np.array([value]) for key, value in MIXED.sample().items()}
    bad = {key: value for key, value in good.items() if key != "image"}
    for obs, next_obs, name in ((bad, good, "obs"), (good, bad, "next_obs"), (np.zeros(3), good, "obs")):
        with pytest.raises(ValueError, match=rf"^{name}\['(image|state)'\]"):
            buffer.add(obs, next_obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    assert buffer.size() == 0


@pytest.mark.parametrize(
    "changed", [{"observation_space": spaces.Box(-2, 2, (5,))}, {"action_space": spaces.Box(-1, 1, (2,))}]
)
def test_a_buffer_of_another_environment_put_into_a_model_is_refused(changed):
    other = model(SAC, Toy(**changed))
    other.replay_buffer = pickle.loads(pickle.dumps(model(SAC, Toy()).learn(30).replay_buffer))
    with pytest.raises(ValueError, match="environment that the buffer was created with"):
        other.learn(5)
    assert other.replay_buffer.size() == 30


def test_a_buffer_of_another_number_of_environments_put_into_a_model_is_refused():
    other = model(SAC, DummyVecEnv([Toy] * 2), train_freq=1)
    other.replay_buffer = pickle.loads(pickle.dumps(model(SAC, Toy()).learn(30).replay_buffer))
    with pytest.raises(ValueError, match=r"n_envs: got .* 2 environments, expected 1"):
        other.learn(6)


def add_random(buffer, steps, action=0.0, observation=0.0):
    for k in range(steps):
        obs = np.full((1, 2), np.sin(k) + observation, np.float32)
        buffer.add(obs, obs, np.full((1, 1), action * np.cos(k)), np.array([k]), np.array([0]), [{}])
    return buffer


def test_actions_in_other_units_are_reported_at_the_refit_and_allowed_on_request():
    buffer = add_random(SynthERBuffer(100, PLANE, FORCE, "cpu", **OPTIONS), 40, action=1.9)
    with pytest.warns(RuntimeWarning, match=r"action\[0\].* scaled_actions=False"):
        buffer.sample(8)
    assert buffer.source.refits == 1
    assert buffer.source.store.rows[:, buffer.source.spec.actions].abs().max() <= 1
    unscaled = SynthERBuffer(100, PLANE, FORCE, "cpu", **OPTIONS, scaled_actions=False)
    add_random(unscaled, 40, action=1.9).sample(8)
    assert unscaled.source.refits == 1
    assert unscaled.source.spec.action_space == FORCE
    beyond = SynthERBuffer(100, PLANE, FORCE, "cpu", **OPTIONS, scaled_actions=False)
    with pytest.warns(RuntimeWarning, match="outside the action space"):
        add_random(beyond, 40, action=2.1).sample(8)


def test_rounding_errors_of_scaled_actions_are_let_through():
    buffer = add_random(SynthERBuffer(100, PLANE, FORCE, "cpu", **OPTIONS), 40, action=1 + 1e-6)
    buffer.sample(8)
    assert buffer.source.refits == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_observations_that_are_not_finite_are_left_out_of_the_refit_and_named(bad):
    buffer = add_random(SynthERBuffer(100, PLANE, FORCE, "cpu", **OPTIONS), 32)
    add_random(buffer, 8, observation=bad)
    with pytest.warns(RuntimeWarning, match=r"8 of 40 .*observation\[0\] .*row 32"):
        buffer.sample(8)
    assert buffer.source.refits == 1
    assert buffer.source.store.rows.isfinite().all()


def test_float64_beyond_float32_counts_as_invalid():
    space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    buffer = add_random(SynthERBuffer(100, space, FORCE, "cpu", **OPTIONS), 39)
    huge = np.full((1, 2), 1e300)
    buffer.add(huge, huge, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    with pytest.warns(RuntimeWarning, match="1 of 40"):
        buffer.sample(8)
    assert buffer.source.refits == 1


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_large_integers_are_no_reason_to_stop(dtype):
    space = spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, (2,), dtype)
    buffer = SynthERBuffer(100, space, FORCE, "cpu", **OPTIONS)
    for k in range(40):
        counter = np.full((1, 2), 2**28 + 1_000 * k, dtype)
        buffer.add(counter, counter, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    batch = buffer.sample(16)
    assert buffer.source.refits == 1
    assert batch.observations.dtype == torch.from_numpy(np.empty(0, dtype)).dtype
    assert (batch.observations > 2**27).all()


# --- faults while learning --------------------------------------------------------------------------------------------


def with_fake(fake, **options):
    spec = transition_spec(gym.make("Pendulum-v1").observation_space, FORCE)
    generator = type(fake)(spec)
    return generator, model(options={"schedule": SOON, "generator": generator, **options})


def test_divergence_is_a_warning_and_learning_goes_on(fake):
    generator, trained = with_fake(fake)
    generator.during_fit = raising(DivergedError("loss is nan"))
    with pytest.warns(RuntimeWarning, match=r"kept the previous model and 0 synthetic rows.* loss is nan"):
        trained.learn(60)
    assert trained.num_timesteps == 60
    assert len(trained.replay_buffer.source.store) == 0
    generator.during_fit = lambda: None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained.learn(30, reset_num_timesteps=False)  # due 40 steps after the last attempt
    assert trained.replay_buffer.source.refits == 1
    assert (trained.replay_buffer.sample(10).rewards == -1).sum() == 5


@pytest.mark.parametrize("when", ["during_fit", "during_sample"])
def test_a_bug_in_a_generator_is_a_warning_and_learning_goes_on(fake, when):
    generator, trained = with_fake(fake)
    setattr(generator, when, raising(ZeroDivisionError("a bug")))
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError: a bug") as caught:
        trained.learn(150)
    assert len(caught) == 1, "three refits failed in the same way"
    assert trained.num_timesteps == 150


def test_the_real_ratio_can_be_changed_during_a_run(fake):
    _, trained = with_fake(fake)
    trained.learn(60)
    buffer = trained.replay_buffer
    for ratio, synthetic in ((0.5, 10), (0.75, 5), (1.0, 0), (0.0, 20)):
        buffer.real_ratio = ratio
        assert buffer.real_ratio == ratio
        assert int(buffer.sample(20).is_synthetic.sum()) == synthetic
    with pytest.raises(ValueError, match=r"real_ratio: expected a number from 0 to 1, got 1\.5"):
        buffer.real_ratio = 1.5
    assert buffer.real_ratio == 0.0


def test_the_callback_of_an_algorithm_without_a_buffer_says_so():
    with pytest.raises(TypeError, match="SynthERCallback needs a SynthERBuffer, PPO has none"):
        PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8).learn(8, callback=SynthERCallback())


@pytest.mark.parametrize("value", ["no", None, 1])
def test_scaled_actions_are_true_or_false(value):
    with pytest.raises(TypeError, match="scaled_actions: expected True or False"):
        SynthERBuffer(10, PLANE, FORCE, "cpu", scaled_actions=value)


def test_the_schedule_can_be_changed_during_a_run(fake):
    _, trained = with_fake(fake)
    trained.learn(60)
    buffer = trained.replay_buffer
    with pytest.raises(ValueError, match="schedule"):
        buffer.schedule = 0
    buffer.schedule = {"every": 77, "rows": 30}
    assert buffer.schedule is buffer.source.schedule
    assert (buffer.schedule.every, buffer.schedule.rows) == (77, 30)


def test_a_buffer_made_as_a_plain_one_stays_plain(fake):
    _, trained = with_fake(fake, real_ratio=1)
    with pytest.raises(ValueError, match="real_ratio: this buffer was made with 1"):
        trained.replay_buffer.real_ratio = 0.5


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()], ids=repr)
@pytest.mark.parametrize("when", ["during_fit", "during_sample"])
def test_interrupt_is_passed_on_and_learning_can_be_continued(fake, error, when):
    generator, trained = with_fake(fake)
    setattr(generator, when, raising(error))
    with pytest.raises(type(error)):
        trained.learn(60)
    assert trained.num_timesteps == 40
    assert trained.replay_buffer.size() == 40
    setattr(generator, when, lambda: None)
    trained.learn(20, reset_num_timesteps=False)
    assert trained.replay_buffer.size() == 60
    assert trained.replay_buffer.source.refits == 1
    assert trained.replay_buffer.source.last_refit.steps == 45  # it stayed due


def test_failure_after_a_refit_keeps_the_rows_from_before(fake):
    generator, trained = with_fake(fake)
    trained.learn(60)
    generator.during_sample = raising(DivergedError("later"))
    with pytest.warns(RuntimeWarning, match="kept the previous model and 64 synthetic rows"):
        trained.learn(30, reset_num_timesteps=False)
    assert trained.replay_buffer.source.refits == 1
    assert generator.fits == 1
    assert (trained.replay_buffer.sample(10).rewards == -1).sum() == 5


# --- the mirror on the learner's device -------------------------------------------------------------------------------


def assert_mirrors(buffer):
    """The updated mirror equals SB3's arrays."""
    real = buffer.source.real
    buffer.sample(1)  # counts what was added
    mirror = real._mirrored()
    assert torch.equal(mirror[: len(real)], torch.from_numpy(real._gather(np.arange(len(real)))))
    return mirror


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("observation_space", [PLANE, MIXED], ids=["Box", "Dict"])
def test_mirror_agrees_after_every_kind_of_change(make, n_envs, observation_space):
    schedule = RetrainSchedule(every=10**6, start=10**6)
    options = {"n_envs": n_envs, "schedule": schedule, "generator": TINY}
    buffer = make(40 * n_envs, observation_space=observation_space, **options)
    assert buffer.buffer_size == 40
    for steps in (1, 1, 5, 30, 2, 3, 1, 39, 40, 41, 95, 0):  # exactly full, beyond, and wrapped more than once
        assert_mirrors(fill_from_spaces(buffer, steps, seed=steps))
    buffer.source.real.forget()
    assert_mirrors(buffer)
    assert_mirrors(fill_from_spaces(buffer, 3))
    buffer.reset()
    assert_mirrors(fill_from_spaces(buffer, 7))
    for twin in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        assert_mirrors(fill_from_spaces(twin, 2))


def test_mirror_grows_with_the_buffer(make):
    buffer = make(4_000, schedule=RetrainSchedule(every=10**6, start=10**6))
    sizes = []
    for steps in (500, 524, 1, 1_100, 2_500):
        sizes.append(len(assert_mirrors(fill(buffer, steps))))
    assert sizes == [1024, 1024, 2048, 4000, 4000]


def test_mirror_stays_out_of_files(make):
    buffer = make(2_000, generator=TINY, schedule=RetrainSchedule(every=10**6, start=10**6))
    before = len(pickle.dumps(fill(buffer, 50)))
    assert_mirrors(buffer)
    assert len(pickle.dumps(buffer)) < before + 1_000


def test_mirror_copies_only_new_rows(make, monkeypatch):
    buffer = make(100, n_envs=2, schedule=RetrainSchedule(every=10**6, start=10**6))
    assert_mirrors(fill(buffer, 60))
    real = buffer.source.real
    fill(buffer, 3)
    buffer.sample(1)
    asked = []
    gather = real._gather
    monkeypatch.setattr(real, "_gather", lambda index: asked.append(index.tolist()) or gather(index))
    real._mirrored()
    real._mirrored()
    assert asked == [[20, 21, 22, 23, 24, 25]]


def test_mirror_knows_rows_that_no_batch_was_asked_for_yet(make):
    # users may call `source.refit_or_warn()` between `add` and `sample`
    buffer = fill(make(schedule=RetrainSchedule(every=10**6, start=10**6)), 20)
    assert_mirrors(buffer)
    fill(buffer, 10, first=20)
    real = buffer.source.real
    assert torch.equal(real._mirrored()[:30], torch.from_numpy(real._gather(np.arange(30))))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_run_on_a_gpu_copies_only_new_rows_from_the_host(monkeypatch):
    trained = model(device="cuda").learn(90)
    buffer = trained.replay_buffer
    real = buffer.source.real
    assert buffer.source.refits == 2
    assert parameters(trained).isfinite().all()
    asked = []
    gather = real._gather
    monkeypatch.setattr(real, "_gather", lambda index: asked.append(index.tolist()) or gather(index))
    fill_from_spaces(buffer, 1)
    for _ in range(20):
        assert all(field.device.type == "cuda" for field in flat(buffer.sample(16)).values())
    assert asked == [[90]]
    assert torch.equal(real._mirrored()[:91].cpu(), torch.from_numpy(gather(np.arange(91))))
    monkeypatch.undo()  # the mock cannot be pickled
    twin = pickle.loads(pickle.dumps(buffer))
    twin.device = "cpu"
    for _ in range(40):  # the same rows wherever a run is continued
        for one, other in zip(flat(buffer.sample(16)).values(), flat(twin.sample(16)).values(), strict=True):
            assert torch.equal(one.cpu(), other)


# --- what a review found ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("real_ratio", [0.0, 0.5])
def test_fields_of_a_batch_stand_apart(make, real_ratio, size):
    batch = fill(make(real_ratio=real_ratio), 20).sample(size)
    value = torch.nn.Linear(2, 1)(batch.observations)
    for field in (batch.actions, batch.rewards, batch.next_observations, batch.dones):
        field.zero_()
    value.sum().backward()  # fails if a saved field was modified in place
    assert all(field.is_contiguous() for field in flat(batch).values())


def test_rows_to_learn_from_are_a_copy(make):
    buffer = fill(make(), 20)
    buffer.source.real.transitions().rows.zero_()
    assert buffer.source.real.transitions().rows.abs().sum() > 0


def test_refresh_mirror_after_writing_to_the_arrays(make):
    buffer = fill(make(schedule=RetrainSchedule(every=10**6, start=10**6)), 20)
    assert_mirrors(buffer)
    buffer.rewards[:5] = 77
    buffer.refresh_mirror()
    assert_mirrors(buffer)


def test_own_class_for_dict_observations_must_derive_from_the_dict_buffer():
    class Mine(SynthERBuffer):
        pass

    with pytest.raises(TypeError, match="must derive from SynthERDictBuffer"):
        Mine(100, OBSERVATIONS["Dict"], FORCE)


@pytest.mark.parametrize("gamma", ["x", -0.1, 1.1, float("nan")])
def test_gamma_is_a_share(make, gamma):
    with pytest.raises(ValueError, match="gamma"):
        make(gamma=gamma)


def test_callback_compares_the_discounts():
    trained = model(options={**OPTIONS, "n_steps": 3, "gamma": 0.9})
    with pytest.raises(ValueError, match=r"gamma: .* 0\.9, .* 0\.99"):
        trained.learn(10, callback=SynthERCallback())
