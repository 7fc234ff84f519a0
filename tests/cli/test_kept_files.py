"""Files of the user that the commands must not replace or remove."""

from __future__ import annotations

import pytest
from small_data import SETTINGS

from synther_replay.cli.generation import Target


@pytest.fixture
def precious(tmp_path):
    """A folder with a file that is not ours."""
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter").write_text("one")
    return folder


def upsampled(synther, data, out, *more):
    return synther("upsample", data, out, "--rows", 20, "--device", "cpu", *SETTINGS, *more)


def refused(done, word):
    assert done.returncode == 1, done.stderr
    assert word in done.stderr


def test_a_folder_of_other_files_is_not_replaced(data, precious, synther):
    pytest.importorskip("minari")
    refused(upsampled(synther, data, precious, "--overwrite"), "folder of other files")
    assert (precious / "chapter").read_text() == "one"


def test_a_folder_that_is_named_like_ours_is_not_taken(tmp_path, data, precious, synther):
    partial = precious.rename(tmp_path / "more.npz.partial")
    refused(upsampled(synther, data, tmp_path / "more.npz"), "holds other files")
    assert [file.name for file in partial.iterdir()] == ["chapter"]


def test_the_input_is_not_the_output(tmp_path, data, synther):
    before = data.read_bytes()
    (tmp_path / "link.npz").symlink_to(data)
    for out in (data, tmp_path / "link.npz"):
        refused(upsampled(synther, data, out, "--overwrite"), "is the input")
        refused(synther("fit", data, out, "--overwrite", *SETTINGS), "is the input")
    assert data.read_bytes() == before


def test_a_model_is_not_replaced_by_its_rows(tmp_path, data, synther):
    model = tmp_path / "model.npz"
    assert synther("fit", data, model, *SETTINGS).returncode == 0
    before = model.read_bytes()
    refused(synther("sample", model, model, "--rows", 10, "--overwrite"), "is the input")
    assert model.read_bytes() == before


def test_files_of_an_input_in_shards_stay(tmp_path, data, synther):
    folder = tmp_path / "shards"
    assert upsampled(synther, data, folder, "--shards", 2).returncode == 0
    shard = next(folder.glob("*.parquet"))
    before = shard.read_bytes()
    refused(synther("fit", folder, shard, "--overwrite", *SETTINGS), "part of it")
    refused(upsampled(synther, folder, folder / "more.parquet"), "part of it")
    assert shard.read_bytes() == before


def test_an_output_that_appears_meanwhile_stays(tmp_path):
    target = Target.of(str(tmp_path / "more.npz"), overwrite=False)
    target.path.write_text("of somebody else")
    with pytest.raises(FileExistsError, match="overwrite"):
        target.check_free()


def test_a_report_replaces_pages_only(data, precious, synther):
    before = data.read_bytes()
    for out in (data, precious):
        refused(synther("report", data, data, "-o", out), "no page")
    assert data.read_bytes() == before
