"""Files of the CORL adapter: read by D4RL's rule, and safe to load from anywhere."""

import io
import json
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from synther_replay import CheckpointError, GenerationError, Transitions, TransitionSpec
from synther_replay.adapters.corl import ReplayBuffer, d4rl

h5py = pytest.importorskip("h5py")

SPEC = TransitionSpec.from_spaces(Box(-np.inf, np.inf, (3,)), Box(-1, 1, (2,)))
HDF5 = ["set.hdf5", "set.h5"]
N = 64


def dataset(n=N):
    """Rewards count up; the other fields are functions of the reward."""
    x = np.arange(n, dtype=np.float32)
    return {
        "observations": np.stack([np.sin(x), np.cos(x), x / 50], 1),
        "actions": np.stack([np.sin(2 * x), np.cos(3 * x)], 1) / 2,
        "rewards": x,
        "next_observations": np.stack([np.sin(x) + 2, np.cos(x) + 2, x / 50 + 2], 1),
        "terminals": x % 10 == 9,
    }


def rows(n=N):
    return d4rl.pack(SPEC, dataset(n)).rows


def write(path, n=N, block=30):
    d4rl.write(path, SPEC, n, iter(rows(n).split(block)))


def arrays_of(path):
    with h5py.File(path) as file:
        return {key: values[()] for key, values in file.items()}


def held(buffer):
    return buffer.synthetic.rows


@pytest.fixture
def buffer():
    """A buffer with synthetic rows."""
    buffer = ReplayBuffer(3, 2, 10, max_action=1.0)
    buffer._source = buffer._source_for(buffer._ring.transitions())
    buffer._source.store.replace(Transitions(buffer._source.spec, torch.zeros(5, SPEC.dim)))
    return buffer


@pytest.fixture
def refused(buffer):
    """Checks that a file is refused, changes nothing and takes little memory."""

    def check(path, match=""):
        before = held(buffer).clone()
        tracemalloc.start()
        with pytest.raises(CheckpointError, match=rf"{path.name}.*{match}"):
            buffer.load(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert torch.equal(held(buffer), before)
        assert peak < 20_000_000

    return check


# --- D4RL's rule ------------------------------------------------------------------------------------------------------


def as_d4rl_reads(data, limit=1_000):
    """The transitions of `d4rl.qlearning_dataset`: row i with the observation of row i + 1.

    The last row of the file, and rows at the end of an episode that did not terminate, have no next observation and are
    left out. Without `timeouts`, episodes end after `limit` steps.
    """
    index, step = [], 0
    for row in range(len(data["rewards"]) - 1):
        timeout = data["timeouts"][row] if "timeouts" in data else step == limit - 1
        if timeout:
            step = 0
            continue
        index.append(row)
        step = 1 if data["terminals"][row] else step + 1
    found = {key: data[key][index] for key in ("observations", "actions", "rewards", "terminals")}
    return {**found, "next_observations": data["observations"][np.array(index) + 1]}


@pytest.mark.parametrize("name", HDF5)
@pytest.mark.parametrize("n", [1, 2, 30, N])
def test_d4rl_reads_back_every_transition_of_an_hdf5_file(tmp_path, name, n):
    write(tmp_path / name, n)
    read = as_d4rl_reads(arrays_of(tmp_path / name))
    for key, values in dataset(n).items():
        np.testing.assert_array_equal(read[key], values, err_msg=key)
    buffer = ReplayBuffer(3, 2, 1_000)
    buffer.load_d4rl_dataset(read)
    assert torch.equal(buffer._ring.transitions().rows, rows(n))


def test_an_npz_file_holds_what_d4rl_returns(tmp_path):
    write(tmp_path / "set.npz")
    saved = dict(np.load(tmp_path / "set.npz"))
    for key, values in dataset().items():
        np.testing.assert_array_equal(saved[key], values)
        assert saved.pop(key).dtype == values.dtype
    assert not saved


def test_rows_of_an_hdf5_file_have_the_types_of_d4rl_and_actions_in_range(tmp_path):
    write(tmp_path / "set.hdf5")
    found = arrays_of(tmp_path / "set.hdf5")
    shapes = {key: (array.shape, array.dtype.name) for key, array in found.items()}
    assert shapes == {
        "observations": ((2 * N, 3), "float32"),
        "actions": ((2 * N, 2), "float32"),
        "rewards": ((2 * N,), "float32"),
        "terminals": ((2 * N,), "bool"),
        "timeouts": ((2 * N,), "bool"),
    }
    assert not (found["terminals"] & found["timeouts"]).any()
    assert abs(found["actions"]).max() == abs(dataset()["actions"]).max()
    assert found["rewards"].sum() == dataset()["rewards"].sum()


@pytest.mark.parametrize("name", ["set.npz", *HDF5])
@pytest.mark.parametrize("n", [1, N])
def test_own_files_are_read_whole(tmp_path, buffer, name, n):
    write(tmp_path / name, n)
    buffer.load(tmp_path / name)
    assert torch.equal(held(buffer), rows(n))


def flat(path, **options):
    """The layout of version 0.2 and of the data sets of D4RL that have next observations."""
    with h5py.File(path, "w") as file:
        for key, values in {**dataset(), "timeouts": ~dataset()["terminals"]}.items():
            file.create_dataset(key, data=values, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": True, "fletcher32": True},
        {"chunks": True, "compression": "gzip", "shuffle": True},
        {"chunks": True, "compression": "lzf"},
        {"maxshape": None},
        {},
    ],
    ids=str,
)
def test_files_with_next_observations_are_read_with_every_row(tmp_path, buffer, options):
    flat(tmp_path / "set.hdf5", **options)
    buffer.load(tmp_path / "set.hdf5")
    assert torch.equal(held(buffer), rows())


def test_npz_files_of_version_0_2_are_read(tmp_path, buffer):
    np.savez(tmp_path / "set.npz", **dataset(), timeouts=~dataset()["terminals"])
    buffer.load(tmp_path / "set.npz")
    assert torch.equal(held(buffer), rows())


@pytest.mark.parametrize("change", ["a value", "an attribute"])
def test_file_that_another_program_has_changed_is_refused(tmp_path, refused, change):
    write(tmp_path / "set.hdf5")
    with h5py.File(tmp_path / "set.hdf5", "a") as file:
        if change == "a value":
            file["rewards"][0] = 99
        else:
            file.attrs["mine"] = 1
    refused(tmp_path / "set.hdf5", match="changed")


@pytest.mark.parametrize("name", ["set.npz", "set.hdf5"])
@pytest.mark.parametrize("counts", [(30, 30), (30, 40)])
def test_blocks_with_other_than_the_announced_rows_are_refused(tmp_path, name, counts):
    with pytest.raises(GenerationError, match="rows"):
        d4rl.write(tmp_path / name, SPEC, N, (rows(n) for n in counts))
    assert not list(tmp_path.iterdir())


# --- files from anywhere ----------------------------------------------------------------------------------------------

HUGE = 50_000_000  # values; 200 MB in float32


def damaged_episodes(path, change):
    """A file in D4RL's layout without next observations, by another program."""
    write(path)
    arrays = arrays_of(path)
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            if key != "rewards":
                file[key] = values
        change(file, arrays["rewards"])


def test_file_by_another_program_is_read(tmp_path, buffer):
    damaged_episodes(tmp_path / "set.hdf5", lambda file, values: file.update({"rewards": values}))
    buffer.load(tmp_path / "set.hdf5")
    assert torch.equal(held(buffer), rows())


def external(file, values):
    file_name = file.filename + ".raw"
    values.tofile(file_name)
    file.create_dataset("rewards", values.shape, values.dtype, external=[(file_name, 0, values.nbytes)])


def virtual(file, values):
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[:] = h5py.VirtualSource(file.filename, "observations", (len(values), 3))[:, 0]
    file.create_virtual_dataset("rewards", layout)


def one_chunk_missing(file, values):
    made = file.create_dataset("rewards", values.shape, values.dtype, chunks=(10,))
    made[:100] = values[:100]


def compressed(file, values):
    made = file.create_dataset("rewards", (HUGE,), np.float32, chunks=(HUGE // 10,), compression="gzip")
    for start in range(0, HUGE, HUGE // 10):
        made[start : start + HUGE // 10] = 0


def huge_chunk(file, values):
    made = file.create_dataset(
        "rewards", values.shape, np.float32, chunks=(HUGE,), maxshape=(None,), compression="gzip"
    )
    made[:] = values


HOSTILE = {
    "nothing stored": lambda file, values: file.create_dataset("rewards", (HUGE,), np.float32),
    "no chunk stored": lambda file, values: file.create_dataset("rewards", (HUGE,), np.float32, chunks=(1_000,)),
    "one chunk missing": one_chunk_missing,
    "compressed": compressed,
    "huge chunk": huge_chunk,
    "external storage": external,
    "external link": lambda file, values: file.update({"rewards": h5py.ExternalLink("other.hdf5", "rewards")}),
    "soft link": lambda file, values: file.update({"rewards": h5py.SoftLink("/observations")}),
    "dangling link": lambda file, values: file.update({"rewards": h5py.SoftLink("/nothing")}),
    "virtual": virtual,
    "a group": lambda file, values: file.create_group("rewards"),
    "text": lambda file, values: file.create_dataset("rewards", data=["text"] * len(values)),
    "compound": lambda file, values: file.create_dataset("rewards", data=np.zeros(len(values), [("a", "f4")])),
    "no values": lambda file, values: file.create_dataset("rewards", dtype="f4", data=h5py.Empty("f4")),
    "scaled offsets": lambda file, values: file.create_dataset("rewards", data=values, scaleoffset=3),
    "one number": lambda file, values: file.create_dataset("rewards", data=1.0),
    "another length": lambda file, values: file.create_dataset("rewards", data=values[1:]),
    "missing": lambda file, values: None,
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_hostile_hdf5_file_is_refused_in_little_memory(tmp_path, refused, change):
    damaged_episodes(tmp_path / "set.hdf5", change)
    refused(tmp_path / "set.hdf5")


def member(array=None, *, header=None, data=b""):
    """The bytes of an .npy file, with any header."""
    file = io.BytesIO()
    if header is None:
        np.lib.format.write_array(file, array)
    else:
        text = header.encode().ljust(117) + b"\n"
        file.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data)
    return file.getvalue()


def npz(path, compression=zipfile.ZIP_STORED, **changes):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for key, values in dataset().items():
            archive.writestr(f"{key}.npy", changes.get(key) or member(values))


def header(shape, descr="<f4"):
    return json.dumps(descr).join(("{'descr': ", f", 'fortran_order': False, 'shape': {shape}, }}"))


FORGED = {
    "shape of 200 MB": header(f"({HUGE},)"),
    "shape of 2**80": header(f"({2**80},)"),
    "negative shape": header("(-64,)"),
    "two negative sizes": header("(-8, -8)"),
    "no shape": header("()"),
    "smaller shape": header("(63,)"),
    "objects": header("(64,)", "|O"),
    "text": header("(64,)", "|S4"),
    "no dict": "64",
    "code": "__import__('os')",
    "deep": "(" * 60 + ")" * 40,
}


@pytest.mark.parametrize("text", FORGED.values(), ids=FORGED)
def test_forged_npz_header_is_refused_in_little_memory(tmp_path, refused, text):
    npz(tmp_path / "set.npz", rewards=member(header=text, data=bytes(4 * N)))
    refused(tmp_path / "set.npz")


def test_compressed_npz_bomb_is_refused_in_little_memory(tmp_path, refused):
    bomb = member(header=header(f"({HUGE},)"), data=bytes(4 * HUGE))
    npz(tmp_path / "set.npz", zipfile.ZIP_DEFLATED, rewards=bomb)
    refused(tmp_path / "set.npz", match="rewards: expected 64 rows")


def test_compressed_npz_is_read(tmp_path, buffer):
    np.savez_compressed(tmp_path / "set.npz", **dataset())
    buffer.load(tmp_path / "set.npz")
    assert torch.equal(held(buffer), rows())


def test_arrays_in_the_order_of_fortran_and_of_other_bytes_are_read(tmp_path, buffer):
    data = dataset()
    data["observations"] = np.asfortranarray(data["observations"])
    data["rewards"] = data["rewards"].astype(">f8")
    np.savez(tmp_path / "set.npz", **data)
    buffer.load(tmp_path / "set.npz")
    assert torch.equal(held(buffer), rows())


# --- pickles ----------------------------------------------------------------------------------------------------------


def test_pickle_made_on_a_gpu_is_read_without_one(buffer, on_gpu):
    buffer.load_d4rl_dataset(dataset(10))
    buffer.normalise_states()
    expected = buffer._ring.transitions().rows.clone(), held(buffer).clone(), [*map(torch.clone, buffer._state_scale)]
    for part, name in ((buffer, "_state_scale"), (buffer._ring, "_rows"), (buffer._source.store._held, "rows")):
        setattr(part, name, on_gpu(getattr(part, name)))
    buffer._ring.device = torch.device("cuda", 99)
    loaded = pickle.loads(pickle.dumps(buffer))
    assert torch.equal(loaded._ring.transitions().rows, expected[0])
    assert torch.equal(held(loaded), expected[1])
    assert all(map(torch.equal, loaded._state_scale, expected[2]))
    assert loaded.sample(4)[0].shape == (4, 3)
