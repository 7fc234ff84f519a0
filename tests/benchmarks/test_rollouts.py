"""Episodes and walks, and the order in which the process pool returns them."""

from dataclasses import dataclass, field

import numpy as np
import pytest

pytest.importorskip("mujoco")
from synther_replay.benchmarks.data import rollouts
from synther_replay.benchmarks.data.behaviour import Behaviour
from synther_replay.benchmarks.data.rollouts import Episodes, RolloutPool, Walks
from synther_replay.benchmarks.data.waypoints import collect
from synther_replay.benchmarks.environments.tasks import Step, make_environment
from synther_replay.common.seeding import derive_seed

HOPPER = "Hopper-v5"
KEYS = ["observations", "actions", "rewards", "next_observations", "terminals", "timeouts"]


@pytest.fixture(scope="module")
def policy():
    found = Behaviour.read(HOPPER)
    return found.policy(found.medium)


class Line:
    """Counts steps; ends after a number of them."""

    observation_dim = action_dim = 1

    def __init__(self, terminated_at=None, truncated_at=None):
        self.ends, self.steps = (terminated_at, truncated_at), 0

    def reset(self, seed):
        self.steps = 0
        return np.zeros(1, np.float32)

    def step(self, action):
        self.steps += 1
        return Step(np.full(1, self.steps, np.float32), 1.0, *(self.steps == end for end in self.ends))


# --- episodes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "rows", "flags"),
    [
        ((3, None), 3, (True, False)),
        ((None, 3), 3, (False, True)),
        ((None, None), 5, (False, True)),
        ((5, None), 5, (True, False)),  # readers leave timeouts out
        ((3, 3), 3, (True, False)),
    ],
)
def test_how_an_episode_ends(monkeypatch, ends, rows, flags):
    monkeypatch.setattr(rollouts, "_environment", lambda task: Line(*ends))
    found = Episodes("line", None, length=5).rollout(0)
    assert list(found) == KEYS
    assert found["observations"][:, 0].tolist() == list(range(rows))
    assert found["next_observations"][:, 0].tolist() == list(range(1, rows + 1))
    assert (found["terminals"][-1], found["timeouts"][-1]) == flags
    assert not found["terminals"][:-1].any() and not found["timeouts"][:-1].any()
    assert found["terminals"].dtype == found["timeouts"].dtype == bool
    assert {len(values) for values in found.values()} == {rows}


@pytest.mark.parametrize("drawn_from", ["uniform", "policy"])
def test_an_episode_matches_the_task(policy, drawn_from):
    found = Episodes(HOPPER, policy if drawn_from == "policy" else None).rollout(3)
    environment = make_environment(HOPPER)
    seen = environment.reset(derive_seed(3, 0) % 2**31)
    for row, action in enumerate(found["actions"]):
        np.testing.assert_array_equal(found["observations"][row], seen)
        seen, reward, terminated, _ = environment.step(action)
        np.testing.assert_array_equal(found["next_observations"][row], seen)
        assert (found["rewards"][row], found["terminals"][row]) == (np.float32(reward), terminated)
    assert terminated


def test_actions_are_drawn_from_the_policy(policy):
    found = Episodes(HOPPER, policy).rollout(3)
    noise = np.random.default_rng(derive_seed(3, 1)).standard_normal((1_000, 3), np.float32)
    for row, action in enumerate(found["actions"]):
        np.testing.assert_array_equal(action, policy.sampled_action(found["observations"][row], noise[row]))


def test_uniform_actions_fill_their_range():
    source = Episodes(HOPPER, None)
    actions = np.concatenate([source.rollout(seed)["actions"] for seed in range(40)])
    assert len(actions) > 500
    assert np.abs(actions).max() <= 1
    np.testing.assert_allclose(actions.mean(0), 0, atol=0.1)
    np.testing.assert_allclose(actions.std(0), 1 / np.sqrt(3), atol=0.05)


def test_an_episode_depends_on_its_seed_alone(policy):
    source = Episodes(HOPPER, policy)
    first, other, again = (source.rollout(seed) for seed in (5, 6, 5))
    assert all(np.array_equal(first[key], again[key]) for key in KEYS)
    assert not np.array_equal(first["observations"][0], other["observations"][0])


def test_a_walk_ends_with_a_timeout():
    found = Walks("umaze", length=50).rollout(4)
    expected = collect("umaze", 50, 4)
    expected["timeouts"][-1] = True
    assert found.keys() == expected.keys() == set(KEYS)
    assert all(np.array_equal(found[key], expected[key]) for key in KEYS)


# --- order ------------------------------------------------------------------------------------------------------------


@dataclass
class Counting:
    """Rollouts whose length depends on the seed; the reward is the seed."""

    lengths: list
    length: int = 100
    collected: list = field(default_factory=list)

    def rollout(self, seed):
        self.collected.append(seed)
        return {"rewards": np.full(self.lengths[seed % len(self.lengths)], seed)}


@pytest.mark.parametrize("lengths", [[100], [1], [100, 1, 30], [7]])
@pytest.mark.parametrize("rows", [1, 99, 100, 101, 1_000])
def test_rollouts_come_in_order_until_there_are_enough_rows(lengths, rows):
    source = Counting(lengths)
    with RolloutPool(1) as pool:
        rollouts = list(pool.rollouts(source, lambda number: 10 + number, rows))
    assert [rollout["rewards"][0] for rollout in rollouts] == list(range(10, 10 + len(rollouts)))
    sizes = [len(rollout["rewards"]) for rollout in rollouts]
    assert sum(sizes[:-1]) < rows <= sum(sizes)


def test_no_rollouts_are_wasted():
    source = Counting([1_000], length=1_000)
    with RolloutPool(1) as pool:
        rollouts = list(pool.rollouts(source, int, 20_500))
    assert len(rollouts) == len(source.collected) == 21


def test_processes_give_the_same_rollouts():
    source = Episodes("Pendulum-v1", None)
    with RolloutPool(1) as one, RolloutPool(2) as two:
        here, there = (list(pool.rollouts(source, int, 2_100)) for pool in (one, two))
    assert len(here) == len(there) == 11
    for one_piece, other in zip(here, there, strict=True):
        assert all(np.array_equal(one_piece[key], other[key]) for key in KEYS)


def test_an_error_in_a_worker_is_raised():
    with RolloutPool(2) as pool, pytest.raises(ValueError, match="size: expected one of umaze"):
        next(pool.rollouts(Walks("tiny"), int, 1))
