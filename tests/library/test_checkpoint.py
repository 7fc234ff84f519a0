"""Checkpoints: complete or rejected, and never executed."""

import json
import math
import os
import pickle
import random
import re
import signal
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from synther_replay.errors import CheckpointError
from synther_replay.persistence import checkpoint, tensor_file
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.uint64, torch.uint32, torch.uint16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64),
]
STATE = {"steps": 1_234, "name": "a state", "part": {"rows": torch.arange(60.0).view(20, 3), "ids": torch.arange(7)}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.ckpt"


@pytest.fixture
def round_trip(path):
    def there_and_back(state):
        save_checkpoint(path, "toy", state)
        return load_checkpoint(path, "toy")

    return there_and_back


@pytest.fixture
def saved(path):
    """The bytes of a good file."""
    save_checkpoint(path, "toy", STATE)
    return path.read_bytes()


# --- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -7, 2**62, 2**100, 0.1, -0.0, 1e-320, math.inf, -math.inf, math.nan),
        *("", "text", 'quotes " \\ and \n lines', "ümläut 雪 \U0001f40d", "null byte \0", "__tensor__"),
        *([], {}, [[], {}], [1, [2.5, None, {"a": []}]], {"": 1, "a b": 2, "ü": {"deep": {"er": [True]}}}),
    ],
    ids=repr,
)
def test_plain_values_come_back_as_they_were(round_trip, same, value):
    assert same(round_trip({"value": value}), {"value": value})


def test_tuples_come_back_as_lists(round_trip, same):
    assert same(round_trip({"value": (1, (2, torch.ones(2)))}), {"value": [1, [2, torch.ones(2)]]})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 3), (2, 3, 4)], ids=str)
def test_tensors_come_back_as_they_were(round_trip, same, dtype, shape):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)
    assert same(round_trip({"tensor": tensor}), {"tensor": tensor})


def test_special_numbers_in_tensors_come_back_as_they_were(round_trip, same):
    state = {"tensor": torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45])}
    assert same(round_trip(state), state)


def test_tensors_come_back_from_anywhere_in_the_tree(round_trip, same):
    one, two = torch.ones(2), torch.zeros(3)
    state = {"a": [one, {"b": two}], "c": {"d": {"e": one + 1}}, "0": one - 1, "none": None}
    assert same(round_trip(state), state)


def test_tensors_that_are_not_contiguous_come_back_as_they_were(round_trip, same):
    base = torch.arange(24.0).view(4, 6)
    state = {
        "transposed": base.t(),
        "every other": base[::2, ::3],
        "spread": torch.ones(1).expand(5),
        "flip": base.flip(0),
    }
    assert same(round_trip(state), state)


def test_tensors_that_share_memory_come_back_apart(round_trip, same):
    base = torch.arange(12.0)
    state = {"whole": base, "again": base, "part": base[2:5], "other part": base[4:], "shaped": base.view(3, 4)}
    loaded = round_trip(state)
    assert same(loaded, state)
    loaded["whole"].fill_(99)
    assert torch.equal(loaded["again"], base)


def test_tensors_with_a_gradient_come_back_as_values(round_trip):
    assert not round_trip({"weight": torch.ones(2, requires_grad=True)})["weight"].requires_grad


def test_loaded_tensors_are_not_tied_to_the_file(round_trip, path):
    loaded = round_trip(STATE)
    loaded["part"]["rows"].fill_(99)
    assert load_checkpoint(path, "toy")["part"]["rows"].max() < 60


@pytest.mark.parametrize(
    "state",
    [
        {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}},
        {"a": {"b/c": torch.zeros(1)}, "a/b": {"c": torch.ones(1)}},
        {"a~1b": torch.zeros(1), "a/b": torch.ones(1)},
        {"a": [torch.zeros(1)], "a/0": torch.ones(1)},
    ],
    ids=lambda state: str(list(state)),
)
def test_keys_with_slashes_do_not_mix_up_tensors(round_trip, same, state):
    assert same(round_trip(state), state)


def test_path_may_be_a_string(path, same):
    save_checkpoint(str(path), "toy", STATE)
    assert same(load_checkpoint(str(path), "toy"), STATE)


# --- saving -----------------------------------------------------------------------------------------------------------


def files(path):
    return sorted(entry.name for entry in path.parent.iterdir())


def test_nothing_but_the_file_is_left_after_saving(saved, path):
    assert files(path) == [path.name]


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, b"bytes", 1j, {"deep": [torch.ones(2), print]}], ids=lambda value: type(value).__name__
)
def test_value_that_cannot_be_written_is_refused_and_the_old_file_stays(saved, path, value):
    with pytest.raises(TypeError):
        save_checkpoint(path, "toy", {"value": value})
    assert path.read_bytes() == saved
    assert files(path) == [path.name]


@pytest.mark.parametrize("key", [1, None, 1.5, ("a",), "__tensor__"], ids=repr)
def test_key_that_cannot_be_written_is_refused_and_the_old_file_stays(saved, path, key):
    with pytest.raises(TypeError):
        save_checkpoint(path, "toy", {"part": {key: torch.ones(1)}})
    with pytest.raises(TypeError):
        save_checkpoint(path, "toy", {key: 1})
    assert path.read_bytes() == saved
    assert files(path) == [path.name]


@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_failing_disk_leaves_the_old_file_and_no_other(saved, path, monkeypatch, function):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(path, "toy", {"steps": 2})
    monkeypatch.undo()
    assert path.read_bytes() == saved
    assert files(path) == [path.name]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_failure_in_the_middle_of_writing_leaves_the_old_file_and_no_other(saved, path, monkeypatch, error):
    def write_half(file, tensors, metadata):
        file.write_bytes(saved[: len(saved) // 2])
        raise error

    monkeypatch.setattr(tensor_file, "write", write_half)
    with pytest.raises(type(error)):
        save_checkpoint(path, "toy", {"steps": 2})
    assert path.read_bytes() == saved
    assert files(path) == [path.name]


def test_full_disk_raises_os_error_with_the_path(saved, path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # maximum file size
    try:
        with pytest.raises(OSError, match=re.escape(str(path))):
            save_checkpoint(path, "toy", {"rows": torch.ones(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == saved
    assert files(path) == [path.name]


@pytest.mark.skipif(os.name != "posix", reason="there is no umask")
@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_permissions_are_those_of_the_umask_or_of_the_old_file(path, mask):
    before = os.umask(mask)
    try:
        save_checkpoint(path, "toy", STATE)
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask
        path.chmod(0o640)
        save_checkpoint(path, "toy", STATE)
        assert path.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="there is no such signal")
def test_save_that_is_killed_leaves_nothing_that_the_next_save_does_not_remove(path):
    import resource

    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # kills the process in the middle of a write
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)
        save_checkpoint(path, "toy", {"rows": torch.ones(100_000)})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGXFSZ
    assert files(path) != []
    save_checkpoint(path, "toy", STATE)
    assert files(path) == [path.name]


def test_tensor_of_an_unsupported_dtype_is_refused_and_the_old_file_stays(saved, path):
    with pytest.raises(TypeError, match="complex128"):
        save_checkpoint(path, "toy", {"value": torch.ones(2, dtype=torch.complex128)})
    assert path.read_bytes() == saved


def test_files_are_read_by_the_safetensors_library(path):
    state = {str(dtype): torch.arange(6).view(2, 3).to(dtype) for dtype in DTYPES}
    save_checkpoint(path, "toy", state)
    found = load_file(path)
    assert sorted(map(str, found.values())) == sorted(map(str, state.values()))


def test_missing_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        save_checkpoint(tmp_path / "missing" / "state", "toy", STATE)
    assert list(tmp_path.iterdir()) == []


KILLED_SAVER = """
import os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from synther_replay.persistence.checkpoint import load_checkpoint, save_checkpoint

path = sys.argv[1]
states = [{"number": k, "rows": torch.full((500_000,), float(k))} for k in range(2)]
save_checkpoint(path, "toy", states[0])
random.seed(0)
seen = set()
for _ in range(15):
    child = os.fork()
    if child == 0:
        while True:
            for state in states:
                save_checkpoint(path, "toy", state)
    time.sleep(random.uniform(0.01, 0.08))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    loaded = load_checkpoint(path, "toy")
    assert loaded["rows"].shape == (500_000,)
    assert (loaded["rows"] == loaded["number"]).all()
    seen.add(loaded["number"])
save_checkpoint(path, "toy", states[1])
assert load_checkpoint(path, "toy")["number"] == 1
print("whole every time, seen", sorted(seen))
"""


@pytest.mark.slow
def test_kill_at_any_moment_leaves_a_whole_file(path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED_SAVER, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "whole every time, seen [0, 1]" in done.stdout


# --- loading what is damaged or foreign -------------------------------------------------------------------------------


def load_or_none(path):
    """The state, or None if the file is rejected; any other exception is an error."""
    try:
        return load_checkpoint(path, "toy")
    except CheckpointError:
        return None


@pytest.mark.parametrize("share", [*(k / 20 for k in range(20)), 0.999])
def test_truncated_file_is_refused(saved, path, share):
    path.write_bytes(saved[: int(share * len(saved))])
    with pytest.raises(CheckpointError, match=str(path)):
        load_checkpoint(path, "toy")


def test_file_with_something_added_is_refused(saved, path):
    path.write_bytes(saved + b"\0")
    with pytest.raises(CheckpointError):
        load_checkpoint(path, "toy")


def test_flipped_bit_in_the_data_is_refused(saved, path):
    data = saved[: -(60 * 4 + 7 * 8)]
    for place in range(len(data), len(saved), 15):
        damaged = bytearray(saved)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="damaged"):
            load_checkpoint(path, "toy")


@pytest.mark.parametrize("bit", [0x01, 0x02, 0x04, 0x20, 0x80])
def test_flipped_bit_in_the_header_never_gives_another_state(saved, path, same, bit):
    header = 8 + struct.unpack("<Q", saved[:8])[0]
    refused = 0
    for place in range(header):
        damaged = bytearray(saved)
        damaged[place] ^= bit
        path.write_bytes(damaged)
        state = load_or_none(path)
        assert state is None or same(state, STATE), (place, saved[max(0, place - 20) : place + 20])
        refused += state is None
    assert refused > 0.95 * header


def edited(saved, change):
    """The file with its JSON header changed."""
    size = struct.unpack("<Q", saved[:8])[0]
    header = json.loads(saved[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + saved[8 + size :]


@pytest.mark.parametrize("entry", ["format", "version", "kind", "tree", "checksum"])
@pytest.mark.parametrize("value", [None, "", "{}", "[]", "4", "null", "{", '{"a": {"__tensor__": "/missing"}}', "²"])
def test_header_with_other_contents_is_refused(saved, path, entry, value):
    def change(header):
        if value is None:
            del header["__metadata__"][entry]
        else:
            header["__metadata__"][entry] = value

    path.write_bytes(edited(saved, change))
    with pytest.raises(CheckpointError):
        load_checkpoint(path, "toy")


@pytest.mark.parametrize(
    "tree",
    [
        "[]",
        "null",
        "7",
        "NaN",
        "[" * 50_000 + "]" * 50_000,
        '{"a": ' * 50_000 + "1" + "}" * 50_000,
        "9" * 10_000,
        *(json.dumps({"a": {"__tensor__": name}}) for name in ([], {}, None, "0", ["0"])),
    ],
    ids=lambda tree: tree[:20],
)
def test_forged_tree_with_a_right_checksum_is_refused(saved, path, tree):
    def change(header):
        header["__metadata__"]["tree"] = tree
        header["__metadata__"]["checksum"] = checkpoint._header_checksum(header["__metadata__"])

    path.write_bytes(edited(saved, change))
    with pytest.raises(CheckpointError):
        load_checkpoint(path, "toy")


@pytest.mark.parametrize("version", ["9" * 10_000, "1" * 100, "0" * 10_000 + "2"], ids=len)
def test_version_of_many_digits_is_refused(saved, path, version):
    def change(header):
        header["__metadata__"]["version"] = version
        header["__metadata__"]["checksum"] = checkpoint._header_checksum(header["__metadata__"])

    path.write_bytes(edited(saved, change))
    with pytest.raises(CheckpointError, match="version"):
        load_checkpoint(path, "toy")


@pytest.mark.parametrize("change", ["dtype", "shape"])
def test_tensor_read_as_another_type_or_shape_is_refused(saved, path, change):
    def relabel(header):
        entry = next(e for name, e in header.items() if name != "__metadata__" and e["dtype"] == "F32")
        entry.update({"dtype": "I32"} if change == "dtype" else {"shape": [3, 20]})

    path.write_bytes(edited(saved, relabel))
    with pytest.raises(CheckpointError):
        load_checkpoint(path, "toy")


def test_rewritten_header_is_read(saved, path, same):
    path.write_bytes(edited(saved, lambda header: None))
    assert same(load_checkpoint(path, "toy"), STATE)


def test_newer_version_is_refused_naming_both(path, monkeypatch):
    monkeypatch.setattr(checkpoint, "VERSION", checkpoint.VERSION + 6)
    save_checkpoint(path, "toy", STATE)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=rf"'{checkpoint.VERSION + 6}'.*\b{checkpoint.VERSION}\b"):
        load_checkpoint(path, "toy")


def test_other_kind_is_refused_naming_both(saved, path):
    with pytest.raises(CheckpointError, match=r"'toy'.*'generator'"):
        load_checkpoint(path, "generator")


def test_missing_file_and_folder_are_refused(path, tmp_path):
    for nothing in (path, tmp_path, tmp_path / "missing" / "file"):
        with pytest.raises(CheckpointError, match=str(nothing)):
            load_checkpoint(nothing, "toy")
    with pytest.raises(CheckpointError, match="is not a file"):
        load_checkpoint(tmp_path, "toy")


def test_safetensors_of_others_are_refused(path):
    for metadata in (None, {"format": "pt"}):
        save_file({"weight": torch.ones(3)}, path, metadata=metadata)
        with pytest.raises(CheckpointError, match="not written by this library"):
            load_checkpoint(path, "toy")


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100, 5_000])
def test_noise_is_refused(path, size):
    path.write_bytes(random.Random(size).randbytes(size))
    with pytest.raises(CheckpointError):
        load_checkpoint(path, "toy")


@pytest.mark.parametrize("text", ["hello", "{}", json.dumps({"format": "synther_replay", "version": "1"})])
def test_text_is_refused(path, text):
    path.write_text(text)
    with pytest.raises(CheckpointError):
        load_checkpoint(path, "toy")


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (Path.touch, (Path(self.marker),))


@pytest.mark.parametrize("form", ["pickle", "torch", "zip"])
def test_loading_executes_nothing(path, tmp_path, form):
    marker = tmp_path / "executed"
    if form == "pickle":
        path.write_bytes(pickle.dumps(Payload(marker)))
    elif form == "torch":
        torch.save(Payload(marker), path)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data.pkl", pickle.dumps(Payload(marker)))
    with pytest.raises(CheckpointError):
        load_checkpoint(path, "toy")
    assert not marker.exists()
    if form == "pickle":  # the payload does run when unpickled
        pickle.loads(path.read_bytes())
        assert marker.exists()


def test_text_that_looks_like_code_stays_text(round_trip, same):
    state = {"__reduce__": "os.system('true')", "code": ["__import__('os')", {"py/object": "os.system"}]}
    assert same(round_trip(state), state)


def test_keys_of_version_1_are_renamed_on_loading(tmp_path, monkeypatch):
    old = {"refreshes": 3, "generator": {"config": {"refresh_steps": 100}}, "parts": [{"refreshes": torch.ones(2)}]}
    monkeypatch.setattr(checkpoint, "VERSION", 1)
    save_checkpoint(tmp_path / "old", "x", old)
    monkeypatch.undo()
    found = load_checkpoint(tmp_path / "old", "x")
    assert torch.equal(found["parts"][0].pop("refits"), torch.ones(2))
    assert found == {"refits": 3, "generator": {"config": {"refit_steps": 100}}, "parts": [{}]}
