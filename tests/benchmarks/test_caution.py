"""What values promise beyond the returns that followed is measured, and caution follows it."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay import TransitionSpec
from synther_replay.benchmarks.agents.networks.mlp import Layers
from synther_replay.benchmarks.agents.replay import StackedReplay
from synther_replay.benchmarks.agents.sac import Hyperparameters, StackedSAC
from synther_replay.benchmarks.online.caution import adjust_caution
from synther_replay.benchmarks.online.overestimation import excess, values_and_excess

GAMMA, LENGTH, LARGEST = 0.9, 40, 0.8
SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-1, 1, (1,)))


def episodes(*endings, rewards):
    """`terminated` and `goes_on` of one agent with as many rows as rewards; `endings` maps a last row to its kind."""
    terminated, goes_on = np.zeros(len(rewards)), np.ones(len(rewards) - 1)
    for row, kind in endings:
        terminated[row] = kind == "terminated"
        goes_on[row : row + 1] = 0
    return np.array([rewards]), terminated[None], goes_on[None]


def true_values(rewards, terminated, goes_on, bonus, rest):
    """Values by their definition, where what comes after a cut is worth `rest`."""
    n = rewards.shape[1]
    values = np.zeros((1, n))
    for first in range(n):
        factor = 1.0
        for t in range(first, n):
            values[0, first] += factor * rewards[0, t]
            if terminated[0, t]:
                break
            factor *= GAMMA
            if t == n - 1 or not goes_on[0, t]:
                values[0, first] += factor * (bonus + rest)
                break
            values[0, first] += factor * bonus
    return values


ENDINGS = [[], [(5, "terminated")], [(5, "cut")], [(3, "cut"), (12, "terminated"), (19, "terminated")], [(0, "cut")]]


@pytest.mark.parametrize("bonus", [0.0, -0.3])
@pytest.mark.parametrize("endings", ENDINGS)
def test_right_values_are_not_too_high_and_a_constant_error_is_found(endings, bonus):
    rewards = np.random.default_rng(0).normal(1, 0.5, 20)
    rows = episodes(*endings, rewards=rewards)
    values = true_values(*rows, bonus, rest=4.0)
    for error in (0.0, 3.0, -3.0):
        assert excess(values + error, *rows, np.array([bonus]), GAMMA) == pytest.approx(error, abs=1e-12)


def test_agents_do_not_mix():
    rewards = np.stack([np.ones(LENGTH), -np.ones(LENGTH)])
    rows = rewards, np.zeros((2, LENGTH)), np.ones((2, LENGTH - 1))
    assert excess(np.full((2, LENGTH), 10.0), *rows, np.zeros(2), GAMMA) == pytest.approx([0.0, 20.0])


def learner(rewards, *, max_caution=LARGEST, **changes):
    """Agents that have seen one episode that goes on, with these rewards."""
    replay = StackedReplay(SPEC, len(rewards), capacity=LENGTH, device=torch.device("cpu"))
    rows = torch.randn(len(rewards), LENGTH, SPEC.dim, generator=torch.Generator().manual_seed(0))
    rows[:, 1:, SPEC.observations] = rows[:, :-1, SPEC.next_observations]
    rows[..., SPEC.terminated] = 0
    rows[..., SPEC.rewards.start] = torch.tensor(rewards).unsqueeze(1)
    replay.load_state_dict({"real": rows, "synthetic": None})
    settings = Hyperparameters(hidden=16, batch_size=8, temperature=1e-6, max_caution=max_caution, **changes)
    return StackedSAC(replay, -1.0, settings)


def set_values(agents, value):
    """Let all critics of all agents give this value."""
    agents.critic.parameters.zero_()
    Layers.of(agents.critic.parameters, agents.critic_shape)["b3"].fill_(value)


def test_values_of_the_latest_rows_are_compared():
    agents = learner([1.0, -2.0])
    set_values(agents, 50.0)
    values, found = values_and_excess(agents)
    assert values.shape == (2, 32)  # four batches of the rows
    assert values.unique().tolist() == [50.0]
    assert found.tolist() == pytest.approx([-50.0, 250.0], rel=1e-3)


def test_caution_comes_where_values_promise_too_much_and_goes_where_not():
    agents = learner([1.0, 5.0, float("nan")])
    set_values(agents, 300.0)  # the first rewards are worth 100, the second 500
    seen = []
    for _ in range(6):
        adjust_caution(agents)
        seen.append(agents.critics.caution.tolist())
    assert [first for first, _, _ in seen] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert {rest for _, *own in seen for rest in own} == {0.0}
    set_values(agents, 90.0)
    for _ in range(4):
        adjust_caution(agents)
    assert agents.critics.caution.tolist() == pytest.approx([0.64, 0, 0])


def test_caution_is_part_of_the_state():
    agents = learner([0.0])
    set_values(agents, 50.0)
    adjust_caution(agents)
    other = learner([0.0])
    other.load_state_dict(agents.state_dict())
    assert other.critics.caution.tolist() == agents.critics.caution.tolist() != [0.0]
    assert "caution" not in learner([0.0], max_caution=0.0).state_dict()  # as before there was caution


@pytest.mark.parametrize("value", [-0.1, float("inf"), True, "a"])
def test_the_largest_caution_is_checked(value):
    with pytest.raises(ValueError, match="max_caution"):
        Hyperparameters(max_caution=value)
