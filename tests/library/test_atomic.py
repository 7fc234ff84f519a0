"""Atomic writes: a file is complete or unchanged."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
import time

import pytest

from synther_replay.persistence.atomic import replacing, replacing_folder


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


def test_target_of_a_symbolic_link_is_replaced(path, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = elsewhere / "link"
    link.symlink_to(path)
    with replacing(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink() and path.read_text() == "new"
    assert [*elsewhere.iterdir()] == [link]


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


def test_a_folder_in_place_of_a_file_is_refused_before_anything_is_computed(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder; name a file"), replacing(tmp_path):
        pytest.fail("computed")
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_is_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"), replacing(tmp_path / "none" / "file"):
        pass


def left_behind(path, name, machine, process, *, hours=0):
    file = path.with_name(f".{name}.{machine}.{process}.synther.tmp")
    file.write_text("half")
    os.utime(file, (time.time() - 3_600 * hours,) * 2)
    return file


@pytest.mark.skipif(os.name != "posix", reason="there is no way to ask for a process")
def test_temporary_file_of_a_killed_process_is_removed_by_the_next_write(path):
    killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    killed.kill()
    killed.wait()
    here, running = platform.node().replace(".", "-"), os.getppid()
    for name in (path.name, "other.json"):
        left_behind(path, name, here, killed.pid)
    stay = [
        left_behind(path, path.name, here, running),
        left_behind(path, "other.json", here, running, hours=2),
        left_behind(path, path.name, "elsewhere", killed.pid),
        left_behind(path, "other.json", "elsewhere", killed.pid, hours=2),
        path.with_name(".no.name.of.ours.synther.tmp"),
        path.with_name(f".other.json.{killed.pid}.tmp"),
    ]
    for file in stay[-2:]:
        file.write_text("somebody's")
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert names(path) == sorted([path.name, *(file.name for file in stay)])


def test_old_temporary_file_of_another_machine_is_removed(path):
    for machine, process in (("elsewhere", 1), (platform.node().replace(".", "-"), os.getppid())):
        left_behind(path, path.name, machine, process, hours=2)
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert names(path) == [path.name]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "old").write_text("old")
    return folder


def test_new_folder_takes_the_place_of_the_old_one_at_the_end(folder):
    with replacing_folder(folder) as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "new").write_text("new")
        assert [file.name for file in folder.iterdir()] == ["old"]
    assert [file.name for file in folder.iterdir()] == ["inner"]
    assert names(folder) == ["set"]


def test_after_an_error_the_old_folder_is_complete(folder, full_disk):
    with pytest.raises(ZeroDivisionError), replacing_folder(folder) as temporary:
        (temporary / "new").write_text("new")
        1 / 0  # noqa: B018
    full_disk()
    with pytest.raises(OSError, match="set"), replacing_folder(folder) as temporary:
        (temporary / "new").write_text("new")
    assert [file.name for file in folder.iterdir()] == ["old"]
    assert names(folder) == ["set"]


def test_folder_of_a_killed_process_is_removed_by_the_next_write(folder):
    killed = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    machine = platform.node().replace(".", "-")
    left = folder.with_name(f".other.{machine}.{killed.stdout.strip()}.synther.dir")
    left.mkdir()
    (left / "part").write_text("part")
    with replacing_folder(folder) as temporary:
        (temporary / "new").write_text("new")
    assert names(folder) == ["set"]


def test_folder_around_must_exist(tmp_path):
    with pytest.raises(FileNotFoundError, match="no"), replacing_folder(tmp_path / "no" / "set"):
        pass


def test_a_folder_named_old_beside_it_stays(folder):
    other = folder.with_name("set.old")
    other.mkdir()
    (other / "mine").touch()
    with replacing_folder(folder) as temporary:
        (temporary / "new").write_text("new")
    assert (other / "mine").exists()
    assert names(folder) == ["set", "set.old"]


def test_the_target_of_a_link_to_a_folder_is_replaced(folder):
    link = folder.with_name("link")
    link.symlink_to(folder)
    with replacing_folder(link) as temporary:
        (temporary / "new").write_text("new")
    assert link.is_symlink()
    assert [file.name for file in folder.iterdir()] == ["new"]
    assert names(folder) == ["link", "set"]


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(folder, monkeypatch):
    genuine = os.replace

    def only_the_first_step(source, target):
        if str(source).endswith(".synther.dir"):
            raise OSError(errno.EIO, "Input/output error")
        genuine(source, target)

    monkeypatch.setattr(os, "replace", only_the_first_step)
    with pytest.raises(OSError, match="set"), replacing_folder(folder) as temporary:
        (temporary / "new").write_text("new")
    assert [file.name for file in folder.iterdir()] == ["old"]
    assert names(folder) == ["set"]
