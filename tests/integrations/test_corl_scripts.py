"""CORL's scripts with our buffer in place of theirs; requires CORL_DIR, a checkout of CORL.

Two lines of the scripts are changed in memory: our `ReplayBuffer` is imported after the definition of their own, and
`upsample` is called after `load_d4rl_dataset`. Four imports are replaced by small modules: a Pendulum with the old gym
interface, random data for d4rl, fixed settings for pyrallis, and a list for wandb.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

CORL = os.environ.get("CORL_DIR")
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not CORL, reason="CORL_DIR does not name a checkout of CORL"),
]

SHIMS = {
    "gym": """
        import types
        import gymnasium

        class Env:
            def __init__(self, env):
                self.env = env

            def __getattr__(self, name):
                return getattr(self.env, name)

        class Pendulum(Env):
            _max_episode_steps = 50
            _seed = None

            def seed(self, seed):
                self._seed = seed

            def reset(self):
                seed, self._seed = self._seed, None
                return self.env.reset(seed=seed)[0]

            def step(self, action):
                state, reward, terminated, truncated, info = self.env.step(action)
                return state, float(reward), terminated or truncated, info

            def get_normalized_score(self, score):
                return score / 1_000

        class TransformObservation(Env):
            def __init__(self, env, function):
                super().__init__(env)
                self.function = function

            def reset(self):
                return self.function(self.env.reset())

            def step(self, action):
                state, *rest = self.env.step(action)
                return self.function(state), *rest

        wrappers = types.SimpleNamespace(TransformObservation=TransformObservation)

        def make(name):
            return Pendulum(gymnasium.make("Pendulum-v1", max_episode_steps=50))
        """,
    "d4rl": """
        import numpy as np

        def qlearning_dataset(env):
            env.seed(0)
            env.action_space.seed(0)
            state, rows = env.reset(), []
            for _ in range(300):
                action = env.action_space.sample()
                following, reward, done, _ = env.step(action)
                rows.append((state, action, reward, following, False))
                state = env.reset() if done else following
            columns = [np.stack(column).astype(np.float32) for column in zip(*rows)]
            return dict(zip(("observations", "actions", "rewards", "next_observations", "terminals"), columns))
        """,
    "pyrallis": """
        import dataclasses
        import inspect

        settings = {"device": "cpu", "env": "pendulum", "buffer_size": 1_000, "batch_size": 32, "n_episodes": 1}
        settings |= {"max_timesteps": 20, "offline_iterations": 10, "online_iterations": 20, "eval_freq": 10}

        def wrap():
            def decorate(train):
                (parameter,) = inspect.signature(train).parameters.values()
                names = {field.name for field in dataclasses.fields(parameter.annotation)}
                return lambda: train(parameter.annotation(**{key: settings[key] for key in names & settings.keys()}))

            return decorate
        """,
    "wandb": """
        import types

        run = types.SimpleNamespace(save=lambda: None)

        def init(**settings):
            pass

        def log(values, step):
            logged.append({name: float(value) for name, value in values.items()})
        """,
    "adapted": """
        from synther_replay import GeneratorConfig, RetrainSchedule
        from synther_replay.adapters import corl

        tiny = GeneratorConfig.tiny(width=32, depth=1, steps=20, refit_steps=10, sampling_steps=4)

        def ReplayBuffer(*arguments, **named):
            global last
            more = dict(options)
            if "every" in more:
                more |= {"schedule": RetrainSchedule(more.pop("every"), rows=200), "max_action": 2.0}
            last = corl.ReplayBuffer(*arguments, **named, generator=tiny, seed=0, **more)
            return last
        """,
    "run": """
        import json
        import sys
        import types

        import adapted
        import wandb

        results = []
        for source, options in json.load(sys.stdin):
            adapted.options, adapted.last, wandb.logged = options, None, []
            script = sys.modules["script"] = types.ModuleType("script")
            exec(compile(source, "script", "exec"), vars(script))
            script.train()
            fits = adapted.last and adapted.last._source.refits
            results.append({"logged": wandb.logged, "buffer": repr(adapted.last), "fits": fits})
        with open("results.json", "w") as file:
            json.dump(results, file)
        """,
}


def adapted(source):
    """Return the script with the two changes."""
    source, imports = re.subn(r"^(?=@pyrallis)", "from adapted import ReplayBuffer\n", source, flags=re.MULTILINE)
    call = r"^( +\w*buffer)(\.load_d4rl_dataset\(.*\)\n)"
    source, calls = re.subn(call, r"\1\2\1.upsample(500)\n", source, flags=re.MULTILINE)
    assert (imports, calls) == (1, 1)
    return source


@pytest.fixture
def run(tmp_path):
    """Runs a CORL script once per set of options; None: unchanged."""

    def start(name, *variants):
        source = (Path(CORL) / "algorithms" / name).read_text()
        for module, text in SHIMS.items():
            (tmp_path / f"{module}.py").write_text(textwrap.dedent(text))
        runs = [(source if options is None else adapted(source), options) for options in variants]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "run.py"]
        done = subprocess.run(
            command, input=json.dumps(runs), cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "results.json").read_text())

    return start


@pytest.mark.parametrize("name", ["offline/td3_bc.py", "offline/iql.py"])
def test_offline_script_runs_on_synthetic_rows_and_on_real_rows_as_before(run, name):
    own, real, synthetic = run(name, None, {"real_ratio": 1.0}, {})
    assert own["buffer"] == "None"
    assert "(300 of 1000 real, 500 synthetic, real_ratio=1.0" in real["buffer"]
    assert "(300 of 1000 real, 500 synthetic, real_ratio=0.0" in synthetic["buffer"]
    for result in (own, real, synthetic):
        assert len([entry for entry in result["logged"] if "actor_loss" in entry]) >= 10
        assert len([entry for entry in result["logged"] if "d4rl_normalized_score" in entry]) == 2
    assert real["logged"] == own["logged"]  # bit by bit
    assert synthetic["logged"] != own["logged"]


def test_fine_tuning_script_adds_rows_and_refits(run):
    (result,) = run("finetune/iql.py", {"real_ratio": 0.5, "every": 8})
    assert result["buffer"].startswith("ReplayBuffer(320 of 1000 real, 200 synthetic")
    assert result["fits"] == 3  # by upsample, and with 308 and 316 rows
    assert [entry["online_iter"] for entry in result["logged"] if "online_iter" in entry] == list(range(20))
