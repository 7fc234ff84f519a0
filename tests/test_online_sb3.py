"""Stable-Baselines3's SAC as a check on our learner."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
from stable_baselines3 import SAC

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import online_sb3
from tasks import Task


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
