"""The table of published agents beside our runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from synther_replay.benchmarks.online.published import DMC_AGENTS, GYM_AGENTS, beside_ours, sources
from synther_replay.benchmarks.online.results import Run


def run(task: str, *returns: float) -> Run:
    steps = np.array([50, 100])
    curve = np.array([[0.0, value] for value in returns])
    return Run(Path("x.json"), task, "ours", 100, steps, curve, {"total": 1.0}, "", utd=20)


def cells(table: str, agent: str) -> list[str]:
    row = next(line for line in table.splitlines() if line.startswith(f"| {agent} |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_our_runs_stand_under_the_same_task_of_another_version() -> None:
    table = beside_ours(GYM_AGENTS, {"ours": [run("Hopper-v5", 10, 30), run("cheetah-run", 1)]}, 100)
    header, ours, redq = (cells(table, name) for name in ("agent", "ours", "REDQ"))
    assert dict(zip(header, ours, strict=True))["Hopper"] == "**20**"
    assert dict(zip(header, redq, strict=True))["Hopper"] == "2750"
    assert dict(zip(header, ours, strict=True))["Ant"] == "-"


def test_a_failed_seed_does_not_hide_the_others() -> None:
    assert cells(beside_ours(DMC_AGENTS, {"ours": [run("cheetah-run", 10, np.nan)]}, 100), "ours")[-1] == "**10**"


def test_the_same_version_of_a_task_comes_first_and_rows_without_tasks_are_left_out() -> None:
    ours = {"ours": [run("Ant-v4", 1, 3), run("Ant-v5", 9)], "others": [run("cheetah-run", 1)]}
    table = beside_ours(GYM_AGENTS, ours, 100)
    assert dict(zip(cells(table, "agent"), cells(table, "ours"), strict=True)) == {
        **{"agent": "ours", "updates": "20", "action repeat": "1", "seeds": "2", "Ant": "**2**"},
        **dict.fromkeys(("Humanoid", "HalfCheetah", "Walker2d", "Hopper"), "-"),
    }
    assert "others" not in table


@pytest.mark.parametrize("agents", [GYM_AGENTS, DMC_AGENTS])
def test_every_agent_has_a_source_and_an_action_repeat_as_published(agents) -> None:
    listed = sources(agents)
    assert all(agent.name in listed and agent.source in listed for agent in agents)
    assert all(agent.returns and agent.updates > 0 and agent.repeat in (1, 2) for agent in agents)
