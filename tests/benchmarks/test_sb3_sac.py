"""Stable-Baselines3's SAC as a check on our learner."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")
from stable_baselines3 import SAC

from synther_replay import GeneratorConfig, RetrainSchedule
from synther_replay.adapters.sb3 import FastSAC
from synther_replay.benchmarks.online import results as online_results
from synther_replay.benchmarks.peers import sb3_agent, sb3_sac
from synther_replay.benchmarks.peers.sb3_agent import Progress, Settings


def test_the_policy_is_the_actor():
    model = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [16, 16]}, seed=0)
    policy = sb3_agent.policy_of(model)
    for observation in np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32):
        expected = model.predict(observation, deterministic=True)[0] / 2  # actions of Pendulum go from -2 to 2
        np.testing.assert_allclose(policy.mean_action(observation), expected, rtol=1e-5, atol=1e-6)


@pytest.fixture
def train(tmp_path):
    """Train the agent with seed 0."""

    def run(settings, **limits):
        return sb3_agent.train(settings, 0, tmp_path / "checkpoint", **{"started": time.monotonic(), **limits})

    return run


def test_a_run_is_evaluated_every_so_many_steps(train):
    returns = train(Settings("Pendulum-v1", steps=60, every=20, episodes=1, random_steps=50)).returns
    assert list(returns) == [20, 40, 60]
    assert returns[20] == returns[40] != returns[60]  # nothing is learnt before the random steps are over
    assert json.dumps(returns)


@pytest.mark.parametrize("algo", ["sac", "sac20"])
def test_an_actor_that_learns_by_the_mean_of_critics(algo, monkeypatch, train):
    asked = []
    genuine = sb3_agent.mean_q_for_actor

    def hook(critic, inputs, values):
        said = genuine(critic, inputs, values)
        asked.append((inputs[1].requires_grad, torch.equal(*said), torch.equal(*values)))
        if inputs[1].requires_grad:
            torch.testing.assert_close(said[0], (values[0] + values[1]) / 2)
        return said

    monkeypatch.setattr(sb3_agent, "mean_q_for_actor", hook)
    train(Settings("Pendulum-v1", algo, steps=53, every=53, episodes=1, random_steps=50, policy_by="mean"))
    assert asked  # for the critics' own loss as they are, for the actor's the same from both
    assert {call for call in asked if call[0]} == {(True, True, False)}
    assert {call for call in asked if not call[0]} == {(False, False, False)}


def test_weights_drawn_as_in_the_redq_code_base():
    model = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [64, 64]}, seed=0)
    sb3_agent.initialise_like_redq(model)
    hidden = model.actor.latent_pi[2]
    bound = (6 / 128) ** 0.5
    assert 0.95 * bound < hidden.weight.abs().max() <= bound
    assert hidden.bias.count_nonzero() == 0
    for one, other in zip(model.critic.parameters(), model.critic_target.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.fixture
def made(monkeypatch):
    """The models that were built."""
    models, build = [], sb3_agent.build

    def building(*arguments):
        models.append(build(*arguments))
        return models[-1]

    monkeypatch.setattr(sb3_agent, "build", building)
    return models


@pytest.mark.parametrize(("algo", "learner", "updates"), [("sac", "SAC", 5), ("sac20", "FastSAC", 100)])
def test_an_algorithm_is_what_its_name_says(algo, learner, updates, made, train):
    settings = Settings("Pendulum-v1", algo, steps=55, every=55, episodes=1, random_steps=50)
    train(settings)
    assert type(made[0]).__name__ == learner
    assert made[0]._n_updates == updates
    assert settings.utd == updates // 5


@pytest.mark.parametrize("algo", ["sac", "sac20"])
def test_critics_with_layer_norm(algo, made, train):
    settings = Settings("Pendulum-v1", algo, policy="LayerNormMlpPolicy", steps=52, every=52, episodes=1)
    train(settings)
    assert any(isinstance(module, torch.nn.LayerNorm) for module in made[0].critic.modules())
    assert settings.name == f"sb3-{algo}-layernorm"


@pytest.fixture
def quick(monkeypatch):
    """Settings of `synther` whose generator takes a moment."""
    options = {"generator": GeneratorConfig.tiny(steps=10, width=16, depth=1), "schedule": RetrainSchedule(40, 64, 40)}
    monkeypatch.setattr(Settings, "buffer_options", lambda _: options)
    return Settings("Pendulum-v1", "synther", "tiny", steps=56, every=28, episodes=1, random_steps=50)


@pytest.mark.parametrize(("algo", "kind", "updates"), [("synther", FastSAC, 20), ("buffer", SAC, 1)])
def test_there_are_synthetic_rows_in_the_batches(algo, kind, updates, made, quick, train):
    settings = replace(quick, algo=algo)
    assert list(train(settings).returns) == [28, 56]
    assert len(made[0].replay_buffer.source.store) == 64
    assert (type(made[0]), made[0].gradient_steps, settings.utd) == (kind, updates, updates)


def test_a_stopped_run_resumes_with_its_rows_and_model(made, monkeypatch, quick, train):
    monkeypatch.setattr(sb3_agent, "CHUNK", 52)
    resumed, load = [], FastSAC.load.__func__

    def loading(*arguments, **options):
        resumed.append(load(*arguments, **options))
        return resumed[-1]

    monkeypatch.setattr(FastSAC, "load", classmethod(loading))
    for step in (28, 52):
        assert train(quick, time_limit=0).step == step
    first = train(quick)
    assert (first.step, list(first.returns), first.resumed_at) == (56, [28, 56], [28, 52])
    assert len(made) == 1
    assert resumed[-1]._n_updates == 6 * 20
    buffer = resumed[-1].replay_buffer
    assert (buffer.size(), len(buffer.source.store), buffer.source.refits) == (56, 64, 1)
    assert train(quick) == first  # a finished agent is not trained again
    with pytest.raises(ValueError, match="other settings"):
        train(replace(quick, episodes=2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "Pendulun-v1"], "env: unknown task 'Pendulun-v1'; did you mean Pendulum-v1"),
        (["--env", "Pendulum-v1", "--seeds", "0"], "seeds: "),
        (["--env", "Pendulum-v1", "--workers", "0"], "workers: "),
        (["--env", "Pendulum-v1", "--algo", "ppo"], "--algo: invalid choice"),
        (["--env", "Pendulum-v1", "--preset", "tiny"], "--preset requires --algo synther or buffer, got"),
        (["--env", "Pendulum-v1", "--policy", "CnnPolicy"], "--policy: invalid choice"),
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
    of = Settings("x", "synther", "fast", device="cuda:1")
    settings = of.to_json()
    assert (settings["device"], settings["preset"], of.name) == ("cuda", "fast", "sb3-synther-fast")
    assert GeneratorConfig.from_json(settings["generator"]) == GeneratorConfig.fast(max_seconds=None)
    assert settings["schedule"]["rows"] == RetrainSchedule.fast().rows
    assert "generator" not in Settings("x", "sac20").to_json()


@pytest.fixture
def training(monkeypatch):
    """Replace the training by a function of settings and seed."""

    def by(function):
        monkeypatch.setattr(sb3_sac, "WorkerPool", lambda _: ThreadPoolExecutor(1))
        monkeypatch.setattr(sb3_sac, "train", lambda settings, seed, *_, **__: function(settings, seed))

    return by


def test_a_result_is_written_once_and_never_overwritten(call_main, monkeypatch, tmp_path, training):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
    training(lambda settings, seed: Progress(20, {10: seed - 2.0, 20: 7.0 - seed}, 7.0 - seed))
    arguments = ("--env", "Pendulum-v1", "--seeds", "2", "--steps", "20", "--policy-by", "mean", "--first-seed", "3")
    status, out, _ = call_main(sb3_sac.main, "sb3_sac.py", *arguments)
    path = Path("results", "online", "Pendulum-v1", "sb3-sac-mean.json")
    expected = ["Pendulum-v1 step 10: 1.5 +- 0.7", "Pendulum-v1 step 20: 3.5 +- 0.7", str(path)]
    assert (status, out.splitlines()) == (0, expected)
    read = online_results.read_run(path)
    assert (read.algorithm, read.returns.tolist()) == ("sb3-sac-mean", [[1.0, 4.0], [2.0, 3.0]])
    assert read.wall_seconds == {"total": 4.0}
    content = json.loads(path.read_text())
    assert (content["settings"]["policy_by"], content["seeds"]) == ("mean", [3, 4])
    training(lambda *_: pytest.fail("it ran"))
    before = path.read_bytes()
    assert call_main(sb3_sac.main, "sb3_sac.py", *arguments)[:2] == (0, f"{path}: already exists\n")
    status, _, errors = call_main(sb3_sac.main, "sb3_sac.py", *arguments, "--episodes", "3")
    assert status == 2
    assert f"{path}: result has other settings (episodes: got 10, expected 3)" in errors
    assert path.read_bytes() == before


def test_a_run_stopped_by_its_time_limit_says_where(call_main, tmp_path, training):
    training(lambda settings, seed: Progress(20 - 10 * seed))
    arguments = ("--env", "Pendulum-v1", "--seeds", "2", "--steps", "20", "--time-limit", "1", "--out", tmp_path)
    status, told, _ = call_main(sb3_sac.main, "sb3_sac.py", *arguments)
    assert status == 0
    assert "step 10 of 20" in told
    assert not list(tmp_path.rglob("*.json"))


def test_a_full_disk_is_one_line_and_the_result_is_printed(call_main, full_disk, tmp_path, training):
    training(lambda settings, seed: Progress(20, {20: 4.0}))
    full_disk()
    arguments = ("--env", "Pendulum-v1", "--seeds", "1", "--steps", "20", "--out", tmp_path)
    status, told, errors = call_main(sb3_sac.main, "sb3_sac.py", *arguments)
    assert status == 2
    assert errors.startswith(f"sb3_sac.py: error: {tmp_path}/Pendulum-v1/sb3-sac.json: cannot write the file (No space")
    assert json.loads(told)["curve"] == [{"step": 20, "returns": [4.0]}]


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [(KeyboardInterrupt(), 130, "interrupted"), (BrokenProcessPool(), 1, "a worker process died")],
    ids=["interrupt", "killed"],
)
@pytest.mark.parametrize("resumes", [False, True])
def test_an_interrupted_or_killed_run_is_one_line(fault, status, said, resumes, call_main, tmp_path, training):
    path = tmp_path / "Pendulum-v1" / "sb3-sac.json"

    def run(settings, seed):
        if resumes:
            sb3_sac.checkpoints(path, settings)[seed].touch()
        raise fault

    training(run)
    arguments = ("--env", "Pendulum-v1", "--seeds", "1", "--steps", "20", "--out", tmp_path)
    code, _, errors = call_main(sb3_sac.main, "sb3_sac.py", *arguments)
    assert (code, len(errors.splitlines())) == (status, 1)
    assert errors.startswith(f"sb3_sac.py: error: {path}: {said}; ")
    assert ("start over" in errors) != resumes
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
