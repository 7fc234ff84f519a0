"""Tables and figures of the offline benchmark."""

import itertools
import json

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib.colors import to_rgba

from synther_replay.benchmarks import figures
from synther_replay.benchmarks.common.statistics import mean_estimate
from synther_replay.benchmarks.offline import figures as offline_figures
from synther_replay.benchmarks.offline import tables as offline_tables
from synther_replay.benchmarks.offline.results import read_results


def write(
    folder,
    dataset,
    algo,
    data,
    scores,
    *,
    before=(),
    share=None,
    augment=None,
    network=None,
    precise=False,
    changes=None,
):
    share_name, precise_name = share and f"{100 * share:g}pct", precise and "precise"
    name = "-".join(part for part in (algo, data, share_name, augment, network, precise_name) if part)
    content = {
        "dataset": dataset, "algo": algo, "data": data, "steps": 100, "seeds": list(range(len(scores))),
        "subsample": share, "augment": augment, "network": network, "precise": precise,
        "origin": "regenerated" if dataset.endswith("regen") else "official",
        "real_rows": 1000, "preset": None, "settings": {"episodes": 10},
        "final": scores, "curve": [{"step": 50 * k, "scores": of} for k, of in enumerate((*before, scores))],
        "wall_seconds": {"total": 60.0}, "machine": {}, "versions": {}, "command": "", "commit": "",
    }  # fmt: skip
    path = folder / dataset / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**content, **(changes or {})}))
    return path


def lines(folder):
    return offline_tables.table(read_results(folder)).splitlines()


def test_table_has_a_row_per_data_set_and_a_column_per_kind_of_rows(tmp_path):
    write(tmp_path, "hopper-medium-regen", "td3bc", "real", [40.0, 60.0])
    write(tmp_path, "hopper-medium-regen", "td3bc", "synther", [50.0, 70.0])
    write(tmp_path, "walker2d-medium-v2", "td3bc", "real", [10.0, 10.0])
    write(tmp_path, "walker2d-medium-v2", "iql", "real", [1.0], augment="dynamics")
    found = lines(tmp_path)
    legend = found[0].lower()
    assert legend.index("regenerated data sets") < legend.index("hopper-medium-regen") < legend.index("walker2d-medium")
    assert found[2:] == [
        "| iql | dynamics |",
        "|---|---|",
        "| walker2d-medium-v2 | 1.0 [1.0, 1.0] (1 seeds) |",
        "",
        "| td3bc | real | synther |",
        "|---|---|---|",
        "| hopper-medium-regen | 50.0 +- 14.1 [40.0, 60.0] (2 seeds) | 60.0 +- 14.1 [50.0, 70.0] (2 seeds) |",
        "| walker2d-medium-v2 | 10.0 +- 0.0 [10.0, 10.0] (2 seeds) | - |",
    ]


def test_reduced_data_sets_have_tables_of_their_own(tmp_path):
    for augment in (None, "additive", "dynamics"):
        write(tmp_path, "walker2d-medium-regen", "iql", "real", [5.0], share=0.15, augment=augment)
    write(tmp_path, "walker2d-medium-regen", "iql", "real", [9.0])
    found = lines(tmp_path)
    assert found[2] == "| iql | real |"
    assert found[6] == "| iql, 15 % of each data set | real | additive | dynamics |"


def test_means_are_separate_for_families_and_sources_of_data_sets(tmp_path):
    for task, score in (("hopper-medium", 1.0), ("walker2d-medium", 3.0)):
        write(tmp_path, f"{task}-regen", "td3bc", "real", [score])
        write(tmp_path, f"{task}-v2", "td3bc", "real", [10 * score])
    for size, score in (("umaze", 100.0), ("large", 150.0)):
        write(tmp_path, f"maze2d-{size}-regen", "td3bc", "real", [score], changes={"settings": {"episodes": 100}})
    write(tmp_path, "maze2d-umaze-v1", "td3bc", "real", [90.0], changes={"settings": {"episodes": 100}})
    assert [line for line in lines(tmp_path) if "mean of" in line] == [
        "| mean of 2, locomotion, regenerated | 2.0 [2.0, 2.0] |",
        "| mean of 2, locomotion, official | 20.0 [20.0, 20.0] |",
        "| mean of 2, mazes, regenerated | 125.0 [125.0, 125.0] |",
    ]  # no mean of a single data set


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "tiny"}, "preset, got 'paper' .* and 'tiny'"),
        ({"settings": {"episodes": 10, "rows": 5}}, "rows, got None .* and 5"),
        ({"settings": {"episodes": 3}}, "episodes, got 10 .* and 3"),
        ({"settings": {"episodes": 10, "generator": {"depth": 2, "steps": 1}}}, "depth, got 1 .* and 2"),
        (
            {"settings": {"episodes": 10, "generator": {"depth": 1, "find_limits": True}}},
            "find_limits, got False .* and True",
        ),
    ],
)
def test_cells_with_different_settings_are_refused(tmp_path, changes, message):
    made = {"preset": "paper", "settings": {"episodes": 10, "generator": {"depth": 1, "steps": 1, "width": 1}}}
    write(tmp_path, "hopper-medium-regen", "td3bc", "synther", [1.0], changes=made)
    # a larger generator, as the paper has on some data sets, and a file of a commit with one more option
    more = {"depth": 1, "steps": 1_000, "width": 2, "refit_steps": 9, "find_limits": False}
    wider = {"episodes": 10, "generator": more}
    write(tmp_path, "halfcheetah-medium-regen", "td3bc", "synther", [1.0], changes={**made, "settings": wider})
    assert len(lines(tmp_path)) == 7
    write(tmp_path, "walker2d-medium-regen", "td3bc", "synther", [1.0], changes={**made, **changes})
    with pytest.raises(ValueError, match=rf"td3bc synther: .*{message} on walker2d-medium-regen"):
        lines(tmp_path)


def test_legend_lists_different_generator_sizes(tmp_path):
    settings = {"generator": {"width": 8, "steps": 30_000}}
    for task in ("hopper", "walker2d"):
        write(tmp_path, f"{task}-medium-regen", "td3bc", "synther", [1.0], changes={"settings": settings})
        write(tmp_path, f"{task}-medium-regen", "td3bc", "real", [1.0])
    assert "Generators" not in lines(tmp_path)[0]
    longer = {"generator": {"width": 8, "steps": 100_000}}
    for algo in ("td3bc", "iql"):
        write(tmp_path, "halfcheetah-medium-regen", algo, "synther", [1.0], changes={"settings": longer})
    assert (
        "Generators differ between data sets: width 8, steps 30,000 on hopper-medium-regen, "
        "walker2d-medium-regen; width 8, steps 100,000 on halfcheetah-medium-regen."
    ) in lines(tmp_path)[0]
    # Generators may differ between shares of a data set, but not between algorithms.
    write(tmp_path, "hopper-medium-regen", "iql", "synther", [1.0], share=0.15, changes={"settings": longer})
    assert "steps 100,000 on 15 % of hopper-medium-regen, halfcheetah-medium-regen." in lines(tmp_path)[0]
    write(tmp_path, "hopper-medium-regen", "iql", "synther", [1.0], changes={"settings": longer})
    with pytest.raises(ValueError, match=r"hopper-medium-regen: expected one generator .* 100000} and .* 30000}"):
        lines(tmp_path)


def test_digests_are_compared_if_both_files_have_one(tmp_path):
    for data, augment, digest in (("real", None, None), ("real", "additive", "aa"), ("synther", None, "aa")):
        write(
            tmp_path, "hopper-medium-regen", "td3bc", data, [1.0], augment=augment, changes={"dataset_digest": digest}
        )
    assert len(lines(tmp_path)) == 5
    write(tmp_path, "hopper-medium-regen", "td3bc", "synther", [1.0], changes={"dataset_digest": "bb"})
    with pytest.raises(ValueError, match="expected results on the same hopper-medium-regen"):
        lines(tmp_path)


def test_two_files_for_one_cell_are_refused(tmp_path):
    path = write(tmp_path, "hopper-medium-regen", "td3bc", "real", [1.0])
    path.with_name("td3bc-real-again.json").write_text(path.read_text())
    with pytest.raises(ValueError, match="td3bc real: expected one result on hopper-medium-regen"):
        lines(tmp_path)


def test_cells_on_different_rows_of_one_data_set_are_refused(tmp_path):
    write(tmp_path, "hopper-medium-regen", "td3bc", "real", [1.0])
    write(tmp_path, "hopper-medium-regen", "td3bc", "synther", [1.0], changes={"real_rows": 999})
    with pytest.raises(ValueError, match="td3bc: expected results on the same hopper-medium-regen"):
        lines(tmp_path)


def test_runs_of_different_length_are_refused(tmp_path):
    write(tmp_path, "hopper-medium-regen", "td3bc", "real", [1.0])
    write(tmp_path, "hopper-medium-regen", "td3bc", "synther", [1.0], changes={"steps": 20})
    with pytest.raises(ValueError, match="expected runs of the same length, got \\[20, 100\\] updates"):
        lines(tmp_path)


def test_augmented_synthetic_rows_are_not_supported(tmp_path):
    write(tmp_path, "hopper-medium-regen", "td3bc", "synther", [1.0], augment="additive")
    with pytest.raises(ValueError, match="expected data or augment of real"):
        lines(tmp_path)


def test_other_networks_are_compared_with_default_networks(tmp_path):
    write(tmp_path, "hopper-medium-regen", "td3bc", "real", [1.0])
    write(tmp_path, "hopper-medium-regen", "td3bc", "real", [2.0], network="large")
    write(tmp_path, "hopper-medium-regen", "td3bc", "synther", [3.0], network="large")
    write(tmp_path, "walker2d-medium-regen", "td3bc", "real", [4.0])  # without a counterpart
    write(tmp_path, "walker2d-medium-regen", "td3bc", "synther", [5.0])
    found = lines(tmp_path)
    assert "| td3bc | real | synther |" in found
    assert "| td3bc-large | real | synther |" in found
    assert found[-3:] == [
        "| networks | td3bc, real | td3bc-large, real | td3bc-large, synther |",
        "|---|---|---|---|",
        "| hopper-medium-regen | 1.0 [1.0, 1.0] (1 seeds) | 2.0 [2.0, 2.0] (1 seeds) | 3.0 [3.0, 3.0] (1 seeds) |",
    ]


def test_mixed_rows_are_compared_on_the_data_sets_that_have_them(tmp_path):
    for name in ("hopper-medium-regen", "walker2d-medium-regen"):
        write(tmp_path, name, "td3bc", "real", [1.0])
        write(tmp_path, name, "td3bc", "synther", [3.0])
    write(tmp_path, "hopper-medium-regen", "td3bc", "mixed", [2.0])
    write(tmp_path, "walker2d-medium-regen", "td3bc", "real", [4.0], network="large")
    write(tmp_path, "walker2d-medium-regen", "iql", "mixed", [5.0])  # without a counterpart
    found = lines(tmp_path)[2:]
    assert [line for line in found if line.startswith("| ") and "regen" not in line] == [
        "| td3bc | real | synther |",
        "| td3bc-large | real |",
        "| iql, mixtures | mixed |",
        "| td3bc, mixtures | real | mixed | synther |",
        "| networks | td3bc, real | td3bc, synther | td3bc-large, real |",
    ]
    assert (
        "| hopper-medium-regen | 1.0 [1.0, 1.0] (1 seeds) | 2.0 [2.0, 2.0] (1 seeds) | 3.0 [3.0, 3.0] (1 seeds) |"
        in found
    )


def test_means_over_all_evaluations(tmp_path):
    write(tmp_path, "hopper-medium-regen", "td3bc", "real", [1.0, None], before=[[4.0, 6.0]])
    write(tmp_path, "walker2d-medium-regen", "td3bc", "real", [3.0, 3.0], before=[[5.0, 5.0]])
    write(tmp_path, "walker2d-medium-regen", "td3bc", "synther", [7.0, 7.0], before=[[9.0, 9.0]])
    write(tmp_path, "walker2d-medium-regen", "td3bc", "real", [1.0], before=[[2.0]], share=0.15)
    found = lines(tmp_path)
    assert "| mean of 2, locomotion, regenerated | 1.8 [1.5, 2.0] | - |" in found
    assert "| mean of 2, locomotion, regenerated, all evaluations | 3.4 [3.2, 3.5] | - |" in found
    assert found[-1] == "| walker2d-medium-regen, all evaluations | 1.5 [1.5, 1.5] |"  # the only one of its table


def test_runs_with_different_evaluation_steps_are_refused(tmp_path):
    write(tmp_path, "hopper-medium-regen", "td3bc", "real", [1.0], before=[[2.0]])
    write(tmp_path, "maze2d-umaze-regen", "td3bc", "real", [1.0], before=[[2.0], [3.0]])  # another task family
    assert any("all evaluations" in line for line in lines(tmp_path))
    write(tmp_path, "hopper-medium-regen", "td3bc", "synther", [1.0])
    with pytest.raises(ValueError, match="td3bc: expected evaluations at the same updates"):
        lines(tmp_path)


def test_fp32_products_count_as_another_algorithm(tmp_path):
    for network, precise in itertools.product((None, "large"), (False, True)):
        write(tmp_path, "hopper-medium-regen", "td3bc", "real", [1.0], network=network, precise=precise)
    titles = [line for line in lines(tmp_path) if line.startswith("| ") and "hopper" not in line]
    assert titles == [
        "| td3bc | real |",
        "| td3bc-large | real |",
        "| td3bc-large-precise | real |",
        "| td3bc-precise | real |",
        "| networks | td3bc, real | td3bc-large, real |",
        "| networks | td3bc-precise, real | td3bc-large-precise, real |",
    ]


def test_a_column_with_fewer_data_sets_does_not_affect_other_means(tmp_path):
    for k, name in enumerate(("halfcheetah", "hopper", "walker2d")):
        write(tmp_path, f"{name}-medium-regen", "td3bc", "real", [float(k)])
        write(tmp_path, f"{name}-medium-regen", "td3bc", "synther", [float(k + 10)])
    for name, score in (("hopper", 5.0), ("walker2d", 7.0)):
        write(tmp_path, f"{name}-medium-regen", "td3bc", "real", [score], augment="additive")
    of_all, of_some = lines(tmp_path)[-2:]
    assert of_all == "| mean of 3, locomotion, regenerated | 1.0 [1.0, 1.0] | - | 11.0 [11.0, 11.0] |"
    label, *means = of_some.strip("| ").split(" | ")
    assert label == "mean of 2 (hopper-medium-regen, walker2d-medium-regen), locomotion, regenerated"
    assert means == ["1.5 [1.5, 1.5]", "6.0 [6.0, 6.0]", "11.5 [11.5, 11.5]"]


def test_legend_mentions_edac_with_fewer_updates_than_corl(tmp_path):
    write(tmp_path, "hopper-medium-regen", "edac", "real", [1.0])
    assert "CORL trains EDAC for 3,000,000 updates" in lines(tmp_path)[0]
    write(tmp_path, "hopper-medium-regen", "edac", "real", [1.0], changes={"steps": 3_000_000})
    assert "EDAC" not in lines(tmp_path)[0]


def test_a_failed_seed_scores_zero_and_is_counted(tmp_path):
    write(tmp_path, "hopper-medium-regen", "td3bc", "real", [30.0, None, 60.0])
    assert "| hopper-medium-regen | 30.0 +- 30.0 [0.0, 60.0] (3 seeds, 1 failed) |" in lines(tmp_path)


def test_data_sets_have_equal_weights_in_means():
    estimate = mean_estimate([np.array([0.0, 0.0, 0.0, 0.0]), np.array([10.0, 10.0])])
    assert estimate == (5.0, 5.0, 5.0)
    spread = mean_estimate([np.array([0.0, 10.0])])
    assert (spread.value, spread.low, spread.high) == (5.0, 0.0, 10.0)


def test_intervals_of_means_hardly_depend_on_the_draws():
    scores = [np.random.default_rng(0).normal(size=8)]
    _, low, high = np.ptp([mean_estimate(scores, seed=seed) for seed in range(5)], axis=0)
    assert 0 < max(low, high) < 0.012  # where seeds spread by about 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"final": [1.0]}, "a final score for each seed"),
        ({"curve": [{"step": 1, "scores": [1.0]}]}, "one at each evaluation"),
        ({"curve": [{"step": 1, "scores": [1.0]}, {"step": 2, "scores": [1.0, 2.0]}]}, "one at each evaluation"),
        ({"curve": None}, "one at each evaluation"),
        ({"curve": [{"step": 1}]}, "one at each evaluation"),
        ({"curve": []}, "those of the last evaluation"),
        ({"curve": [{"step": 1, "scores": [1.0, 3.0]}]}, "those of the last evaluation"),
        ({"curve": [{"step": 1, "scores": []}], "seeds": [], "final": []}, "those of the last evaluation"),
        ({"data": "made-up"}, "expected data or augment of real"),
        ({"dataset": "other"}, "the data set of the folder's name"),
    ],
)
def test_inconsistent_files_are_refused(tmp_path, changes, message):
    path = write(tmp_path, "hopper-medium-regen", "td3bc", "real", [1.0, 2.0], changes=changes)
    with pytest.raises(ValueError, match=message) as error:
        read_results(tmp_path)
    assert str(path) in str(error.value)


def test_a_result_without_its_origin_is_refused(tmp_path):
    path = write(tmp_path, "hopper-medium-regen", "td3bc", "real", [1.0])
    content = json.loads(path.read_text())
    del content["commit"]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="missing: commit"):
        read_results(tmp_path)
    path.write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        read_results(tmp_path)


def test_command_writes_table_and_figures(tmp_path, capsys):
    for variant in ("real", "synther"):
        for algo in ("td3bc", "iql"):
            write(tmp_path, "hopper-medium-regen", algo, variant, [1.0, 2.0])
            write(tmp_path, "hopper-medium-regen", algo, variant, [1.0, 2.0], share=0.15)
    out = tmp_path / "new"
    assert figures.main(["offline", "--results", str(tmp_path), "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["offline-15pct.png", "offline.png", "table.md"]
    assert capsys.readouterr().out.strip() == (out / "table.md").read_text().strip()


def test_separate_figures_for_mazes_mixed_rows_and_other_networks(tmp_path):
    for network in (None, "large"):
        write(tmp_path, "hopper-medium-regen", "td3bc", "real", [1.0], network=network)
    write(tmp_path, "walker2d-medium-regen", "td3bc", "real", [2.0])
    write(tmp_path, "walker2d-medium-regen", "td3bc", "mixed", [2.5])
    write(tmp_path, "walker2d-medium-regen", "iql", "real", [3.0], network="large")  # without a counterpart
    write(tmp_path, "maze2d-umaze-regen", "td3bc", "real", [4.0])
    write(tmp_path, "antmaze-umaze-regen", "td3bc", "real", [6.0])
    write(tmp_path, "maze2d-umaze-regen", "td3bc", "mixed", [5.0], share=0.15)
    found = {
        name: sorted((result.dataset.partition("-")[0], result.algo, result.variant) for result in shown)
        for name, shown in offline_figures.figures(read_results(tmp_path)).items()
    }
    assert found == {
        "offline": [("hopper", "td3bc", "real"), ("walker2d", "iql-large", "real"), ("walker2d", "td3bc", "real")],
        "offline-mazes": [("maze2d", "td3bc", "real")],
        "offline-ant-mazes": [("antmaze", "td3bc", "real")],
        "offline-mixed": [("walker2d", "td3bc", "mixed"), ("walker2d", "td3bc", "real")],
        "offline-td3bc-large": [("hopper", "td3bc", "real"), ("hopper", "td3bc-large", "real")],
        "offline-15pct-mixed": [("maze2d", "td3bc", "mixed")],
    }


def test_an_empty_folder_is_an_error(tmp_path, capsys):
    with pytest.raises(SystemExit):
        figures.main(["offline", "--results", str(tmp_path)])
    assert "found none" in capsys.readouterr().err


@pytest.fixture
def call(tmp_path, call_main):
    """The program on a folder with one result; gives its exit status, output and errors."""
    write(tmp_path, "hopper-medium-regen", "td3bc", "real", [1.0])
    return lambda out: call_main(figures.main, "figures.py", "offline", "--results", tmp_path, "--out", out)


def test_full_disk_prints_the_table_and_names_the_file(tmp_path, call, full_disk):
    full_disk()
    status, printed, errors = call(tmp_path / "out")
    assert (status, printed) == (2, "\n".join(lines(tmp_path)) + "\n\n")
    path = tmp_path / "out" / "table.md"
    assert errors.startswith(f"figures.py: error: {path}: ") and errors.endswith("(No space left on device)\n")
    assert not list(path.parent.iterdir())


def test_a_figure_that_cannot_be_written_is_named(tmp_path, call, full_disk, monkeypatch):
    genuine = offline_figures.draw
    monkeypatch.setattr(offline_figures, "draw", lambda shown: (full_disk(), genuine(shown))[1])
    status, _, errors = call(tmp_path / "out")
    path = tmp_path / "out" / "offline.png"
    assert status == 2
    assert errors.startswith(f"figures.py: error: {path}: ") and errors.endswith("(No space left on device)\n")
    assert [path.name for path in path.parent.iterdir()] == ["table.md"]


def test_a_file_is_no_folder_to_write_to(tmp_path, call):
    path = tmp_path / "file"
    path.write_text("")
    status, _, errors = call(path)
    assert status == 2
    assert f"out: expected a writable folder, got {path}" in errors


def test_the_legend_names_the_colours_also_where_cells_are_missing(tmp_path):
    write(tmp_path, "hopper-medium-regen", "td3bc", "real", [1.0, 2.0])
    write(tmp_path, "walker2d-medium-regen", "iql", "synther", [3.0, 4.0])
    figure = offline_figures.draw(read_results(tmp_path))
    notes = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(notes) == ["", "no result", "no result", "no result"]  # two data sets, two kinds of rows
    (legend,) = figure.legends
    shown = {
        text.get_text(): patch.get_facecolor() for text, patch in zip(legend.texts, legend.get_patches(), strict=True)
    }
    assert shown == {name: to_rgba(offline_figures.COLOURS[name]) for name in ("real", "synther")}


def test_bars_stand_at_their_data_sets(tmp_path):
    write(tmp_path, "hopper-medium-regen", "td3bc", "real", [10.0, 20.0])
    write(tmp_path, "walker2d-medium-regen", "iql", "synther", [30.0, 40.0])
    figure = offline_figures.draw(read_results(tmp_path))
    found = {}
    for panel in figure.axes:
        labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]  # the panels share them
        (bar,) = panel.patches  # its neighbours are empty
        found[panel.get_title()] = labels[round(bar.get_y() + bar.get_height() / 2)], bar.get_width()
        bottom, top = panel.get_ylim()
        assert top < bar.get_y() and bar.get_y() + bar.get_height() < bottom
    assert found == {"td3bc": ("hopper-medium-regen", 15.0), "iql": ("walker2d-medium-regen", 35.0)}


def test_missing_mixed_results_leave_an_empty_bar(tmp_path):
    for name, algo in itertools.product(("hopper-medium-regen", "walker2d-medium-regen"), ("td3bc", "iql")):
        write(tmp_path, name, algo, "real", [1.0])
        if (name, algo) != ("hopper-medium-regen", "td3bc"):
            write(tmp_path, name, algo, "mixed", [2.0])
    figure = offline_figures.draw(offline_figures.figures(read_results(tmp_path))["offline-mixed"])
    notes = {panel.get_title(): [text.get_text() for text in panel.texts].count("no result") for panel in figure.axes}
    assert notes == {"iql": 0, "td3bc": 1}


def test_a_bar_shows_the_number_of_failed_seeds(tmp_path):
    write(tmp_path, "hopper-medium-regen", "td3bc", "real", [None, None, 3.0])
    figure = offline_figures.draw(read_results(tmp_path))
    assert [text.get_text() for text in figure.axes[0].texts] == ["2 of 3 failed"]
