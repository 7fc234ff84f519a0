"""Names of the columns of a row."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from synther_replay import TransitionSpec
from synther_replay.data.columns import column_names

PLAIN = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (1,)))


def test_columns_of_plain_spaces_have_indices() -> None:
    observations = "observation[0]", "observation[1]"
    assert column_names(PLAIN) == (
        *observations,
        "action[0]",
        "reward",
        *(f"next_{name}" for name in observations),
        "terminated",
    )


def test_columns_of_nested_spaces_have_keys_and_array_indices() -> None:
    camera = gym.spaces.Box(0, 255, (1, 2, 2), np.uint8)
    observation = gym.spaces.Dict(camera=camera, level=gym.spaces.Discrete(3))
    action = gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.MultiDiscrete([2, 3])])
    spec = TransitionSpec.from_spaces(observation, action)
    names = column_names(spec)
    assert len(names) == spec.dim
    assert names[spec.observations][2:] == (
        "observation['camera'][0, 1, 0]",
        "observation['camera'][0, 1, 1]",
        "observation['level']",
    )
    assert names[spec.actions] == ("action[0]", "action[1][0]", "action[1][1]")
    assert names[spec.next_observations][-1] == "next_observation['level']"


def test_own_names_are_those_of_the_observation_or_of_all_columns() -> None:
    own = column_names(PLAIN, ["angle", "speed"])
    assert own == ("angle", "speed", "action[0]", "reward", "next angle", "next speed", "terminated")
    assert column_names(PLAIN, list("abcdefg")) == tuple("abcdefg")
    with pytest.raises(ValueError, match=r"names: expected 2 .* or 7 .*, got 3"):
        column_names(PLAIN, ["a", "b", "c"])
