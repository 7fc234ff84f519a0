"""D4RL's files: what is read from them, which rows are transitions, what is refused, and files written whole."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synther_replay.benchmarks.data.hdf5 import read, to_transitions, validated, write

h5py = pytest.importorskip("h5py")


def rows(n=8, terminals=(), timeouts=(), **others):
    """Row i observes (i, 10 i), acts i / 100 and earns i."""
    count = np.arange(n, dtype=np.float32)
    flags = {name: np.isin(count, at) for name, at in (("terminals", terminals), ("timeouts", timeouts))}
    return {
        "observations": np.stack([count, 10 * count], 1),
        "actions": count[:, None] / 100,
        "rewards": count,
        **flags,
        **others,
    }


def without(arrays, *keys):
    return {key: values for key, values in arrays.items() if key not in keys}


def write_plainly(path, arrays):
    """As other programs write, without validation."""
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            file[key] = values
    return path


# --- which rows are transitions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "terminals", "timeouts", "kept", "before_gap", "returns"),
    [
        (6, [2, 5], [], [0, 1, 2, 3, 4], [4], [3, 12]),
        (6, [], [2, 5], [0, 1, 3, 4], [1, 4], [3, 12]),
        (7, [1], [4], [0, 1, 2, 3, 5], [3, 5], [1, 9]),
        (6, [2], [2], [0, 1, 3, 4], [1, 4], [3]),
        (6, [1], [2], [0, 1, 3, 4], [4], [1, 2]),
        (4, [], [], [0, 1, 2], [2], []),
        (4, [2], [], [0, 1, 2], [], [3]),
        (5, [2], [4], [0, 1, 2, 3], [3], [3, 7]),
    ],
    ids=[
        "terminals, the last at the end",
        "timeouts, the last at the end",
        "one of each, then an unfinished episode",
        "both in one row",
        "an episode of one row",
        "no end at all",
        "terminal before the last row",
        "terminal, then a timeout at the end",
    ],
)
@pytest.mark.parametrize("own", [False, True], ids=["next row", "next_observations"])
def test_rows_at_timeouts_and_the_last_are_left_out(n, terminals, timeouts, kept, before_gap, returns, own):
    given = rows(n, terminals, timeouts)
    following = given["observations"] + 0.5
    if own:
        given["next_observations"] = following
    found, found_returns = to_transitions(given, limit=3, where="here")
    assert found["rewards"].tolist() == kept
    for key in ("observations", "actions", "terminals"):
        assert np.array_equal(found[key], given[key][kept]), key
    expected = following[kept] if own else given["observations"][np.array(kept) + 1]
    assert np.array_equal(found["next_observations"], expected)
    assert found["rewards"][found["timeouts"]].tolist() == before_gap
    assert found_returns.tolist() == returns


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_transitions_are_those_of_a_walk_through_the_rows(flags):
    given_rows = rows(len(flags)) | dict(zip(("terminals", "timeouts"), np.array(flags).T, strict=True))
    expected = []
    for row, (_, timeout) in enumerate(flags):
        if not timeout and row + 1 < len(flags):
            expected.append((row, row + 1))
    if not expected:
        with pytest.raises(ValueError, match="here: no transitions"):
            to_transitions(given_rows, limit=3, where="here")
        return
    found, _ = to_transitions(given_rows, limit=3, where="here")
    assert list(zip(found["observations"][:, 0], found["next_observations"][:, 0], strict=True)) == expected
    # where nothing says otherwise a row goes on in the one after it
    runs_on = ~(found["terminals"] | found["timeouts"])[:-1]
    assert np.array_equal(found["next_observations"][:-1][runs_on], found["observations"][1:][runs_on])


@pytest.mark.parametrize(
    ("terminals", "kept", "returns"),
    [
        ([], [0, 1, 3, 4, 6], [3, 12]),
        ([3], [0, 1, 3, 4, 5], [3, 3, 15]),
        ([2], [0, 1, 3, 4, 6], [3, 12]),
        ([0, 1], [0, 1, 2, 3, 5, 6], [0, 1, 9, 18]),
    ],
)
def test_missing_timeouts_come_from_the_limit_with_a_warning(terminals, kept, returns):
    with pytest.warns(UserWarning, match="here: no timeouts.* after 3 steps"):
        found, found_returns = to_transitions(without(rows(8, terminals), "timeouts"), limit=3, where="here")
    assert found["rewards"].tolist() == kept
    assert found_returns.tolist() == returns


@pytest.mark.filterwarnings("error")
def test_timeouts_of_the_file_give_no_warning():
    found, _ = to_transitions(rows(8), limit=3, where="here")
    assert len(found["rewards"]) == 7


def test_returns_of_long_sets_are_exact():
    given_rows = rows(100_000, timeouts=np.arange(999, 100_000, 1000)) | {"rewards": np.full(100_000, 0.1, np.float32)}
    assert to_transitions(given_rows, limit=1, where="here")[1] == pytest.approx(
        np.full(100, 1000 * np.float64(np.float32(0.1)))
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def test_other_types_and_shapes_of_the_format_are_read(tmp_path):
    arrays = rows(6, [2])
    arrays |= {
        "observations": arrays["observations"].astype(np.float64),
        "rewards": arrays["rewards"][:, None],
        "terminals": arrays["terminals"].astype(np.uint8)[:, None],
        "timeouts": arrays["timeouts"].astype(np.float32),
        "infos/qpos": np.zeros((6, 3)),
        "metadata/policy": 3,
    }
    found, attributes = read(write_plainly(tmp_path / "set.hdf5", arrays))
    assert attributes == {}
    for key, expected in rows(6, [2]).items():
        assert found[key].dtype == expected.dtype, key
        assert np.array_equal(found[key], expected), key
    assert set(found) == set(rows())


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "set.hdf5"
    write(path, rows(5000), {})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(ValueError, match=r"set\.hdf5: cannot read the file as HDF5: .*truncated"):
        read(path)
    assert len(path.read_bytes()) == len(whole) * 2 // 3


def test_a_damaged_value_is_refused(tmp_path):
    path = tmp_path / "set.hdf5"
    write(path, rows(5000), {})
    content = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        start = file["observations"].id.get_chunk_info(0).byte_offset
    content[start + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"set\.hdf5: cannot read the file as HDF5"):
        read(path)


@pytest.mark.parametrize("content", [b"", b"<html>no such page</html>" * 99], ids=["empty", "foreign"])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    path = tmp_path / "set.hdf5"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"set\.hdf5: cannot read the file as HDF5"):
        read(path)


@pytest.mark.parametrize("error", [KeyError, TypeError, RuntimeError, MemoryError])
def test_every_h5py_error_is_reported_as_damage(tmp_path, monkeypatch, error):
    """Regression: a flipped byte in the structure of a file gave a KeyError, in a type a TypeError."""

    def fail(*args):
        raise error("unable to open object")

    path = write_plainly(tmp_path / "set.hdf5", rows())
    monkeypatch.setattr(h5py.Dataset, "__getitem__", fail)
    with pytest.raises(ValueError, match=r"set\.hdf5: cannot read the file as HDF5: .*unable to open object"):
        read(path)


def test_an_hdf5_file_of_another_kind_is_refused(tmp_path):
    path = write_plainly(tmp_path / "set.hdf5", {"episode_0/observations": np.zeros((3, 2)), "rewards/a": np.zeros(3)})
    with pytest.raises(ValueError, match=r"set\.hdf5: missing observations, actions, rewards, terminals;"):
        read(path)


def test_a_missing_array_is_named():
    for key in ("observations", "actions", "rewards", "terminals"):
        with pytest.raises(ValueError, match=f"here: missing {key};"):
            validated(without(rows(), key), "here")


def test_lengths_that_differ_are_named():
    with pytest.raises(ValueError, match=r"observations 8, actions 8, rewards 7, terminals 8, timeouts 6$"):
        validated(rows() | {"rewards": np.zeros(7), "timeouts": np.zeros(6)}, "here")


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        ("observations", np.zeros(8), r"observations: expected shape \(n, columns\) .*got shape \(8,\)"),
        (
            "observations",
            np.zeros((8, 0)),
            r"observations: expected shape \(n, columns\) .*got shape \(8, 0\)",
        ),
        ("actions", np.zeros((8, 1, 1)), r"actions: expected shape \(n, columns\) .*got shape \(8, 1, 1\)"),
        ("rewards", np.zeros((8, 2)), r"rewards: expected shape \(n,\) .*got shape \(8, 2\)"),
        ("rewards", 3.0, r"rewards: expected shape \(n,\) .*got shape \(\)"),
        ("terminals", np.zeros((0,)), r"terminals: expected shape \(n,\) .*got shape \(0,\)"),
        ("next_observations", np.zeros((8, 3)), r"next_observations: expected shape \(8, 2\).* got \(8, 3\)"),
        ("terminals", np.full(8, 0.5), "terminals: expected 0 and 1, got 0.5"),
        ("timeouts", np.full(8, np.nan), "timeouts: expected 0 and 1, got nan"),
        ("actions", np.full((8, 1), b"up"), "actions: expected numbers, got .S2"),
        ("rewards", np.zeros(8, complex), "rewards: expected numbers, got complex128"),
    ],
)
def test_invalid_arrays_are_refused(key, values, message):
    with pytest.raises(ValueError, match=f"^here: {message}"):
        validated(rows() | {key: values}, "here")


@pytest.mark.filterwarnings("error")
def test_rows_that_are_not_finite_are_counted():
    arrays = rows(next_observations=np.zeros((8, 2)))
    arrays["observations"][2] = np.nan
    arrays["observations"][5, 1] = -np.inf
    arrays["rewards"] = arrays["rewards"].astype(np.float64)
    arrays["rewards"][[2, 3]] = np.inf, 1e300
    arrays["next_observations"][7, 0] = np.nan
    message = "^here: 4 of 8 rows are non-finite in float32: observations 2, rewards 2, next_observations 1$"
    with pytest.raises(ValueError, match=message):
        validated(arrays, "here")


def test_without_h5py_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"h5py: pip install 'synther-replay\[files\]'"):
        read(tmp_path / "set.hdf5")


# --- writing ----------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "new" / "set.hdf5"
    attributes = {"command": "python make.py", "recipe": {"seed": 3, "of": ["a"]}, "note": "17"}
    arrays = rows(9000, [3], [7], next_observations=np.ones((9000, 2), np.float32))
    write(path, arrays | {"infos/goal": np.ones((9000, 2), np.int16)}, attributes)
    found, found_attributes = read(path)
    assert found_attributes == attributes
    assert set(found) == set(arrays)
    assert all(np.array_equal(found[key], arrays[key]) and found[key].dtype == arrays[key].dtype for key in arrays)
    with h5py.File(path) as file:
        assert file["infos/goal"].shape == (9000, 2)
        assert file["infos/goal"].dtype == np.int16


def test_equal_sets_give_equal_files(tmp_path):
    for name, number in (("a", 1), ("b", 1), ("c", 2)):
        write(tmp_path / name, rows(100), {"recipe": number})
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again
    assert first != other


@pytest.mark.parametrize("before", [None, b"what was there"])
def test_a_full_disk_leaves_everything_as_it_was(tmp_path, before):
    resource = pytest.importorskip("resource")
    path = tmp_path / "set.hdf5"
    if before is not None:
        path.write_bytes(before)
    noise = np.random.default_rng(0).normal(size=(2000, 4))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # what no file may outgrow
    try:
        with pytest.raises(OSError, match="too large"):
            write(path, rows(2000, observations=noise), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == ([] if before is None else [path])
    assert before is None or path.read_bytes() == before


def test_invalid_arrays_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="equal length"):
        write(tmp_path / "set.hdf5", rows() | {"rewards": np.zeros(7)}, {})
    assert list(tmp_path.iterdir()) == []
