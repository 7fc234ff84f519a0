"""Data sets by name: what `load` gives of each origin, the views of it that others take, and D4RL's scores."""

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from synther_replay import TransitionSpec
from synther_replay.adapters.corl import ReplayBuffer
from synther_replay.benchmarks.data import registry
from synther_replay.benchmarks.data.registry import Dataset, load, normalised_score, regenerated_folder, write

h5py = pytest.importorskip("h5py")

MADE = {"command": "python benchmarks/make_datasets.py hopper-medium", "recipe": {"seed": 0}}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home of its own, with nothing in it."""
    for variable in ("D4RL_DATASET_DIR", "SYNTHER_REPLAY_DATASETS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def columns(monkeypatch):
    """Files of these tests have observations of two numbers and actions of one."""
    genuine = registry.TASK_COLUMNS
    monkeypatch.setattr(registry, "TASK_COLUMNS", dict.fromkeys(genuine, (2, 1)))
    return genuine


def arrays(n=10, terminals=(2,), timeouts=(6,)):
    """Row i observes (i, 10 i), acts i / 100 and earns i. Three episodes, the last one without its end."""
    count = np.arange(n, dtype=np.float32)
    return {
        "observations": np.stack([count, 10 * count], 1),
        "actions": count[:, None] / 100,
        "rewards": count,
        "terminals": np.isin(count, terminals),
        "timeouts": np.isin(count, timeouts),
    }


def official(path, content=None):
    """A file as D4RL has it: no attributes, some arrays more, contiguous."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, values in (arrays() if content is None else content).items():
            file[key] = values
        file["infos/qpos"] = np.zeros((10, 3))
    return path


@pytest.fixture
def small(tmp_path):
    return load(official(tmp_path / "small.hdf5"))


# --- origins ----------------------------------------------------------------------------------------------------------


def test_an_official_set(tmp_path, monkeypatch):
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    path = official(tmp_path / "walker2d_medium_replay-v2.hdf5")
    found = load("walker2d-medium-replay-v2", download=False)
    assert (found.name, found.origin, found.path) == ("walker2d-medium-replay-v2", "official", path)
    assert found.rewards.tolist() == [0, 1, 2, 3, 4, 5, 7, 8]
    assert np.array_equal(found.next_observations, found.observations + np.array([1, 10]))
    assert found.terminals.tolist() == [False, False, True, False, False, False, False, False]
    assert found.timeouts.tolist() == [False, False, False, False, False, True, False, True]
    assert not found.timeouts_derived
    for name in ("observations", "actions", "rewards", "next_observations"):
        assert getattr(found, name).dtype == np.float32, name
    assert repr(found) == "Dataset('walker2d-medium-replay-v2', official, 8 transitions of 2 + 1 columns)"


def test_a_regenerated_set_says_how_it_was_made():
    path = regenerated_folder() / "hopper-medium-regen.hdf5"
    write(path, arrays(), MADE)
    found = load("hopper-medium-regen")
    assert (found.name, found.origin, found.path) == ("hopper-medium-regen", "regenerated", path)
    assert found.attributes == MADE
    assert len(found) == 8


@pytest.mark.parametrize("name", ["hopper-medium-v2", "{folder}/hopper_medium-v2.hdf5"])
def test_a_regenerated_set_does_not_pass_for_an_official_one(tmp_path, name):
    write(tmp_path / "hopper_medium-v2.hdf5", arrays(), MADE)
    with pytest.raises(ValueError, match=r"hopper_medium-v2\.hdf5: a regenerated data set.* does not end in -regen"):
        load(name.format(folder=tmp_path), folder=tmp_path)


def test_a_regenerated_set_without_its_recipe_is_refused(tmp_path):
    official(tmp_path / "hopper-medium-regen.hdf5")
    with pytest.raises(ValueError, match=r"hopper-medium-regen\.hdf5: .* needs the attribute 'recipe'"):
        load("hopper-medium-regen", folder=tmp_path)


def test_a_set_under_the_name_of_another_is_refused(tmp_path):
    write(tmp_path / "hopper-medium-expert-regen.hdf5", arrays(), {**MADE, "name": "hopper-medium-regen"})
    with pytest.raises(ValueError, match=r"got data set hopper-medium-regen, expected hopper-medium-expert-regen"):
        load("hopper-medium-expert-regen", folder=tmp_path)


@pytest.mark.parametrize("name", ["walker2d-medium-v2", "maze2d-umaze-v1"])
def test_a_set_of_another_task_is_refused(name, tmp_path, columns, monkeypatch):
    monkeypatch.setattr(registry, "TASK_COLUMNS", columns)
    official(tmp_path / registry.file_name(name))
    observations, actions = columns[name.partition("-")[0]]
    with pytest.raises(ValueError, match=rf"{name}: got 2 .* and 1 .*, expected {observations} and {actions}"):
        load(name, folder=tmp_path)


def test_a_set_that_is_not_here(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"make_datasets\.py walker2d-medium` to generate"):
        load("walker2d-medium-v2", folder=tmp_path, download=False)


@pytest.mark.parametrize(
    ("file", "name"),
    [("mine.hdf5", "mine"), ("mine.h5", "mine"), ("maze2d-umaze-sparse-v1.hdf5", "maze2d-umaze-v1")],
)
@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_by_its_path(tmp_path, file, name, kind):
    path = official(tmp_path / file)
    found = load(kind(path))
    assert (found.name, found.origin, found.path) == (name, "file", path)
    assert found.attributes == {}


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.hdf5: file not found"):
        load(tmp_path / "none.hdf5")


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("hopper-medium-v2", 1000),
        ("maze2d-umaze-v1", 300),
        ("maze2d-medium-v1", 600),
        ("maze2d-large-v1", 800),
        ("antmaze-umaze-v2", 700),
        ("antmaze-medium-play-v2", 1000),
        ("kitchen-mixed-v0", 280),
    ],
)
def test_missing_timeouts_come_from_the_limit_of_the_task(tmp_path, name, limit):
    content = arrays(2 * limit + 1, terminals=())
    del content["timeouts"]
    official(tmp_path / f"{name}.hdf5", content)
    with pytest.warns(UserWarning, match=rf"{name}\.hdf5: no timeouts.* after {limit} steps") as caught:
        found = load(name, folder=tmp_path, download=False)
    assert len(found) == 2 * (limit - 1)
    assert found.timeouts_derived
    assert found.subsample(0.5, 0).timeouts_derived
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**arrays(), "rewards": np.zeros(9)}, "rewards: expected 10 rows"),
        ({**arrays(), "rewards": np.full(10, np.nan)}, "10 of 10 rows are non-finite"),
        ({**arrays(), "actions": np.zeros(10)}, "actions: expected shape"),
        ({"observations": np.zeros((10, 2))}, "missing actions, rewards, terminals"),
        ({key: values[:1] for key, values in arrays().items()}, "no transitions"),
    ],
)
def test_a_bad_file_is_named_and_left_alone(tmp_path, content, message):
    path = official(tmp_path / "bad.hdf5", content)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"bad\.hdf5: .*{message}"):
        load(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# --- episodes ---------------------------------------------------------------------------------------------------------


def test_episodes_and_their_returns(small):
    assert small.episodes().tolist() == [[0, 3], [3, 6], [6, 8]]
    assert small.returns().tolist() == [0 + 1 + 2, 3 + 4 + 5 + 6]  # of whole ones, with the row at the timeout


def test_a_terminal_just_before_the_last_row_ends_the_last_episode(tmp_path):
    found = load(official(tmp_path / "small.hdf5", arrays(terminals=(2, 8), timeouts=())))
    assert found.episodes().tolist() == [[0, 3], [3, 9]]
    assert found.returns().tolist() == [3, 33]


# --- views ------------------------------------------------------------------------------------------------------------


def test_a_subsample_has_each_transition_once(tmp_path):
    whole = load(official(tmp_path / "set.hdf5", arrays(1001)))
    some = whole.subsample(0.15, seed=3)
    assert isinstance(some, Dataset)
    assert (len(some), some.name, some.origin) == (150, "set", "file")
    numbers = some.rewards.tolist()
    assert len(set(numbers)) == 150
    places = [whole.rewards.tolist().index(number) for number in numbers]
    for key, values in whole.to_qlearning().items():
        assert np.array_equal(getattr(some, key), values[places]), key
    # every one as likely: neither the beginning nor whole episodes
    assert 400 < np.mean(numbers) < 600
    assert np.array_equal(some.timeouts, ~some.terminals)


def test_a_subsample_follows_its_seed(small):
    first, again, other = (small.subsample(0.5, seed).rewards.tolist() for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_a_subsample_of_all(small):
    assert small.subsample(1, 0).rewards.tolist() == small.rewards.tolist()


@pytest.mark.parametrize("fraction", [0, -0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(small, fraction):
    with pytest.raises(ValueError, match=f"fraction: .*{fraction}"):
        small.subsample(fraction, 0)


def test_a_subsample_has_no_returns(small):
    with pytest.raises(ValueError, match="a subsample has no complete episodes"):
        small.subsample(0.5, 0).returns()


def test_the_buffer_of_corl_takes_it(small):
    buffer = ReplayBuffer(2, 1, 100)
    buffer.load_d4rl_dataset(small.to_qlearning())
    assert len(buffer) == 8


def test_changes_to_a_view_do_not_reach_the_set(small):
    data = small.to_qlearning()
    for values in data.values():
        values[:] = 0
    assert small.rewards.tolist() == [0, 1, 2, 3, 4, 5, 7, 8]
    assert small.observations.any()
    assert small.terminals.any()


def test_transitions_for_a_generator(small):
    packed = small.transitions()
    for name in ("observations", "actions", "rewards", "next_observations"):
        assert torch.equal(getattr(packed, name), torch.from_numpy(getattr(small, name))), name
    assert packed.terminated.tolist() == small.terminals.tolist()
    assert packed.spec.action_space == gym.spaces.Box(-1, 1, (1,))


def test_transitions_under_another_spec(small):
    spec = TransitionSpec.from_spaces(gym.spaces.Box(-9, 9, (2,)), gym.spaces.Box(-3, 3, (1,)))
    assert small.transitions(spec).spec is spec


def test_bounds_hold_actions_beyond_one(tmp_path):
    content = arrays() | {"actions": np.linspace(-2, 0.5, 20).reshape(10, 2)}
    found = load(official(tmp_path / "small.hdf5", content))
    assert found.spec().action_space.low.tolist() == [-2, np.float32(-2 + 2.5 / 19)]
    assert found.spec().action_space.high.tolist() == [2, np.float32(2 - 2.5 / 19)]


# --- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "zero", "hundred"),
    [
        ("halfcheetah-medium-replay-v2", -280.178953, 12135.0),
        ("hopper-random-v2", -20.272305, 3234.3),
        ("walker2d-medium-expert-v2", 1.629008, 4592.3),
        ("walker2d-medium-expert-regen", 1.629008, 4592.3),
        ("ant-medium-v2", -325.6, 3879.7),
        ("maze2d-umaze-v1", 23.85, 161.86),
        ("maze2d-medium-regen", 13.13, 277.39),
        ("maze2d-large-v1", 6.7, 273.99),
        ("antmaze-umaze-diverse-v2", 0, 1),
        ("kitchen-complete-v0", 0, 4),
    ],
)
def test_scores_are_those_of_d4rl(name, zero, hundred):
    assert normalised_score(name, zero) == 0
    assert normalised_score(name, hundred) == 100
    assert normalised_score(name, (zero + hundred) / 2) == pytest.approx(50)


@pytest.mark.parametrize(
    "name", ["walker2d", "walker2d-medium", "walker2d-huge-v2", "kitchen-complete-regen", "mujoco/hopper/medium-v0", ""]
)
def test_a_set_without_a_score_is_refused(name):
    with pytest.raises(ValueError, match=f"name: expected an official data set of halfcheetah.*, got '{name}'"):
        normalised_score(name, 1.0)


# --- Minari -----------------------------------------------------------------------------------------------------------


def test_without_minari_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ImportError, match=r"mujoco/hopper/medium-v0 is a Minari data set.* pip install 'minari"):
        load("mujoco/hopper/medium-v0")


@pytest.fixture
def collect(tmp_path, monkeypatch):
    """Makes a set of Minari that counts steps, out of episodes of so many; five end one, fewer are truncated.

    By hand: Minari's own collector needs JAX.
    """
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    def episode(number, length, nested):
        seen = np.arange(length + 1, dtype=np.float32).repeat(2).reshape(-1, 2)
        last = np.arange(length) == length - 1
        return minari.data_collector.EpisodeBuffer(
            id=number,
            observations={"a": seen} if nested else seen,
            actions=np.zeros((length, 1), np.float32),
            rewards=np.arange(1.0, length + 1),
            terminations=last & (length == 5),
            truncations=last & (length < 5),
        )

    def run(name, lengths, *, nested=False):
        plain = gym.spaces.Box(0, 99, (2,))
        spaces = {"observation_space": gym.spaces.Dict(a=plain) if nested else plain}
        spaces["action_space"] = gym.spaces.Box(-1, 1, (1,))
        episodes = [episode(number, length, nested) for number, length in enumerate(lengths)]
        said = dict.fromkeys(("algorithm_name", "author", "author_email", "code_permalink", "description"), "")
        tasks = dict.fromkeys(("env", "eval_env"), "CartPole-v1")
        minari.create_dataset_from_buffers(name, episodes, **tasks, **spaces, **said)

    return run


def test_a_set_of_minari(collect):
    collect("test/counting/small-v0", [5, 3, 5])
    found = load("test/counting/small-v0", download=False)
    assert (found.name, found.origin) == ("test/counting/small-v0", "minari")
    assert found.path.exists()
    assert found.observations[:, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4]
    assert np.array_equal(found.next_observations, found.observations + 1)
    assert np.flatnonzero(found.terminals).tolist() == [4, 12]
    assert np.flatnonzero(found.timeouts).tolist() == [7]
    assert found.episodes().tolist() == [[0, 5], [5, 8], [8, 13]]
    assert found.returns().tolist() == [15, 6, 15]
    assert len(found.transitions()) == 13


def test_a_set_of_minari_that_is_not_here(collect):
    with pytest.raises(FileNotFoundError, match=r"test/none-v0: Minari cannot load it: .*not found locally"):
        load("test/none-v0", download=False)


def test_nested_observations_of_minari_are_refused(collect):
    collect("test/counting/nested-v0", [5], nested=True)
    with pytest.raises(ValueError, match=r"test/counting/nested-v0: expected .* got Dict\("):
        load("test/counting/nested-v0", download=False)
