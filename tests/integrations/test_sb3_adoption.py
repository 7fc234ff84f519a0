"""Plain buffers of Stable-Baselines3 become SynthER buffers, also where a model loads them."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

from stable_baselines3 import DQN, SAC, HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from synther_replay.adapters.sb3 import FastSAC, SynthERBuffer, SynthERDictBuffer, SynthERHerBuffer
from synther_replay.adapters.sb3 import rows as _sb3_rows

PLACE, FORCE = spaces.Box(-2, 2, (3,)), spaces.Box(-1, 1, (2,))
NESTED = spaces.Dict({"a": PLACE, "b": spaces.Box(-1, 1, (1,))})
OPTIONS = {
    "generator": {"steps": 10, "width": 16, "depth": 1, "batch_size": 32, "sampling_steps": 2},
    "schedule": {"start": 40, "rows": 50},
}
OURS = {"replay_buffer_class": SynthERBuffer, "replay_buffer_kwargs": OPTIONS}


def model(algorithm=SAC, env="Pendulum-v1", policy="MlpPolicy", **options):
    small = {"learning_starts": 45, "buffer_size": 200, "policy_kwargs": {"net_arch": [8]}, "seed": 0}
    return algorithm(policy, env, **small | options)


def filled(buffer, steps):
    rng, n = np.random.default_rng(0), buffer.n_envs
    for step in range(steps):
        place, following = rng.uniform(-1, 1, (2, n, 3))
        if isinstance(buffer, DictReplayBuffer):
            place, following = ({"a": x, "b": x[:, :1]} for x in (place, following))
        rewards = np.arange(step * n, (step + 1) * n)
        infos = [{"TimeLimit.truncated": step % 14 == 13}] * n
        buffer.add(place, following, rng.uniform(-1, 1, (n, 2)), rewards, np.full(n, step % 7 == 6), infos)
    return buffer


@pytest.mark.parametrize("steps", [20, 50, 75])  # partly full, full, wrapped around
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize(
    ("kind", "space", "expected"),
    [(ReplayBuffer, PLACE, SynthERBuffer), (DictReplayBuffer, NESTED, SynthERDictBuffer)],
    ids=["box", "dict"],
)
def test_an_adopted_buffer_is_one_that_was_filled_itself(kind, space, expected, n_envs, steps):
    plain = filled(kind(50 * n_envs, space, FORCE, "cpu", n_envs), steps)
    adopted = SynthERBuffer.from_buffer(plain, seed=0, **OPTIONS)
    own = filled(SynthERBuffer(50 * n_envs, space, FORCE, "cpu", n_envs, seed=0, **OPTIONS), steps)
    assert type(adopted) is type(own) is expected
    assert (adopted.pos, adopted.full, adopted.size()) == (own.pos, own.full, own.size())
    assert torch.equal(adopted.source.real.transitions().rows, own.source.real.transitions().rows)
    for buffer in (adopted, own):
        filled(buffer, 3)
        buffer.sample(32)
    assert torch.equal(adopted.sample(32).rewards, own.sample(32).rewards)
    assert adopted.source.refits == own.source.refits


def test_the_first_sample_refits_if_the_rows_are_enough():
    buffer = SynthERBuffer.from_buffer(filled(ReplayBuffer(100, PLACE, FORCE, "cpu"), 60), **OPTIONS)
    assert int(buffer.sample(32).is_synthetic.sum()) == 16
    assert buffer.source.steps == 60


def test_rows_are_taken_over_without_a_copy():
    plain = filled(ReplayBuffer(100, PLACE, FORCE, "cpu"), 10)
    assert SynthERBuffer.from_buffer(plain, **OPTIONS).observations is plain.observations


def test_the_mirror_on_a_gpu_holds_the_adopted_rows(monkeypatch):
    monkeypatch.setattr(_sb3_rows.RealRows, "_mirrors", lambda self: True)
    plain = filled(ReplayBuffer(50, PLACE, FORCE, "cpu"), 75)
    buffer = SynthERBuffer.from_buffer(plain, **OPTIONS)
    assert sorted(buffer.source.real.transitions().rewards.tolist()) == list(range(25, 75))


def test_n_step_returns_go_on():
    plain = filled(NStepReplayBuffer(100, PLACE, FORCE, "cpu", n_steps=3, gamma=0.5), 60)
    buffer = SynthERBuffer.from_buffer(plain, **OPTIONS)
    assert (buffer.n_steps, buffer.gamma) == (3, 0.5)
    assert buffer.sample(16).discounts is not None


def test_rows_without_next_observations_are_refused_with_the_way_out():
    plain = ReplayBuffer(100, PLACE, FORCE, "cpu", optimize_memory_usage=True, handle_timeout_termination=False)
    filled(plain, 10)
    with pytest.raises(ValueError, match="real_ratio=1"):
        SynthERBuffer.from_buffer(plain, **OPTIONS)
    assert len(SynthERBuffer.from_buffer(plain, real_ratio=1.0).sample(8).rewards) == 8


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="plain"):
        SynthERBuffer.from_buffer([])
    with pytest.raises(TypeError, match="SynthERBuffer"):
        SynthERBuffer.from_buffer(SynthERBuffer(10, PLACE, FORCE, "cpu", real_ratio=1.0))


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def plain_file(tmp_path):
    """The buffer of a model without SynthER."""
    model().learn(44).save_replay_buffer(tmp_path / "plain")
    return tmp_path / "plain.pkl"


@pytest.mark.parametrize("algorithm", [SAC, FastSAC])
def test_a_plain_buffer_that_a_model_loads_is_adopted(algorithm, plain_file, tmp_path):
    made = model(algorithm, **OURS)
    made.save(tmp_path / "model")
    for loaded in (made, algorithm.load(tmp_path / "model", env=gym.make("Pendulum-v1"))):
        loaded.load_replay_buffer(plain_file)
        assert isinstance(loaded.replay_buffer, SynthERBuffer)
        assert loaded.replay_buffer.size() == 44
        loaded.learn(50)
        assert loaded.replay_buffer.source.refits == 1


def test_a_model_that_is_loaded_with_the_class_adopts(plain_file, tmp_path):
    model().save(tmp_path / "model")
    loaded = SAC.load(tmp_path / "model", env=gym.make("Pendulum-v1"), **OURS)
    loaded.load_replay_buffer(plain_file)
    assert isinstance(loaded.replay_buffer, SynthERBuffer)


def test_a_deleted_buffer_can_be_loaded_again(plain_file):
    ours = model(**OURS)
    del ours.replay_buffer
    ours.load_replay_buffer(plain_file)
    assert isinstance(ours.replay_buffer, SynthERBuffer)


def test_a_loaded_buffer_has_the_hook_of_the_model(tmp_path):
    reports = []
    ours = model(**{**OURS, "replay_buffer_kwargs": {**OPTIONS, "on_refit": reports.append}})
    ours.learn(44).save_replay_buffer(tmp_path / "ours")
    ours.load_replay_buffer(tmp_path / "ours")
    ours.replay_buffer.source.refit()
    assert len(reports) == 1


def test_models_of_other_buffers_load_as_before(plain_file, tmp_path):
    for plain in (model(_init_setup_model=False), model()):  # the first has no class of buffers yet
        plain.load_replay_buffer(plain_file)
        assert type(plain.replay_buffer) is ReplayBuffer
    model(**OURS).save_replay_buffer(tmp_path / "ours")
    plain.load_replay_buffer(tmp_path / "ours")
    assert isinstance(plain.replay_buffer, SynthERBuffer)


def test_a_buffer_that_cannot_be_adopted_is_refused_and_the_model_keeps_its_own(tmp_path):
    env = BitFlippingEnv(4)
    her = model(DQN, env, "MultiInputPolicy", replay_buffer_class=HerReplayBuffer)
    her.learn(20).save_replay_buffer(tmp_path / "her")
    ours = model(DQN, env, "MultiInputPolicy", **OURS)
    before = ours.replay_buffer
    with pytest.raises(TypeError, match="HerReplayBuffer"):
        ours.load_replay_buffer(tmp_path / "her")
    assert ours.replay_buffer is before


@pytest.mark.filterwarnings("ignore:The last trajectory")
def test_a_buffer_of_hindsight_replay_is_adopted_by_ours(tmp_path):
    env, options = BitFlippingEnv(4), {"n_sampled_goal": 3}
    plain = model(DQN, env, "MultiInputPolicy", replay_buffer_class=HerReplayBuffer, replay_buffer_kwargs=options)
    plain.learn(44).save_replay_buffer(tmp_path / "her")
    ours = model(DQN, env, "MultiInputPolicy", replay_buffer_class=SynthERHerBuffer, replay_buffer_kwargs=OPTIONS)
    ours.load_replay_buffer(tmp_path / "her")
    assert isinstance(ours.replay_buffer, SynthERHerBuffer)
    assert ours.replay_buffer.n_sampled_goal == 3
    assert len(ours.replay_buffer.source.real) == 44
    ours.learn(60)
    assert ours.replay_buffer.source.refits == 1


def test_adoption_is_silent(plain_file):
    ours = model(**OURS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.load_replay_buffer(plain_file)


# --- files of other tasks and options ---------------------------------------------------------------------------------


def pendulum(bound):
    return gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), -bound, bound)


@pytest.mark.parametrize("ours", [{}, OURS], ids=["plain", "ours"])
@pytest.mark.parametrize(
    ("algorithm", "env", "message"),
    [
        (DQN, "CartPole-v1", r"observation_space=Box\(.*, the model Box\(.*keeps its buffer"),
        (SAC, pendulum(9.0), "action_space=.*9.0"),
        (SAC, make_vec_env("Pendulum-v1", 2), "n_envs=1, the model 2"),
    ],
)
def test_a_file_of_another_task_is_refused_and_the_model_keeps_its_own(ours, algorithm, env, message, tmp_path):
    model(**ours).learn(44).save_replay_buffer(tmp_path / "other")
    made = model(algorithm, env, **OURS)
    before = made.replay_buffer
    with pytest.raises(ValueError, match=message):
        made.load_replay_buffer(tmp_path / "other")
    assert made.replay_buffer is before
    made.learn(50)


def test_options_of_the_file_that_replace_others_are_told(tmp_path):
    model(**OURS).learn(44).save_replay_buffer(tmp_path / "ours")
    changed = {"real_ratio": 0.9, "schedule": 1_234, "generator": {**OPTIONS["generator"], "width": 32}}
    made = model(replay_buffer_class=SynthERBuffer, replay_buffer_kwargs={**OPTIONS, **changed})
    with pytest.warns(UserWarning) as told:
        made.load_replay_buffer(tmp_path / "ours")
    (text,) = (str(each.message) for each in told)
    for part in ("real_ratio=0.5 (the model has 0.9)", "schedule=", "generator width=16 (the model has 32)"):
        assert part in text
    assert "capacity" not in text and "steps=10" not in text
    assert made.replay_buffer.real_ratio == 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.load_replay_buffer(tmp_path / "ours")
