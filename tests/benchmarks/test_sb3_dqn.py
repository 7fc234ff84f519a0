"""DQN of Stable-Baselines3 with and without synthetic rows."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
from stable_baselines3 import DQN

from synther_replay import GeneratorConfig, RetrainSchedule
from synther_replay.adapters.sb3 import SynthERBuffer
from synther_replay.benchmarks.online import discrete, results
from synther_replay.benchmarks.peers import sb3_dqn, sb3_sac
from synther_replay.benchmarks.peers.sb3_agent import Progress
from synther_replay.benchmarks.peers.sb3_dqn import TUNED, Settings
from synther_replay.common.seeding import derive_seed

SHORT = Settings("CartPole-v1", steps=60, every=25, episodes=2)


@pytest.fixture
def made(monkeypatch):
    """The models that were built, with a generator that takes a moment."""
    models, build = [], sb3_dqn.build
    options = {"generator": GeneratorConfig.tiny(steps=10, width=16, depth=1), "schedule": RetrainSchedule(40, 64, 40)}
    monkeypatch.setattr(Settings, "buffer_options", lambda _: options)

    def building(*arguments):
        models.append(build(*arguments))
        return models[-1]

    monkeypatch.setattr(sb3_dqn, "build", building)
    return models


@pytest.fixture
def train(tmp_path):
    """Train the agent with seed 0."""
    return lambda settings, **limits: sb3_dqn.train(
        settings, 0, tmp_path / "checkpoint", **{"started": time.monotonic(), **limits}
    )


def test_a_run_is_evaluated_every_so_many_steps_and_at_the_last(made, train):
    progress = train(SHORT)
    assert (progress.step, list(progress.returns)) == (60, [25, 50, 60])
    assert not isinstance(made[0].replay_buffer, SynthERBuffer)


def test_synther_dqn_samples_synthetic_rows(made, monkeypatch, train):
    # trains at steps 32 and 64; the rows are generated between them
    monkeypatch.setitem(TUNED, "CartPole-v1", replace(TUNED["CartPole-v1"], learning_starts=1, train_freq=32))
    train(replace(SHORT, algo="synther-dqn", steps=70))
    source = made[0].replay_buffer.source
    assert (len(source.store), source.refits) == (64, 1)
    assert made[0].replay_buffer.sample(8).is_synthetic.any()


def test_exploration_ends_where_the_tuned_run_ends_it(monkeypatch, made, train):
    # `learn` in several calls would restart the schedule of the exploration rate
    monkeypatch.setitem(TUNED, "CartPole-v1", replace(TUNED["CartPole-v1"], exploration_steps=40))
    train(replace(SHORT, steps=50))
    rate = made[0].exploration_schedule
    assert rate(1 - 20 / 50) == pytest.approx((1 + 0.04) / 2)
    assert rate(1 - 40 / 50) == pytest.approx(0.04)
    assert made[0].exploration_rate == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("env", "updates", "freq", "utd", "name"),
    [
        ("CartPole-v1", 1, 256, 0.5, "dqn"),
        ("CartPole-v1", 4, 64, 2.0, "dqn-4x"),
        ("LunarLander-v3", 4, 1, 4.0, "dqn-4x"),
    ],
)
def test_more_updates_train_more_often(env, updates, freq, utd, name):
    settings = Settings(env, updates=updates)
    assert (settings.model_options()["train_freq"], settings.utd, settings.name) == (freq, utd, name)


def test_settings_of_the_two_algorithms_differ_in_the_buffer_only():
    plain, other = Settings("CartPole-v1").to_json(), Settings("CartPole-v1", "synther-dqn").to_json()
    assert plain.pop("algo") != other.pop("algo")
    own = {name: other.pop(name) for name in ("generator", "schedule", "real_ratio", "refit_every")}
    assert plain == other
    assert own["schedule"] == {"every": 5_000, "rows": 20_000, "start": 2_500, "growth": 0.0}
    assert GeneratorConfig.from_json(own["generator"]) == GeneratorConfig.tiny(max_seconds=None)


def test_a_finished_agent_is_read_and_a_stopped_one_starts_again(made, train):
    assert train(SHORT, time_limit=0).step == 1
    first = train(SHORT)
    assert (first.step, len(made)) == (60, 2)
    assert train(SHORT) == first
    assert len(made) == 2
    with pytest.raises(ValueError, match="other settings"):
        train(replace(SHORT, episodes=3))


def test_the_mean_return_is_that_of_the_greedy_policy():
    model = DQN("MlpPolicy", "CartPole-v1", seed=0)
    environments = [gym.make("CartPole-v1") for _ in range(3)]
    first = sb3_dqn.mean_return(model, environments, 5)
    assert first == sb3_dqn.mean_return(model, environments, 5)  # the same episodes
    alone = []
    for k, env in enumerate(environments):
        observation, over, length = env.reset(seed=derive_seed(5, 78, k) % 2**31)[0], False, 0
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            observation, _, terminated, truncated, _ = env.step(int(action))
            over, length = terminated or truncated, length + 1
        alone.append(length)
    assert first == np.mean(alone)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "Pendulum-v1"], "--env: invalid choice"),
        (["--env", "CartPole-v1", "--updates", "3"], "--updates: expected a divisor of 256"),
        (["--env", "CartPole-v1", "--real-ratio", "2"], "real_ratio"),
        (["--env", "CartPole-v1", "--seeds", "0"], "seeds: "),
        (["--env", "CartPole-v1", "--workers", "0"], "workers: "),
        (["--env", "CartPole-v1", "--device", "gpu"], "device: "),
    ],
)
def test_invalid_arguments_are_refused(arguments, message, call_main, monkeypatch):
    monkeypatch.setattr(sb3_sac, "WorkerPool", lambda _: pytest.fail("it ran"))
    status, _, errors = call_main(sb3_dqn.main, "sb3_dqn.py", *arguments)
    assert status == 2
    assert message in errors


def _result(path, values, **changes):
    content = {"env": path.parent.name, "algo": path.stem, "preset": None, "seeds": [0, 1], "utd": 0.5, "steps": 20}
    content |= {
        "curve": [{"step": 10, "returns": [1, 3]}, {"step": 20, "returns": values}],
        "wall_seconds": {"total": 1},
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**content, "machine": {}, "versions": {}, "command": "", "commit": "a", **changes}))


def test_a_result_is_one_of_the_online_benchmark_and_has_a_table(call_main, monkeypatch, tmp_path):
    monkeypatch.setattr(sb3_sac, "WorkerPool", lambda _: ThreadPoolExecutor(1))
    monkeypatch.setattr(sb3_dqn, "train", lambda _, seed, *__, **___: Progress(20, {10: 1.0 + seed, 20: 9.0}, 4.0))
    arguments = ("--env", "CartPole-v1", "--seeds", "2", "--steps", "20", "--device", "cpu", "--out", tmp_path)
    for algo in ("dqn", "synther-dqn"):
        assert call_main(sb3_dqn.main, "sb3_dqn.py", *arguments, "--algo", algo)[0] == 0
    read = results.read_run(Path(tmp_path, "CartPole-v1", "synther-dqn.json"))
    assert read.returns.tolist() == [[1.0, 9.0], [2.0, 9.0]]
    lines = discrete.table(tmp_path).splitlines()[2:]
    assert lines == [
        "| CartPole-v1 | 0.5 | 20 | 2 | last | 9 +- 0 | 9 +- 0 |",
        "| CartPole-v1 | 0.5 | 20 | 2 | mean of the curve | 5 +- 0 | 5 +- 0 |",
    ]


def test_runs_are_listed_by_their_updates(tmp_path):
    for name, updates in (("dqn", 0.5), ("dqn-4x", 2.0)):
        for prefix in ("", "synther-"):
            _result(tmp_path / "CartPole-v1" / f"{prefix}{name}.json", [5, 7], utd=updates)
    rows = discrete.table(tmp_path).splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["0.5", "0.5", "2", "2"]


def test_runs_that_do_not_compare_are_refused(tmp_path):
    folder = tmp_path / "CartPole-v1"
    _result(folder / "dqn.json", [5, 7])
    _result(folder / "synther-dqn.json", [5, 7], seeds=[0], curve=[{"step": 20, "returns": [5]}])
    with pytest.raises(ValueError, match="as many seeds"):
        discrete.table(tmp_path)
