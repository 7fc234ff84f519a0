"""The commands as a shell user sees them: files, exit status, one line on stderr, one JSON object on stdout."""

from __future__ import annotations

import os
import re
import subprocess
import time

import numpy as np
import pytest
import torch
from small_data import SETTINGS, arrays, raw

import synther_replay
from synther_replay import DiffusionGenerator
from synther_replay.cli import options
from synther_replay.cli.output import Output
from synther_replay.cli.threads import choose_threads
from synther_replay.config import GeneratorConfig
from synther_replay.files import open_file, read, write

COMMANDS = ("upsample", "fit", "sample", "info", "report", "bench", "watch")


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line on stderr with the words, nothing on stdout, exit status 1."""
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("synther: error: ")
    assert done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.parametrize("suffix", [".hdf5", ".npz", ".parquet"])
def test_upsample_writes_rows_that_are_read_back(tmp_path, data, synther_json, suffix):
    out = tmp_path / f"more{suffix}"
    printed = synther_json("upsample", data, out, "--times", 1.5, "--device", "cpu", *SETTINGS)
    assert (printed["rows"], printed["real_rows"], printed["bytes"]) == (300, 200, out.stat().st_size)
    rows = read(out)
    assert len(rows) == 300
    low, high = (getattr(arrays()["actions"], name)(0) for name in ("min", "max"))
    assert ((rows.actions.numpy() >= low) & (rows.actions.numpy() <= high)).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([out.name, data.name])


def test_the_first_block_of_rows_gives_an_estimate_of_the_time_left(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    with Output(as_json=False).step("generating", 100) as advance:
        time.sleep(0.02)
        advance(50)
        time.sleep(0.3)  # the bar is drawn ten times a second
    assert re.search(r"\d:\d\d:\d\d", capsys.readouterr().err)


def test_upsample_is_quiet_when_not_in_a_terminal(tmp_path, data, synther):
    done = synther("upsample", data, tmp_path / "more.npz", "--rows", 10, *SETTINGS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_fit_and_sample_give_what_the_library_gives(tmp_path, data, synther_json):
    model, out = tmp_path / "model.safetensors", tmp_path / "rows.npz"
    fitted = synther_json("fit", data, model, "--seed", 3, *SETTINGS)
    assert (fitted["real_rows"], fitted["steps"]) == (200, 20)
    assert DiffusionGenerator.load(model).seed == 3
    sampled = synther_json("sample", model, out, "--rows", "1k")
    assert sampled["rows"] == 1_000
    told = synther_json("info", model)
    assert (told["fitted"], told["columns"], told["seed"]) == (True, read(out).spec.dim, 3)


def test_a_file_larger_than_the_window_is_streamed(tmp_path, data, synther_json):
    """The library's fit to the stream gives the same weights; one to the rows in memory has others."""
    model = tmp_path / "model.safetensors"
    assert synther_json("fit", data, model, "--window", 70, *SETTINGS)["real_rows"] == 200
    streamed = DiffusionGenerator.load(model)
    same, other = (DiffusionGenerator(streamed.spec, streamed.config, device="cpu") for _ in range(2))
    same.fit(open_file(data), window=70)
    other.fit(read(data))
    assert torch.equal(same.model.weights, streamed.model.weights)
    assert not torch.equal(other.model.weights, streamed.model.weights)
    printed = synther_json("upsample", data, tmp_path / "more.npz", "--times", 2, "--window", 70, *SETTINGS)
    assert (printed["real_rows"], printed["rows"]) == (200, 400)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(tmp_path, data, synther):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        out = tmp_path / f"{name}.hdf5"
        assert synther("upsample", data, out, "--rows", 500, "--seed", seed, *SETTINGS).returncode == 0
    a, b, c = ((tmp_path / f"{name}.hdf5").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_info_tells_sizes_rates_and_origin(tmp_path, data, synther, synther_json):
    told = synther_json("info", data)
    real = arrays()
    assert (told["rows"], told["transitions"], told["columns"]) == (200, 200, 10)
    assert told["terminated"] == real["terminals"].sum()
    assert told["reward"]["mean"] == pytest.approx(real["rewards"].mean(), abs=1e-5)
    assert told["reward"]["std"] == pytest.approx(real["rewards"].std(), abs=1e-5)
    out = tmp_path / "more.parquet"
    synther_json("upsample", data, out, "--rows", 50, "--seed", 5, *SETTINGS)
    origin = synther_json("info", out)["origin"]
    assert (origin["source"], origin["seed"], origin["real_rows"]) == (data.name, 5, 200)
    shown = synther("info", out)
    assert shown.returncode == 0
    assert "Parquet" in shown.stdout


@pytest.mark.parametrize("suffix", [".hdf5", ".npz", ".parquet"])
def test_columns_that_are_not_modelled_are_named(tmp_path, synther, synther_json, suffix):
    path = tmp_path / f"real{suffix}"
    more = {"timeouts": np.zeros(200, bool), "extra": np.zeros(200)}
    save(path, arrays() | more)
    assert synther_json("info", path)["not_modelled"] == ["extra", "timeouts"]
    assert "extra" in synther("info", path).stdout
    out = tmp_path / "more.npz"
    assert synther("upsample", path, out, "--rows", 10, *SETTINGS).stderr.count("extra, timeouts") == 1
    told = synther_json("upsample", path, out, "--rows", 10, "--overwrite", *SETTINGS)
    assert told["not_modelled"] == ["extra", "timeouts"]
    assert synther_json("fit", path, tmp_path / "model", *SETTINGS)["not_modelled"] == ["extra", "timeouts"]
    save(path, raw())  # pairing needs its timeouts
    assert synther_json("info", path)["not_modelled"] == []


def save(path, data):
    """Write arrays as other programs do."""
    if path.suffix == ".npz":
        np.savez(path, **data)
    elif path.suffix == ".parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({key: list(values) for key, values in data.items()}), path)
    else:
        with pytest.importorskip("h5py").File(path, "w") as file:
            for key, values in data.items():
                file[key] = values


def test_bench_measures_and_recommends(synther_json):
    told = synther_json("bench", "--preset", "tiny", "--steps", 4, "--rows", 64, "--observations", 3, "--actions", 1)
    assert told["presets"]["tiny"]["rows_per_second"] > 0
    assert told["presets"]["tiny"]["fit_seconds"] >= told["presets"]["tiny"]["refit_seconds"]
    assert "tiny" in told["advice"]


@pytest.mark.parametrize("arguments", [(), *((name,) for name in COMMANDS)])
def test_help_has_examples(arguments, synther):
    done = synther(*arguments, "--help")
    assert done.returncode == 0
    assert f"synther {' '.join(arguments)}".strip() in done.stdout.split("Examples:")[1]


def test_the_version_needs_no_command(synther):
    done = synther("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"synther {synther_replay.__version__}\n", "")


def test_wrong_usage_has_exit_status_2(tmp_path, data, synther):
    out = tmp_path / "out.npz"
    for arguments in (
        ("nothing",),
        ("upsample", data),
        ("upsample", data, out),
        ("upsample", data, out, "--rows", 5, "--times", 2),
        ("upsample", data, out, "--rows", "many"),
        ("upsample", data, out, "--times", -1),
        ("upsample", data, out, "--rows", 5, "--preset", "slow"),
        ("upsample", data, out, "--rows", 5, "--set", "stepps=5"),
        ("upsample", data, out, "--rows", 5, "--set", "steps"),
        ("upsample", data, out, "--rows", 5, "--device", "toaster"),
        ("upsample", data, out, "--rows", 5, "--window", 63),
        ("fit", data, out, "--window", 10),
    ):
        done = synther(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert done.stderr
    assert not out.exists()


def test_numbers_of_rows():
    assert options.count(7) == 7  # a default of an option
    given = {"5M": 5_000_000, "2.5k": 2_500, "1_000": 1_000, "10,000": 10_000, "1e3": 1_000, "7": 7}
    assert {text: options.count(text) for text in given} == given
    for text in ("0", "-5", "1.5", "M", "5 apples", "", "1e-3", "nan", "inf", "1,5", "1_0", "1,0000", "1000,000", "1,"):
        with pytest.raises(Exception, match="rows"):
            options.count(text)


def test_outputs_are_checked_before_the_work_begins(tmp_path, data, synther):
    taken = tmp_path / "taken.npz"
    taken.write_bytes(b"old")
    refused(synther("upsample", data, taken, "--rows", 5, *SETTINGS), "taken.npz", "--overwrite")
    assert taken.read_bytes() == b"old"
    refused(synther("upsample", data, tmp_path / "no" / "out.npz", "--rows", 5), "no", "does not exist")
    refused(synther("upsample", data, tmp_path / "out.csv", "--rows", 5), "out.csv", ".parquet")
    assert synther("upsample", data, taken, "--rows", 5, "--overwrite", *SETTINGS).returncode == 0
    assert len(read(taken)) == 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path, data, synther):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    refused(synther("upsample", data, folder / "out.npz", "--rows", 5), "locked", "writable")


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_fit_checks_its_output_before_the_work_begins(tmp_path, data, synther, monkeypatch):
    monkeypatch.setattr("synther_replay.cli.commands.fit.fit_rows", interrupt)
    refused(synther("fit", data, tmp_path, "--overwrite"), "folder")
    monkeypatch.setattr(os, "access", lambda *_: False)  # for root, every folder is writable
    refused(synther("fit", data, tmp_path / "model"), "model", "writable")


def test_an_interrupted_command_says_whether_it_goes_on(tmp_path, data, synther, monkeypatch):
    for name in ("fit", "upsample"):
        monkeypatch.setattr(f"synther_replay.cli.commands.{name}.fit_rows", interrupt)
    rest = ("--rows", 5, *SETTINGS)
    for stopped in (synther("fit", data, tmp_path / "model"), synther("upsample", data, tmp_path / "a.npz", *rest)):
        assert (stopped.returncode, stopped.stderr.count("\n")) == (130, 1)
        assert "same command" not in stopped.stderr
    monkeypatch.undo()
    monkeypatch.setattr("synther_replay.cli.commands.upsample.generate", interrupt)  # the model is fitted
    assert "same command" in synther("upsample", data, tmp_path / "b.npz", *rest).stderr


def test_an_error_takes_one_line_whatever_the_name_of_the_file(tmp_path, data, synther, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device", "two\nlines.npz")

    monkeypatch.setattr("synther_replay.cli.commands.fit.fit_rows", fail)
    refused(synther("fit", data, tmp_path / "model"), "two lines.npz", "No space")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rewards": None}, ("rewards", "missing")),
        ({"observations": None, "next_observations": None}, ("observations", "missing")),
        ({"next_observations": None}, ("timeouts", "--episode-steps")),
        ({"rewards": np.full(200, np.nan)}, ("rewards", "nan")),
        ({"actions": np.full((200, 2), np.inf)}, ("actions", "inf")),
        ({"terminals": np.full(200, 0.5)}, ("terminals", "0.5")),
        ({"rewards": np.zeros(100)}, ("rewards", "100")),
        ({"next_observations": np.zeros((200, 4))}, ("next_observations", "(200, 4)")),
        ({"observations": np.array(["a"] * 200)}, ("observations", "numbers")),
    ],
)
def test_bad_fields_are_named_with_their_file(tmp_path, synther, changes, words):
    path = tmp_path / "bad.npz"
    fields = {key: value for key, value in (arrays() | changes).items() if value is not None}
    np.savez(path, **fields)
    refused(synther("upsample", path, tmp_path / "out.npz", "--rows", 5, *SETTINGS), "bad.npz", *words)


@pytest.mark.parametrize(
    "changes",
    [
        {"observations": np.zeros((200, 2_500)), "next_observations": np.zeros((200, 2_500))},
        # a category takes several codes: they are too many, the values alone are not
        {"observations": np.full(200, 900), "next_observations": np.full(200, 900), "actions": np.zeros((200, 4_090))},
    ],
)
def test_rows_that_are_too_long_for_a_generator_are_named_with_their_file(tmp_path, synther, monkeypatch, changes):
    np.savez(tmp_path / "wide.npz", **arrays() | changes)
    monkeypatch.setattr("synther_replay.cli.fitting.fit_rows", interrupt)
    refused(synther("fit", tmp_path / "wide.npz", tmp_path / "model"), "wide.npz", "4,096")
    refused(synther("upsample", tmp_path / "wide.npz", tmp_path / "out.npz", "--rows", 5), "wide.npz", "4,096")


def test_files_without_transitions_are_named(tmp_path, synther):
    for name in ("empty.npz", "empty.hdf5", "empty.parquet"):
        (tmp_path / name).write_bytes(b"")
        refused(synther("info", tmp_path / name), name)
    np.savez(tmp_path / "few.npz", **arrays(5))
    refused(synther("fit", tmp_path / "few.npz", tmp_path / "model"), "few.npz", "32", "5")
    refused(synther("info", tmp_path / "missing.npz"), "missing.npz", "no such file")
    done = synther("sample", tmp_path / "few.npz", tmp_path / "out.npz", "--rows", 5)
    refused(done, "few.npz")
    assert "path:" not in done.stderr


@pytest.mark.parametrize("name", ["main_data.hdf5", "metadata.json"])
def test_a_damaged_minari_set_is_named_and_stays_as_it_is(tmp_path, synther, name):
    pytest.importorskip("minari")
    np.savez(tmp_path / "whole.npz", **arrays())
    write(tmp_path / "rows-v0", read(tmp_path / "whole.npz"))
    damaged = tmp_path / "rows-v0" / "data" / name
    whole = damaged.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0x80
    for content in (whole[: len(whole) // 2], bytes(flipped), b""):
        damaged.write_bytes(content)
        refused(synther("upsample", tmp_path / "rows-v0", tmp_path / "out.npz", "--rows", 9, *SETTINGS), "rows-v0")
        refused(synther("info", tmp_path / "rows-v0"), "rows-v0")
        assert damaged.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows-v0", "whole.npz"]


def test_a_wide_network_has_all_threads_after_a_narrow_one(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("synther_replay.cli.threads._ALL", 3)
    before, counts = torch.get_num_threads(), []
    for width in (32, 512):
        choose_threads(GeneratorConfig.tiny(width=width), torch.device("cpu"))
        counts.append(torch.get_num_threads())
    torch.set_num_threads(before)
    assert counts == [1, 3]
