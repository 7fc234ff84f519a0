"""Rows that begin as episodes do."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from offline_stand_ins import cell, write_sets

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from offline_data import DataSource
from starts import first_observations, start_counts

from synther_replay import Transitions

CPU = torch.device("cpu")
WHOLE = {"steps": 100, "evaluate_every": 100}  # calls of the learner as they are


@pytest.fixture
def dataset(tmp_path):
    return DataSource(write_sets(tmp_path), CPU).dataset(cell(**WHOLE))


def test_episodes_begin_after_each_end(dataset):
    ends = np.flatnonzero(dataset.terminals | dataset.timeouts)
    begin = [0, *(end + 1 for end in ends if end + 1 < len(dataset))]
    assert len(begin) > 5
    assert np.array_equal(first_observations(dataset), dataset.observations[begin])


def test_real_ones_are_all_found_and_few_others_with_them(dataset):
    found = start_counts(dataset, dataset.transitions())
    episodes = len(first_observations(dataset))
    assert found["rows"] == len(dataset)
    assert episodes <= found["within 0"] <= found["within 0.03"] <= found["within 0.1"] <= found["within 0.3"]
    assert found["within 0.1"] < 2 * episodes < len(dataset) / 2


@pytest.mark.parametrize("side", [-1, 1])
def test_rows_count_up_to_the_margin_that_they_are_outside(dataset, side):
    std, first = dataset.observations.std(0), first_observations(dataset)
    rows = dataset.transitions().rows[:1].repeat(len(std), 1)
    observations = np.tile((first.min(0) + first.max(0)) / 2, (len(std), 1))
    edge = first.max(0) if side > 0 else first.min(0)
    np.fill_diagonal(observations, edge + side * 0.05 * std)  # each by another number
    rows[:, : len(std)] = torch.from_numpy(observations)
    found = start_counts(dataset, Transitions(dataset.spec(), rows))
    assert found == {"rows": len(std), "within 0": 0, "within 0.03": 0, "within 0.1": len(std), "within 0.3": len(std)}


def test_numbers_that_never_change_do_not_hide_the_others(dataset):
    dataset.observations[:, 3] = 7.0
    rows = dataset.transitions()
    assert start_counts(dataset, rows)["within 0"] >= len(first_observations(dataset))
    rows.rows[:, 3] = 8.0
    assert start_counts(dataset, rows)["within 0.3"] == 0


@pytest.mark.parametrize(("data", "share"), [("synther", None), ("mixed", 0.5)])
def test_runs_note_those_of_the_set_and_of_what_was_generated(tmp_path, data, share):
    source = DataSource(write_sets(tmp_path), CPU)
    of = cell(data=data, subsample=share, **WHOLE)
    _, about = source.rows(of)
    whole = source.dataset(cell(**WHOLE))
    real, synthetic = about["starts"]["real"], about["starts"]["synthetic"]
    assert real == start_counts(whole, source.dataset(of).transitions())  # by the episodes of the whole set
    assert 0 < real["within 0"] < real["rows"] == about["real_rows"]
    assert synthetic["rows"] == about["synthetic_rows"]


def test_real_rows_alone_have_nothing_to_note(tmp_path):
    assert "starts" not in DataSource(write_sets(tmp_path), CPU).rows(cell(**WHOLE))[1]
