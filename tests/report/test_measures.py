"""Measures of the quality report against known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from synther_replay.report.charts import HEAT_MAP_COLUMNS, heat_map_columns, projection_charts, sparkline
from synther_replay.report.comparison import compare
from synther_replay.report.histograms import BINS, histogram
from synther_replay.report.nearest import nearest
from synther_replay.report.projection import project
from synther_replay.report.quality import report


def normal(n: int, dim: int, seed: int) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


# --- histograms


def test_bins_count_every_value_and_the_outermost_what_is_beyond() -> None:
    like = torch.linspace(0, 1, 1_001)
    found = histogram([torch.tensor([-1e30, 0.5, 0.5, 1e30])], like)
    assert sum(found.counts[0]) == 4
    assert (found.counts[0][0], found.counts[0][-1]) == (1, 1)
    place = int((0.5 - found.start) / found.width)
    assert found.counts[0][place] == 2
    assert found.start < 0 < 1 < found.start + BINS * found.width


def test_a_far_value_does_not_put_all_others_into_one_bin() -> None:
    values = torch.cat((torch.linspace(0, 1, 10_000), torch.tensor([1e9])))
    assert sum(count > 0 for count in histogram([values], values).counts[0]) > BINS // 2


@pytest.mark.parametrize("value", [0.0, -3.0, 1e20, 1e-20])
def test_a_constant_has_bins_of_positive_width(value: float) -> None:
    values = torch.full((50,), value, dtype=torch.float64)
    found = histogram([values, values + 1], values)
    assert found.width > 0
    assert [sum(counts) for counts in found.counts] == [50, 50]


def test_levels_are_counted_exactly_and_other_values_apart() -> None:
    real = torch.tensor([0.1, 0.1, 0.3])
    found = histogram([real, torch.tensor([0.3, 0.2, 9.0])], real, levels=True)
    assert found.levels == pytest.approx((0.1, 0.3))
    assert found.counts == ((2, 1, 0), (0, 1, 2))


def test_a_sparkline_has_finite_numbers_only() -> None:
    drawing = sparkline(histogram([torch.zeros(3)] * 3, torch.zeros(3), levels=True))
    assert drawing.startswith("<svg") and "nan" not in drawing


# --- comparison of one number per row


def test_quantiles_are_those_of_each_set() -> None:
    found = compare(torch.arange(101.0), torch.arange(101.0) + 1_000)
    assert (found.real["p05"], found.real["median"], found.synthetic["p95"]) == pytest.approx((5, 50, 1_095))
    assert found.histogram.start == 0  # distances are shown from zero
    assert [sum(counts) for counts in found.histogram.counts] == [101, 101]


def test_errors_of_zero_have_a_place_on_a_logarithmic_axis() -> None:
    found = compare(torch.zeros(10), torch.ones(10), logarithmic=True)
    assert found.real["median"] == 0
    assert found.histogram.start == pytest.approx(-12)
    assert found.histogram.counts[0][0] == found.histogram.counts[1][-1] == 10


# --- projection


def test_the_projection_finds_the_direction_of_most_variance() -> None:
    both = normal(4_000, 1, 0)
    real = torch.cat((both, both + 0.01 * normal(4_000, 1, 1), normal(4_000, 1, 2)), dim=1)
    plane = project(real.split(2_000), real, real.T.corrcoef())
    assert plane is not None
    assert plane.explained == pytest.approx((2 / 3, 1 / 3), abs=0.01)
    assert plane.covered == 1.0 >= plane.covered_baseline > 0.9
    assert plane.cells_real.sum() == pytest.approx(1, abs=0.02)
    np.testing.assert_array_equal(plane.cells_real, plane.cells_synthetic)


def test_rows_in_one_corner_leave_most_of_the_plane_uncovered() -> None:
    real = normal(4_000, 3, 0)
    plane = project(real.split(2_000), 0.05 * normal(4_000, 3, 1) + 2, real.T.corrcoef())
    assert plane is not None
    assert plane.covered < 0.3


def test_a_difference_of_a_row_or_two_is_pale_on_the_map() -> None:
    real = normal(500, 3, 0)
    plane = project(real.split(250), normal(500, 3, 1), real.T.corrcoef())
    assert plane is not None
    cells = [cell for line in projection_charts(plane)["coverage"]["cells"] for cell in line if cell is not None]
    assert max(map(abs, cells)) < 2  # the colours end at 3


def test_without_two_columns_that_vary_there_is_no_plane() -> None:
    real = torch.cat((torch.ones(100, 1), normal(100, 1, 0)), dim=1)
    assert project(real.split(50), real, real.T.corrcoef()) is None


# --- nearest real rows


def test_copies_are_found_with_and_without_held_out_rows() -> None:
    real, held_out = normal(2_000, 4, 0), normal(2_000, 4, 1)
    for other in (held_out, None):
        copied, fresh = nearest(real, real, other), nearest(real, normal(2_000, 4, 2), other)
        assert copied is not None and fresh is not None
        assert copied.copies == copied.near == 1  # also of those that are set aside
        half = nearest(real, torch.cat((real[:500], -0.0 * real[:500])), other)
        assert half is not None and half.copies == 0.5
        assert fresh.copies == fresh.copies_baseline == 0
        assert fresh.near < 0.05
        assert fresh.memorisation.ratio == pytest.approx(1, abs=0.1)


def test_too_few_or_equal_rows_have_no_distances() -> None:
    assert nearest(normal(5, 3, 0), normal(5, 3, 1), None) is None
    assert nearest(torch.ones(100, 3), normal(100, 3, 1), None) is None


# --- all measures of a report


def test_heat_maps_show_the_columns_that_differ_most() -> None:
    real, synthetic = normal(300, 80, 0), normal(300, 80, 1)
    synthetic[:, 79] = synthetic[:, 3]
    chosen = heat_map_columns(report(real, synthetic).measures)
    assert len(chosen) == HEAT_MAP_COLUMNS
    assert {3, 79} <= set(chosen)
    assert chosen == sorted(chosen)


def test_the_simulator_agrees_with_real_rows_and_not_with_others(rows) -> None:
    def step(observations, actions):
        return 0.9 * observations, np.zeros(len(observations))

    real = rows(300, 0)
    real.rows[:, real.spec.next_observations] = 0.9 * real.rows[:, real.spec.observations]
    real.rows[:, real.spec.rewards] = 0
    found = report(real, rows(200, 1), env=step).measures.dynamics
    assert found is not None
    assert found.next_observation.real["p95"] < 1e-12
    assert found.next_observation.synthetic["median"] == pytest.approx(0.01, abs=0.005)
    assert found.next_observation.rows == (300, 200)
    variance = real.rows[:, real.spec.next_observations].var(0, correction=0).mean()
    assert found.variance_next_observation == pytest.approx(float(variance), rel=1e-4)


def test_values_and_td_errors_of_a_known_critic(rows) -> None:
    real, synthetic = rows(300, 0), rows(300, 0)
    values = report(real, synthetic, value=lambda s: 2 + 0 * s[:, 0], q=lambda s, a: 0 * s[:, 0], gamma=0.5).to_json()
    assert values["value"]["real"]["median"] == values["value"]["synthetic"]["median"] == 2
    assert values["td_error"]["real"]["median"] == 1  # no reward, and half of the value of the next observation
    with pytest.raises(ValueError, match="value"):
        report(real, synthetic, q=lambda s, a: 0 * s[:, 0])


def test_memorisation_is_judged_with_held_out_rows_only(rows) -> None:
    real, held_out = rows(1_000, 0), rows(1_000, 1)
    assert report(real, real).fidelity.memorisation is None
    judged = report(real, real, held_out=held_out)
    assert judged.fidelity.memorisation is not None
    assert any("held-out" in reason for reason in judged.fidelity.failures)
    assert report(real, rows(1_000, 2), held_out=held_out).passed


def test_a_judgement_with_held_out_rows_keeps_the_reason_for_terminations(rows) -> None:
    judged = report(rows(1_000, 0), rows(1_000, 1, rate=0.5), held_out=rows(1_000, 2))
    assert "of the synthetic rows" in judged.fidelity.columns[-1].failure
    assert judged.measures.termination_severity > 1


def test_numbers_are_plain_values(rows) -> None:
    import json

    text = json.dumps(report(rows(200, 0), rows(200, 1), held_out=rows(200, 2)).to_json(), allow_nan=False)
    assert math.isfinite(json.loads(text)["nearest"]["real"]["median"])
