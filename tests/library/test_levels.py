"""Levels: which columns have them, and which is the nearest."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from synther_replay.data.levels import MAX_LEVELS, ROWS_PER_LEVEL, find_levels, nearest_level


def known(levels: Tensor) -> list[list[list[float]]]:
    """Levels without their padding, per model and column."""
    return [[column[~column.isnan()].tolist() for column in model.T] for model in levels]


def padded(*models: list[float]) -> Tensor:
    return torch.tensor([[*levels, *[math.nan] * (MAX_LEVELS - len(levels))] for levels in models])


def column_of(values: int, n: int) -> Tensor:
    """Rows ``(1, n, 1)`` with that many distinct values."""
    return (torch.arange(n) % values).float()[None, :, None]


def test_few_values_are_levels_and_many_are_not() -> None:
    rows = torch.randn(1, 1_000, 4, generator=torch.Generator().manual_seed(0))
    rows[..., 1] = rows[..., 1].sign()
    rows[..., 3] = 7.5
    levels = find_levels(rows, torch.tensor([0, 1, 3]))
    assert levels.shape == (1, MAX_LEVELS, 3)
    assert known(levels) == [[[], [-1.0, 1.0], [7.5]]]


@pytest.mark.parametrize(
    ("values", "n", "found"),
    [
        (MAX_LEVELS, 5_000, True),
        (MAX_LEVELS + 1, 5_000, False),
        (5, 5 * ROWS_PER_LEVEL, True),
        (5, 5 * ROWS_PER_LEVEL - 1, False),
        (1, 3, True),
        (2, 3, False),
    ],
)
def test_levels_are_few_and_have_ten_rows_each(values: int, n: int, found: bool) -> None:
    levels = find_levels(column_of(values, n), torch.tensor([0]))
    assert known(levels) == [[[float(k) for k in range(values)] if found else []]]


def test_a_continuous_column_with_few_rows_has_no_levels() -> None:
    rows = torch.rand(1, 32, 1, generator=torch.Generator().manual_seed(0))
    assert known(find_levels(rows, torch.tensor([0]))) == [[[]]]


def test_a_rare_value_is_a_level_although_few_rows_are_screened() -> None:
    rows = column_of(2, 50_000)
    rows[0, 12_345] = 9.0
    assert known(find_levels(rows, torch.tensor([0]))) == [[[0.0, 1.0, 9.0]]]


def test_rare_values_between_two_frequent_ones_are_no_levels() -> None:
    column = torch.zeros(1, 5_000, 1)
    column[:, ::2] = 1
    column[:, :20, 0] = torch.linspace(0.1, 0.9, 20)
    assert known(find_levels(column, torch.tensor([0]))) == [[[]]]
    column[:, 2:20, 0] = 0
    assert known(find_levels(column, torch.tensor([0]))) == [[pytest.approx([0.0, 0.1, 0.142105, 1.0], abs=1e-5)]]


def test_a_column_that_is_continuous_only_between_the_screened_rows_has_no_levels() -> None:
    rows = torch.rand(1, 40_960, 1, generator=torch.Generator().manual_seed(0))
    rows[:, :: 40_960 // 2_048] = 0.0
    assert known(find_levels(rows, torch.tensor([0]))) == [[[]]]


def test_models_of_a_stack_have_levels_of_their_own_and_all_or_none_has_them() -> None:
    rows = torch.stack((column_of(2, 400)[0], column_of(3, 400)[0] * 5)).repeat(1, 1, 2)
    rows[1, :, 1] = torch.linspace(0, 1, 400)
    assert known(find_levels(rows, torch.tensor([0, 1]))) == [[[0.0, 1.0], []], [[0.0, 5.0, 10.0], []]]


@given(
    st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=MAX_LEVELS,
                      unique_by=lambda x: x + 0.0), min_size=1, max_size=2),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_no_level_is_nearer_than_the_nearest(models: list[list[float]], values: list[float]) -> None:
    levels = padded(*map(sorted, models))
    place = nearest_level(torch.tensor([values] * len(models)), levels)
    for own, chosen in zip(models, place.tolist(), strict=True):
        for value, k in zip(values, chosen, strict=True):
            distances = [abs(level - value) for level in sorted(own)]  # in float64
            assert distances[k] <= min(distances)


def test_a_level_is_nearest_to_itself_however_close_the_others_are() -> None:
    """In float32 the middle of two neighbouring numbers is one of them."""
    first = torch.tensor(0.1)
    row = [first]
    for _ in range(5):
        row.append(torch.nextafter(row[-1], torch.tensor(1.0)))
    levels = padded([float(x) for x in row])
    assert nearest_level(levels[:, :6], levels).tolist() == [list(range(6))]


def test_the_largest_numbers_can_be_levels() -> None:
    levels = padded([-3e38, 2e38, 3e38])
    values = torch.tensor([[-math.inf, -1e38, 2.4e38, 2.6e38, math.inf]])
    assert nearest_level(values, levels).tolist() == [[0, 0, 1, 2, 2]]
