"""The suite of twelve tasks, its ablations, and the runs that they ask for."""

import json
import sys
from pathlib import Path

import pytest
import torch
from online_result_files import write

from synther_replay.benchmarks import online_dmc
from synther_replay.benchmarks.agents.named_critics import CRITICS
from synther_replay.benchmarks.environments.scores import SCORE_RANGE, SUITE
from synther_replay.benchmarks.online import figures as online_figures
from synther_replay.benchmarks.online import jobs, sections, suite, variants
from synther_replay.benchmarks.online.settings import ALGORITHMS


def add(folder, task, name, last, *, utd=20, **settings):
    """A result file with settings; the algorithm is the first part of its name."""
    algo = name.partition("-")[0]
    asked = {"algo": algo, "utd": utd, "real_ratio": 0.5, "first_seed": 300, "critic": "layernorm", **settings}
    preset = "fast" if ALGORITHMS[algo].synthetic else None
    return write(folder, task, name, last, algo=algo, preset=preset, utd=utd, settings=asked)


def rows(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "|" in line]


def test_the_suite_has_twelve_tasks_with_a_score_range():
    assert len(SUITE) == 12
    assert set(SUITE) == set(SCORE_RANGE)


def test_sections_without_results_are_empty(tmp_path):
    assert set(sections.sections(tmp_path).values()) == {""}


def test_sections_appear_with_their_first_result(tmp_path):
    for group in jobs.GROUPS:
        add(tmp_path / group, "Ant-v4", "synther-fast-layernorm", [1.0])
    found = sections.sections(tmp_path)
    assert set(found) == {f"online-{group}" for group in jobs.GROUPS}
    for group, text in zip(jobs.GROUPS, found.values(), strict=True):
        assert text.startswith("## ")
        assert f"online.jobs {group} " in text
        assert f"benchmarks/results/online/{group}/" in text


def test_suite_compares_the_tasks_with_both_results_and_names_the_missing_ones(tmp_path):
    for task, scale in (("reacher-hard", 1), ("hopper-hop", 0.5)):
        add(tmp_path, task, "sac20-layernorm", [100 * scale, 300 * scale])
        add(tmp_path, task, "synther-fast-layernorm", [400 * scale, 600 * scale])
    before = suite.table(suite.read_suite(tmp_path))
    add(tmp_path, "cheetah-run", "synther-fast-layernorm", [900.0, 900.0])
    table = suite.table(suite.read_suite(tmp_path))
    assert rows(table)[2:5] == [
        ["reacher-hard", "200 +- 141", "**500 +- 141**"],
        ["hopper-hop", "100 +- 71", "**250 +- 71**"],
        ["cheetah-run", "-", "**900 +- 0**"],
    ]
    assert rows(table)[5:] == rows(before)[4:]  # the aggregates
    assert rows(table)[5][1].startswith("0.12 [")
    assert rows(table)[6][1].startswith("1.00 [")
    assert "2 of 12 tasks" in table
    real, mixed = (line for line in table.splitlines() if line.startswith("- Missing"))
    assert "cheetah-run" in real and "cheetah-run" not in mixed
    assert all("Humanoid-v5" in line and "hopper-hop" not in line for line in (real, mixed))


def test_a_complete_suite_misses_nothing(tmp_path):
    for task in SUITE:
        add(tmp_path, task, "sac20", [1.0], critic="plain")
        add(tmp_path, task, "synther-fast", [2.0], critic="plain")
    table = suite.table(suite.read_suite(tmp_path))
    assert [row[0] for row in rows(table)[2:14]] == list(SUITE)
    assert "Missing" not in table and "of 12" not in table


def test_without_a_pair_nothing_is_aggregated(tmp_path):
    add(tmp_path, "Ant-v4", "synther-fast-layernorm", [1.0])
    assert rows(suite.table(suite.read_suite(tmp_path)))[-1] == ["IQM of normalised scores", "-"]


def test_suite_lists_every_agent_and_diverged_seeds(tmp_path):
    add(tmp_path, "Ant-v4", "synther-fast-layernorm", [1.0, 2.0], real_ratio=0.9)
    path = add(tmp_path, "Ant-v5", "synther-fast-layernorm", [1.0, 2.0], relevance={"name": "curiosity"})
    left = [{"step": 1, "seeds": [301]}, {"step": 2, "seeds": [301, 300]}]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"diverged": left}))
    lines = suite.table(suite.read_suite(tmp_path)).splitlines()
    first, second = (line for line in lines if line.startswith("- Agent"))
    assert "10%" in first and "300 to 301" in first and "(Ant-v4)" in first
    assert "50%" in second and "curiosity" in second and "(Ant-v5)" in second
    (diverged,) = (line for line in lines if "range" in line)
    assert "Ant-v5" in diverged and diverged.endswith("300, 301.")


def test_suite_refuses_two_results_of_a_kind_other_learners_and_other_tasks(tmp_path):
    first = add(tmp_path, "Ant-v4", "synther-fast-layernorm", [1.0])
    second = add(tmp_path, "Ant-v4", "synther-fast-other", [1.0])
    with pytest.raises(ValueError, match="got another in") as refused:
        suite.read_suite(tmp_path)
    assert str(first) in str(refused.value) and str(second) in str(refused.value)
    second.unlink()
    other = add(tmp_path, "Ant-v4", "sac20", [1.0], critic="plain")
    with pytest.raises(ValueError, match=r"expected the learner of .*'agent': 'plain'.*'agent': 'layernorm'"):
        suite.read_suite(tmp_path)
    other.unlink()
    add(tmp_path, "Ant-v3", "sac20", [1.0])
    with pytest.raises(ValueError, match=r"expected a task of .* got 'Ant-v3'"):
        suite.read_suite(tmp_path)


def test_curves_of_the_suite_are_drawn_once_there_are_runs(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(online_figures, "draw_curves", lambda runs, tasks, path: drawn.update({path.name: tasks}))
    monkeypatch.setattr(online_figures, "draw_aggregate", lambda *_: None)
    online = tmp_path / "online"
    for name in online_figures.PUBLISHED:
        write(online / "main", "cheetah-run", name, [1.0], steps=online_figures.STEP)
    online_figures.draw_for_docs(tmp_path, tmp_path)
    assert sections.FIGURE not in drawn
    add(online / "suite", "Ant-v5", "synther-fast-layernorm", [1.0])
    add(online / "suite", "hopper-hop", "sac20-layernorm", [1.0])
    online_figures.draw_for_docs(tmp_path, tmp_path)
    assert drawn[sections.FIGURE] == ["hopper-hop", "Ant-v5"]


def test_variants_have_a_row_each_and_fill_gaps_from_beside(tmp_path):
    parts = tmp_path / "parts"
    add(parts, "Ant-v4", "synther-fast-ensemble", [10.0, 30.0], critic="ensemble", relevance={"name": "value"})
    add(parts, "reacher-hard", "sac20", [1.0, 3.0], critic="plain")
    add(parts, "reacher-hard", "sac20-utd-5", [5.0, None], utd=5, agent={"temperature": 0.1})
    for task, returns in (("Ant-v4", [7.0, 7.0]), ("reacher-hard", [8.0, 8.0]), ("Hopper-v5", [9.0, 9.0])):
        add(tmp_path / "main", task, "sac20", returns, critic="plain")
    assert rows(variants.table(parts, ["main/{task}/sac20.json"])) == [
        [*variants.HEADER, "reacher-hard", "Ant-v4"],
        ["---"] * 8,
        ["plain", "20", "0%", "-", "2,000", "2", "2 +- 1", "7 +- 0"],
        ["layernorm, temperature from 0.1", "5", "0%", "-", "2,000", "2", "5 (1 failed)", "-"],
        ["ensemble", "20", "50%", "value", "2,000", "2", "-", "20 +- 14"],
    ]
    add(parts, "reacher-hard", "sac20-again", [1.0, 3.0], critic="plain")
    with pytest.raises(ValueError, match="expected one result of each variant"):
        variants.table(parts)


@pytest.mark.parametrize(("group", "runs"), [("suite", 24), ("parts", 4 * len(CRITICS) * 7), ("scaling", 4 * 10)])
def test_every_job_is_a_command_with_a_file_of_its_own(group, runs, monkeypatch, capsys):
    options = ["--each=--critic features", "--synthetic=--set steps=5"] if group == "suite" else []
    monkeypatch.setattr(sys, "argv", ["jobs.py", group, *options])
    assert jobs.main() == 0
    monkeypatch.setattr(online_dmc, "resolve_device", lambda _: torch.device("cuda"))  # defaults of the runs
    parsed = []
    for line in capsys.readouterr().out.splitlines():
        monkeypatch.setattr(sys, "argv", ["online_dmc.py", *line.split()])
        parsed.append(online_dmc.parse())
    assert len({online_dmc.result_path(args) for args in parsed}) == len(parsed) == runs
    assert {(args.settings.seeds, args.settings.steps, args.settings.first_seed) for args in parsed} == {
        (8, 100_000, 300)
    }
    assert {args.out for args in parsed} == {Path("results", "online", group)}
    if group == "suite":
        assert {args.settings.env for args in parsed} == set(SUITE)
        assert {args.settings.critic for args in parsed} == {"features"}
        assert {args.settings.generator.get("steps") for args in parsed if args.settings.synthetic} == {5}
