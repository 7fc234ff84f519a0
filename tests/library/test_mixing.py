"""Numbers of real and synthetic rows in a batch."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from synther_replay.replay.mixing import check_real_ratio, split_batch

RATIOS = st.floats(0.0, 1.0)
SIZES = st.integers(1, 100_000)


@given(SIZES, RATIOS)
@example(1, 0.5)
@example(3, 0.5)
@example(256, 1.0)
@example(256, 0.0)
def test_batch_is_split_exactly(batch_size, real_ratio):
    real, synthetic = split_batch(batch_size, real_ratio, synthetic_available=True)
    assert real == round(real_ratio * batch_size)
    assert real + synthetic == batch_size
    assert real >= 0
    assert synthetic >= 0
    assert type(real) is type(synthetic) is int


@given(SIZES, RATIOS)
def test_everything_is_real_without_synthetic_rows(batch_size, real_ratio):
    assert split_batch(batch_size, real_ratio, synthetic_available=False) == (batch_size, 0)


@pytest.mark.parametrize(("real_ratio", "expected"), [(0.0, (0, 7)), (1.0, (7, 0)), (0.5, (4, 3)), (0.05, (0, 7))])
def test_known_splits_of_seven(real_ratio, expected):
    assert split_batch(7, real_ratio, synthetic_available=True) == expected


@pytest.mark.parametrize("batch_size", [0, -1])
@pytest.mark.parametrize("available", [True, False])
def test_batch_of_nothing_is_refused(batch_size, available):
    with pytest.raises(ValueError, match=f"batch_size.*{batch_size}"):
        split_batch(batch_size, 0.5, synthetic_available=available)


@pytest.mark.parametrize("real_ratio", [-0.01, 1.01, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("available", [True, False])
def test_ratio_outside_its_range_is_refused(real_ratio, available):
    with pytest.raises(ValueError, match=f"real_ratio.*{real_ratio}"):
        check_real_ratio(real_ratio)
    with pytest.raises(ValueError, match=f"real_ratio.*{real_ratio}"):
        split_batch(4, real_ratio, synthetic_available=available)


@given(RATIOS)
def test_valid_ratio_is_returned_as_it_is(real_ratio):
    assert check_real_ratio(real_ratio) == real_ratio
