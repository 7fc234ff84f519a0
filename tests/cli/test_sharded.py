"""`synther upsample --shards`: the same bytes whoever makes them, resumable by shard, readable by Arrow and by us."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_data import ENVIRONMENT, SETTINGS, arrays, command

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec
from synther_replay.cli.output import Output
from synther_replay.cli.sharded import generate_shards
from synther_replay.distributed.sharding import ShardPlan, finished, write_here
from synther_replay.errors import GenerationError
from synther_replay.files import open_file, parquet, read, shards, write

ROWS, SHARDS = 1_003, 4


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


@pytest.fixture
def made(tmp_path, data, synther_json):
    """A folder of shards that this process made."""
    out = tmp_path / "made"
    printed = synther_json("upsample", data, out, "--rows", ROWS, "--shards", SHARDS, *SETTINGS)
    assert (printed["rows"], printed["shards"], printed["engine"]) == (ROWS, SHARDS, "local")
    assert not (tmp_path / "made.partial").exists()
    return out


def test_rows_are_divided_exactly():
    for rows, count in ((10, 3), (64, 64), (1_000_003, 64)):
        plan = ShardPlan(rows, count, seed=0)
        sizes = [plan.size(shard) for shard in range(count)]
        assert sum(sizes) == rows
        assert max(sizes) - min(sizes) <= 1
    seeds = {
        ShardPlan(100, 10, seed).block_seed(shard, block) for seed in (0, 1) for shard in (0, 1) for block in (0, 1)
    }
    assert len(seeds) == 8
    with pytest.raises(ValueError, match="at most one per row"):
        ShardPlan(3, 4, seed=0)


def test_the_bytes_do_not_depend_on_the_number_of_threads(tmp_path):
    """Layers of a thousand units sum in another order with two threads."""
    spec = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (17,)), gym.spaces.Box(-1, 1, (6,)))
    config = GeneratorConfig.tiny(width=1_024, depth=1, steps=10, consistent=False, sampling_steps=4)
    rows = torch.rand(64, spec.dim, generator=torch.Generator().manual_seed(0))
    rows[:, spec.terminated] = 0
    generator = DiffusionGenerator(spec, config, device="cpu")
    generator.fit(Transitions(spec, rows))
    generator.save(tmp_path / "model.safetensors")
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        folder = tmp_path / f"{threads}"
        folder.mkdir()
        where = {"model": str(tmp_path / "model.safetensors"), "folder": str(folder), "device": "cpu"}
        list(write_here([0], plan=ShardPlan(2_000, 1, seed=0), about={}, **where))
        found.append(digests(folder))
    torch.set_num_threads(before)
    assert found[0] == found[1]


def test_shards_are_read_as_one_file(made, synther_json):
    dataset = pytest.importorskip("pyarrow.dataset")
    file = open_file(made)
    assert (file.rows, file.about["seed"], len(read(made))) == (ROWS, 0, ROWS)
    table = dataset.dataset(made, format="parquet").to_table()
    assert np.array_equal(np.stack(table["observations"].to_numpy()), read(made).observations.numpy())
    rows = read(made).rows
    assert len(np.unique(rows.numpy(), axis=0)) == ROWS  # no shard repeats another
    assert synther_json("info", made)["rows"] == ROWS


def test_the_manifest_has_checksums(made):
    manifest = json.loads((made / shards.MANIFEST).read_text())
    assert (manifest["rows"], manifest["seed"], len(manifest["shards"])) == (ROWS, 0, SHARDS)
    assert {entry["file"]: entry["sha256"] for entry in manifest["shards"]}.items() <= digests(made).items()
    assert shards.verify(made) == ROWS
    file = made / shards.name_of(2, SHARDS)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(GenerationError, match="part-00002"):
        shards.verify(made)
    file.unlink()
    with pytest.raises(ValueError, match="part-00002"):
        open_file(made)


def test_threads_change_nothing_but_the_time(tmp_path, data, made, synther_json):
    synther_json("fit", data, tmp_path / "model", *SETTINGS)
    manifest = json.loads((made / shards.MANIFEST).read_text())
    plan, about = ShardPlan(ROWS, SHARDS, seed=0), {"rows": ROWS}
    folders = []
    for threads in (1, 3):
        folder = tmp_path / str(threads) / "shards"
        folder.mkdir(parents=True)
        writer = {"model": str(tmp_path / "model"), "folder": str(folder), "plan": plan, "about": about}
        entries = list(write_here(range(SHARDS), threads=threads, device="cpu", **writer))
        assert sorted(entry["file"] for entry in entries) == [entry["file"] for entry in manifest["shards"]]
        assert finished(folder, plan).keys() == set(range(SHARDS))
        folders.append(folder)
    assert digests(folders[0]) == digests(folders[1])
    assert np.array_equal(read(folders[0]).rows, read(made).rows)


def test_an_error_in_one_shard_ends_the_others_and_leaves_whole_files(tmp_path, data, synther_json, monkeypatch):
    synther_json("fit", data, tmp_path / "model", *SETTINGS)
    plan, folder = ShardPlan(ROWS, 50, seed=0), tmp_path / "work" / "shards"
    folder.mkdir(parents=True)
    write_file = parquet.write

    def failing(file, *args):
        if file.name == shards.name_of(5, 50):
            raise OSError("disk full")
        write_file(file, *args)

    monkeypatch.setattr(parquet, "write", failing)
    made = write_here(
        range(50), threads=3, model=str(tmp_path / "model"), folder=str(folder), plan=plan, about={}, device="cpu"
    )
    with pytest.raises(OSError, match="disk full"):
        list(made)
    assert not any(thread.name.startswith("ThreadPool") for thread in threading.enumerate())
    whole = finished(folder, plan)
    assert 0 < len(whole) < 49
    assert {file.name for file in folder.iterdir()} == {entry["file"] for entry in whole.values()}


def test_one_thread_is_that_of_the_caller(tmp_path, data, synther_json, monkeypatch):
    """Ctrl-C reaches the main thread only: elsewhere it would wait for the rows of a whole block."""
    synther_json("fit", data, tmp_path / "model", *SETTINGS)
    plan, folder, threads = ShardPlan(ROWS, SHARDS, seed=0), tmp_path / "work" / "shards", set()
    folder.mkdir(parents=True)
    write_file = parquet.write

    def noted(*args):
        threads.add(threading.current_thread())
        write_file(*args)

    monkeypatch.setattr(parquet, "write", noted)
    list(
        write_here(range(SHARDS), model=str(tmp_path / "model"), folder=str(folder), plan=plan, about={}, device="cpu")
    )
    assert threads == {threading.current_thread()}


def test_an_interrupt_of_the_progress_bar_ends_the_threads(tmp_path, data, synther, monkeypatch):
    alive = []

    @contextmanager
    def interrupted(self, description, total=None, done=0):
        def advance(rows):
            if description == "generating":
                raise KeyboardInterrupt

        yield advance

    def watched(*args):
        try:
            return generate_shards(*args)
        except KeyboardInterrupt:
            alive.extend(thread for thread in threading.enumerate() if thread.name.startswith("ThreadPool"))
            raise

    def in_threads(numbers, **options):
        return write_here(numbers, **{**options, "threads": 3})  # as on a GPU

    monkeypatch.setattr("synther_replay.cli.sharded.write_here", in_threads)
    monkeypatch.setattr(Output, "step", interrupted)
    monkeypatch.setattr("synther_replay.cli.commands.upsample.generate_shards", watched)
    out = tmp_path / "out"
    assert synther("upsample", data, out, "--rows", ROWS, "--shards", 50, *SETTINGS).returncode != 0
    assert not alive and not out.exists()


def test_hugging_face_reads_them(made, tmp_path):
    datasets = pytest.importorskip("datasets")
    found = datasets.load_dataset(str(made), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(found) == ROWS
    assert set(found.column_names) == {"observations", "actions", "rewards", "next_observations", "terminals"}


def test_shards_are_not_read_again_once_they_are_written(tmp_path, data, synther, monkeypatch):
    read_files = []
    describe = shards.describe
    monkeypatch.setattr(shards, "describe", lambda file, rows: read_files.append(file.name) or describe(file, rows))
    assert synther("upsample", data, tmp_path / "out", "--rows", ROWS, "--shards", SHARDS, *SETTINGS).returncode == 0
    assert sorted(read_files) == [shards.name_of(shard, SHARDS) for shard in range(SHARDS)]


def test_a_shard_that_disappears_meanwhile_is_missed(tmp_path, data, synther, monkeypatch):
    def losing(numbers, **options):
        for entry in write_here(numbers, **options):
            yield entry
        (Path(options["folder"]) / entry["file"]).unlink()

    monkeypatch.setattr("synther_replay.cli.sharded.write_here", losing)
    done = synther("upsample", data, tmp_path / "out", "--rows", ROWS, "--shards", SHARDS, *SETTINGS)
    assert (done.returncode, "1 shards are missing" in done.stderr) == (1, True)
    assert not (tmp_path / "out").exists()


def test_folders_of_other_files_stay(tmp_path, data, synther, made):
    before = digests(made)
    again = "upsample", data, made, "--rows", 10, "--shards", 2, *SETTINGS
    assert "exists" in synther(*again).stderr
    assert digests(made) == before
    assert synther(*again, "--overwrite").returncode == 0
    assert len(read(made)) == 10
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("")
    assert synther("upsample", data, other, "--rows", 10, "--shards", 2, "--overwrite", *SETTINGS).returncode == 1
    assert (other / "thesis.tex").exists()


def test_without_ray_it_says_what_to_install(tmp_path, data, synther, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    done = synther("upsample", data, tmp_path / "out", "--rows", 10, "--engine", "ray", *SETTINGS)
    assert done.returncode == 1
    assert "synther-replay[ray]" in done.stderr


def killed(arguments, folder: Path, shards_before: int) -> None:
    """Kill the command when so many shards are there."""
    process = subprocess.Popen(command(*arguments), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    entries = folder.with_name(f"{folder.name}.partial") / "entries"
    while process.poll() is None and len(list(entries.glob("part-*.json"))) < shards_before:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
def test_a_killed_command_goes_on_with_the_missing_shards(tmp_path, data, synther_json):
    settings = "--rows", 400_000, "--shards", 20, *SETTINGS
    synther_json("upsample", data, tmp_path / "whole", *settings)
    arguments = "upsample", data, tmp_path / "killed", *settings
    killed(arguments, tmp_path / "killed", 3)
    partial = tmp_path / "killed.partial"
    entry = next((partial / "entries").glob("part-*.json"))
    damaged = partial / "shards" / entry.name.removesuffix(".json")
    damaged.write_bytes(b"damaged")
    printed = synther_json(*arguments)
    assert 40_000 <= printed["resumed_rows"] < 400_000
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")


@pytest.mark.soak
def test_a_killed_cluster_leaves_shards_that_another_engine_goes_on_with(tmp_path, data, synther_json):
    settings = "--rows", 400_000, "--shards", 10, *SETTINGS
    synther_json("upsample", data, tmp_path / "here", *settings)
    arguments = "upsample", data, tmp_path / "killed", *settings
    killed((*arguments, "--engine", "ray"), tmp_path / "killed", 2)
    assert synther_json(*arguments)["resumed_rows"] >= 80_000
    assert digests(tmp_path / "killed") == digests(tmp_path / "here")


def test_plain_folders_of_parquet_files_are_read(tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    for number in range(2):
        rows = {key: list(values) for key, values in arrays(50, seed=number).items()}
        parquet.write_table(arrow.table(rows), tmp_path / f"{number}.parquet")
    assert len(read(tmp_path)) == 100
    (tmp_path / "2.parquet").touch()
    with pytest.raises(ValueError, match=r"2\.parquet: .*0 bytes"):
        read(tmp_path)
    parquet.write_table(arrow.table({"observations": [[0.0]]}), tmp_path / "2.parquet")
    with pytest.raises(ValueError, match=r"2\.parquet"):
        read(tmp_path)


def test_a_folder_with_other_files_is_never_replaced(tmp_path, data, synther, made):
    """Neither one with files of the user beside shards, nor one that holds the input."""
    options = ("--rows", 100, "--shards", 2, "--overwrite", *SETTINGS)
    (made / "notes.txt").write_text("mine")
    before = digests(made)
    done = synther("upsample", data, made, *options)
    assert (done.returncode, digests(made)) == (1, before)
    folder = tmp_path / "data"
    folder.mkdir()
    source = folder / "replay.parquet"
    write(source, read(data))
    done = synther("upsample", source, folder, *options)
    assert (done.returncode, [file.name for file in folder.iterdir()]) == (1, ["replay.parquet"])
    (made / "notes.txt").unlink()
    assert synther("upsample", data, made, *options).returncode == 0
    assert open_file(made).rows == 100


def test_an_output_that_a_kill_left_aside_comes_back(tmp_path, data, synther, made):
    """A kill between the two moves of a delivery leaves the old folder in the work folder."""
    before, options = digests(made), ("--rows", 100, "--shards", 2, "--overwrite", *SETTINGS)
    aside = tmp_path / "made.partial"
    aside.mkdir()
    (aside / "lock").touch()
    made.rename(aside / "old")
    assert (
        synther("upsample", data, made, "--rows", 1, "--shards", 2, *SETTINGS).returncode == 1
    )  # more shards than rows
    assert synther("upsample", data, made, *options).returncode == 0
    assert digests(made) != before
    shutil.copytree(made, aside / "old")  # a kill after them
    (aside / "lock").touch()
    assert synther("upsample", data, made, *options).returncode == 0
    assert not aside.exists()
