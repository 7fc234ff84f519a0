"""Stable-Baselines3's SAC as a check on our learner."""

import json
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")
from stable_baselines3 import SAC

from synther_replay import GeneratorConfig, RetrainSchedule
from synther_replay.benchmarks.online import results as online_results
from synther_replay.benchmarks.peers import sb3_sac
from synther_replay.benchmarks.peers.sb3_sac import Settings


def test_the_policy_is_the_actor():
    model = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [16, 16]}, seed=0)
    policy = sb3_sac.policy_of(model)
    for observation in np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32):
        expected = model.predict(observation, deterministic=True)[0] / 2  # actions of Pendulum go from -2 to 2
        np.testing.assert_allclose(policy.mean_action(observation), expected, rtol=1e-5, atol=1e-6)


def test_a_run_is_evaluated_every_so_many_steps():
    returns = sb3_sac.run(Settings("Pendulum-v1", steps=60, every=20, episodes=1, random_steps=50), 0)
    assert list(returns) == [20, 40, 60]
    assert returns[20] == returns[40] != returns[60]  # nothing is learnt before the random steps are over
    assert json.dumps(returns)


def test_an_actor_that_learns_by_the_mean_of_critics(monkeypatch):
    asked = []
    genuine = sb3_sac._mean_q_for_actor

    def hook(critic, inputs, values):
        said = genuine(critic, inputs, values)
        asked.append((inputs[1].requires_grad, torch.equal(*said), torch.equal(*values)))
        if inputs[1].requires_grad:
            torch.testing.assert_close(said[0], (values[0] + values[1]) / 2)
        return said

    monkeypatch.setattr(sb3_sac, "_mean_q_for_actor", hook)
    of = Settings("Pendulum-v1", steps=53, every=53, episodes=1, random_steps=50, policy_by="mean")
    sb3_sac.run(of, 0)
    assert asked  # for the critics' own loss as they are, for the actor's the same from both
    assert {call for call in asked if call[0]} == {(True, True, False)}
    assert {call for call in asked if not call[0]} == {(False, False, False)}


def test_weights_drawn_as_in_the_redq_code_base():
    model = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [64, 64]}, seed=0)
    sb3_sac._initialise_like_redq(model)
    hidden = model.actor.latent_pi[2]
    bound = (6 / 128) ** 0.5
    assert 0.95 * bound < hidden.weight.abs().max() <= bound
    assert hidden.bias.count_nonzero() == 0
    for one, other in zip(model.critic.parameters(), model.critic_target.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("algo", "learner", "updates"), [("sac", "SAC", 5), ("sac20", "FastSAC", 100)])
def test_an_algorithm_is_what_its_name_says(algo, learner, updates, monkeypatch):
    made = []
    build, options = sb3_sac.ALGORITHMS[algo]

    def building(*arguments, **settings):
        made.append(build(*arguments, **settings))
        return made[-1]

    monkeypatch.setitem(sb3_sac.ALGORITHMS, algo, (building, options))
    sb3_sac.run(Settings("Pendulum-v1", algo, steps=55, every=55, episodes=1, random_steps=50), 0)
    assert type(made[0]).__name__ == learner
    assert made[0]._n_updates == updates


def test_synther_has_synthetic_rows_in_its_batches(monkeypatch):
    made = []
    quick = {"generator": GeneratorConfig.tiny(steps=10, width=16, depth=1), "schedule": RetrainSchedule(40, 64, 40)}
    build, options = sb3_sac.ALGORITHMS["synther"]

    def building(*arguments, **settings):
        made.append(build(*arguments, replay_buffer_kwargs=quick, **settings))
        return made[-1]

    monkeypatch.setitem(sb3_sac.ALGORITHMS, "synther", (building, options))
    returns = sb3_sac.run(Settings("Pendulum-v1", "synther", steps=52, every=26, episodes=1, random_steps=50), 0)
    assert list(returns) == [26, 52]
    assert len(made[0].replay_buffer.source.store) == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "Pendulun-v1"], "env: unknown task 'Pendulun-v1'; did you mean Pendulum-v1"),
        (["--env", "Pendulum-v1", "--seeds", "0"], "seeds: "),
        (["--env", "Pendulum-v1", "--workers", "0"], "workers: "),
        (["--env", "Pendulum-v1", "--algo", "ppo"], "--algo: invalid choice"),
        (["--env", "Pendulum-v1", "--algo", "synther", "--init", "xavier"], "--init require --algo sac, got"),
        (["--env", "Pendulum-v1", "--device", "gpu"], "device: "),
    ],
)
def test_invalid_arguments_are_refused(arguments, message, refusal):
    assert message in refusal(*arguments)


@pytest.mark.parametrize(("env", "needs"), [("cheetah-run", "dm_control"), ("maze2d-umaze", "mujoco")])
def test_a_task_that_is_not_gymnasiums_is_refused(env, needs, refusal):
    pytest.importorskip(needs)
    assert "env: expected a Gymnasium task" in refusal("--env", env)


def test_the_settings_of_synther_say_what_its_generator_is():
    on_cpu, on_gpu = (Settings("x", "synther", device=device).to_json() for device in ("cpu", "cuda:1"))
    assert (on_cpu["device"], on_gpu["device"]) == ("cpu", "cuda")
    assert GeneratorConfig.from_json(on_cpu["generator"]) == GeneratorConfig.tiny()
    assert GeneratorConfig.from_json(on_gpu["generator"]) == GeneratorConfig.fast()
    assert on_gpu["schedule"]["rows"] == RetrainSchedule.fast().rows
    assert "generator" not in Settings("x", "sac20").to_json()


def test_a_result_is_written_once_and_never_overwritten(call_main, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
    monkeypatch.setattr(sb3_sac, "WorkerPool", lambda _: ThreadPoolExecutor(1))
    monkeypatch.setattr(sb3_sac, "run", lambda settings, seed: {10: 1.0 + seed, 20: 4.0 - seed})
    monkeypatch.setattr(sb3_sac, "time", SimpleNamespace(monotonic=iter((100.0, 107.0)).__next__))
    arguments = ("--env", "Pendulum-v1", "--seeds", "2", "--steps", "20", "--policy-by", "mean")
    status, out, _ = call_main(sb3_sac.main, "sb3_sac.py", *arguments)
    path = Path("results", "online", "Pendulum-v1", "sb3-sac-mean.json")
    expected = ["Pendulum-v1 step 10: 1.5 +- 0.7", "Pendulum-v1 step 20: 3.5 +- 0.7", str(path)]
    assert (status, out.splitlines()) == (0, expected)
    read = online_results.read_run(path)
    assert (read.algorithm, read.returns.tolist()) == ("sb3-sac-mean", [[1.0, 4.0], [2.0, 3.0]])
    assert read.wall_seconds == {"total": 7.0}
    assert json.loads(path.read_text())["settings"]["policy_by"] == "mean"
    monkeypatch.setattr(sb3_sac, "run", lambda *_: pytest.fail("it ran"))
    before = path.read_bytes()
    assert call_main(sb3_sac.main, "sb3_sac.py", *arguments)[:2] == (0, f"{path}: already exists\n")
    status, _, errors = call_main(sb3_sac.main, "sb3_sac.py", *arguments, "--episodes", "3")
    assert status == 2
    assert f"{path}: result has other settings (episodes: got 10, expected 3)" in errors
    assert path.read_bytes() == before


def test_a_full_disk_is_one_line_and_the_result_is_printed(call_main, full_disk, monkeypatch, tmp_path):
    monkeypatch.setattr(sb3_sac, "WorkerPool", lambda _: ThreadPoolExecutor(1))
    monkeypatch.setattr(sb3_sac, "run", lambda settings, seed: {20: 4.0})
    full_disk()
    arguments = ("--env", "Pendulum-v1", "--seeds", "1", "--steps", "20", "--out", tmp_path)
    status, told, errors = call_main(sb3_sac.main, "sb3_sac.py", *arguments)
    assert status == 2
    assert errors.startswith(f"sb3_sac.py: error: {tmp_path}/Pendulum-v1/sb3-sac.json: cannot write the file (No space")
    assert json.loads(told)["curve"] == [{"step": 20, "returns": [4.0]}]


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted; the file was not written"),
        (BrokenProcessPool(), 1, "a worker process died; the file was not written"),
    ],
    ids=["interrupt", "killed"],
)
def test_an_interrupted_or_killed_run_is_one_line(fault, status, said, call_main, monkeypatch, tmp_path):
    def run(*_):
        raise fault

    monkeypatch.setattr(sb3_sac, "WorkerPool", lambda _: ThreadPoolExecutor(1))
    monkeypatch.setattr(sb3_sac, "run", run)
    arguments = ("--env", "Pendulum-v1", "--seeds", "1", "--steps", "20", "--out", tmp_path)
    answer = call_main(sb3_sac.main, "sb3_sac.py", *arguments)
    path = tmp_path / "Pendulum-v1" / "sb3-sac.json"
    assert answer[::2] == (status, f"sb3_sac.py: error: {path}: {said}\n")
    assert not path.exists()


@pytest.fixture
def refusal(call_main, monkeypatch):
    """What the program says to arguments that it does not take."""
    monkeypatch.setattr(sb3_sac, "WorkerPool", lambda _: pytest.fail("it ran"))

    def refuse(*arguments):
        status, _, errors = call_main(sb3_sac.main, "sb3_sac.py", *arguments)
        assert status == 2
        return errors

    return refuse
