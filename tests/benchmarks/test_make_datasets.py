"""Regenerated data sets: what is in the files, that a seed fixes it, and what happens when something goes wrong."""

import os
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("mujoco")
pytest.importorskip("h5py")
from synther_replay.benchmarks import make_datasets
from synther_replay.benchmarks.data.behaviour import Behaviour
from synther_replay.benchmarks.data.hdf5 import read
from synther_replay.benchmarks.data.recipes import recipe
from synther_replay.benchmarks.data.registry import load, normalised_score
from synther_replay.benchmarks.data.rollouts import Episodes, RolloutPool

HOPPER = "Hopper-v5"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The command line, which writes to the folder `tmp_path`."""
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")  # tests may run while someone commits

    def call(*arguments, out=tmp_path):
        options = [] if "--workers" in arguments else ["--workers", "1"]
        monkeypatch.setattr(sys, "argv", ["make_datasets.py", *arguments, *options, "--out", str(out)])
        return make_datasets.main()

    return call


def ends_of(rows):
    return np.flatnonzero(rows["terminals"] | rows["timeouts"]) + 1


# --- what is in them --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows"), [("halfcheetah-medium", 2_300), ("hopper-medium-replay", 1_500), ("maze2d-umaze", 700)]
)
def test_a_set_is_found_by_its_name_with_nothing_lost(tmp_path, run, name, rows):
    assert run(name, "--rows", str(rows)) == 0
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}-regen.hdf5"]
    written, _ = read(tmp_path / f"{name}-regen.hdf5")
    assert {len(values) for values in written.values()} == {rows}
    assert not (written["terminals"] & written["timeouts"]).any()

    found = load(f"{name}-regen", folder=tmp_path)
    assert found.origin == "regenerated"
    # As of D4RL's files: all but timeouts, of which the reader knows no continuation, and the last row.
    kept = np.flatnonzero(~written["timeouts"][:-1])
    assert len(found) == len(kept)
    assert found.terminals.sum() == written["terminals"][:-1].sum()
    for key in ("observations", "actions", "rewards", "next_observations"):
        np.testing.assert_array_equal(getattr(found, key), written[key][kept])
    inside = ~(written["terminals"] | written["timeouts"])[:-1]
    np.testing.assert_array_equal(written["next_observations"][:-1][inside], written["observations"][1:][inside])
    begins = ends_of(written)[:-1]
    if name != "maze2d-umaze":  # where the ball rolls on
        assert not (written["next_observations"][begins - 1] == written["observations"][begins]).all(1).any()


@pytest.mark.parametrize(("name", "rows"), [("halfcheetah-medium", 2_300), ("hopper-random", 700)])
def test_attributes_have_origin_and_returns(tmp_path, run, name, rows):
    assert run(name, "--rows", str(rows), "--seed", "3") == 0
    found = load(f"{name}-regen", folder=tmp_path)
    about, returns = found.attributes, found.returns()
    assert about["command"] == f"python benchmarks/make_datasets.py {name} --rows {rows} --seed 3"
    assert (about["seed"], about["rows"], about["commit"]) == (3, rows, "abc")
    assert about["recipe"] == recipe(name).description
    assert {"mujoco", "numpy", "gymnasium"} <= about["versions"].keys()
    assert about["returns"]["episodes"] == len(returns) > 1
    assert about["returns"]["mean"] == pytest.approx(returns.mean())
    assert about["returns"]["std"] == pytest.approx(returns.std())
    assert about["returns"]["score"] == pytest.approx(normalised_score(f"{name}-regen", returns.mean()))


def test_the_medium_set_has_the_return_of_its_policy(tmp_path, run):
    assert run("hopper-medium", "--rows", "3000") == 0
    medium = Behaviour.read(HOPPER).medium
    assert load("hopper-medium-regen", folder=tmp_path).returns().mean() == pytest.approx(medium.mean_return, rel=0.3)


def test_a_set_without_a_complete_episode_has_no_return(tmp_path, run, capsys):
    assert run("halfcheetah-random", "--rows", "200") == 0
    assert "200 rows, no complete episode" in capsys.readouterr().out
    found = load("halfcheetah-random-regen", folder=tmp_path)
    assert found.attributes["returns"] == {"mean": None, "std": None, "episodes": 0, "score": None}
    assert (len(found), len(found.returns())) == (199, 0)


def test_the_score_of_a_maze_is_that_of_an_episode_of_the_task(tmp_path, run):
    assert run("maze2d-umaze", "--rows", "2000") == 0
    rows, about = read(tmp_path / "maze2d-umaze-regen.hdf5")
    expected = normalised_score("maze2d-umaze-regen", 300 * rows["rewards"].mean(dtype=np.float64))
    assert about["returns"]["score"] == pytest.approx(expected)
    assert about["returns"]["episodes"] == rows["timeouts"].sum()


def test_parts_have_their_shares_in_whole_episodes(tmp_path, run):
    assert run("hopper-medium-replay", "--rows", "4000") == 0
    rows, about = read(tmp_path / "hopper-medium-replay-regen.hdf5")
    wanted, parts = recipe("hopper-medium-replay", 4_000).parts, about["parts"]
    assert [part["player"] for part in parts] == [part.label for part in wanted]
    assert sum(part["rows"] for part in parts) == 4_000
    goals, found = (np.cumsum(counts) for counts in ([p.rows for p in wanted], [p["rows"] for p in parts]))
    ends = ends_of(rows)
    assert set(found[:-1]) <= set(ends)
    for goal, end in zip(goals[:-1], found[:-1], strict=True):
        assert end == ends[ends >= goal][0]  # the episode in which the goal lies is the last


def test_medium_expert_is_half_and_half(tmp_path):
    behaviour = Behaviour.read(HOPPER)
    # In place of an expert one whose episodes are short.
    replay = recipe("hopper-medium-replay", 10_000)
    weak = next(part for part in replay.parts if part.label == behaviour.replay[1].file)
    (medium,) = recipe("hopper-medium", 1_000).parts
    chosen = replace(replay, name="hopper-medium-expert", parts=(medium, replace(weak, rows=1_000)))
    with RolloutPool(1) as pool:
        about = make_datasets.make(chosen, 0, tmp_path / "hopper-medium-expert-regen.hdf5", pool)
    first, second = (part["rows"] for part in about["parts"])
    assert first + second == 2_000
    assert 1_000 <= first < 1_500
    returns = load("hopper-medium-expert-regen", folder=tmp_path).returns()
    assert returns[0] > 2 * returns[-1]


# --- a seed fixes it --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows"), [("halfcheetah-medium", 3_500), ("hopper-medium-replay", 1_200), ("maze2d-umaze", 20_500)]
)
def test_any_number_of_processes_writes_the_same_file(tmp_path, run, name, rows):
    for workers in ("1", "2"):
        assert run(name, "--rows", str(rows), "--workers", workers, out=tmp_path / workers) == 0
    one, two = ((tmp_path / workers / f"{name}-regen.hdf5").read_bytes() for workers in ("1", "2"))
    assert one == two


def test_another_seed_and_another_recipe_are_other_data(tmp_path, run):
    assert run("hopper-random", "walker2d-random", "--rows", "50", out=tmp_path / "0") == 0
    assert run("hopper-random", "--rows", "50", "--seed", "1", out=tmp_path / "1") == 0
    zero, one = (load("hopper-random-regen", folder=tmp_path / seed) for seed in "01")
    other = load("walker2d-random-regen", folder=tmp_path / "0")
    assert not np.isclose(zero.actions, one.actions).any()
    assert not np.isclose(zero.actions, other.actions[: len(zero), :3]).all()


def test_fewer_rows_are_the_first_of_more(tmp_path, run):
    for rows in ("60", "90"):
        assert run("hopper-random", "--rows", rows, out=tmp_path / rows) == 0
    few, more = (read(tmp_path / rows / "hopper-random-regen.hdf5")[0] for rows in ("60", "90"))
    for key in few:
        np.testing.assert_array_equal(few[key], more[key][:60])


# --- files in the way -------------------------------------------------------------------------------------------------


def test_an_existing_set_is_not_regenerated(tmp_path, run, capsys):
    path = tmp_path / "hopper-random-regen.hdf5"
    assert run("hopper-random", "--rows", "50") == 0
    before = path.stat().st_mtime_ns
    assert run("hopper-random", "--rows", "50") == 0
    assert f"{path}: already exists" in capsys.readouterr().out
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("option", "said"), [(("--seed", "1"), "seed: got 0, expected 1"), (("--rows", "60"), "rows: got 50, expected 60")]
)
def test_a_file_with_other_content_is_replaced_on_demand_only(tmp_path, run, capsys, option, said):
    path = tmp_path / "hopper-random-regen.hdf5"
    assert run("hopper-random", "--rows", "50") == 0
    before = path.read_bytes()
    arguments = ("walker2d-random", "hopper-random", "--rows", "50", *option)
    assert run(*arguments) == 2
    assert f"regen.hdf5: file exists with other content ({said}); use --overwrite" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert not (tmp_path / "walker2d-random-regen.hdf5").exists()  # this is found out before anything is made
    assert run(*arguments, "--overwrite") == 0
    assert path.read_bytes() != before


def test_a_damaged_file_is_refused(tmp_path, run, capsys):
    path = tmp_path / "hopper-random-regen.hdf5"
    path.write_bytes(b"half of a file")
    assert run("hopper-random", "--rows", "50") == 2
    assert "cannot read the file as HDF5" in capsys.readouterr().err
    assert run("hopper-random", "--rows", "50", "--overwrite") == 0
    assert len(load("hopper-random-regen", folder=tmp_path)) > 40


def test_other_policies_make_another_set(tmp_path, run, monkeypatch, capsys):
    assert run("hopper-medium", "--rows", "50") == 0
    changed = replace(recipe("hopper-medium", 50), policies={"other": "0"})
    monkeypatch.setattr(make_datasets, "recipe", lambda *_: changed)
    assert run("hopper-medium", "--rows", "50") == 2
    assert "policies: got sac-" in capsys.readouterr().err


def test_a_recipe_in_other_words_makes_the_same_set(tmp_path, run, monkeypatch):
    assert run("hopper-medium", "--rows", "50") == 0
    reworded = replace(recipe("hopper-medium", 50), description="The same.")
    monkeypatch.setattr(make_datasets, "recipe", lambda *_: reworded)
    assert run("hopper-medium", "--rows", "50") == 0


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("hoper-random",), "unknown recipe 'hoper-random'; did you mean hopper-random"),
        (("hopper-random", "--rows", "0"), "rows: expected a whole number of at least 1, got 0"),
        (("hopper-random", "--seed", "-1"), "seed: expected a whole number of at least 0, got -1"),
        (("hopper-random", "--workers", "0"), "workers: expected a whole number of at least 1, got 0"),
    ],
)
def test_bad_arguments(tmp_path, run, capsys, arguments, said):
    try:
        assert run(*arguments) == 2
    except SystemExit as stopped:  # argparse's way
        assert stopped.code == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_one_row_is_no_transition(tmp_path, run, capsys):
    assert run("hopper-random", "--rows", "1") == 1
    assert "hopper-random: no transitions" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_missing_policy_is_one_line(tmp_path, run, monkeypatch, capsys):
    monkeypatch.setattr(make_datasets, "recipe", partial(recipe, root=tmp_path / "none"))
    assert run("hopper-random", "hopper-medium", "--rows", "50") == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "hopper-medium: no medium policy of Hopper-v5" in said[0]
    assert not list(tmp_path.iterdir())


def test_all_skips_sets_without_policies(tmp_path, run, monkeypatch, capsys):
    monkeypatch.setattr(make_datasets, "RECIPES", ("walker2d-medium", "hopper-random"))
    monkeypatch.setattr(make_datasets, "recipe", partial(recipe, root=tmp_path / "none"))
    assert run("all", "--rows", "50") == 1
    assert "walker2d-medium: no medium policy" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["hopper-random-regen.hdf5"]


def test_a_full_disk_leaves_nothing(tmp_path, run, full_disk, capsys):
    full_disk()
    assert run("hopper-random", "--rows", "50") == 1
    assert "hopper-random-regen.hdf5: cannot write the file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_unwritable_folder_is_refused_at_once(tmp_path, run, monkeypatch, capsys):
    monkeypatch.setattr(make_datasets, "make", lambda *_: pytest.fail("the work would be lost"))
    (tmp_path / "file").write_text("")
    assert run("hopper-random", out=tmp_path / "file") == 2
    assert "--out: expected a writable folder, got " in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda *_: False)  # as of a folder of others, for all but root
    assert run("hopper-random", out=tmp_path) == 2
    assert f"--out: expected a writable folder, got {tmp_path} (no write permission)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted; the file was not written"),
        (BrokenProcessPool("gone"), 1, "a worker process died"),
    ],
)
def test_an_interrupted_or_killed_run_leaves_no_file(tmp_path, run, monkeypatch, capsys, fault, status, said):
    rollout, left = Episodes.rollout, [3]

    def fails_soon(self, seed):
        left[0] -= 1
        if not left[0]:
            raise fault
        return rollout(self, seed)

    monkeypatch.setattr(Episodes, "rollout", fails_soon)
    assert run("hopper-random", "--rows", "500") == status
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
