"""Guided generation in Stable-Baselines3: options of the buffer, critics of the model, saving, logging."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("stable_baselines3")
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import VecNormalize

from synther_replay.adapters.sb3 import FastSAC, SynthERBuffer, SynthERCallback, SynthERHerBuffer
from synther_replay.adapters.sb3.relevance import ModelCritic
from synther_replay.adapters.sb3.rows import RealRows
from synther_replay.relevance import Curiosity, Return, TDError, Value

SMALL = {"width": 16, "depth": 1, "steps": 30, "refit_steps": 20, "batch_size": 32, "sampling_steps": 4}


def make(relevance: Any, env: Any = "Pendulum-v1", algorithm: Any = SAC, encoder: Any = None, **options: Any) -> Any:
    buffer = {"generator": SMALL, "schedule": {"every": 60, "rows": 100, "start": 60}, "relevance": relevance}
    small = {"policy_kwargs": {"net_arch": [16]}, "learning_starts": 50, "batch_size": 16, "seed": 0, "device": "cpu"}
    small |= {"buffer_size": 1_000, "train_freq": 5}  # a large buffer takes seconds to copy and to save
    buffer["encoder"] = encoder
    small |= {"replay_buffer_class": SynthERBuffer, "replay_buffer_kwargs": buffer, **options}
    return algorithm("MlpPolicy", env, **small)


def curious() -> Curiosity:
    return Curiosity(hidden=16, batch_size=16)


@pytest.fixture(autouse=True)
def no_faults(recwarn: pytest.WarningsRecorder) -> Any:
    """No test here may lose the guidance of a refit unnoticed."""
    yield
    assert not [warning for warning in recwarn if "relevance failed" in str(warning.message)]


@pytest.mark.parametrize("relevance", ["reward", "td_error", "value", curious(), lambda rows: rows.rewards.abs()])
def test_generation_can_be_guided(relevance: Any):
    model = make(relevance)
    model.learn(130)
    assert model.replay_buffer.source.refits == 2
    report = model.replay_buffer.source.last_refit.relevance
    assert report.share == 1
    assert report.chosen > report.real


@pytest.mark.parametrize(("algorithm", "env"), [(TD3, "Pendulum-v1"), (DQN, "CartPole-v1"), (FastSAC, "Pendulum-v1")])
def test_critics_of_other_algorithms(algorithm: Any, env: str):
    model = make("td_error", env, algorithm)
    model.learn(80)
    assert model.replay_buffer.source.last_refit.relevance.share == 1


@pytest.mark.parametrize("name", ["TQC", "CrossQ"])
def test_critics_of_sb3_contrib(name: str):
    model = make("td_error", algorithm=getattr(pytest.importorskip("sb3_contrib"), name))
    model.learn(80)
    assert model.replay_buffer.source.last_refit.relevance.share == 1


def test_returns_of_environments_in_turn():
    model = make({"name": "return", "top": 0.5}, make_vec_env("CartPole-v1", 3, seed=0), DQN)
    model.learn(120)
    report = model.replay_buffer.source.last_refit.relevance
    assert report.share == 1
    assert report.chosen > report.real


@pytest.mark.parametrize("mirrors", [False, True])
@pytest.mark.parametrize("environments", [1, 2])
def test_an_episode_that_crosses_the_end_of_the_arrays_is_whole(
    monkeypatch: pytest.MonkeyPatch, environments: int, mirrors: bool
):
    monkeypatch.setattr(RealRows, "_mirrors", lambda self: mirrors)
    line = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    buffer = SynthERBuffer(50 * environments, line, line, "cpu", n_envs=environments, generator=SMALL)
    place = np.arange(environments, dtype=np.float32)[:, None] * 1_000
    for step in range(70):  # episodes of 10 steps, the first of 5
        ended = np.full(environments, step % 10 == 4)
        buffer.add(place + step, place + step + 1, place, np.ones(environments), ended, [{}] * environments)
    scores = Return().score(buffer.source.real.transitions()).view(50, environments)
    assert scores[:, 0].tolist() == [5.0] * 5 + [10.0] * 40 + [5.0] * 5
    assert bool((scores == scores[:, :1]).all())


@pytest.mark.parametrize("algorithm", [SAC, TD3])
def test_values_are_those_of_the_critics_for_normalised_rows(algorithm: Any):
    env = VecNormalize(make_vec_env("Pendulum-v1", 1, seed=0))
    model = make("td_error", env, algorithm)
    model.learn(80)
    buffer, critic = model.replay_buffer, ModelCritic(model)
    rows = buffer.source.usable_transitions()
    seen = torch.as_tensor(env.normalize_obs(rows.observations.numpy()))
    after = torch.as_tensor(env.normalize_obs(rows.next_observations.numpy()))
    with torch.no_grad():
        q, value = (
            torch.cat(model.critic(states, actions), 1).amin(1)
            for states, actions in ((seen, rows.actions), (after, model.actor._predict(after, deterministic=True)))
        )
    torch.testing.assert_close(critic.q(rows.observations, rows.actions), q)
    torch.testing.assert_close(critic.value(rows.next_observations), value)
    rewards = torch.as_tensor(env.normalize_reward(rows.rewards.numpy()))
    expected = (rewards + model.gamma * value - q).abs().double()
    torch.testing.assert_close(buffer.source.relevance.score(rows), expected, rtol=1e-4, atol=1e-4)


def test_latents_are_not_normalised():
    env = VecNormalize(make_vec_env("Pendulum-v1", 1, seed=0))
    model = make("value", env, encoder=lambda states: states.float() * 2)
    model.learn(70)
    buffer = model.replay_buffer
    latents = buffer.source.usable_transitions().observations
    with torch.no_grad():
        expected = torch.cat(model.critic(latents, model.actor._predict(latents, deterministic=True)), 1).amin(1)
    torch.testing.assert_close(ModelCritic(model).value(latents), expected)
    assert buffer.source.last_refit.relevance.share == 1


def test_scoring_leaves_the_mode_of_the_policy():
    model = make("value")
    for training in (True, False):
        model.policy.set_training_mode(training)
        ModelCritic(model).value(torch.zeros(2, 3))
        assert model.policy.training == training


def test_functions_of_the_user_stay():
    relevance = Value(lambda states: states[:, 0])
    model = make(relevance)
    own = relevance.value
    model.learn(70)
    assert relevance.value is own


def test_a_relevance_follows_the_model_that_trains():
    relevance = TDError()
    for _ in range(2):
        model = make(relevance)
        model.learn(70)
        assert relevance.q.__self__._model() is model
        del model
        gc.collect()


@pytest.mark.parametrize("relevance", [lambda rows: rows.rewards, "value", curious()])
def test_a_loaded_buffer_has_functions_and_critics_again(relevance: Any, tmp_path: Path):
    model = make(relevance)
    model.learn(70)
    model.save_replay_buffer(tmp_path / "buffer")
    model.load_replay_buffer(tmp_path / "buffer")
    model.learn(60, reset_num_timesteps=False)
    assert model.replay_buffer.source.refits == 2
    assert model.replay_buffer.source.last_refit.relevance.share == 1


def test_a_saved_model_can_be_loaded(tmp_path: Path):
    model = make("td_error")
    model.learn(70)
    model.save(tmp_path / "model")
    loaded = SAC.load(tmp_path / "model", env=gym.make("Pendulum-v1"), device="cpu")
    loaded.learn(70)
    assert loaded.replay_buffer.source.last_refit.relevance.share == 1


@pytest.mark.parametrize("relevance", [Value(lambda s: s[:, 0]), TDError(lambda s, a: a[:, 0], lambda s: s[:, 0])])
def test_functions_that_a_file_has_lost_are_not_replaced_by_the_critics(relevance: Any, tmp_path: Path):
    model = make(relevance)
    model.learn(70)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = SAC.load(tmp_path / "model", env=gym.make("Pendulum-v1"), device="cpu")
    loaded.load_replay_buffer(tmp_path / "buffer")
    source = loaded.replay_buffer.source
    with pytest.warns(RuntimeWarning, match="attach") as caught:
        loaded.learn(130, reset_num_timesteps=False)
    assert len([warning for warning in caught if "relevance" in str(warning.message)]) == 1
    assert source.last_refit.relevance.share == 0
    source.relevance.take_functions(relevance)
    loaded.learn(70, reset_num_timesteps=False)
    assert source.last_refit.relevance.share == 1


def test_the_discount_of_a_td_error_is_that_of_the_model_unless_it_was_given():
    for given, expected in ((None, 0.9), (0.5, 0.5)):
        model = make(TDError(gamma=given), gamma=0.9)
        model.learn(1)
        assert model.replay_buffer.source.relevance.gamma == expected


def test_the_callback_logs_it():
    model = make("reward")
    logged: dict[str, Any] = {}

    class Keeping(SynthERCallback):
        def _on_step(self) -> bool:
            going_on = super()._on_step()
            logged.update(self.logger.name_to_value)
            return going_on

    model.learn(70, callback=Keeping(fidelity_rows=0))
    assert logged["synther/guided_share"] == 1
    assert logged["synther/relevance_chosen"] > logged["synther/relevance_real"]


def test_unknown_names_are_refused_at_the_door():
    with pytest.raises(ValueError, match="did you mean 'curiosity'"):
        make("curiosty")


def with_goals(relevance: Any) -> Any:
    env = BitFlippingEnv(n_bits=4, continuous=True, max_steps=4)
    buffer = {"generator": SMALL, "schedule": {"every": 60, "rows": 100, "start": 60}, "relevance": relevance}
    small = {"policy_kwargs": {"net_arch": [16]}, "learning_starts": 50, "batch_size": 16, "seed": 0, "device": "cpu"}
    small["buffer_size"] = 1_000
    return SAC("MultiInputPolicy", env, replay_buffer_class=SynthERHerBuffer, replay_buffer_kwargs=buffer, **small)


@pytest.mark.parametrize(("relevance", "match"), [("return", "order"), ("td_error", "goal"), ("value", "goal")])
def test_hindsight_replay_refuses_what_it_cannot_score(relevance: str, match: str):
    with pytest.raises(ValueError, match=match):
        with_goals(relevance).learn(1)


def test_a_model_with_hindsight_and_own_functions_can_be_loaded(tmp_path: Path):
    relevance = Value(lambda states: states["observation"][:, 0])
    model = with_goals(relevance)
    model.learn(70)
    assert model.replay_buffer.source.last_refit.relevance.share == 1
    model.save(tmp_path / "model")
    loaded = SAC.load(tmp_path / "model", env=model.get_env(), device="cpu")
    loaded.replay_buffer.source.relevance.take_functions(relevance)
    loaded.learn(70)
    assert loaded.replay_buffer.source.last_refit.relevance.share == 1


def test_algorithms_without_critics_are_refused():
    with pytest.raises(TypeError, match="critic"):
        ModelCritic(object())
