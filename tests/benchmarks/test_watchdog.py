"""The watchdog of the critics reports values that no policy can have, and only those."""

import math

import pytest
import torch

from synther_replay.benchmarks.agents.value_range import value_range
from synther_replay.benchmarks.online.watchdog import advice, advice_overestimating, out_of_range, overestimating


def test_the_range_is_that_of_the_best_and_worst_reward_for_ever():
    rewards = torch.tensor([0.0, -3.0]), torch.tensor([1.0, -1.0])
    temperature, entropy = torch.tensor([0.0, 0.1]), torch.tensor([-5.0, -4.0])
    least, most = value_range(rewards, temperature, entropy, 3, 0.99)
    assert least.tolist() == pytest.approx([0.0, -340.0], rel=1e-4)
    assert most.tolist() == pytest.approx([100.0, 100 * 0.1 * 3 * math.log(2)], rel=1e-4)


def estimates(**changes):
    return {"lowest": [0.0], "highest": [99.0], "least": [0.0], "most": [100.0], **changes}


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({}, False),
        ({"highest": [109.0]}, False),
        ({"highest": [111.0]}, True),
        ({"lowest": [-9.0]}, False),
        ({"lowest": [-11.0]}, True),
        ({"highest": [math.nan]}, True),
        ({"highest": [math.inf]}, True),
    ],
)
def test_a_tenth_beyond_the_range_is_divergence(changes, left):
    assert out_of_range(estimates(**changes)) == ([0] if left else [])


@pytest.mark.parametrize(
    ("changes", "is_far"),
    [
        ({}, False),
        ({"excess": [24.0]}, False),
        ({"excess": [26.0]}, True),
        ({"excess": [26.0], "highest": [111.0]}, False),  # reported as out of range
        ({"excess": [-110.0]}, False),
        ({"excess": [math.nan]}, False),
    ],
)
def test_values_far_above_what_followed_are_overestimated(changes, is_far):
    assert overestimating(estimates(**{"excess": [0.0], **changes})) == ([0] if is_far else [])


def test_estimates_of_older_runs_have_no_range():
    assert out_of_range({"value": [1.0], "reward": [0.0]}) == []
    assert overestimating(estimates()) == []


def test_advice_names_the_seeds_and_another_critic():
    for words in (advice, advice_overestimating):
        assert "200, 203" in words([200, 203], "plain")
        assert "--critic steady," in words([200], "plain")
        assert "--critic cautious," in words([200], "four")
        assert "--critic" not in words([200], "cautious")
