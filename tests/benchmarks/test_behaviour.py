"""Behaviour policies: picked from a run, written and read back, and the committed ones."""

import json
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

pytest.importorskip("mujoco")
from synther_replay import TransitionSpec
from synther_replay.benchmarks.agents.policy import load_policies, policies_of, save_policies
from synther_replay.benchmarks.agents.replay import StackedReplay
from synther_replay.benchmarks.agents.sac import Hyperparameters, StackedSAC
from synther_replay.benchmarks.agents.squashed_gaussian import LOG_STD, squash
from synther_replay.benchmarks.data import behaviour
from synther_replay.benchmarks.data.behaviour import (
    Behaviour,
    Run,
    evenly_spaced,
    pick_expert,
    pick_medium,
    sampled_returns,
)

PENDULUM = "Pendulum-v1"
RETURNS = {  # of two agents; learning begins at step 50
    20: (-9, -9),
    50: (-9, -9),
    60: (1, -8),
    70: (2, -7),
    80: (30, -6),
    90: (20, 40),
    100: (40, 10),
}
COMMITTED = sorted(path.parent.name for path in behaviour.FOLDER.glob("*/manifest.json"))


def weights_of(agents, seed=1):
    spec = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-1, 1, (1,)))
    replay = StackedReplay(spec, agents, capacity=2, device=torch.device("cpu"))
    learner = StackedSAC(replay, -1.0, Hyperparameters(hidden=8, updates=1))
    learner.policy.parameters.normal_(std=0.3, generator=torch.Generator().manual_seed(seed))
    return learner.policy_weights()


@pytest.fixture
def finished(tmp_path):
    """What a run leaves behind: its result and its policies."""
    content = {
        "env": PENDULUM,
        "algo": "sac",
        "seeds": [7, 8],
        "settings": {"random_steps": 50},
        "curve": [{"step": step, "returns": returns} for step, returns in RETURNS.items()],
        "command": "python benchmarks/online_dmc.py",
        "commit": "abc",
        "machine": {},
        "versions": {},
    }
    result = tmp_path / "sac.json"
    result.write_text(json.dumps(content))
    for step in RETURNS:
        save_policies(tmp_path / "kept" / PENDULUM / "sac" / f"{step}.safetensors", weights_of(2, seed=step))
    return result, tmp_path / "kept"


def nothing_yet(tmp_path):
    return Behaviour.read(PENDULUM, tmp_path / "behaviour")


# --- actions ----------------------------------------------------------------------------------------------------------


def test_drawn_actions_are_those_of_the_learner():
    spec = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (5,)), gym.spaces.Box(-1, 1, (3,)))
    learner = StackedSAC(
        StackedReplay(spec, 2, capacity=2, device=torch.device("cpu")), -1.0, Hyperparameters(hidden=8)
    )
    rng = torch.Generator().manual_seed(0)
    # So large that deviations leave the bounds, above and below.
    learner.policy.parameters.normal_(std=2.0, generator=rng)
    seen, noise = torch.randn(2, 50, 5, generator=rng), torch.randn(2, 50, 3, generator=rng)
    out, _ = learner.policy_forward(seen)
    log_std = out[..., 3:]
    assert (log_std < -20).any() and (log_std > 2).any() and (log_std.abs() < 2).any()
    expected, _ = squash(out, noise, LOG_STD)
    for agent, policy in enumerate(policies_of(learner.policy_weights())):
        pairs = zip(seen[agent].numpy(), noise[agent].numpy(), strict=True)
        found = np.stack([policy.sampled_action(*pair) for pair in pairs])
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected[agent].numpy(), rtol=1e-4, atol=1e-5)


def test_without_noise_the_drawn_action_is_the_deterministic_one():
    (policy,) = policies_of(weights_of(1))
    seen = np.array([0.1, -0.5, 2.0], np.float32)
    np.testing.assert_array_equal(policy.sampled_action(seen, np.zeros(1, np.float32)), policy.mean_action(seen))


# --- picking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "count", "expected"),
    [
        ([5, 10, 15, 20, 30, 40, 50, 60], 4, [5, 20, 40, 60]),
        ([5, 10], 10, [5, 10]),
        ([5], 3, [5]),
        (list(range(100)), 2, [0, 99]),
    ],
)
def test_snapshots_at_about_the_same_distances(steps, count, expected):
    assert evenly_spaced(steps, count) == expected


def test_the_medium_policy_and_the_way_to_it(tmp_path, finished):
    picked = pick_medium(nothing_yet(tmp_path), Run(*finished, 0), 25, count=4, episodes=2)
    picked.write()
    found = Behaviour.read(PENDULUM, tmp_path / "behaviour")
    assert found == picked
    # The first that reaches the return, not the best; from the last snapshot before anything was learnt.
    assert [snapshot.step for snapshot in found.replay] == [50, 60, 70, 80]
    assert found.medium == found.replay[-1]
    assert (found.expert, found.random_steps) == (None, 50)
    assert (found.medium.run_return, found.medium.seed, found.medium.episodes) == (30, 7, 2)
    assert found.runs["medium"]["command"] == "python benchmarks/online_dmc.py"
    assert found.runs["medium"]["commit"] == "abc"
    kept = load_policies(finished[1] / PENDULUM / "sac" / "80.safetensors")[0]
    for name, one in found.policy(found.medium).layers.items():
        np.testing.assert_array_equal(one, kept.layers[name])


def test_a_snapshot_that_was_lost_is_passed_over(tmp_path, finished):
    (finished[1] / PENDULUM / "sac" / "60.safetensors").unlink()
    picked = pick_medium(nothing_yet(tmp_path), Run(*finished, 0), 25, count=4, episodes=1)
    assert [snapshot.step for snapshot in picked.replay] == [50, 70, 80]


def test_returns_are_measured_with_actions_drawn(tmp_path, finished):
    picked = pick_medium(nothing_yet(tmp_path), Run(*finished, 1), 40, count=2, episodes=3)
    returns = sampled_returns(PENDULUM, picked.policy(picked.medium), 3)
    assert len(set(returns)) == 3
    assert picked.medium.mean_return == pytest.approx(returns.mean(), abs=0.01)
    assert picked.medium.std_return == pytest.approx(returns.std(), abs=0.01)


def test_an_expert_joins_what_is_there(tmp_path, finished):
    before = pick_medium(nothing_yet(tmp_path), Run(*finished, 0), 25, count=2, episodes=1)
    after = pick_expert(before, Run(*finished, 1), episodes=1)
    after.write()
    found = Behaviour.read(PENDULUM, tmp_path / "behaviour")
    assert (found.expert.step, found.expert.seed, found.expert.run_return) == (90, 8, 40)
    assert (found.medium, found.replay) == (before.medium, before.replay)
    assert set(found.runs) == {"medium", "expert"}


def test_policies_that_are_not_named_any_more_go(tmp_path, finished):
    for wanted in (30, 40):
        pick_medium(nothing_yet(tmp_path), Run(*finished, 0), wanted, count=2, episodes=1).write()
    files = {path.name for path in (tmp_path / "behaviour" / PENDULUM).iterdir()}
    assert files == {"manifest.json", "sac-7-50.safetensors", "sac-7-100.safetensors"}


def test_the_command_line(tmp_path, finished, monkeypatch, capsys):
    result, kept = finished
    arguments = ["pick", "--result", result, "--policies", kept, "--out", tmp_path / "behaviour", "--episodes", "1"]

    def run(*more):
        monkeypatch.setattr(sys, "argv", ["behaviour.py", *map(str, arguments), *more])
        return behaviour.main()

    assert run("--medium-return", "25", "--agent", "0") == 0
    assert run("--expert", "--agent", "1") == 0
    assert "sac-8-90.safetensors: return 40 in the run" in capsys.readouterr().out
    found = Behaviour.read(PENDULUM, tmp_path / "behaviour")
    assert (found.medium.step, found.expert.step) == (80, 90)
    assert "--medium-return 25" in found.runs["medium"]["picked_by"]
    assert str(tmp_path) not in (found.folder / "manifest.json").read_text()
    assert run("--medium-return", "1000") == 2
    assert "agent 0 in" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("--medium-return", "25", "--snapshots", "1")


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_return_that_was_not_reached(finished):
    with pytest.raises(ValueError, match=r"medium-return: expected at most 40.* agent 1 in .*sac\.json, got 41"):
        Run(*finished, 1).first_reaching(41)


def test_an_agent_that_is_not_there(finished):
    with pytest.raises(ValueError, match="agent: expected 0 to 1, got 2"):
        Run(*finished, 2)


def test_an_agent_whose_policies_were_not_kept(tmp_path, finished):
    result, kept = finished
    save_policies(kept / PENDULUM / "sac" / "100.safetensors", weights_of(1))
    with pytest.raises(ValueError, match=r"agent: .*100\.safetensors has 1 agents, got agent 1"):
        Run(result, kept, 1).keep(100, tmp_path / "new", 1)


def test_policies_of_another_run(tmp_path, finished):
    with pytest.raises(ValueError, match=r"policies: no policies of .*sac\.json in .*elsewhere"):
        Run(finished[0], tmp_path / "elsewhere", 0)


@pytest.mark.parametrize("content", ["{", "[]", '{"env": "Pendulum-v1"}'])
def test_something_else_than_a_result(tmp_path, content):
    (tmp_path / "sac.json").write_text(content)
    with pytest.raises(ValueError, match=r"sac\.json: not a result file of online_dmc\.py"):
        Run(tmp_path / "sac.json", tmp_path, 0)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"policies": {"a": {"step": 1}}}'])
def test_a_damaged_manifest(tmp_path, content):
    path = tmp_path / PENDULUM / "manifest.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json: .*damaged"):
        Behaviour.read(PENDULUM, tmp_path)


@pytest.mark.parametrize("fault", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])])
def test_a_policy_that_is_missing_or_damaged(tmp_path, finished, fault):
    picked = pick_medium(nothing_yet(tmp_path), Run(*finished, 0), 25, count=2, episodes=1)
    fault(picked.folder / picked.medium.file)
    with pytest.raises(ValueError, match=r"sac-7-80\.safetensors: .*manifest\.json"):
        picked.policy(picked.medium)


# --- the committed ones -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", COMMITTED)
class TestCommitted:
    def test_each_is_small_whole_and_named(self, task):
        found = Behaviour.read(task)
        named = {s.file for s in (*found.replay, found.medium, found.expert) if s}
        assert {path.name for path in found.folder.iterdir()} == {*named, "manifest.json"}
        for snapshot in (*found.replay, *([found.expert] if found.expert else [])):
            found.policy(snapshot)
            assert (found.folder / snapshot.file).stat().st_size < 1_000_000
            assert snapshot.episodes >= 20
        assert found.runs.keys() == {role for role in ("medium", "expert") if getattr(found, role)}
        for run in found.runs.values():
            assert run["commit"] and "online_dmc.py" in run["command"] and "behaviour.py pick" in run["picked_by"]

    def test_the_replay_leads_up_to_the_medium_policy(self, task):
        found = Behaviour.read(task)
        if not found.replay:
            pytest.skip("a policy that walks in the ant mazes is no behaviour of a data set by itself")
        steps = [snapshot.step for snapshot in found.replay]
        assert steps == sorted(set(steps))
        assert found.replay[-1] == found.medium
        assert steps[0] == found.random_steps  # untrained
        assert found.medium.mean_return == max(snapshot.mean_return for snapshot in found.replay)

    @pytest.mark.slow
    def test_they_earn_what_the_manifest_says(self, task):
        # Another processor rounds otherwise, and an episode soon goes another way: hence the width of the bounds.
        found = Behaviour.read(task)
        for snapshot in (*found.replay, *([found.expert] if found.expert else [])):
            returns = sampled_returns(task, found.policy(snapshot), 2)
            assert returns == pytest.approx(snapshot.mean_return, abs=4 * snapshot.std_return + 100), snapshot.file
