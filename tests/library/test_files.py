"""Files of transitions: round trips of every format, D4RL's rule, and bad files."""

from __future__ import annotations

import json
import random
import re
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from synther_replay import GenerationError, Transitions, TransitionSpec
from synther_replay.files import FileError, open_file, read, table, write, write_blocks
from synther_replay.files.pairing import paired, time_limits, unpaired
from synther_replay.files.spool import Spool

h5py = pytest.importorskip("h5py")
pytest.importorskip("pyarrow")

VECTORS = TransitionSpec.from_spaces(spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-1, 1, (2,)))
DISCRETE = TransitionSpec.from_spaces(spaces.Discrete(5), spaces.Discrete(3))
NESTED = TransitionSpec.from_spaces(
    spaces.Dict(place=spaces.Box(-1, 1, (2, 3)), rest=spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 9, (2,), int)])),
    spaces.MultiDiscrete([2, 3]),
    discount=True,
)
SPECS = {"vectors": VECTORS, "discrete": DISCRETE, "nested": NESTED}
SUFFIXES = (".hdf5", ".npz", ".parquet")


def rows(spec: TransitionSpec, n: int, seed: int = 0) -> Transitions:
    """Random rows that are valid for the spec."""
    low, high = spec.bounds()
    made = torch.rand(n, spec.dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    low, high = (torch.as_tensor(np.nan_to_num(limit, posinf=1e3, neginf=-1e3)) for limit in (low, high))
    made = low + made * (high - low)
    for field in spec.fields:
        for leaf, columns in field.leaf_columns():
            if leaf.kind != "real":
                made[:, columns] = made[:, columns].round()
    return Transitions(spec, made.float())


def qlearning_dataset(data: dict[str, np.ndarray], limit: int | None = None) -> dict[str, np.ndarray]:
    """D4RL's rule, row by row."""
    kept, step = [], 0
    for row in range(len(data["rewards"]) - 1):
        at_limit = data["timeouts"][row] if "timeouts" in data else step == limit - 1
        step += 1
        if not at_limit:
            kept.append(row)
        if at_limit or data["terminals"][row]:
            step = 0
    index = np.array(kept, int)
    found = {key: data[key][index] for key in ("observations", "actions", "rewards", "terminals")}
    return found | {"next_observations": data["observations"][index + 1]}


def raw(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "observations": rng.normal(size=(n, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (n, 2)).astype(np.float32),
        "rewards": rng.normal(size=n).astype(np.float32),
        "terminals": rng.random(n) < 0.1,
        "timeouts": rng.random(n) < 0.1,
    }


def save(path: Path, data: dict[str, np.ndarray]) -> None:
    """Write arrays as other programs do."""
    if path.suffix == ".npz":
        np.savez_compressed(path, **data)
    elif path.suffix == ".parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({key: list(values) for key, values in data.items()}), path)
    else:
        with h5py.File(path, "w") as file:
            for key, values in data.items():
                file.create_dataset(key, data=values, compression="gzip", chunks=True)


def write_by_minari(name: str, lengths: tuple[int, ...]) -> None:
    """Write a data set with Minari itself; rewards count the steps, and a hundred for each episode before."""
    minari, buffers = pytest.importorskip("minari"), pytest.importorskip("minari.data_collector")
    episodes = []
    for number, length in enumerate(lengths):
        observations = np.arange(length + 1, dtype=np.float32)[:, None] + 100 * number
        flags = np.zeros(length, bool)
        episodes.append(
            buffers.EpisodeBuffer(
                observations=list(observations),
                actions=list(np.zeros((length, 1), np.float32)),
                rewards=list(observations[:-1, 0]),
                terminations=list(flags),
                truncations=list(flags),
            )
        )
    box, bounded = spaces.Box(-np.inf, np.inf, (1,)), spaces.Box(-1, 1, (1,))
    minari.create_dataset_from_buffers(name, episodes, observation_space=box, action_space=bounded, algorithm_name="x")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", SPECS)
@settings(max_examples=8, deadline=None)
@given(n=st.integers(1, 40), size=st.integers(1, 12), seed=st.integers(0, 99))
def test_rows_and_spec_come_back_from_every_format(suffix, kind, n, size, seed):
    given_rows = rows(SPECS[kind], n, seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "_MOST_ROWS", size)
        path = Path(folder) / f"rows{suffix}"
        write(path, given_rows, about={"seed": seed})
        file = open_file(path)
        found = file.read()
        assert [len(block) for block in file.blocks()][:-1] == [size] * ((n - 1) // size) or suffix == ".hdf5"
        again = path.read_bytes()
        write(path, found, about={"seed": seed})
        assert path.read_bytes() == again
    assert found.spec == given_rows.spec
    assert torch.equal(found.rows, given_rows.rows)
    assert file.about["seed"] == seed


@pytest.mark.parametrize("kind", ["vectors", "discrete"])
def test_minari_sees_every_transition_once(tmp_path, kind):
    minari = pytest.importorskip("minari")
    given_rows = rows(SPECS[kind], 20)
    write(tmp_path / "rows-v0", given_rows)
    found = read(tmp_path / "rows-v0")
    assert found.spec == given_rows.spec
    assert torch.equal(found.rows, given_rows.rows)
    theirs = minari.MinariDataset(tmp_path / "rows-v0" / "data")
    assert (theirs.total_steps, len(theirs)) == (20, 20)
    for row, episode in enumerate(theirs.iterate_episodes()):
        np.testing.assert_array_equal(episode.observations[1], given_rows.next_observations[row])
        assert bool(episode.terminations[0]) == bool(given_rows.terminated[row])
        assert bool(episode.truncations[0]) != bool(given_rows.terminated[row])
    size = sum(file.stat().st_size for file in (tmp_path / "rows-v0").rglob("*") if file.is_file())
    assert size < 20 * 3_000 + 10_000


@pytest.mark.parametrize("kind", ["vectors", "nested"])
def test_a_minari_set_has_no_times_of_day(tmp_path, kind):
    pytest.importorskip("minari")
    spec = TransitionSpec.from_spaces(SPECS[kind].observation_space, SPECS[kind].action_space)
    write(tmp_path / "rows-v0", rows(spec, 3))
    with h5py.File(tmp_path / "rows-v0" / "data" / "main_data.hdf5") as file:
        parts = ["/"]
        file.visit(parts.append)
        assert len(parts) > 10
        for part in parts:  # the moment of its last change, in seconds
            assert h5py.h5o.get_info(file[part].id).mtime == 0, part


def test_a_nested_minari_set_comes_back_and_replaces_an_older_one(tmp_path):
    pytest.importorskip("minari")
    spec = TransitionSpec.from_spaces(NESTED.observation_space, NESTED.action_space)
    for seed in (0, 1):
        write(tmp_path / "rows-v0", rows(spec, 12, seed))
    assert torch.equal(read(tmp_path / "rows-v0").rows, rows(spec, 12, 1).rows)
    assert [path.name for path in tmp_path.iterdir()] == ["rows-v0"]
    with pytest.raises(ValueError, match="discount"):
        write(tmp_path / "more-v0", rows(NESTED, 12))


def test_a_minari_set_is_found_by_name(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write("minari:rows-v0", rows(VECTORS, 12))
    assert len(read("rows-v0")) == len(read("minari:rows-v0")) == 12
    with pytest.raises(FileNotFoundError, match="minari download"):
        read("other/rows-v0")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_episodes_of_minari_keep_their_order(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write_by_minari("steps-v0", (5, 1, 7))
    monkeypatch.setattr(table, "_MOST_ROWS", 4)
    found = read("steps-v0")
    assert found.rewards.tolist() == [0, 1, 2, 3, 4, 100, 200, 201, 202, 203, 204, 205, 206]
    assert torch.equal(found.next_observations, found.observations + 1)


@pytest.mark.parametrize("changed", ["total_episodes", "total_steps"])
def test_episodes_that_minari_does_not_count_are_no_smaller_data_set(tmp_path, changed):
    pytest.importorskip("minari")
    write(tmp_path / "rows-v0", rows(VECTORS, 20))
    path = tmp_path / "rows-v0" / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps(metadata | {changed: 19}))
    with pytest.raises(FileError, match="total_steps"):
        read(tmp_path / "rows-v0")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("limit", [None, 3, 7])
def test_raw_rows_are_paired_by_the_rule_of_d4rl(tmp_path, monkeypatch, suffix, limit):
    data = raw(60)
    if limit is not None:
        del data["timeouts"]
    path = tmp_path / f"raw{suffix}"
    save(path, data)
    for size in (1, 7, 1_000):
        monkeypatch.setattr(table, "_MOST_ROWS", size)
        found, expected = read(path, episode_steps=limit), qlearning_dataset(data, limit)
        for name in ("observations", "actions", "rewards", "next_observations"):
            np.testing.assert_array_equal(getattr(found, name), expected[name], err_msg=name)
        np.testing.assert_array_equal(found.terminated, expected["terminals"])


def test_what_is_written_is_read_back_whole_by_the_rule_of_d4rl(tmp_path):
    given_rows = rows(VECTORS, 50)
    write(tmp_path / "rows.hdf5", given_rows)
    with h5py.File(tmp_path / "rows.hdf5") as file:
        found = qlearning_dataset({key: file[key][()] for key in file})
    np.testing.assert_array_equal(found["next_observations"], given_rows.next_observations)
    np.testing.assert_array_equal(found["terminals"], given_rows.terminated)
    assert len(found["rewards"]) == 50


@settings(deadline=None)
@given(flags=st.lists(st.booleans(), min_size=1, max_size=30), limit=st.integers(1, 5), cut=st.integers(0, 30))
def test_time_limits_do_not_depend_on_blocks(flags, limit, cut):
    terminals = np.array(flags)
    whole, steps = time_limits(terminals, limit)
    first, between = time_limits(terminals[:cut], limit) if cut else (terminals[:0], 0)
    second, after = time_limits(terminals[cut:], limit, between) if cut < len(flags) else (terminals[:0], between)
    assert np.concatenate([first, second]).tolist() == whole.tolist()
    assert after == steps


def test_pairs_are_the_inverse_of_rows_with_timeouts():
    data = {key: values for key, values in qlearning_dataset(raw(30)).items()}
    (found,) = paired([unpaired(data)])
    assert found.keys() == data.keys()
    for key in data:
        np.testing.assert_array_equal(found[key], data[key])


def test_next_observations_of_a_file_are_used_and_every_row_is_a_transition(tmp_path):
    data = raw(20)
    data["next_observations"] = data["observations"] + 1
    save(tmp_path / "full.hdf5", data)
    found = read(tmp_path / "full.hdf5")
    assert len(found) == 20
    np.testing.assert_array_equal(found.next_observations, data["next_observations"])


def test_the_spec_of_other_files_is_inferred(tmp_path):
    data = raw(20)
    del data["timeouts"]
    data |= {"next_observations": data["observations"], "actions": np.arange(20) % 4}
    renamed = {"terminated" if key == "terminals" else key.removesuffix("s"): value for key, value in data.items()}
    save(tmp_path / "other.npz", renamed)
    spec = open_file(tmp_path / "other.npz").spec
    assert spec.action_space == spaces.Discrete(4)
    data["actions"] = np.linspace(-0.5, 2, 40).reshape(20, 2)
    save(tmp_path / "box.npz", data)
    space = open_file(tmp_path / "box.npz").spec.action_space
    assert (space.low.min(), space.high.max()) == (-0.5, 2.0)


@pytest.mark.parametrize(
    ("values", "space"),
    [
        (np.arange(20) % 4, spaces.Discrete(7)),  # the largest one is a next observation
        (np.arange(20) % 4 - 3, spaces.Box(-(2**15), 2**15 - 1, (), np.int16)),
        (np.arange(20) * 100, spaces.Box(-(2**15), 2**15 - 1, (), np.int16)),
    ],
    ids=["categories", "negative", "many"],
)
@pytest.mark.parametrize("types", [(np.int16, np.int16), (np.int8, np.int16)], ids=["equal", "another"])
@pytest.mark.parametrize("change", [3, -3])
def test_an_observation_that_is_one_integer_is_a_category_if_it_can_be_one(tmp_path, values, space, types, change):
    data = raw(20)
    del data["timeouts"], data["observations"]
    values = values if types[0] == np.int16 else values % 100
    if change < 0:  # next observations alone are negative
        values, space = values - values.min(), spaces.Box(-(2**15), 2**15 - 1, (), np.int16)
    elif types[0] == np.int8 and values.min() >= 0:
        space = spaces.Discrete(int(values.max()) + 4)
    following = (values + change).astype(types[1])
    data |= {"observations/place": values.astype(types[0]), "next_observations/place": following}
    save(tmp_path / "places.npz", data)
    found = open_file(tmp_path / "places.npz").spec.observation_space
    assert found["place"] == space
    assert read(tmp_path / "places.npz").observations["place"].tolist() == values.tolist()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("shape", "space"), [((), spaces.Discrete(2)), ((1,), spaces.MultiBinary((1,))), ((3,), spaces.MultiBinary((3,)))]
)
def test_actions_that_are_true_or_false_have_two_categories(tmp_path, suffix, shape, space):
    actions = np.random.default_rng(0).random((20, *shape)) < 0.5
    save(tmp_path / f"flags{suffix}", raw(20) | {"actions": actions})
    file = open_file(tmp_path / f"flags{suffix}")
    assert file.spec.action_space == space
    found = file.read()
    write(tmp_path / f"again{suffix}", found)
    assert read(tmp_path / f"again{suffix}").spec == file.spec
    assert set(found.actions.unique().tolist()) == {0, 1}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shape", [(20,), (20, 1)])
def test_categories_keep_the_shape_of_the_file(tmp_path, suffix, shape):
    values = (np.arange(20) % 3).reshape(shape)
    data = raw(20) | {"actions": values, "observations": values}
    save(tmp_path / f"integers{suffix}", data)
    found = read(tmp_path / f"integers{suffix}")
    assert {leaf.kind for field in found.spec.fields[:2] for leaf in field.leaves} == {"category"}
    assert found.actions.shape[1:] == found.observations.shape[1:] == shape[1:]
    write(tmp_path / f"again{suffix}", found)
    assert read(tmp_path / f"again{suffix}").actions.shape == found.actions.shape


def test_several_integers_as_an_action_stay_integers(tmp_path):
    data = raw(20) | {"actions": np.stack((np.arange(20) % 3 - 1, np.arange(20)), 1)}
    save(tmp_path / "integers.npz", data)
    space = open_file(tmp_path / "integers.npz").spec.action_space
    assert (space.low.tolist(), space.high.tolist(), space.dtype) == ([-1, 0], [1, 19], data["actions"].dtype)
    save(tmp_path / "large.npz", data | {"actions": data["actions"] + 2**24})  # of which float32 has every second one
    spec = open_file(tmp_path / "large.npz").spec
    assert not spec.outside_action_space(read(tmp_path / "large.npz").rows[:, spec.actions]).any()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_bad_fields_are_named(tmp_path, suffix):
    path = tmp_path / f"bad{suffix}"
    for key, value, word in (
        ("rewards", None, "missing"),
        ("actions", np.full((20, 2), np.nan), "nan"),
        ("rewards", np.full(20, np.inf), "inf"),
        ("terminals", np.full(20, 2), "2"),
        ("timeouts", np.full(20, 0.5), "0.5"),
        ("timeouts", None, "missing"),
        ("actions", np.array(["left"] * 20, "S"), "numbers"),
    ):
        data = raw(20) | {key: value}
        save(path, {name: values for name, values in data.items() if values is not None})
        with pytest.raises(FileError) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert key in str(caught.value), caught.value
        assert word in str(caught.value), caught.value


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("size", [4, 1_000])
@pytest.mark.parametrize(
    ("key", "place", "value"),
    [
        ("observations", (13, 1), np.nan),
        ("observations", (12, 2), np.nan),  # of a row with a timeout: the next one of row 11
        ("actions", (13, 0), np.inf),
        ("rewards", (13,), 1e300),  # float32, which rows have, cannot hold it
    ],
)
def test_the_place_of_a_number_that_is_not_finite_is_told(tmp_path, monkeypatch, suffix, size, key, place, value):
    monkeypatch.setattr(table, "_MOST_ROWS", size)
    data = raw(20) | {"terminals": np.zeros(20, bool), "timeouts": np.arange(20) == 12}
    data[key] = data[key].astype(np.float64)
    data[key][place] = value
    save(tmp_path / f"bad{suffix}", data)
    row, *column = place
    with pytest.raises(FileError, match=rf"{key}: .* row {row}{f', column {column[0]}' if column else ''} "):
        read(tmp_path / f"bad{suffix}")


def test_the_place_in_a_file_of_transitions_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "_MOST_ROWS", 4)
    data = raw(20)
    data["next_observations"] = data["observations"].copy()
    data["next_observations"][17, 2] = np.nan
    save(tmp_path / "bad.npz", data)
    with pytest.raises(FileError, match=r"next_observations: .* row 17, column 2 "):
        read(tmp_path / "bad.npz")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_two_spellings_of_one_field_are_refused(tmp_path, suffix):
    path, data = tmp_path / f"twice{suffix}", raw(20)
    for key, other in (("observations", "observation"), ("terminals", "terminated")):
        save(path, data | {other: data[key]})
        with pytest.raises(FileError) as caught:
            open_file(path)
        assert str(path) in str(caught.value)
        assert {key, other} <= set(re.findall(r"\w+", str(caught.value))), caught.value


@pytest.mark.parametrize("name", ["next_obs", "nextState", "obs_next", "s2", "new_observation"])
def test_next_observations_under_another_name_are_refused(tmp_path, name):
    path, data = tmp_path / "renamed.npz", raw(20)
    save(path, data | {"news": data["rewards"]})
    assert open_file(path).rows == 20
    save(path, data | {name: data["observations"]})  # left out, the next row would be taken for them
    with pytest.raises(FileError, match=f"next_observations: missing.*{name}"):
        open_file(path)
    save(path, data | {name: data["observations"], "next_observations": data["observations"]})
    assert open_file(path).rows == 20


def test_single_columns_are_no_next_observations(tmp_path):
    path, data = tmp_path / "flat.npz", raw(20)
    observations = data.pop("observations")
    save(path, data | {"obs_1": observations[:, 0], "obs_2": observations[:, 1]})
    with pytest.raises(FileError, match="observations: missing; found actions"):
        open_file(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_dones_are_no_terminals_and_the_error_says_so(tmp_path, suffix):
    path, data = tmp_path / f"dones{suffix}", raw(20)
    save(path, data | {"dones": data["terminals"]})
    assert open_file(path).rows == 20
    save(path, {"dones" if key == "terminals" else key: values for key, values in data.items()})
    with pytest.raises(FileError, match=r"terminals: missing.*dones"):
        open_file(path)


@pytest.mark.parametrize("entries", [60, 300])
def test_observations_of_many_entries_come_back_from_hdf5(tmp_path, entries):
    space = spaces.Dict({f"a_rather_long_name_of_a_sensor_{i:03}": spaces.Box(-1, 1, (2,)) for i in range(entries)})
    given_rows = rows(TransitionSpec.from_spaces(space, spaces.Box(-1, 1, (2,))), 5)
    path = tmp_path / "rows.hdf5"
    write(path, given_rows)
    assert torch.equal(read(path).rows, given_rows.rows)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match="checksum"):
        open_file(path)


@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
def test_files_that_compress_well_are_read(tmp_path, suffix):
    n = 5_000
    data = raw(n) | {"observations": np.zeros((n, 10, 10, 3), np.uint8)}
    data |= {key: np.zeros_like(data[key]) for key in ("actions", "rewards", "terminals", "timeouts")}
    save(tmp_path / f"frames{suffix}", data)
    assert open_file(tmp_path / f"frames{suffix}").rows == n
    assert len(next(open_file(tmp_path / f"frames{suffix}").blocks())) > 0


def test_lists_of_different_lengths_and_nulls_are_refused(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    data = {key: list(values) for key, values in raw(5).items()}
    for bad in ([[0.0, 1.0]] * 4 + [[0.0]], [[0.0, 1.0]] * 4 + [None], [[0.0, 1.0]] * 4 + [[0.0, None]]):
        pq.write_table(pa.table({**data, "actions": bad}), tmp_path / "bad.parquet")
        with pytest.raises(FileError, match="actions"):
            read(tmp_path / "bad.parquet")


def test_unknown_files_are_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("1,2")
    (tmp_path / "folder").mkdir()
    for name in ("rows.csv", "folder"):
        with pytest.raises(FileError, match=name):
            open_file(tmp_path / name)
    with pytest.raises(ValueError, match="csv"):
        write(tmp_path / "out.csv", rows(VECTORS, 5))
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "missing.npz")
    with pytest.raises(ValueError, match="at least one row"):
        write(tmp_path / "out.npz", rows(VECTORS, 0))


def test_a_link_to_another_file_is_not_followed(tmp_path):
    save(tmp_path / "secret.hdf5", raw(20))
    save(tmp_path / "linked.hdf5", {key: value for key, value in raw(20).items() if key != "rewards"})
    with h5py.File(tmp_path / "linked.hdf5", "a") as file:
        file["rewards"] = h5py.ExternalLink("secret.hdf5", "rewards")
    with pytest.raises(FileError, match="rewards"):
        read(tmp_path / "linked.hdf5")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("counts", [(5, 4), (5, 6), ()])
def test_a_wrong_number_of_rows_leaves_the_old_file(tmp_path, suffix, counts):
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(b"old")
    with pytest.raises((GenerationError, StopIteration)):
        write_blocks(path, 10, lambda: (rows(VECTORS, n) for n in counts), {})
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Change, remove or repeat some bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(changed))
        kind = rng.randrange(4)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at : at + rng.randrange(1, 16)] = rng.randbytes(rng.randrange(1, 16))
        elif kind == 2:
            del changed[at : at + rng.randrange(1, len(changed) - at + 1)]
            changed = changed or bytearray(b"x")
        else:
            changed[at:at] = changed[at : at + rng.randrange(1, 64)]
    return bytes(changed)


def check_mutations(path: Path, mutated: Path, trials: int) -> None:
    """A mutated file gives valid rows, or an error that names it and has one line; it stays as it is.

    Args:
        path: A file, or the folder of a data set of Minari.
        mutated: The file to mutate: the same, or one of the folder.
        trials: Number of mutations.
    """
    whole = mutated.read_bytes()
    for trial in range(trials):
        damaged = mutate(whole, random.Random(trial))
        mutated.write_bytes(damaged)
        try:
            found = read(path)
        except FileError as error:
            assert str(path) in str(error)
            assert "\n" not in str(error)
        else:
            found.check()
        assert mutated.read_bytes() == damaged


FEW, MANY = pytest.param(40, id="some"), pytest.param(1_000, id="many", marks=pytest.mark.soak)


@pytest.mark.parametrize("trials", [FEW, MANY])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_mutated_files(tmp_path, suffix, trials):
    path = tmp_path / f"rows{suffix}"
    write(path, rows(VECTORS, 40), about={"seed": 0})
    check_mutations(path, path, trials)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("trials", [FEW, MANY])
@pytest.mark.parametrize("name", ["main_data.hdf5", "metadata.json"])
@pytest.mark.parametrize("by", ["us", "minari"])
def test_mutated_minari_sets(tmp_path, monkeypatch, by, name, trials):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    if by == "us":
        write(tmp_path / "rows-v0", rows(VECTORS, 40))
    else:
        write_by_minari("rows-v0", (5, 1, 7, 27))
    check_mutations(tmp_path / "rows-v0", tmp_path / "rows-v0" / "data" / name, trials)


def test_a_forged_spec_is_refused(tmp_path):
    write(tmp_path / "rows.npz", rows(VECTORS, 20))
    with zipfile.ZipFile(tmp_path / "rows.npz", "a") as archive:
        archive.comment = json.dumps({"spec": {"observation_space": {"type": "Box", "shape": [2**40]}}}).encode()
    with pytest.raises(FileError, match="spec"):
        open_file(tmp_path / "rows.npz")


def test_a_spool_keeps_its_whole_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "_MOST_ROWS", 10)
    path, given_rows = tmp_path / "spool", rows(VECTORS, 25)
    spool = Spool(path, VECTORS, 25)
    for start in (0, 10):
        spool.append(given_rows[start : start + 10])
    whole = path.read_bytes()
    for cut, blocks in ((len(whole), 2), (len(whole) - 1, 1), (len(whole) // 2, 1), (3, 0)):
        path.write_bytes(whole[:cut])
        assert Spool(path, VECTORS, 25).number == blocks
    path.write_bytes(whole[:-20] + b"\0" * 20)
    spool = Spool(path, VECTORS, 25)
    assert (spool.number, spool.rows, spool.next_size) == (1, 10, 10)
    spool.append(given_rows[10:20])
    assert spool.next_size == 5
    with pytest.raises(ValueError, match="5 rows"):
        spool.append(given_rows[:6])
    spool.append(given_rows[20:])
    assert spool.next_size == 0
    assert torch.equal(torch.cat([block.rows for block in spool.blocks()]), given_rows.rows)


def test_a_full_disk_is_an_error_that_names_the_spool(tmp_path, full_disk):
    spool = Spool(tmp_path / "spool", VECTORS, 25)
    full_disk()
    with pytest.raises(OSError, match="spool"):
        spool.append(rows(VECTORS, 25))
    full_disk(full=False)
    assert Spool(tmp_path / "spool", VECTORS, 25).rows in (0, 25)


def test_an_interrupt_between_opening_and_writing_an_array_stays_an_interrupt(tmp_path, monkeypatch):
    """Regression: the archive could not be closed then, and a ValueError took the place of the interrupt."""
    path, begun = tmp_path / "rows.npz", []

    class Interrupted(zipfile._ZipWriteFile):
        def __init__(self, *args: object) -> None:
            begun.append(args)
            if len(begun) > 1:
                raise KeyboardInterrupt
            super().__init__(*args)

    write(path, rows(VECTORS, 20))
    before = path.read_bytes()
    monkeypatch.setattr(zipfile, "_ZipWriteFile", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(path, rows(VECTORS, 20, seed=1))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
