"""Simulators of tasks against rows of the same tasks."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from synther_replay.simulators import make_simulator

CLASSIC = ("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
# HalfCheetah, Hopper and Walker2d are among the tests of the benchmarks, which use them, too.
MUJOCO = ("Ant-v4", "Ant-v5", "Humanoid-v5", "InvertedPendulum-v5", "Swimmer-v5")


def rollout(name: str, count: int) -> list[np.ndarray]:
    """Observations, actions, next observations and rewards of random actions."""
    env = gym.make(name)
    env.action_space.seed(0)
    rows, (observation, _) = [], env.reset(seed=0)
    for _ in range(count):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append((observation, np.atleast_1d(action), after, reward))
        observation = env.reset()[0] if terminated or truncated else after
    return [np.array(column, np.float32) for column in zip(*rows, strict=True)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of v4
@pytest.mark.parametrize("name", [*CLASSIC, *MUJOCO])
def test_a_simulator_agrees_with_rows_of_its_task(name: str) -> None:
    if name in MUJOCO:
        pytest.importorskip("mujoco")
    observations, actions, following, rewards = rollout(name, 100)
    simulator = make_simulator(name)
    assert (simulator.observation_dim, simulator.action_dim) == (observations.shape[1], actions.shape[1])
    assert simulator.restorable(observations).all()
    answer, reward = simulator(observations, actions)
    assert ((answer - following) ** 2).mean(axis=1).max() < 1e-6
    assert np.median(np.abs(reward - rewards)) < 0.01  # Ant reads its place before a step one substep late


def test_a_task_without_simulator_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(ValueError, match="HalfCheetah"):
        make_simulator("Reacher-v5")


def test_a_simulator_neither_prints_nor_writes_where_it_diverges(tmp_path, monkeypatch, capfd) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    simulator = make_simulator("HalfCheetah-v5")
    following, rewards = simulator(np.full((1, 17), 1e12, np.float32), np.zeros((1, 6), np.float32))
    assert np.isnan(following).all() and np.isnan(rewards).all()
    assert (*capfd.readouterr(), *tmp_path.iterdir()) == ("", "")
