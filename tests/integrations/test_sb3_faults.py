"""SynthERBuffer in Stable-Baselines3 under faults: environments that return NaN, actions in other units, memory."""

import copy
import gc
import pickle
import warnings
import weakref

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise

from synther_replay import GeneratorConfig, RetrainSchedule
from synther_replay.adapters.sb3 import FastSAC, SynthERBuffer
from synther_replay.adapters.sb3 import rows as _sb3_rows
from synther_replay.adapters.sb3.units import look_unscaled

TINY = GeneratorConfig.tiny(width=16, depth=1, embedding=16, steps=20, refit_steps=10, batch_size=32, sampling_steps=4)
SOON = RetrainSchedule(every=40, rows=64, start=40)
SMALL = {"buffer_size": 2_000, "batch_size": 16, "policy_kwargs": {"net_arch": [16]}, "device": "cpu", "seed": 0}
PLANE, FORCE = spaces.Box(-2, 2, (2,)), spaces.Box(-2, 2, (1,))
CAMERA = spaces.Box(0, 255, (3, 64, 64), np.uint8)


def model(env, algorithm=SAC, options=None, **changes):
    options = {"generator": TINY, "schedule": SOON, **(options or {})}
    kwargs = {"replay_buffer_class": SynthERBuffer, "replay_buffer_kwargs": options}
    return algorithm("MlpPolicy", env, **copy.deepcopy(SMALL) | {"learning_starts": 20} | kwargs | changes)


# --- environments that return what is not a number --------------------------------------------------------------------


class Faulty(gym.Wrapper):
    """Spoils the reward or the observation of some steps."""

    def __init__(self, field, bad, at):
        super().__init__(gym.make("Pendulum-v1"))
        self.field, self.bad, self.at, self.taken = field, bad, at, 0

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        self.taken += 1
        if self.taken in self.at and self.field == "reward":
            reward = self.bad
        elif self.taken in self.at:
            observation = np.array([*observation[:2], self.bad], np.float32)
        return observation, reward, *rest


class SaferSAC(SAC):
    """SAC whose networks do not learn: what SB3 makes of a NaN that it samples is its own affair."""

    def train(self, gradient_steps, batch_size=64):
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            assert len(batch.rewards) == batch_size

    def predict(self, observation, *args, **kwargs):
        return super().predict(np.nan_to_num(observation, posinf=0, neginf=0), *args, **kwargs)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("field", "name"), [("reward", "reward"), ("observation", r"observation\[2\]")])
def test_a_run_outlives_an_environment_that_returns_no_numbers(field, name, bad):
    trained = model(Faulty(field, bad, at=(25, 60, 61)), SaferSAC)
    with pytest.warns(RuntimeWarning, match=rf"{name} .*row 24") as caught:
        trained.learn(150)
    assert len([one for one in caught if issubclass(one.category, RuntimeWarning)]) == 1
    source = trained.replay_buffer.source
    assert (trained.num_timesteps, source.refits) == (150, 3)
    assert source.store.rows.isfinite().all()


def test_sac_itself_learns_on_from_finite_batches():
    """A faulty row that is never drawn as a real row does no harm to SB3's networks, nor to ours."""
    trained = model(Faulty("reward", np.nan, at=(45,)), options={"real_ratio": 0.0})
    with pytest.warns(RuntimeWarning, match="reward"):
        trained.learn(120)
    assert trained.replay_buffer.source.refits == 3
    batch = trained.replay_buffer.sample(64)
    assert all(field.isfinite().all() for field in batch[:5])


# --- actions in other units -------------------------------------------------------------------------------------------

NARROW = spaces.Box(-0.4, 0.4, (3,))


class Narrow(gym.Env):
    """Random observations, actions in [-0.4, 0.4] as in Humanoid."""

    observation_space, action_space = PLANE, NARROW

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-2, 2, 2).astype(np.float32), {}

    def step(self, action):
        assert np.abs(action).max() <= 0.4 + 1e-6
        return self.np_random.uniform(-2, 2, 2).astype(np.float32), float(action.sum()), False, False, {}


@pytest.mark.parametrize("starts", [0, 100])
@pytest.mark.parametrize("algorithm", [SAC, TD3, DDPG])
def test_actions_that_sb3_scaled_raise_no_alarm(algorithm, starts):
    noise = {} if algorithm is SAC else {"action_noise": NormalActionNoise(np.zeros(3), np.full(3, 0.1))}
    later = RetrainSchedule(every=300, rows=64, start=300)
    trained = model(Narrow(), algorithm, {"schedule": later}, learning_starts=starts, train_freq=50, **noise)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        trained.learn(650)
    assert trained.replay_buffer.source.refits == 2


def add_actions(buffer, actions, columns=2):
    for k, action in enumerate(actions):
        observation = np.full((1, columns), np.sin(k), np.float32)
        buffer.add(observation, observation, action[None], np.array([k]), np.array([0]), [{}])
    return buffer


@pytest.mark.parametrize("saturated", [False, True])
def test_unscaled_actions_in_a_narrow_space_are_reported_at_the_first_batches(saturated):
    rng = np.random.default_rng(0)
    actions = np.clip(rng.uniform(-0.4, 0.4, (300, 3)) * (3 if saturated else 1), -0.4, 0.4)
    later = RetrainSchedule(every=5_000, rows=64, start=5_000)
    buffer = add_actions(SynthERBuffer(1_000, PLANE, NARROW, "cpu", schedule=later, generator=TINY), actions)
    with pytest.warns(RuntimeWarning, match="scaled_actions=False"):
        buffer.sample(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for twin in (buffer, copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
            twin.source.refit()
        told = SynthERBuffer(1_000, PLANE, NARROW, "cpu", schedule=later, generator=TINY, scaled_actions=False)
        add_actions(told, actions).sample(8)


def test_unscaled_actions_in_a_wide_space_are_reported_at_the_first_batches():
    later = RetrainSchedule(every=5_000, rows=64, start=5_000)
    buffer = SynthERBuffer(1_000, PLANE, FORCE, "cpu", schedule=later, generator=TINY)
    add_actions(buffer, np.random.default_rng(0).uniform(-2, 2, (300, 1)))
    with pytest.warns(RuntimeWarning, match="scaled_actions=False"):
        buffer.sample(8)


UNIT = spaces.Box(0, 1, (2,))


@pytest.mark.parametrize(
    ("space", "draw"),
    [
        (NARROW, lambda rng: rng.uniform(-1, 1, (256, 3))),
        (NARROW, lambda rng: np.tanh(rng.normal(size=(256, 3)))),
        (NARROW, lambda rng: np.clip(rng.normal(0, 0.1, (256, 3)), -1, 1)),  # a new policy with the noise of TD3
        (NARROW, lambda rng: np.clip(rng.normal(0, 0.19, (256, 3)), -1, 1)),
        (NARROW, lambda rng: np.zeros((256, 3))),
        (NARROW, lambda rng: rng.uniform(-0.3, 0.3, (256, 3))),
        (spaces.Box(-0.4, 0.4, (1,)), lambda rng: rng.uniform(-1, 1, (256, 1))),
        (spaces.Box(-0.99, 0.99, (1,)), lambda rng: rng.uniform(-1, 1, (256, 1))),
        (spaces.Box(-0.99, 0.99, (1,)), lambda rng: rng.uniform(-0.99, 0.99, (256, 1))),  # nobody could tell
        (UNIT, lambda rng: rng.uniform(-1, 1, (256, 2))),
        (UNIT, lambda rng: np.zeros((256, 2))),
        (UNIT, lambda rng: np.ones((256, 2))),
        (spaces.Box(-2, 2, (2,)), lambda rng: rng.uniform(-1, 1, (256, 2))),
        (spaces.Box(-1, 1, (2,)), lambda rng: rng.uniform(-1, 1, (256, 2))),
        (NARROW, lambda rng: rng.uniform(-0.4, 0.4, (5, 3))),  # too few
        (NARROW, lambda rng: np.zeros((0, 3))),
    ],
)
def test_scaled_actions_do_not_look_unscaled(space, draw):
    drawn = [torch.from_numpy(draw(np.random.default_rng(seed))).float() for seed in range(50)]
    assert not any(look_unscaled(actions, space) for actions in drawn)


@pytest.mark.parametrize(
    ("space", "draw"),
    [
        (NARROW, lambda rng: rng.uniform(-0.4, 0.4, (256, 3))),
        (NARROW, lambda rng: 0.4 * np.tanh(rng.normal(size=(256, 3)))),
        (NARROW, lambda rng: np.clip(rng.normal(0, 0.3, (256, 3)), -0.4, 0.4)),
        (spaces.Box(-0.99, 0.99, (1,)), lambda rng: rng.uniform(-0.99, 0.99, (3_000, 1))),
        (UNIT, lambda rng: rng.uniform(0, 1, (256, 2))),
        (UNIT, lambda rng: rng.uniform(0, 1, (256, 2)).round()),
        (spaces.Box(np.array([-0.1, -2]), np.array([0.2, 2])), lambda rng: rng.uniform([-0.1, -2], [0.2, 2], (256, 2))),
    ],
)
def test_unscaled_actions_look_unscaled(space, draw):
    drawn = [torch.from_numpy(draw(np.random.default_rng(seed))).float() for seed in range(50)]
    assert all(look_unscaled(actions, space) for actions in drawn)


# --- images -----------------------------------------------------------------------------------------------------------


class Camera(gym.Env):
    observation_space, action_space = CAMERA, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(CAMERA.shape, np.uint8), {}

    def step(self, action):
        return np.zeros(CAMERA.shape, np.uint8), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("algorithm", "task", "options", "message"),
    [
        (SAC, "Pendulum-v1", {"real_ration": 0.5}, "SynthERBuffer: unknown option 'real_ration'; did you mean"),
        (SAC, "Pendulum-v1", {"n_sampled_goal": 4}, "unknown option 'n_sampled_goal'; it is one of SynthERHerBuffer"),
        (SAC, "Pendulum-v1", {"goals": 4}, "unknown option 'goals'; expected one of buffer_size,"),
        (DQN, "CartPole-v1", {"presett": "tiny"}, "unknown option 'presett'"),
    ],
)
def test_unknown_options_are_refused_with_similar_names(algorithm, task, options, message):
    with pytest.raises(TypeError, match=message):
        algorithm("MlpPolicy", task, replay_buffer_class=SynthERBuffer, replay_buffer_kwargs=options)


def test_unknown_options_of_a_buffer_of_goals_name_the_class_that_was_passed():
    goals = spaces.Dict({key: CAMERA for key in ("observation", "achieved_goal", "desired_goal")})
    for name in ("goal_selection_strategy", "copy_info_dict"):
        with pytest.raises(TypeError, match=rf"^SynthERBuffer: .*{name}.* SynthERHerBuffer"):
            SynthERBuffer(100, goals, spaces.Discrete(2), "cpu", **{name: True})


def test_images_are_refused_when_the_buffer_is_made_and_taken_by_plain_replay(tmp_path):
    with pytest.raises(ValueError, match="features"):
        SynthERBuffer(100, CAMERA, spaces.Discrete(2), "cpu")
    options = {"replay_buffer_class": SynthERBuffer, "replay_buffer_kwargs": {"real_ratio": 1.0}}
    trained = DQN("MlpPolicy", Camera(), **{**copy.deepcopy(SMALL), "buffer_size": 100}, learning_starts=20, **options)
    trained.learn(40)
    trained.save_replay_buffer(tmp_path / "buffer")
    trained.load_replay_buffer(tmp_path / "buffer")
    trained.learn(10, reset_num_timesteps=False)
    assert trained.replay_buffer.size() == trained.num_timesteps


# --- another default type ---------------------------------------------------------------------------------------------


@pytest.fixture
def default_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("mirrors", [False, True])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_another_default_type_changes_no_batch(monkeypatch, default_float64, mirrors, n_steps):
    monkeypatch.setattr(_sb3_rows.RealRows, "_mirrors", lambda self: mirrors)
    options = {"generator": TINY, "schedule": SOON, "seed": 0, "n_steps": n_steps}
    rng = np.random.default_rng(0)
    buffer = add_actions(SynthERBuffer(100, PLANE, FORCE, "cpu", **options), rng.uniform(-1, 1, (60, 1)))
    for _ in range(3):
        np.random.seed(0)
        batch = buffer.sample(8)
        assert {field.dtype for field in batch if field is not None} == {torch.float32}
    assert buffer.source.refits == 1
    assert buffer.sample_batches(3, 8).rewards.dtype == torch.float32


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("dict_observations", [False, True])
def test_a_dropped_buffer_is_freed_at_once(no_collector, dict_observations):
    space = spaces.Dict(state=PLANE) if dict_observations else PLANE
    buffer = SynthERBuffer(100, space, FORCE, "cpu", generator=TINY, schedule=SOON)
    for k in range(50):
        observation = np.full((1, 2), np.sin(k), np.float32)
        observation = {"state": observation} if dict_observations else observation
        buffer.add(observation, observation, np.full((1, 1), np.cos(k)), np.array([k]), np.array([0]), [{}])
    buffer.sample(8)
    assert buffer.source.refits == 1
    gone = [weakref.ref(part) for part in (buffer, buffer.source, buffer.source.generator, buffer.source.store.rows)]
    for copied in (copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))):
        twin = copied(buffer)
        gone += [weakref.ref(part) for part in (twin, twin.source, twin.source.generator)]
        twin.sample(8)
        del twin
    del buffer
    assert not any(ref() for ref in gone)


@pytest.mark.parametrize("algorithm", [SAC, FastSAC])
def test_the_buffer_of_a_dropped_model_is_freed_at_once(no_collector, algorithm):
    model("Pendulum-v1", algorithm)  # the frames of a process's first model stay for a while
    trained = model("Pendulum-v1", algorithm)
    add_actions(trained.replay_buffer, np.zeros((50, 1)), columns=3).sample(8)
    gone = [weakref.ref(part) for part in (trained.replay_buffer, trained.replay_buffer.source.generator)]
    del trained
    assert not any(ref() for ref in gone)


def test_rows_say_that_their_buffer_is_gone():
    source = SynthERBuffer(100, PLANE, FORCE, "cpu", generator=TINY, schedule=SOON).source
    with pytest.raises(ReferenceError, match="buffer"):
        source.refit()
