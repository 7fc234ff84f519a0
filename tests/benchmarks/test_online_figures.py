"""Figures, tables and statistics of the online benchmark, on tiny result files and known answers."""

import json
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest
from online_result_files import result, write
from scipy import stats

from synther_replay.benchmarks import figures
from synther_replay.benchmarks.agents.named_critics import CRITICS
from synther_replay.benchmarks.agents.sac import Hyperparameters
from synther_replay.benchmarks.common import statistics as aggregate
from synther_replay.benchmarks.environments.scores import (
    DMC_TASKS,
    GYM_TASKS,
    RANDOM_RETURNS,
    SCORE_RANGE,
    normalise,
)
from synther_replay.benchmarks.online import agents_table
from synther_replay.benchmarks.online import docs_tables as online_tables
from synther_replay.benchmarks.online import figures as online_figures
from synther_replay.benchmarks.online import results as online_results
from synther_replay.benchmarks.online.settings import ALGORITHMS
from synther_replay.benchmarks.online.tables import time_table

PNG = b"\x89PNG"
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "online" / "main"


@pytest.fixture
def undrawn(monkeypatch):
    """Replace figures by empty files; drawing takes most of the time."""
    for name in ("draw_curves", "draw_aggregate"):
        monkeypatch.setattr(online_figures, name, lambda *arguments: arguments[-1].write_bytes(PNG))


def report(*arguments):
    """The command line."""
    assert figures.main(["online", *map(str, arguments)]) == 0


def refusal(capsys, *arguments):
    """Error message of the command line for invalid input."""
    with pytest.raises(SystemExit) as stopped:
        figures.main(["online", *map(str, arguments)])
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("count", (1, 2, 3, 4, 5, 7, 8, 13, 48))
def test_interquartile_mean_is_the_trimmed_mean_of_scipy(count):
    scores = np.random.default_rng(count).normal(size=(3, count))
    assert aggregate.interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=-1))


def test_interquartile_mean_ignores_the_outer_quarters():
    assert aggregate.interquartile_mean(np.array([1e9, 2.0, 4.0, -1e9])) == 3.0
    pooled = aggregate.iqm_estimate([np.array([-50.0, 1.0]), np.array([3.0, 90.0])])
    assert pooled.value == 2.0


@pytest.mark.parametrize(
    ("ours", "theirs", "rate"),
    [([3, 4], [1, 2], 1.0), ([1, 2], [3, 4, 5], 0.0), ([1, 2], [1, 2], 0.5), ([2], [2], 0.5), ([1, 3], [2], 0.5)],
)
def test_improvement_rate_of_clear_cases(ours, theirs, rate):
    assert aggregate.improvement_rate(np.array(ours), np.array(theirs)) == rate


def test_improvement_rate_is_mann_whitney_also_with_ties():
    generator = np.random.default_rng(0)
    ours, theirs = generator.integers(5, size=9), generator.integers(6, size=7)
    u = stats.mannwhitneyu(ours, theirs).statistic
    assert aggregate.improvement_rate(ours, theirs) == pytest.approx(u / 63)


def test_probability_of_improvement_is_the_mean_over_tasks():
    ours, theirs = [np.array([2.0, 3.0]), np.array([0.0])], [np.array([1.0]), np.array([1.0, 5.0, 6.0])]
    assert aggregate.improvement_estimate(ours, theirs) == (0.5, 0.5, 0.5)
    assert aggregate.improvement_estimate(ours, [np.array([1.0]), np.array([-1.0])]) == (1.0, 1.0, 1.0)


def test_intervals_contain_the_value_and_shrink_with_more_seeds():
    generator = np.random.default_rng(1)
    few, many = ([generator.normal(size=seeds) for _ in range(3)] for seeds in (5, 80))
    for estimate in (
        lambda scores: aggregate.iqm_estimate(scores, repeats=300),
        lambda scores: aggregate.improvement_estimate(scores, scores[::-1], repeats=300),
    ):
        wide, narrow = estimate(few), estimate(many)
        assert wide.low < wide.value < wide.high
        assert narrow.high - narrow.low < 0.5 * (wide.high - wide.low)


def test_interval_of_the_mean_matches_theory():
    returns = np.random.default_rng(2).normal(size=(100, 1))
    curve = aggregate.mean_curve(returns, repeats=5000)
    assert curve.value[0] == pytest.approx(returns.mean())
    half = 1.96 * returns.std() / 10
    assert (curve.low[0], curve.high[0]) == pytest.approx((returns.mean() - half, returns.mean() + half), abs=0.02)


def test_the_bootstrap_draws_within_tasks():
    # no variance within tasks, large differences between tasks
    assert aggregate.iqm_estimate([np.full(4, 0.0), np.full(4, 1.0)]) == (0.5, 0.5, 0.5)


def test_same_seed_agrees_and_two_seeds_differ():
    scores = [np.random.default_rng(3).normal(size=9)]
    first, again, other = (aggregate.iqm_estimate(scores, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.value == other.value
    assert first.low != other.low


def test_curves_exclude_failed_seeds_and_have_gaps_if_all_failed():
    returns = np.array([[1.0, 2.0, np.nan], [3.0, np.nan, np.nan]])
    curve = aggregate.mean_curve(returns)
    np.testing.assert_array_equal(curve.value, [2.0, 2.0, np.nan])
    np.testing.assert_array_equal(curve.low, [1.0, 2.0, np.nan])
    np.testing.assert_array_equal(curve.high, [3.0, 2.0, np.nan])


def test_normalised_scores():
    np.testing.assert_allclose(normalise("cheetah-run", np.array([500.0, np.nan])), [0.5, 0.0])
    halfcheetah = normalise("HalfCheetah-v5", np.array([-280.178953, 12135.0, np.nan]))
    np.testing.assert_allclose(halfcheetah, [0, 1, 0], atol=1e-12)
    assert normalise("Hopper-v5", np.array([1607.0138475])) == pytest.approx(0.5)
    assert normalise("Walker2d-v5", np.array([1.629008])) == pytest.approx(0)
    np.testing.assert_allclose(normalise("Humanoid-v4", np.array([120.5, 5165.0])), [0, 1])
    with pytest.raises(ValueError, match=r"task: expected one of .* got 'Swimmer-v5'"):
        normalise("Swimmer-v5", np.zeros(1))


def test_score_ranges_begin_at_the_measured_returns_of_a_random_policy():
    measured = json.loads((RESULTS.parent / "random-returns.json").read_text())["returns"]
    assert {task: round(np.mean(returns), 1) for task, returns in measured.items()} == RANDOM_RETURNS
    assert all(SCORE_RANGE[task][0] == low for task, low in RANDOM_RETURNS.items())


def test_statistics_refuse_invalid_scores():
    for scores in ([], [np.array([])], [np.zeros((2, 2))], [np.array([np.nan])]):
        with pytest.raises(ValueError, match="scores: expected"):
            aggregate.iqm_estimate(scores)
    with pytest.raises(ValueError, match="theirs: expected the 1 tasks of ours, got 2"):
        aggregate.improvement_estimate([np.zeros(1)], [np.zeros(1)] * 2)
    with pytest.raises(ValueError, match="at least one algorithm"):
        aggregate.compare({}, subject="a")
    with pytest.raises(ValueError, match=r"\(seeds, points\)"):
        aggregate.mean_curve(np.zeros(3))


def test_tables_figures_and_printed_text(tmp_path, capsys):
    write(tmp_path, "cheetah-run", "sac", [100.0, 300.0])
    write(tmp_path, "cheetah-run", "synther-fast", [400.0, 600.0])
    write(tmp_path, "Swimmer-v5", "synther-fast", [10.0])
    report("--results", tmp_path, "--out", tmp_path / "out", "--svg", "--envs", "cheetah-run", "Swimmer-v5")
    text = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == text + "\n"
    lines = text.splitlines()
    assert lines[2:9] == [
        "| task | sac | synther-fast |",
        "|---|---|---|",
        "| cheetah-run | 200 +- 141 (2 seeds) | **500 +- 141** (2 seeds) |",
        "| Swimmer-v5 | - | **10** (1 seed) |",
        "| IQM of normalised scores | 0.20 [0.10, 0.30] | 0.50 [0.40, 0.60] |",
        "| probability that synther-fast is better | 1.00 [1.00, 1.00] | - |",
        "",
    ]
    assert "2,000" in lines[0]
    assert "left out: Swimmer-v5." in lines[9]
    assert "different machines" not in text
    assert "| cheetah-run | sac | 2000 | 2.0 | 25.0% | 50.0% | 12.5% | 5.0% | 2.5% | 5.0% |" in lines
    for name in ("online.png", "aggregate.png"):
        assert (tmp_path / "out" / name).read_bytes()[:4] == PNG
        assert "<svg" in (tmp_path / "out" / name).with_suffix(".svg").read_text()
    assert not list(tmp_path.glob("*.png"))


def test_write_error_names_the_file_after_printing_the_tables(tmp_path, capsys, full_disk):
    write(tmp_path, "cheetah-run", "sac", [7.0])
    (tmp_path / "file").write_text("")
    said = refusal(capsys, "--results", tmp_path, "--out", tmp_path / "file")
    assert f"out: expected a writable folder, got {tmp_path / 'file'}" in said
    full_disk()
    assert figures.main(["online", "--results", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    printed, errors = capsys.readouterr()
    assert "| cheetah-run | **7** (1 seed) |" in printed
    assert errors.endswith("(No space left on device)\n") and str(tmp_path / "out" / "table.md") in errors
    assert len(errors.splitlines()) == 1


def test_failed_seeds_are_counted_and_score_zero_in_the_aggregates(tmp_path, capsys, undrawn):
    write(tmp_path, "cheetah-run", "sac", [None, None], machine={"cpu": "y"})
    write(tmp_path, "cheetah-run", "synther-fast", [400.0, None, 600.0, 800.0])
    report("--results", tmp_path)
    text = capsys.readouterr().out
    assert "| cheetah-run | failed (0/2 seeds) | 600 +- 200 (3/4 seeds) |" in text
    assert "| IQM of normalised scores | 0.00 [0.00, 0.00] | 0.50 [" in text
    assert "| probability that synther-fast is better | 0.88 [" in text
    assert "different machines" in text
    assert (tmp_path / "online.png").read_bytes()[:4] == PNG


def test_reported_step_is_the_end_of_the_shortest_run_or_the_given_step(tmp_path, capsys, undrawn):
    write(tmp_path, "cheetah-run", "sac", [7.0], first=[5.0])
    report("--results", tmp_path, "--step", 1000)
    text = capsys.readouterr().out
    assert "1,000 environment steps (some runs are longer)" in text
    assert "| cheetah-run | **5** (1 seed) |" in text
    longer = write(tmp_path, "cheetah-run", "redq", [9.0], steps=4000)
    report("--results", tmp_path)
    text = capsys.readouterr().out
    assert "2,000 environment steps (some runs are longer)" in text
    assert "| cheetah-run | **7** (1 seed) | 1 (1 seed) |" in text
    said = refusal(capsys, "--results", tmp_path, "--step", 1000)
    assert f"{longer}: expected an entry of the curve at step 1000, got 2 entries from step 2000 to 4000" in said


def test_a_curve_that_stops_early_is_refused(tmp_path, capsys):
    path = write(tmp_path, "cheetah-run", "sac", [1.0])
    path.write_text(json.dumps(result("cheetah-run", "sac", [1.0]) | {"steps": 9000}))
    assert f"{path}: expected an entry of the curve at step 9000" in refusal(capsys, "--results", tmp_path)


def test_other_tasks_and_algorithms_are_read_only_if_listed(tmp_path, capsys, undrawn):
    write(tmp_path, "cheetah-run", "sac", [7.0])
    write(tmp_path, "cheetah-run", "synther-fast-narrow", [8.0], algo="synther", preset="fast")
    write(tmp_path, "Ant-v3", "sac", [9.0])
    (tmp_path / "ablations").mkdir()
    (tmp_path / "ablations" / "note.json").write_text("{")
    report("--results", tmp_path)
    text = capsys.readouterr().out
    assert "Ant-v3" not in text
    assert "narrow" not in text
    assert (tmp_path / "aggregate.png").exists()
    asked = ["--envs", "Ant-v3", "cheetah-run", "--algorithms", "synther-fast-narrow", "sac"]
    report("--results", tmp_path, *asked)
    text = capsys.readouterr().out
    assert "| task | sac | synther-fast-narrow |" in text
    assert "Aggregated over cheetah-run, " in text
    assert "| Ant-v3 | **9** (1 seed) | - |" in text
    assert "Ant-v3: expected result files" in refusal(
        capsys, "--results", tmp_path, "--algorithms", "redq", "synther-fast-narrow", "--envs", "cheetah-run", "Ant-v3"
    )
    assert "redq.json" in refusal(capsys, "--results", tmp_path, "--algorithms", "redq", "sac")


def test_without_a_common_task_nothing_is_aggregated(tmp_path, capsys, undrawn):
    write(tmp_path, "cheetah-run", "sac", [7.0])
    report("--results", tmp_path)
    assert (tmp_path / "aggregate.png").exists()
    write(tmp_path, "Hopper-v5", "redq", [7.0])
    capsys.readouterr()
    report("--results", tmp_path)
    text = capsys.readouterr().out
    assert "| IQM of normalised scores | - | - |" in text
    assert "No aggregates" in text
    assert not (tmp_path / "aggregate.png").exists()


def test_an_incomplete_algorithm_does_not_change_the_other_aggregates(tmp_path, capsys, monkeypatch):
    for task, scale in (("cheetah-run", 1.0), ("reacher-hard", 0.5)):
        write(tmp_path, task, "sac", [100.0 * scale, 300.0 * scale])
        write(tmp_path, task, "synther-fast", [400.0 * scale, 600.0 * scale])
    drawn = []
    monkeypatch.setattr(online_figures, "save_figure", lambda figure, _: drawn.append(figure))
    report("--results", tmp_path)
    before = capsys.readouterr().out.splitlines()
    drawn.clear()
    write(tmp_path, "cheetah-run", "redq", [900.0, 900.0])
    report("--results", tmp_path)
    after = capsys.readouterr().out.splitlines()
    assert after[4] == "| cheetah-run | 200 +- 141 (2 seeds) | **900 +- 0** (2 seeds) | 500 +- 141 (2 seeds) |"
    for k in (6, 7):  # the aggregates
        cells = after[k].split(" | ")
        assert cells.pop(2) == "-"
        assert " | ".join(cells) == before[k]
    for names in ("cheetah-run, reacher-hard", "redq is left out: no results on reacher-hard."):
        assert names in after[9]
    curves, aggregates = drawn
    assert [len(axis.lines) for axis in curves.axes] == [3, 0, 2, 0, 0, 0]
    assert [[text.get_text() for text in axis.get_yticklabels()] for axis in aggregates.axes] == [
        ["sac", "synther-fast"],
        ["sac"],
    ]
    assert "redq is left out" in aggregates.get_supxlabel()


def test_no_probability_of_improvement_without_the_subject_on_all_tasks(tmp_path, capsys, undrawn):
    for task in ("cheetah-run", "reacher-hard"):
        write(tmp_path, task, "sac", [100.0])
    write(tmp_path, "cheetah-run", "synther-fast", [400.0])
    report("--results", tmp_path)
    text = capsys.readouterr().out
    assert "| IQM of normalised scores | 0.10 [0.10, 0.10] | - |" in text
    assert "probability" not in text


def test_a_folder_without_results_is_refused(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "none"):
        said = refusal(capsys, "--results", folder)
        assert f"{folder}: expected result files such as cheetah-run/sac.json, found none" in said
    assert not (tmp_path / "table.md").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env": "Hopper-v5"}, "env to be the folder's name, not 'Hopper-v5'"),
        ({"algo": "redq"}, "algo and preset as in the file's name"),
        ({"steps": "many"}, "steps to be a number of steps, got 'many'"),
        ({"curve": []}, "curve to be a list"),
        ({"curve": [{"step": 1}]}, "curve to be a list"),
        ({"curve": [{"step": 1, "returns": [1.0]}]}, "curve to be a list"),
        ({"curve": [{"step": 1, "returns": [1.0, "x"]}]}, "curve to be a list"),
        ({"curve": [{"step": n, "returns": [1.0, 2.0]} for n in (2000, 1000)]}, "steps increasing"),
        ({"wall_seconds": {"env": 1.0}}, "wall_seconds with a positive total"),
        ({"wall_seconds": {"total": 0}}, "wall_seconds with a positive total"),
        ({"wall_seconds": {"total": 1.0, "fit": "long"}}, "numbers for env, learner, fit, generate, evaluate"),
    ],
)
def test_inconsistent_files_are_refused(tmp_path, changes, said):
    path = tmp_path / "cheetah-run" / "sac.json"
    path.parent.mkdir()
    path.write_text(json.dumps(result("cheetah-run", "sac", [1.0, 2.0]) | changes))
    with pytest.raises(ValueError) as refused:
        online_results.read_run(path)
    assert str(refused.value).startswith(f"{path}: expected ")
    assert said in str(refused.value)


def test_damaged_files_and_missing_keys_are_refused(tmp_path):
    path = write(tmp_path, "cheetah-run", "sac", [1.0])
    for text, said in (
        ("{", "a damaged file"),
        ("[]", "a JSON object"),
        ('{"env": 1}', "missing: algo, preset, seeds"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError) as refused:
            online_results.read_run(path)
        assert str(refused.value).startswith(f"{path}: expected ")
        assert said in str(refused.value)


def test_a_result_without_its_origin_is_refused(tmp_path):
    path = write(tmp_path, "cheetah-run", "sac", [1.0])
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in content.items() if key != "commit"}))
    with pytest.raises(ValueError, match=r"missing: commit$"):
        online_results.read_run(path)


def test_untimed_parts_are_empty_cells(tmp_path):
    paths = [
        write(tmp_path, "cheetah-run", "sac", [1.0], wall_seconds={"total": 60.0}),
        write(tmp_path, "cheetah-run", "redq", [1.0], wall_seconds={"total": 60.0, "fit": 15.0}),
    ]
    assert time_table([online_results.read_run(path) for path in paths]).splitlines()[2:] == [
        "| cheetah-run | sac | 2000 | 1.0 | - | - | - | - | - | - |",
        "| cheetah-run | redq | 2000 | 1.0 | - | - | 25.0% | - | - | - |",
    ]


def test_sac_and_sac_of_stable_baselines3_in_one_table(tmp_path, capsys, undrawn):
    report("--results", RESULTS, "--algorithms", "sac", "sb3-sac", "--envs", "Hopper-v5", "--out", tmp_path)
    text = capsys.readouterr().out
    assert "30,000 environment steps (some runs are longer)" in text
    assert "| Hopper-v5 | **389 +- 201** (8 seeds) | 332 +- 113 (6 seeds) |" in text
    assert "different machines" in text
    assert (tmp_path / "online.png").read_bytes() == PNG


def test_runs_of_stable_baselines3_stand_below_ours_of_as_many_updates(tmp_path):
    for name, returns in (("synther-fast", [3.0, 5.0]), ("sac20", [1.0]), ("sb3-synther-fast", [2.0, 4.0])):
        write(tmp_path, "HalfCheetah-v5", name, returns, steps=100_000)
    assert online_tables._stable_baselines(tmp_path).splitlines()[2:] == [
        "| HalfCheetah-v5 | SynthER `fast()` | 20 | 100,000 | 2 | 4 +- 1 |",
        "| HalfCheetah-v5 | `FastSAC` with `SynthERBuffer` | 20 | 100,000 | 2 | 3 +- 1 |",
    ]


def test_curves_have_two_rows_of_three_panels_and_empty_panels(tmp_path, monkeypatch):
    path = write(tmp_path, "cheetah-run", "sac", [1.0, 3.0], steps=4000)
    drawn = []
    monkeypatch.setattr(online_figures, "save_figure", lambda figure, _: drawn.append(figure))
    online_figures.draw_curves([online_results.read_run(path)], online_figures.TASKS, tmp_path / "unused.png")
    axes = drawn[0].axes
    assert [axis.get_title() for axis in axes[:3]] == list(DMC_TASKS)
    assert [axis.get_title() for axis in axes[3:]] == list(GYM_TASKS)
    assert axes[0].get_gridspec().get_geometry() == (2, 3)
    np.testing.assert_array_equal(axes[0].lines[0].get_xydata(), [[2, 1], [4, 2]])
    assert [len(axis.lines) for axis in axes] == [1, 0, 0, 0, 0, 0]
    assert [text.get_text() for text in axes[5].texts] == ["no results"]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["sac"]
    assert "95 % stratified bootstrap interval" in drawn[0].get_supxlabel()


def agents_of(folder, agents):
    """The agents in words of one result of each of these settings."""
    shared = {"algo": "sac20", "critic": "layernorm"}
    paths = [
        write(folder, "Ant-v4", f"run-{number:03}", [1.0], utd=20, settings={**shared, **settings})
        for number, settings in enumerate(agents)
    ]
    return [online_results.read_run(path).agent for path in paths]


def test_table_of_agents_has_returns_where_there_are_some_and_counts_failed_seeds(tmp_path):
    shared = {"critic": "layernorm", "real_ratio": 0.9}
    for name, settings, early, late in (
        ("synther", {**shared, "generator": {"consistent": True}}, [5.0, None], [10.0, 30.0]),
        ("sac20", shared, [None], [1.0]),
    ):
        settings = {**settings, "algo": name}
        curve = [{"step": 30_000, "returns": early}, {"step": 40_000, "returns": late}]
        write(tmp_path, "Ant-v4", name, late, utd=20, steps=40_000, settings=settings, curve=curve)
    settings = {**shared, "algo": "sac20", "critic": "four"}
    four = {"curve": [{"step": 40_000, "returns": [1.0, 2.0, None, 3.0]}], "seeds": [0, 1, 2, 3], "settings": settings}
    write(tmp_path, "Hopper-v5", "sac20", [], utd=20, steps=40_000, **four)
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in agents_table.table(tmp_path).splitlines()]
    assert rows == [
        ["agent", "synthetic rows", "Ant-v4", "Hopper-v5"],
        ["---"] * 4,
        ["four", "none", "-", "2 +- 1 (1 failed)"],
        ["layernorm", "10%, `consistent`", "20 +- 14 (2)", "-"],
        ["layernorm", "none", "1 (1)", "-"],
    ]
    write(tmp_path, "Hopper-v5", "sac20-again", [], utd=20, steps=40_000, **four)
    with pytest.raises(ValueError, match="one result of each agent"):
        agents_table.table(tmp_path)


def another(value):
    """A value that an option of the learner may have instead of its default."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else 0.5 + (value or 0.0) / 4


def test_agents_that_differ_in_any_option_have_different_names(tmp_path):
    changes = {field.name: another(field.default) for field in fields(Hyperparameters) if field.name != "updates"}
    agents = [{"critic": name, "agent": agent} for name in CRITICS for agent in ({}, changes)]
    agents += [{"critic": name, "agent": {option: value}} for name in CRITICS for option, value in changes.items()]
    agents += [{"algo": "redq", "critic": "plain"}, {"critic": "plain", "agent": {"temperature": 0.50000001}}]
    agents += [{"agent": {"option_of_an_old_version": 1}}]
    options = [
        {"critics": ALGORITHMS[each.get("algo", "sac20")].critics, **CRITICS[each.get("critic", "layernorm")]}
        | each.get("agent", {})
        for each in agents
    ]
    different = {json.dumps({**asdict(Hyperparameters()), **each}, sort_keys=True) for each in options}
    assert len(set(agents_of(tmp_path, agents))) == len(different)


def test_an_agent_is_named_by_the_critic_whose_options_it_has(tmp_path):
    cautious = {"critics": 4, "target_critics": 4, "temperature": 0.01}
    same = [{"agent": cautious}, {"critic": "cautious", "agent": {"temperature": 0.01}}]
    same += [{"critic": "plain", "agent": {"layer_norm": True, **dict(reversed(cautious.items()))}}]
    (name,) = set(agents_of(tmp_path / "same", same))
    assert name.startswith("cautious, ") and "0.01" in name and "4" not in name
    assert agents_of(tmp_path / "default", [{"critic": "plain", "agent": {"gamma": 0.99}}]) == ["plain"]
