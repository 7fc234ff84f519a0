"""Simulators against rows of the same environments."""

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("mujoco")
from synther_replay.benchmarks.data.waypoints import collect
from synther_replay.benchmarks.environments.simulators import SIMULATORS, make_simulator, simulator_of

NAMES = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Walker2d-v4", "maze2d-umaze")


def rollout(name: str, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Observations, actions, next observations and rewards of random actions, as in a data set."""
    if name.startswith("maze2d-"):
        data = collect(name.removeprefix("maze2d-"), count, seed=0)
        return tuple(data[key] for key in ("observations", "actions", "next_observations", "rewards"))
    env = gym.make(name)
    rng = np.random.default_rng(0)
    rows = []
    observation, _ = env.reset(seed=0)
    for _ in range(count):
        action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append((observation, action, after, reward))
        # short episodes: a fallen robot has clipped velocities
        observation = env.reset()[0] if terminated or truncated or len(rows) % 40 == 0 else after
    return tuple(np.array(column, np.float32) for column in zip(*rows, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of v4
@pytest.mark.parametrize("name", NAMES)
def test_a_simulator_agrees_with_its_own_rows(name):
    observations, actions, following, rewards = rollout(name, 200)
    simulator = make_simulator(name)
    assert (simulator.observation_dim, simulator.action_dim) == (observations.shape[1], actions.shape[1])
    whole = simulator.restorable(observations)
    assert whole.sum() > 40
    answer, reward = simulator(observations[whole], actions[whole])
    assert ((answer - following[whole]) ** 2).mean(axis=1).max() < 1e-8
    np.testing.assert_allclose(reward, rewards[whole], atol=1e-4)


def test_maze_reward_depends_on_the_observation_as_in_d4rl_data():
    data = collect("umaze", 3_000, seed=0)
    assert 0 < data["rewards"].sum() < 3_000
    following, rewards = make_simulator("maze2d-umaze")(data["observations"], data["actions"])
    np.testing.assert_array_equal(rewards, data["rewards"])
    np.testing.assert_allclose(following, data["next_observations"], atol=1e-4)


@pytest.mark.parametrize("name", NAMES[:1] + NAMES[-1:])
def test_steps_are_independent_of_previous_rows(name):
    observations, actions, *_ = rollout(name, 20)
    simulator = make_simulator(name)
    forth, back = simulator(observations, actions), simulator(observations[::-1], actions[::-1])
    for one, other in zip(forth, back, strict=True):
        np.testing.assert_array_equal(one, other[::-1])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Hopper-v5", [True, False, False]), ("Walker2d-v4", [True, False, False]), ("HalfCheetah-v5", [True] * 3)],
)
def test_clipped_velocities_are_not_restorable(name, expected):
    simulator = make_simulator(name)
    observations = np.zeros((3, simulator.observation_dim), np.float32)
    observations[:, 0] = 11.0  # positions have no bound
    observations[:, -1] = 9.4, 10.0, -9.6
    assert simulator.restorable(observations).tolist() == expected


def test_a_diverged_simulation_gives_nan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes a log
    simulator = make_simulator("HalfCheetah-v5")
    observations, actions = np.zeros((2, 17), np.float32), np.zeros((2, 6), np.float32)
    observations[0, 8:] = 1e9
    following, rewards = simulator(observations, actions)
    assert np.isnan(following[0]).all()
    assert np.isnan(rewards[0])
    assert np.isfinite(following[1]).all()


@pytest.mark.parametrize(
    ("dataset", "official", "name"),
    [
        ("halfcheetah-medium-replay-regen", False, "HalfCheetah-v5"),
        ("walker2d-medium-v2", True, "Walker2d-v4"),
        ("mujoco/hopper/medium-v0", False, "Hopper-v5"),
        ("maze2d-large-v1", True, "maze2d-large"),
        ("antmaze-medium-play-regen", False, "antmaze-medium"),
        ("antmaze-umaze-v2", True, "antmaze-umaze"),
        ("kitchen-complete-v0", True, None),
    ],
)
def test_simulator_of_a_data_set(dataset, official, name):
    assert simulator_of(dataset, official=official) == name
    assert name is None or name in SIMULATORS


def test_an_unknown_simulator_is_refused():
    with pytest.raises(ValueError, match=r"simulator: expected one of HalfCheetah-v4, .*, got 'Swimmer-v5'"):
        make_simulator("Swimmer-v5")
