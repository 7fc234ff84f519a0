"""Ant maze data: how the ant is led, what an episode records, and the files."""

import json
import sys
from dataclasses import replace
from functools import partial

import h5py
import numpy as np
import pytest
import torch

pytest.importorskip("mujoco")
from synther_replay.benchmarks import make_datasets
from synther_replay.benchmarks.agents.networks.mlp import Layers, MlpShape, initialise
from synther_replay.benchmarks.agents.policy import save_policies
from synther_replay.benchmarks.data.ant_walks import AntWalks, Guide, _world, successes
from synther_replay.benchmarks.data.behaviour import Behaviour, Snapshot, _digest
from synther_replay.benchmarks.data.hdf5 import read
from synther_replay.benchmarks.data.recipes import MissingPolicyError, recipe
from synther_replay.benchmarks.data.registry import load
from synther_replay.benchmarks.environments.ant_maps import ANT_MAPS, AntMap, at_goal, centre, draw_goal
from synther_replay.benchmarks.environments.simulators import make_simulator

STEPS = {"umaze": 60, "medium": 80, "large": 80}  # of an episode here


@pytest.fixture(scope="module", autouse=True)
def short_episodes():
    with pytest.MonkeyPatch.context() as patch:
        for size, steps in STEPS.items():
            patch.setitem(ANT_MAPS, size, replace(ANT_MAPS[size], limit=steps))
        _world.cache_clear()
        yield
    _world.cache_clear()


def save_untrained(path):
    """An untrained policy, of the shape that a run with small networks keeps."""
    shape = MlpShape(28, 16, 16)
    save_policies(path, Layers.of(initialise(shape, 1, torch.Generator().manual_seed(0)), shape))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of behaviour policies with an untrained one for the ant."""
    folder = tmp_path_factory.mktemp("policies")
    behaviour = Behaviour.read("ant-goal", folder)
    path = behaviour.folder / "sac-0-10.safetensors"
    save_untrained(path)
    Behaviour("ant-goal", behaviour.folder, expert=Snapshot(path.name, _digest(path), 10, 0, 1.0, 1.0, 0.5, 2)).write()
    return folder


@pytest.fixture(scope="module")
def walked(root):
    behaviour = Behaviour.read("ant-goal", root)
    source = AntWalks("umaze", behaviour.policy(behaviour.expert))
    return source, source.rollout(3)


class Point:
    """An ant without a body: it moves 0.2 towards the waypoint, along walls where one is in the way."""

    def __init__(self, guide, position):
        self.guide, self.position = guide, position

    def free(self, position):
        return np.abs(position - centre(self.guide.cell(position))).max() <= 2

    def move(self, waypoint):
        way = waypoint - self.position
        way *= min(1, 0.2 / np.hypot(*way))
        tried = (self.position + part for part in (way, way * (1, 0), way * (0, 1), 0 * way))
        self.position = next(position for position in tried if self.free(position))


@pytest.mark.parametrize("size", ANT_MAPS)
def test_a_point_is_led_to_every_goal(size):
    ant_map, rng = AntMap.named(size), np.random.default_rng(0)
    guide = Guide(ant_map)
    for cell in ant_map.goals * 3:
        goal = draw_goal(cell, rng)
        point = Point(guide, ant_map.draw_start(rng))
        for _ in range(400):
            point.move(guide.waypoint(point.position, goal, rng))
            if np.hypot(*(point.position - goal)) < 0.5:
                break
        else:
            pytest.fail(f"did not come to {goal}")


def test_waypoints_lie_in_the_next_cell_and_the_last_one_is_the_goal():
    guide, rng, goal = Guide(AntMap.named("umaze")), np.random.default_rng(0), np.array([1.2, 8.4])
    drawn = np.array([guide.waypoint(np.array([0.3, 1.9]), goal, rng) for _ in range(200)]) - (4, 0)
    assert drawn.min() > 0
    assert 0.95 < drawn.max() < 1
    assert guide.waypoint(np.array([5.0, 9.0]), goal, rng) is goal  # from the cell before
    assert guide.waypoint(np.array([-1.0, 9.0]), goal, rng) is goal
    assert guide.cell(np.array([2.5, 2.2])) == (1, 2)  # in the wall between two cells: the nearer one


class TestRollout:
    def test_an_episode_is_one_row_longer_than_its_steps(self, walked):
        source, rows = walked
        assert source.length == 61
        assert {key: (values.shape, values.dtype.name) for key, values in rows.items()} == {
            "observations": ((61, 29), "float32"),
            "actions": ((61, 8), "float32"),
            "rewards": ((61,), "float32"),
            "next_observations": ((61, 29), "float32"),
            "terminals": ((61,), "bool"),
            "timeouts": ((61,), "bool"),
            "infos/goal": ((61, 2), "float32"),
        }
        assert np.flatnonzero(rows["timeouts"]).tolist() == [60]
        assert np.array_equal(rows["observations"][1:], rows["next_observations"][:-1])
        assert np.abs(rows["actions"]).max() == 1
        assert np.unique(rows["infos/goal"], axis=0).shape == (1, 2)
        assert np.abs(rows["observations"][0, :2]).max() <= 0.1

    def test_rows_are_steps_of_the_task(self, walked):
        _, rows = walked
        after, rewards = make_simulator("antmaze-umaze")(rows["observations"][::5], rows["actions"][::5])
        assert np.abs(after - rows["next_observations"][::5]).max() < 1e-3
        assert np.array_equal(rewards, rows["rewards"][::5])

    def test_follows_its_seed(self, walked):
        source, rows = walked
        again, other = source.rollout(3), source.rollout(4)
        assert all(np.array_equal(again[key], values) for key, values in rows.items())
        assert not np.array_equal(other["observations"], rows["observations"])

    def test_rewards_and_terminals_tell_of_the_goal_of_the_set_and_do_not_end_an_episode(self, root, monkeypatch):
        behaviour = Behaviour.read("ant-goal", root)
        source = AntWalks("medium", behaviour.policy(behaviour.expert))
        ant_map = AntMap.named("medium")
        monkeypatch.setattr(AntMap, "draw_start", lambda *_: ant_map.reward_goal)
        rows = source.rollout(0)
        expected = at_goal(ant_map.reward_goal, rows["next_observations"])
        assert expected[0]
        assert np.array_equal(rows["rewards"], expected)
        assert np.array_equal(rows["terminals"], expected & ~rows["timeouts"])
        assert len(rows["rewards"]) == 81


def test_successes_are_episodes_with_a_reward():
    rows = {"rewards": np.array([0, 1, 1, 0, 0, 0, 1], np.float32), "timeouts": np.zeros(7, bool)}
    assert successes(rows).tolist() == []
    rows["timeouts"][[2, 5]] = True
    assert successes(rows).tolist() == [1, 0]  # the last one is not complete


@pytest.fixture
def make(tmp_path, root, monkeypatch):
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
    monkeypatch.setattr(make_datasets, "recipe", partial(recipe, root=root))

    def call(*arguments):
        out = ["--workers", "1", "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["make_datasets.py", *arguments, *out])
        return make_datasets.main()

    return call


@pytest.mark.parametrize(("name", "episode"), [("antmaze-umaze", 61), ("antmaze-large-play", 81)])
def test_a_file_has_the_layout_of_d4rl(tmp_path, root, make, name, episode):
    assert make(name, "--rows", "150") == 0
    path = tmp_path / f"{name}-regen.hdf5"
    with h5py.File(path) as file:
        assert file["infos/goal"].shape == (150, 2)
        assert file["observations"].shape == (150, 29)
        about = {key: json.loads(value) for key, value in file.attrs.items()}
    assert about["name"] == f"{name}-regen"
    assert about["recipe"] == recipe(name, 150, root).description
    assert about["returns"]["episodes"] == 150 // episode
    assert about["returns"]["score"] == pytest.approx(100 * about["returns"]["mean"])
    assert list(about["policies"]) == ["sac-0-10.safetensors"]
    rows, _ = read(path)
    assert np.flatnonzero(rows["timeouts"]).tolist() == list(range(episode - 1, 150, episode))
    found = load(f"{name}-regen", folder=tmp_path)
    assert found.origin == "regenerated"
    assert len(found) == 150 - 1 - 150 // episode  # without timeouts and the last row, as D4RL's reader
    assert np.array_equal(found.terminals, found.rewards == 1)


def test_a_missing_policy_is_named(tmp_path):
    with pytest.raises(MissingPolicyError, match="antmaze-umaze: no expert policy of ant-goal"):
        recipe("antmaze-umaze", 10, tmp_path)
