"""Terminated flags against the rule of the task."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from offline_stand_ins import HOPPER, collected_transitions, config, write_sets

from synther_replay import Transitions
from synther_replay.benchmarks.environments.terminals import has_fallen, terminal_counts
from synther_replay.benchmarks.offline.rows import DataSource

CPU = torch.device("cpu")
WHOLE = {"steps": 100, "evaluate_every": 100}  # calls of the learner as they are


@pytest.mark.parametrize(
    ("task", "count"),
    [("Hopper-v5", 600), ("Walker2d-v5", 600), ("Ant-v4", 2_000), ("Humanoid-v5", 600), ("InvertedPendulum-v5", 600)],
)
def test_the_rule_is_that_of_the_environment(task, count):
    rows = collected_transitions(task, count)
    fallen = has_fallen(task, rows.rows[:, rows.spec.next_observations])
    assert 4 < int(fallen.sum()) < len(rows) / 2
    assert torch.equal(fallen, rows.terminated)
    assert not has_fallen(task, rows.rows[:, rows.spec.observations]).any()


@pytest.mark.parametrize(("task", "column", "bounds"), [
    ("Hopper-v5", 0, "_healthy_z_range"), ("Hopper-v5", 1, "_healthy_angle_range"),
    ("Walker2d-v5", 0, "_healthy_z_range"), ("Walker2d-v5", 1, "_healthy_angle_range"),
])  # fmt: skip
def test_its_bounds_are_those_of_the_environment(task, column, bounds):
    environment = gym.make(task)
    upright = torch.tensor([[1.2, 0.0]])
    for bound, side in zip(getattr(environment.unwrapped, bounds), (1, -1), strict=True):
        if np.isfinite(bound):
            for off, expected in ((0.001 * side, False), (-0.001 * side, True)):
                posture = upright.clone()
                posture[0, column] = bound + off
                assert has_fallen(task, posture).item() is expected


@pytest.mark.parametrize("task", ["HalfCheetah-v5", "maze2d-umaze"])
def test_tasks_that_do_not_end_have_no_rule(task):
    assert has_fallen(task, torch.zeros(3, 5)) is None
    rows = collected_transitions("Hopper-v5", 50)
    assert terminal_counts(task, rows) == {"rows": 50, "terminated": int(rows.terminated.sum())}


def test_ends_in_other_places_are_counted():
    rows = collected_transitions("Hopper-v5", 600)
    ends = rows.terminated.nonzero()[:, 0]
    changed = rows.rows.clone()
    changed[ends[:4], rows.spec.terminated.start] = 0.0  # fallen, and goes on
    changed[(~rows.terminated).nonzero()[:3, 0], rows.spec.terminated.start] = 1.0  # ends upright
    found = terminal_counts("Hopper-v5", Transitions(rows.spec, changed))
    assert found == {"rows": 600, "terminated": len(ends) - 1, "by_rule": len(ends), "both": len(ends) - 4}


@pytest.mark.parametrize("data", ["synther", "mixed"])
def test_runs_note_those_of_the_set_and_of_what_was_generated(tmp_path, data):
    source = DataSource(write_sets(tmp_path), CPU)
    of = config(data=data, **WHOLE)
    rows, about = source.rows(of)
    real, synthetic = about["terminals"]["real"], about["terminals"]["synthetic"]
    dataset = source.dataset(of)
    assert of.dataset == HOPPER
    assert real["rows"] == len(dataset)
    assert real["terminated"] == real["by_rule"] == real["both"] == int(dataset.transitions().terminated.sum()) > 0
    assert synthetic["rows"] == about["synthetic_rows"] == len(rows) - (rows.real if data == "mixed" else 0)
    assert synthetic["both"] <= min(synthetic["terminated"], synthetic["by_rule"])


def test_real_rows_alone_have_nothing_to_note(tmp_path):
    assert "terminals" not in DataSource(write_sets(tmp_path), CPU).rows(config(**WHOLE))[1]
