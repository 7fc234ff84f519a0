"""Errors in the dynamics against the distance to the data."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

pytest.importorskip("mujoco")
from synther_replay import Transitions, TransitionSpec
from synther_replay.benchmarks.environments.simulators import make_simulator
from synther_replay.benchmarks.fidelity.dynamics import EDGES, DistanceToData, dynamics_report, with_noise

UMAZE = make_simulator("maze2d-umaze")
SPEC = TransitionSpec.from_spaces(Box(-np.inf, np.inf, (4,)), Box(-1, 1, (2,)))


@pytest.fixture(scope="module")
def real() -> Transitions:
    """Transitions of the small maze from anywhere in its last corridor."""
    rng = np.random.default_rng(0)
    low, high = [2.7, 1.0, -2.0, -2.0], [3.0, 3.0, 2.0, 2.0]
    observations = rng.uniform(low, high, (400, 4)).astype(np.float32)
    actions = rng.uniform(-1, 1, (400, 2)).astype(np.float32)
    following, rewards = UMAZE(observations, actions)
    return Transitions.from_arrays(SPEC, observations, actions, rewards, following, np.zeros(400, bool))


def test_noise_is_the_same_on_both_observations_and_on_nothing_else(real):
    noisy = with_noise(real, 0)
    added = noisy.observations - real.observations
    in_deviations = added / real.observations.std(0)
    assert in_deviations.std(0).numpy() == pytest.approx(0.1, rel=0.15)  # of every column, however large its values
    assert in_deviations.mean(0).numpy() == pytest.approx(0, abs=0.02)
    torch.testing.assert_close(noisy.next_observations - real.next_observations, added, atol=1e-5, rtol=0)
    for name in ("actions", "rewards", "terminated"):
        assert torch.equal(getattr(noisy, name), getattr(real, name))
    assert torch.equal(noisy.rows, with_noise(real, 0).rows)
    assert not torch.equal(noisy.rows, with_noise(real, 1).rows)


def test_distance_is_in_standard_deviations_of_what_varies(real):
    distance = DistanceToData(real)
    assert not distance(real).any()
    moved = real.rows.clone()
    moved[:, SPEC.rewards], moved[:, SPEC.next_observations] = 7.0, 7.0  # which do not count
    assert not distance(Transitions(SPEC, moved)).any()
    moved[:, 2] += 1_000 * real.rows[:, 2].std()
    assert distance(Transitions(SPEC, moved)).numpy() == pytest.approx(1_000, rel=0.01)

    constant = real.rows.clone()
    constant[:, 3] = 5.0
    beside = constant.clone()
    beside[:, 3] = 6.0
    assert not DistanceToData(Transitions(SPEC, constant))(Transitions(SPEC, beside)).any()


def test_real_rows_are_right_and_near_and_those_with_noise_are_neither():
    simulator = make_simulator("HalfCheetah-v5")
    spec = TransitionSpec.from_spaces(Box(-np.inf, np.inf, (17,)), Box(-1, 1, (6,)))
    rng = np.random.default_rng(0)
    observation, rows = np.zeros((1, 17), np.float32), []
    for _ in range(250):
        action = rng.uniform(-1, 1, (1, 6)).astype(np.float32)
        following, reward = simulator(observation, action)
        rows.append((observation[0], action[0], reward[0], following[0], False))
        observation = following.astype(np.float32)
    real = Transitions.from_arrays(spec, *(np.array(column) for column in zip(*rows, strict=True)))

    distance = DistanceToData(real)
    truth, noisy = (dynamics_report(rows, distance, simulator, 200) for rows in (real, with_noise(real, 0)))
    for report in (truth, noisy):
        assert (report["asked"], report["clipped"], report["answered"]) == (200, 0, 200)
        assert sum(part["rows"] for part in report["bins"]) == 200
        for part in report["bins"]:
            assert part["from"] <= part["distance"]["p10"] <= part["distance"]["p90"] < part["to"]
    assert truth["distance"] == {"mean": 0, "p10": 0, "median": 0, "p90": 0}
    assert [(part["from"], part["to"]) for part in truth["bins"]] == [(0, EDGES[1])]
    assert truth["next_observation_mse"]["mean"] < 1e-10
    assert truth["reward_mse"]["mean"] < 1e-10
    assert noisy["distance"]["p10"] > 0
    assert noisy["next_observation_mse"]["median"] > 0.1


def test_a_row_far_away_falls_in_the_last_interval(real):
    rows = real.rows[:5].clone()
    rows[:, 2] += 1e6
    (part,) = dynamics_report(Transitions(SPEC, rows), DistanceToData(real), UMAZE, 5)["bins"]
    assert (part["rows"], part["to"]) == (5, None)


def test_rows_without_a_state_or_an_answer_are_counted(real):
    class Blind:
        name, observation_dim, action_dim = "blind", 4, 2

        def restorable(self, observations):
            return observations[:, 0] > 2.8

        def __call__(self, observations, actions):
            following, rewards = np.zeros(observations.shape), np.zeros(len(observations))
            following[observations[:, 0] > 2.9] = np.nan
            return following, rewards

    rows = real.rows[:40].clone()
    rows[:, 0] = torch.linspace(2.705, 2.995, 40)
    rows[7, 3] = torch.nan
    report = dynamics_report(Transitions(SPEC, rows), DistanceToData(real), Blind(), 1_000)
    assert report["asked"] == 40
    assert report["clipped"] == int((rows[:, 0] <= 2.8).sum()) - 1  # without the one that is not finite
    assert report["answered"] == int(((rows[:, 0] > 2.8) & (rows[:, 0] <= 2.9)).sum())

    rows[:, 0] = 2.95  # all have a state, and none an answer
    report = dynamics_report(Transitions(SPEC, rows), DistanceToData(real), Blind(), 1_000)
    assert report == {"asked": 40, "clipped": 0, "answered": 0, "bins": []}
    rows[:, 0] = 2.75
    report = dynamics_report(Transitions(SPEC, rows), DistanceToData(real), Blind(), 1_000)
    assert report == {"asked": 40, "clipped": 39, "answered": 0, "bins": []}
