"""Stable-Baselines3's SAC as a check on our learner."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")
from stable_baselines3 import SAC

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import online_sb3
from tasks import Task

from synther_replay import GeneratorConfig, RetrainSchedule


def test_the_policy_is_the_actor():
    model = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [16, 16]}, seed=0)
    policy = online_sb3.policy_of(model)
    for observation in np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32):
        expected = model.predict(observation, deterministic=True)[0] / 2  # actions of Pendulum go from -2 to 2
        np.testing.assert_allclose(policy.mean_action(observation), expected, rtol=1e-5, atol=1e-6)


def test_a_run_is_evaluated_every_so_many_steps():
    task = Task.named("Pendulum-v1")
    returns = online_sb3.run(task, 0, steps=60, every=20, episodes=1, random_steps=50)
    assert list(returns) == [20, 40, 60]
    assert returns[20] == returns[40] != returns[60]  # nothing is learnt before the random steps are over
    assert json.dumps(returns)


def test_an_actor_that_learns_by_the_mean_of_critics(monkeypatch):
    asked = []
    genuine = online_sb3._mean_for_the_actor

    def hook(critic, inputs, values):
        said = genuine(critic, inputs, values)
        asked.append((inputs[1].requires_grad, torch.equal(*said), torch.equal(*values)))
        if inputs[1].requires_grad:
            torch.testing.assert_close(said[0], (values[0] + values[1]) / 2)
        return said

    monkeypatch.setattr(online_sb3, "_mean_for_the_actor", hook)
    task = Task.named("Pendulum-v1")
    online_sb3.run(task, 0, steps=53, every=53, episodes=1, random_steps=50, policy_by="mean")
    assert asked  # for the critics' own loss as they are, for the actor's the same from both
    assert {call for call in asked if call[0]} == {(True, True, False)}
    assert {call for call in asked if not call[0]} == {(False, False, False)}


def test_weights_drawn_as_in_the_redq_code_base():
    model = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [64, 64]}, seed=0)
    online_sb3._begin_as_redq(model)
    hidden = model.actor.latent_pi[2]
    bound = (6 / 128) ** 0.5
    assert 0.95 * bound < hidden.weight.abs().max() <= bound
    assert hidden.bias.count_nonzero() == 0
    for one, other in zip(model.critic.parameters(), model.critic_target.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("algo", "learner", "updates"), [("sac", "SAC", 5), ("sac20", "FastSAC", 100)])
def test_an_algorithm_is_what_its_name_says(algo, learner, updates, monkeypatch):
    made = []
    build, options = online_sb3.ALGORITHMS[algo]

    def building(*arguments, **settings):
        made.append(build(*arguments, **settings))
        return made[-1]

    monkeypatch.setitem(online_sb3.ALGORITHMS, algo, (building, options))
    online_sb3.run(Task.named("Pendulum-v1"), 0, steps=55, every=55, episodes=1, random_steps=50, algo=algo)
    assert type(made[0]).__name__ == learner
    assert made[0]._n_updates == updates


def test_synther_has_synthetic_rows_in_its_batches(monkeypatch):
    made = []
    quick = {"generator": GeneratorConfig.tiny(steps=10, width=16, depth=1), "schedule": RetrainSchedule(40, 64, 40)}
    build, options = online_sb3.ALGORITHMS["synther"]

    def building(*arguments, **settings):
        made.append(build(*arguments, replay_buffer_kwargs=quick, **settings))
        return made[-1]

    monkeypatch.setitem(online_sb3.ALGORITHMS, "synther", (building, options))
    returns = online_sb3.run(
        Task.named("Pendulum-v1"), 0, steps=52, every=26, episodes=1, random_steps=50, algo="synther"
    )
    assert list(returns) == [26, 52]
    assert len(made[0].replay_buffer.source.store) == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "Pendulun-v1"], "env: there is no task 'Pendulun-v1', near are Pendulum-v1"),
        (["--env", "Pendulum-v1", "--seeds", "0"], "seeds: "),
        (["--env", "Pendulum-v1", "--workers", "0"], "workers: "),
        (["--env", "Pendulum-v1", "--algo", "ppo"], "--algo: invalid choice"),
        (["--env", "Pendulum-v1", "--algo", "synther", "--init", "xavier"], "algo: only sac takes"),
        (["--env", "Pendulum-v1", "--device", "gpu"], "device: "),
    ],
)
def test_what_cannot_work_is_refused_at_the_door(arguments, message, refusal):
    assert message in refusal(*arguments)


@pytest.mark.parametrize(("env", "needs"), [("cheetah-run", "dm_control"), ("maze2d-umaze", "mujoco")])
def test_a_task_that_is_not_gymnasiums_is_refused(env, needs, refusal):
    pytest.importorskip(needs)
    assert "env: expected a task of Gymnasium" in refusal("--env", env)


@pytest.fixture
def refusal(call_main, monkeypatch):
    """What the program says to arguments that it does not take."""
    monkeypatch.setattr(online_sb3, "ProcessPoolExecutor", lambda *_, **__: pytest.fail("it ran"))

    def refuse(*arguments):
        status, _, errors = call_main(online_sb3.main, "online_sb3.py", *arguments)
        assert status == 2
        return errors

    return refuse
