"""Which real rows a model can learn from."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from synther_replay.data.cleaning import clean
from synther_replay.data.columns import column_names
from synther_replay.data.transitions import Transitions, TransitionSpec

SPEC = TransitionSpec.from_spaces(
    spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3), c=spaces.Box(-1, 1, (1,), np.float16)),
    spaces.Box(-0.5, 2, (2,)),
)
OBSERVATION, ACTION, REWARD, FOLLOWING, TERMINATED = 0, 4, 6, 7, 11


def rows(n=10):
    values = torch.zeros(n, SPEC.dim)
    values[:, REWARD] = torch.arange(n)
    return values


def names(faults):
    return [name for name, _, _ in faults.columns]


def test_valid_rows_are_returned_as_they_are():
    real = Transitions(SPEC, rows())
    cleaned = clean(real)
    assert cleaned.transitions is real
    assert (cleaned.invalid.rows, cleaned.outside.rows) == (0, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("column", "name"),
    [
        (OBSERVATION + 1, "observation['a'][1]"),
        (OBSERVATION + 2, "observation['b']"),
        (ACTION + 1, "action[1]"),
        (REWARD, "reward"),
        (FOLLOWING, "next_observation['a'][0]"),
        (TERMINATED, "terminated"),
    ],
)
def test_rows_that_are_not_finite_are_left_out_and_named(column, name, bad):
    values = rows()
    values[[3, 7], column] = bad
    before = values.clone()
    cleaned = clean(Transitions(SPEC, values))
    assert torch.equal(cleaned.transitions.rows, before[[0, 1, 2, 4, 5, 6, 8, 9]])
    assert cleaned.invalid.rows == 2
    assert cleaned.invalid.columns == ((name, 2, 3),)
    assert cleaned.outside.rows == 0
    torch.testing.assert_close(values, before, rtol=0, atol=0, equal_nan=True)
    cleaned.transitions.check()


@pytest.mark.parametrize(
    ("column", "bad"), [(OBSERVATION + 2, 3), (OBSERVATION + 2, 0.5), (OBSERVATION + 3, 1e5), (TERMINATED, 0.5)]
)
def test_values_that_their_space_cannot_hold_are_left_out(column, bad):
    values = rows()
    values[4, column] = bad
    cleaned = clean(Transitions(SPEC, values))
    assert cleaned.invalid.columns == ((column_names(SPEC)[column], 1, 4),)
    cleaned.transitions.check()


def test_observations_beyond_their_bounds_are_kept():
    values = rows()
    values[:, OBSERVATION] = 7.0
    assert len(clean(Transitions(SPEC, values)).transitions) == 10


def test_actions_beyond_their_bounds_are_clipped_and_named():
    values = rows()
    values[2, ACTION], values[5, ACTION] = -3.0, 1e30
    values[6, ACTION + 1] = 2 + 1e-6  # a rounding error
    before = values.clone()
    cleaned = clean(Transitions(SPEC, values))
    assert torch.equal(values, before)
    assert cleaned.transitions.rows[:, ACTION].tolist() == [0, 0, -0.5, 0, 0, 2, 0, 0, 0, 0]
    assert (cleaned.outside.rows, cleaned.outside.columns) == (2, (("action[0]", 2, 2),))
    assert cleaned.invalid.rows == 0


def test_a_row_with_two_faults_counts_once():
    values = rows()
    values[1, REWARD] = values[1, ACTION] = np.nan
    values[1, ACTION + 1] = 9.0
    cleaned = clean(Transitions(SPEC, values))
    assert (cleaned.invalid.rows, names(cleaned.invalid)) == (1, ["action[0]", "reward"])
    assert cleaned.outside.rows == 0, "a row that is left out needs no clipping"


def test_row_numbers_count_on_over_blocks(monkeypatch):
    monkeypatch.setattr("synther_replay.data.cleaning._ROWS_AT_ONCE", 4)
    values = rows()
    values[[5, 6, 9], REWARD] = np.nan
    values[8, ACTION] = 5.0
    cleaned = clean(Transitions(SPEC, values))
    assert cleaned.invalid.columns == (("reward", 3, 5),)
    assert cleaned.outside.columns == (("action[0]", 1, 8),)
    assert cleaned.transitions.rewards.tolist() == [0, 1, 2, 3, 4, 7, 8]


def test_a_description_names_few_columns():
    values = rows()
    values[0] = np.nan
    text = str(clean(Transitions(SPEC, values)).invalid)
    assert "observation['a'][0]" in text
    assert "8 more" in text


def test_no_valid_row_leaves_none():
    assert len(clean(Transitions(SPEC, rows() * np.nan)).transitions) == 0
