"""Files are there whole or as before."""

from __future__ import annotations

import os
import time

import pytest

from synther_replay.atomic import replacing


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a[b].json"
    path.write_text("old")
    return path


def names(path):
    return sorted(file.name for file in path.parent.iterdir())


def test_new_file_takes_the_place_of_the_old_one_at_the_end(path):
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(path) == [path.name]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_failure_keeps_the_old_file_and_leaves_no_other(path, error):
    with pytest.raises(type(error)), replacing(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert names(path) == [path.name]


def test_nothing_written_is_an_error(path):
    with pytest.raises(FileNotFoundError), replacing(path):
        pass
    assert path.read_text() == "old"


def test_missing_folder_is_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"), replacing(tmp_path / "none" / "file"):
        pass


def test_what_a_killed_process_left_is_removed_by_the_next_one_and_nothing_else(path):
    left, young = (path.with_name(f".{path.name}.{pid}.tmp") for pid in (1, 2))
    of_others = [path.with_name(name) for name in (".other.json.1.tmp", f"{path.name}.1.tmp", ".ab.json.1.tmp")]
    for file in (left, young, *of_others):
        file.write_text("half")
    for file in (left, *of_others):
        os.utime(file, (time.time() - 7_200,) * 2)
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert names(path) == sorted([path.name, young.name, *(file.name for file in of_others)])
