"""Generated rows with what truly follows them."""

import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch
from offline_stand_ins import HOPPER, MAZE, cell, played, write_sets

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import offline_data
import simulated as module
from maze2d import MAZES, at_goal
from offline_data import DataSource
from simulated import simulated
from terminals import has_fallen

from synther_replay import Transitions

CPU = torch.device("cpu")
WHOLE = {"steps": 100, "evaluate_every": 100}  # calls of the learner as they are


def spoilt(rows):
    """The same observations and actions, and nothing that follows them."""
    made = rows.rows.clone()
    for columns in (rows.spec.rewards, rows.spec.next_observations):
        made[:, columns] = 7.0
    made[:, rows.spec.terminated] = 1 - made[:, rows.spec.terminated]
    return Transitions(rows.spec, made)


@pytest.mark.parametrize(("task", "other"), [("Hopper-v5", []), ("HalfCheetah-v5", ["terminated"])])
def test_what_was_generated_gives_way_to_what_follows(task, other, monkeypatch):
    monkeypatch.setattr(module, "_PART", 64)  # several, and one that is not full
    rows = played(task, 200)
    found, answered = simulated(task, spoilt(rows), workers=2)
    at_limit = (rows.observations.abs() >= 9.5).any(1) if task == "Hopper-v5" else torch.zeros(len(rows), dtype=bool)
    assert answered == len(rows) - int(at_limit.sum()) > 100
    expected = rows.rows.clone()
    if other:  # a task without a rule says nothing of ends
        expected[:, rows.spec.terminated] = spoilt(rows).rows[:, rows.spec.terminated]
    else:
        assert rows.terminated[~at_limit].any()
    torch.testing.assert_close(found.rows[~at_limit], expected[~at_limit], rtol=1e-3, atol=1e-3)
    # Without an answer all stays as it was, but ends are by the rule wherever there is one.
    stay = slice(0, rows.spec.terminated.start)
    assert torch.equal(found.rows[at_limit, stay], spoilt(rows).rows[at_limit, stay])
    if not other:
        assert torch.equal(found.terminated, has_fallen(task, found.next_observations))


def test_rows_without_an_answer_stay_as_they_were():
    rows = spoilt(played("Hopper-v5", 20))
    rows.rows[3, 8] = -9.9  # a velocity that may have been clipped
    rows.rows[5, 0] = 1e12  # from where the simulation leaves the numbers
    before = rows.rows.clone()
    found, answered = simulated("Hopper-v5", rows, workers=1)
    assert answered == 18
    stay = slice(0, rows.spec.terminated.start)
    assert torch.equal(found.rows[[3, 5], stay], before[[3, 5], stay])
    assert torch.equal(rows.rows, before)  # what was given is not written to
    assert not torch.equal(found.rows[4], before[4])


@pytest.mark.parametrize("dataset", [HOPPER, MAZE])
def test_runs_learn_from_them(tmp_path, dataset):
    source = DataSource(write_sets(tmp_path), CPU, workers=1)
    generated, _ = source.rows(cell(data="synther", dataset=dataset, **WHOLE))
    rows, about = source.rows(cell(data="simulated", dataset=dataset, **WHOLE))
    spec = rows.spec
    assert (rows.real, len(rows)) == (0, 96)
    assert torch.equal(rows.rows[:, : spec.actions.stop], generated.rows[:, : spec.actions.stop])
    changed = (rows.rows[:, spec.next_observations] != generated.rows[:, spec.next_observations]).any(1)
    assert 0 < about["simulated_rows"] == int(changed.sum()) <= about["synthetic_rows"] == 96
    if dataset == HOPPER:
        raw = rows.rows[:, spec.next_observations] * rows.std + rows.mean
        ends = rows.rows[:, spec.terminated.start] == 1
        assert torch.equal(ends, has_fallen("Hopper-v5", raw))
    else:  # where a row begins is what D4RL rewards
        begun = (rows.rows[:, spec.observations] * rows.std + rows.mean).numpy()
        expected = [float(at_goal(MAZES["umaze"], one)) for one in begun]
        assert rows.rows[:, spec.rewards.start].tolist() == expected
    again, _ = source.rows(cell(data="synther", dataset=dataset, **WHOLE))
    assert torch.equal(again.rows, generated.rows)  # what is kept for other runs is as it was generated


def test_a_process_that_is_killed_is_told(monkeypatch):
    def killed(*_):
        raise BrokenProcessPool("a child process terminated abruptly")

    monkeypatch.setattr(ProcessPoolExecutor, "map", killed)
    with pytest.raises(OSError, match="a process that simulates was ended from outside"):
        simulated("Hopper-v5", played("Hopper-v5", 20), workers=1)


def test_rows_are_simulated_once_for_all_runs_that_share_them(tmp_path, monkeypatch):
    asked = []

    def simulate(task, rows, *, workers):
        asked.append((task, len(rows), workers))
        return rows, len(rows)

    monkeypatch.setattr(offline_data, "simulated", simulate)
    source = DataSource(write_sets(tmp_path), CPU, workers=3)
    for algo in ("td3bc", "iql"):
        source.rows(cell(algo, data="simulated", **WHOLE))
    source.rows(cell(data="simulated", **{**WHOLE, "rows": 64}))
    assert asked == [("Hopper-v5", 96, 3), ("Hopper-v5", 64, 3)]
