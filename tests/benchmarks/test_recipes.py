"""Recipes of data sets: sources, numbers of rows, and descriptions."""

from dataclasses import replace

import pytest

pytest.importorskip("mujoco")
from synther_replay.benchmarks.data.behaviour import Behaviour, Snapshot
from synther_replay.benchmarks.data.download import RECIPES
from synther_replay.benchmarks.data.recipes import MissingPolicyError, default_rows, nearest, recipe, split
from synther_replay.benchmarks.data.rollouts import Walks

HOPPER = "Hopper-v5"


@pytest.fixture
def with_expert(tmp_path):
    """A folder in which a snapshot of the way to the medium policy passes for an expert."""
    found = Behaviour.read(HOPPER)
    (tmp_path / HOPPER).mkdir()
    for path in found.folder.iterdir():
        (tmp_path / HOPPER / path.name).write_bytes(path.read_bytes())
    replace(found, folder=tmp_path / HOPPER, expert=found.replay[-2]).write()
    return tmp_path


def snapshots(*steps):
    return [Snapshot(f"{step}", "", step, 0, 0.0, 0.0, 0.0, 1) for step in steps]


@pytest.mark.parametrize("name", RECIPES)
def test_as_many_rows_as_in_d4rl(name):
    expected = {"halfcheetah-medium-replay": 202_000, "hopper-medium-replay": 402_000, "maze2d-large": 4_000_000}
    expected |= {"walker2d-medium-replay": 302_000, "maze2d-medium": 2_000_000}
    expected |= {f"{task}-medium-expert": 2_000_000 for task in ("halfcheetah", "hopper", "walker2d")}
    assert default_rows(name) == expected.get(name, 1_000_000)


def test_a_step_belongs_to_the_nearest_snapshot():
    shares = [(snapshot.step, share) for snapshot, share in nearest(snapshots(50, 60, 100), 50)]
    assert shares == [(50, 5), (60, 25), (100, 20)]


def test_steps_before_learning_began_belong_to_none():
    shares = [(snapshot.step, share) for snapshot, share in nearest(snapshots(10, 40, 60, 100), 50)]
    assert shares == [(10, 0), (40, 0), (60, 30), (100, 20)]


@pytest.mark.parametrize("rows", [1, 7, 1_000_003])
def test_shares_are_whole_and_add_up(rows):
    shares = [5_000, 2_500.5, 0, 92_499.5]
    counts = split(rows, shares)
    assert sum(counts) == rows
    assert all(abs(count - rows * share / 100_000) <= 1 for count, share in zip(counts, shares, strict=True))


def test_random_actions():
    found = recipe("walker2d-random")
    (part,) = found.parts
    assert (part.label, part.rows, part.source.policy, part.source.task) == ("uniform", 1_000_000, None, "Walker2d-v5")
    assert found.policies == {}
    assert "uniform actions" in found.description


def test_medium():
    medium = Behaviour.read(HOPPER).medium
    found = recipe("hopper-medium", 500)
    (part,) = found.parts
    assert (part.label, part.rows) == (medium.file, 500)
    assert found.policies == {medium.file: medium.sha256}
    assert f"{medium.step:,} steps" in found.description


def test_medium_replay_follows_the_run():
    behaviour = Behaviour.read(HOPPER)
    found = recipe("hopper-medium-replay", behaviour.medium.step)  # a row for each step of the run
    assert found.rows == behaviour.medium.step
    labels = [part.label for part in found.parts]
    assert labels == ["uniform", *(snapshot.file for snapshot in behaviour.replay)]
    assert found.parts[0].rows == behaviour.random_steps
    ends = [sum(part.rows for part in found.parts[: k + 1]) for k in range(1, len(found.parts))]
    for end, one, after in zip(ends[:-1], behaviour.replay, behaviour.replay[1:], strict=False):
        assert end == pytest.approx((one.step + after.step) / 2, abs=1)
    assert "replay buffer" in found.description


def test_medium_expert_is_half_and_half(with_expert):
    behaviour = Behaviour.read(HOPPER, with_expert)
    found = recipe("hopper-medium-expert", 1_001, with_expert)
    assert [part.label for part in found.parts] == [behaviour.medium.file, behaviour.expert.file]
    assert sorted(part.rows for part in found.parts) == [500, 501]
    assert set(found.policies) == {behaviour.medium.file, behaviour.expert.file}


def test_mazes():
    (part,) = recipe("maze2d-medium", 10).parts
    assert (part.source, part.rows) == (Walks("medium"), 10)


@pytest.mark.parametrize(("name", "size"), [("antmaze-umaze", "umaze"), ("antmaze-large-play", "large")])
def test_ant_mazes_have_a_policy(name, size):
    found = recipe(name, 10)
    (part,) = found.parts
    assert (part.source.size, part.rows, [part.label]) == (size, 10, list(found.policies))


def test_an_unknown_name_is_refused_with_suggestions():
    with pytest.raises(ValueError, match=r"unknown recipe 'hoper-medium'; did you mean hopper-medium"):
        recipe("hoper-medium")
    with pytest.raises(ValueError, match=r"unknown recipe 'x'; expected one of halfcheetah-random, .*maze2d-large"):
        recipe("x")


@pytest.mark.parametrize("rows", [0, -5])
def test_no_rows(rows):
    with pytest.raises(ValueError, match="rows: expected a whole number of at least 1"):
        recipe("maze2d-umaze", rows)


@pytest.mark.parametrize("kind", ["medium", "medium-replay", "medium-expert"])
def test_a_task_without_policies(tmp_path, kind):
    expected = rf"hopper-{kind}: no medium policy of Hopper-v5 in .*Hopper-v5; .*behaviour pick --medium-return"
    with pytest.raises(MissingPolicyError, match=expected):
        recipe(f"hopper-{kind}", 10, tmp_path)
    assert recipe("hopper-random", 10, tmp_path).rows == 10  # needs none


def test_a_task_without_an_expert(with_expert):
    replace(Behaviour.read(HOPPER, with_expert), expert=None).write()
    with pytest.raises(MissingPolicyError, match=r"no expert policy of Hopper-v5 .*behaviour pick --expert"):
        recipe("hopper-medium-expert", 10, with_expert)
