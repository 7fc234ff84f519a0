"""D4RL's own data: files of its layout, D4RL itself where it is installed, and the table beside the paper's."""

import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import offline_stand_ins
import pytest

pytest.importorskip("h5py")
pytest.importorskip("mujoco")
import h5py

from synther_replay.benchmarks import offline_d4rl
from synther_replay.benchmarks.data import registry
from synther_replay.benchmarks.data.registry import load
from synther_replay.benchmarks.offline import official
from synther_replay.benchmarks.offline.official import NAMES, PUBLISHED, available, table

SIZES = {"hopper": (11, 3, 6), "walker2d": (17, 6, 9), "maze2d": (4, 2, 2)}  # observation, action, positions
SMALL = ["--steps", "40", "--evaluate-every", "16", "--episodes", "1", "--seeds", "2", "--device", "cpu"]
GENERATOR = ["--rows", "96"]
GENERATOR += [part for text in ("width=32", "depth=1", "steps=10", "sampling_steps=3") for part in ("--set", text)]


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    offline_stand_ins.no_other_sets(monkeypatch, tmp_path)


@pytest.fixture
def d4rl_folder(tmp_path, monkeypatch):
    folder = tmp_path / "of d4rl"
    folder.mkdir()
    monkeypatch.setenv("D4RL_DATASET_DIR", str(folder))
    return folder


@pytest.fixture
def call(call_main, tmp_path, monkeypatch):
    offline_stand_ins.install(monkeypatch)
    return partial(call_main, offline_d4rl.main, "offline_d4rl.py", "--out", tmp_path / "out")


def raw(task, rows=200):
    """All arrays of a file of D4RL, by path; the episodes have 50 steps, every third of them terminates."""
    observation, action, positions = SIZES[task]
    rng = np.random.default_rng(0)
    draw = lambda *size: rng.standard_normal(size).astype(np.float32)  # noqa: E731
    ends = np.arange(rows) % 50 == 49
    terminals = ends & (np.arange(rows) // 50 % 3 == 0) & (task != "maze2d")
    found = {
        "actions": np.tanh(draw(rows, action)),
        "observations": draw(rows, observation),
        "rewards": draw(rows),
        "terminals": terminals,
        "timeouts": ends & ~terminals,
        "infos/qpos": draw(rows, positions).astype(np.float64),
        "infos/qvel": draw(rows, positions).astype(np.float64),
    }
    if task == "maze2d":
        return {**found, "infos/goal": draw(rows, 2).astype(np.float64)}
    following = np.concatenate((found["observations"][1:], draw(1, observation)))
    return {
        **found,
        "next_observations": following,
        "infos/action_log_probs": draw(rows),
        "metadata/algorithm": np.bytes_("SAC"),
        "metadata/iteration": np.int64(2_000),
        "metadata/policy/fc0/weight": draw(256, observation),
        "metadata/policy/fc0/bias": draw(256),
        "metadata/policy/nonlinearity": np.bytes_("relu"),
        "metadata/policy/output_distribution": np.bytes_("tanh_gaussian"),
    }


def write_file(folder, name):
    with h5py.File(folder / registry.file_name(name), "w") as file:
        for path, values in raw(name.partition("-")[0]).items():
            file.create_dataset(path, data=values, compression="gzip" if np.ndim(values) else None)


def expected_rows(name):
    """Rows that D4RL pairs with the next one: all but those with a timeout and the last."""
    content = raw(name.partition("-")[0])
    return content, [row for row in range(199) if not content["timeouts"][row]]


@pytest.mark.parametrize("name", ["hopper-medium-v2", "walker2d-medium-replay-v2", "maze2d-umaze-v1"])
def test_a_file_of_d4rls_layout(name, d4rl_folder):
    write_file(d4rl_folder, name)
    assert available() == [name]
    found = load(name, download=False)
    content, rows = expected_rows(name)
    assert (found.origin, found.timeouts_derived, len(found)) == ("official", False, len(rows))
    for key in ("observations", "actions", "rewards", "terminals"):
        assert np.array_equal(getattr(found, key), content[key][rows]), key
    assert np.array_equal(found.next_observations, content["observations"][np.array(rows) + 1])


class TestD4rlItself:
    """A stand-in with the interface of D4RL, which needs an old Python."""

    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch):
        def qlearning_dataset(environment, dataset=None):
            rows = [row for row in range(len(dataset["rewards"]) - 1) if not dataset["timeouts"][row]]
            found = {key: dataset[key][rows] for key in ("observations", "actions", "rewards", "terminals")}
            return {**found, "next_observations": dataset["observations"][np.array(rows) + 1]}

        def make(name):
            plain = {key: value for key, value in raw(name.partition("-")[0]).items() if np.ndim(value)}
            unwrapped = SimpleNamespace(dataset_filepath=f"/d4rl/{name}.hdf5")
            return SimpleNamespace(get_dataset=lambda: plain, unwrapped=unwrapped)

        monkeypatch.setitem(sys.modules, "d4rl", SimpleNamespace(qlearning_dataset=qlearning_dataset))
        sys.modules["d4rl"].__spec__ = SimpleNamespace()
        monkeypatch.setitem(sys.modules, "gym", SimpleNamespace(make=make))

    def test_its_rows_are_taken_as_they_are(self, tmp_path):
        name = "hopper-medium-v2"
        assert available() == list(NAMES)
        found = load(name, download=False)
        write_file(tmp_path, name)
        from_file = load(name, folder=tmp_path)
        assert str(found.path) == f"/d4rl/{name}.hdf5"
        for key in ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts"):
            assert np.array_equal(getattr(found, key), getattr(from_file, key)), key
        assert np.array_equal(found.returns(), from_file.returns())
        assert (found.origin, found.digest()) == (from_file.origin, from_file.digest())

    def test_a_d4rl_that_cannot_be_imported_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gym", None)
        with pytest.raises(ImportError, match=r"hopper-medium-v2: d4rl is installed but cannot be imported .*--folder"):
            load("hopper-medium-v2")


def test_without_files_the_folders_are_named(call, d4rl_folder, tmp_path):
    status, _, errors = call("--official", "--device", "cpu")
    assert status == 2
    assert "no file of D4RL in" in errors
    for folder in (d4rl_folder, tmp_path / ".d4rl" / "datasets"):
        assert str(folder) in errors
    assert "halfcheetah_random-v2.hdf5" in errors
    assert "D4RL_DATASET_DIR" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hopper-medium-regen", "--official: expected --dataset of halfcheetah-random-v2, "),
        ("hopper-expert-v2", "--official: expected --dataset of "),
        ("walker2d-medium-v2", "--official: walker2d-medium-v2 is not among the files that are here: hopper-medium-v2"),
    ],
)
def test_other_sets_are_refused(name, message, call, d4rl_folder):
    write_file(d4rl_folder, "hopper-medium-v2")
    status, _, errors = call("--official", "--dataset", name, "--device", "cpu")
    assert status == 2
    assert message in errors


def test_one_command_runs_what_is_here_and_compares_with_the_paper(call, d4rl_folder, tmp_path):
    for name in ("hopper-medium-v2", "walker2d-medium-replay-v2"):
        write_file(d4rl_folder, name)
    status, output, _ = call("--official", "--algo", "td3bc", *SMALL, *GENERATOR)
    assert status == 0
    cells = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").glob("*/*.json")}
    variants = ("td3bc-real", "td3bc-synther")
    assert cells == {f"{name}/{v}.json" for name in ("hopper-medium-v2", "walker2d-medium-replay-v2") for v in variants}
    shown = table(tmp_path / "out")
    assert output.endswith(f"\n{shown}\n")
    head, _, *rows = shown.strip().splitlines()
    assert head == "| td3bc, 40 updates | real rows | real rows, paper | synthetic rows | synthetic rows, paper |"
    assert [row.split(" | ")[0] for row in rows] == [
        "| walker2d-medium-replay-v2",
        "| hopper-medium-v2",
        "| mean of 2, locomotion",
    ]
    papers = [row.strip("| ").split(" | ")[2::2] for row in rows]
    assert papers == [["85.6 +- 4.6", "90.5 +- 4.3"], ["60.4 +- 4.0", "63.4 +- 4.2"], ["73.0", "77.0"]]


def test_the_published_averages_are_those_of_the_paper():
    def mean(algo, variant, family):
        names = [name for name in NAMES if name.startswith(family) and (name, algo, variant) in PUBLISHED]
        return sum(PUBLISHED[name, algo, variant][0] for name in names) / len(names)

    tasks = ("halfcheetah", "hopper", "walker2d")
    averages = {"td3bc": (59.0, 60.0, 62.0, 65.1), "iql": (62.1, 63.7, 40.9, 45.6), "edac": (92.9, 92.6, 82.6, 102.9)}
    for algo, expected in averages.items():
        found = [mean(algo, v, family) for family in (tasks, "maze2d") for v in ("real", "synther")]
        assert found == pytest.approx(expected, abs=0.11), algo
    assert [mean("td3bc-large", v, tasks) for v in ("real", "synther")] == pytest.approx([59.5, 65.9], abs=0.11)
    assert len(NAMES) == 15
    assert official.PUBLISHED["maze2d-large-v1", "edac", "synther"] == (143.3, 21.7)
