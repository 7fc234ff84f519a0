"""Counting of rewards of generated rows where the task's rule gives them."""

import json
import sys

import pytest
import torch

from synther_replay import GeneratorConfig
from synther_replay.benchmarks.environments.goals import GOAL_TASKS, is_rewarded
from synther_replay.benchmarks.fidelity import rare_rewards
from synther_replay.benchmarks.fidelity.rows import random_rows


@pytest.mark.parametrize("task", GOAL_TASKS)
def test_the_rule_is_that_of_the_task(task):
    rows = random_rows(task, 3_000, seed=1)
    assert torch.equal(rows.rewards == 1, is_rewarded(task, rows.rows[:, rows.spec.next_observations]))


def run(monkeypatch, *arguments):
    small = GeneratorConfig.tiny(width=32, depth=1, steps=60, sampling_steps=2)
    monkeypatch.setattr(GeneratorConfig, "tiny", lambda: small)
    monkeypatch.setattr(rare_rewards, "_POLICY_ROWS", 6_000)
    monkeypatch.setattr(sys, "argv", ["rare_rewards.py", "--device", "cpu", *map(str, arguments)])
    rare_rewards.main()


def test_rewards_are_counted_with_and_without_rare_outcomes(tmp_path, monkeypatch):
    out = tmp_path / "out.json"
    run(monkeypatch, "--tasks", "reacher-easy", "--hits", 5, "--seeds", 2, "--rows", 4_000, "--out", out)
    content = json.loads(out.read_text())
    runs = content["results"]["reacher-easy"]
    assert [entry["seed"] for entry in runs] == [0, 1]
    for entry in runs:
        assert entry["real"] == {"rewarded": 5, "by_rule": 5, "both": 5, "rows": 2_000}
        assert entry["rare"]["precision"] == 1 and entry["rare"]["rewarded"] == 10
        assert entry["drawn"]["precision"] < 1
    assert {"machine", "versions", "command", "commit"} < set(content)


def test_more_rewards_than_there_are_is_an_error(monkeypatch):
    with pytest.raises(ValueError, match="--hits"):
        run(monkeypatch, "--tasks", "finger-turn_hard", "--hits", 5_000)
