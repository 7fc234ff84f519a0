"""What differs between two specs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from synther_replay import TransitionSpec
from synther_replay.data.mismatch import differing, mismatch

BOX, SWITCH = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
OWN = TransitionSpec.from_spaces(BOX, SWITCH)


@pytest.mark.parametrize(
    ("other", "got", "expected"),
    [
        ((gym.spaces.Box(-1, 1, (3,)), SWITCH), "observations: shape (3,)", "observations: shape (2,)"),
        ((BOX, gym.spaces.Discrete(3)), "actions: 0.0 to 2.0", "actions: 0.0 to 1.0"),
        (
            (gym.spaces.Box(np.float32([-1, -2]), np.float32([1, 1])), SWITCH),
            "observations: -2.0 to 1.0 in column 1",
            "observations: -1.0 to 1.0 in column 1",
        ),
        (
            (gym.spaces.Box(-1, 1, (2,), np.float64), SWITCH),
            "observations: float64",
            "observations: float32",
        ),
        (
            (gym.spaces.Dict(a=BOX, b=BOX), SWITCH),
            "observations['a']: shape (2,); observations['b']: shape (2,); observations: none",
            "observations['a']: none; observations['b']: none; observations: shape (2,)",
        ),
    ],
)
def test_only_what_differs_is_told(other: tuple[Any, Any], got: str, expected: str):
    spec = TransitionSpec.from_spaces(*other)
    assert differing(spec, OWN) == differing(spec.to_json(), OWN) == (got, expected)


def test_a_long_list_is_cut():
    many = TransitionSpec.from_spaces(gym.spaces.Dict({f"part {k}": BOX for k in range(50)}), SWITCH)
    got, expected = differing(many, OWN)
    assert got.endswith("; and 47 more") and expected.endswith("; and 47 more")


def test_types_and_bounds_may_be_left_out():
    wide = TransitionSpec.from_spaces(gym.spaces.Box(-9, 9, (2,), np.float64), gym.spaces.Discrete(3), extra={"x": BOX})
    assert differing(wide, OWN, bounds=False) == ("x: shape (2,)", "x: none")


@pytest.mark.parametrize("forged", [None, {}, {"observation_space": 3, "action_space": []}])
def test_what_is_no_spec_is_told_as_it_is(forged: Any):
    assert f"got spec ({forged})" in mismatch(forged, OWN)


def test_specs_that_differ_in_order_alone_are_told_whole():
    spaces = {"a": BOX, "b": SWITCH}
    one, other = (
        TransitionSpec.from_spaces(gym.spaces.Dict([(key, spaces[key]) for key in keys]), SWITCH)
        for keys in ("ab", "ba")
    )
    assert one != other
    assert differing(one, other) == (str(one.to_json()), str(other.to_json()))
