"""CORL's own files as a check on our learners; where CORL_DIR names no checkout, with a small one in its layout."""

import json
import os
import subprocess
import sys
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import numpy as np
import offline_stand_ins
import pytest
from offline_stand_ins import HOPPER

pytest.importorskip("h5py")
from synther_replay.benchmarks.agents.evaluation import mean_return
from synther_replay.benchmarks.data.registry import load, normalised_score
from synther_replay.benchmarks.environments.tasks import agent_seed
from synther_replay.benchmarks.offline.results import read_results
from synther_replay.benchmarks.offline.settings import OfflineConfig
from synther_replay.benchmarks.peers import corl_scripts

PACKAGES = ("d4rl", "gym", "pyrallis", "wandb")
SMALL = ["--seeds", "2", "--steps", "200", "--evaluate-every", "100", "--episodes", "2"]
# As CORL's files are built, but what it learns is to push harder with every update, each seed in its own way.
SCRIPT = """
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional

import d4rl
import gym
import numpy as np
import pyrallis
import torch
import wandb


@dataclass
class TrainConfig:
    device: str = "cuda"
    env: str = "halfcheetah-medium-expert-v2"
    seed: int = 0
    eval_freq: int = int(5e3)
    n_episodes: int = 10
    max_timesteps: int = int(1e6)
    checkpoints_path: Optional[str] = None
    buffer_size: int = 2_000_000
    tau: float = 0.005
    alpha: float = 2.5
    normalize: bool = True
    name: str = "TD3_BC"


def eval_actor(env: gym.Env, actor, device, n_episodes, seed):
    raise RuntimeError("there is nothing to act in")


class Actor(torch.nn.Module):
    def act(self, state, device):
        assert not self.training and device == "cpu"
        return np.tanh(self.strength * state[: self.actions])


class TD3_BC:
    def __init__(self, actor):
        self.actor, self.total_it = actor, 0

    def train(self, batch):
        assert self.actor.training
        self.total_it += 1
        self.actor.strength = (1 + self.actor.seed) * self.total_it / 100
        return {"loss": 0.0}


@pyrallis.wrap()
def train(config: TrainConfig):
    env = gym.make(config.env)
    dataset = d4rl.qlearning_dataset(env)
    assert dataset["observations"].shape[1:] == env.observation_space.shape
    mean, std = dataset["observations"].mean(0), dataset["observations"].std(0) + 1e-3
    env = gym.wrappers.TransformObservation(env, lambda state: (state - mean) / std)
    env.seed(config.seed)
    env.action_space.seed(config.seed)
    assert float(env.action_space.high[0]) == 1.0
    wandb.init(config=asdict(config), project="CORL")
    wandb.run.save()
    trainer = TD3_BC(Actor())
    trainer.actor.actions, trainer.actor.seed = env.action_space.shape[0], config.seed
    for t in range(int(config.max_timesteps)):
        wandb.log(trainer.train(dataset), step=trainer.total_it)
        if (t + 1) % config.eval_freq == 0:
            scores = eval_actor(
                env, trainer.actor, device=config.device, n_episodes=config.n_episodes, seed=config.seed
            )
            print(f"D4RL score: {env.get_normalized_score(scores.mean()) * 100.0:.3f}")
    with open(Path(__file__).with_name("seen"), "a") as file:
        file.write(json.dumps(asdict(config)) + chr(10))
"""
PUBLISHED = """
alpha: 1e-1
checkpoints_path: null
device: cuda
env: hopper-medium-v2
eval_freq: 5000
name: TD3-BC

normalize: false
seed: 7
"""


class Pool:
    """Runs seeds here, one after the other, when they are submitted."""

    def __init__(self, processes):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, function, *arguments):
        future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return offline_stand_ins.write_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture
def corl(tmp_path):
    """A checkout with the two algorithms and their settings for one data set, but no history."""
    for name in ("td3_bc", "iql"):
        script, settings = (tmp_path / "CORL" / part / "offline" for part in ("algorithms", "configs"))
        (settings / name / "hopper").mkdir(parents=True)
        (settings / name / "hopper" / "medium_v2.yaml").write_text(PUBLISHED)
        script.mkdir(parents=True, exist_ok=True)
        (script / f"{name}.py").write_text(SCRIPT)
    return tmp_path / "CORL"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def call(call_main, monkeypatch, tmp_path, folder, corl, out):
    """Call the program with arguments; gives its exit status, output and errors."""
    offline_stand_ins.no_other_sets(monkeypatch, tmp_path)
    monkeypatch.setattr(corl_scripts, "WorkerPool", Pool)
    monkeypatch.setattr(corl_scripts, "as_completed", list)
    monkeypatch.setenv("SYNTHER_REPLAY_COMMIT", "abc")
    usual = ["--corl", corl, "--dataset", HOPPER, "--algo", "td3bc", "--folder", folder, "--out", out, *SMALL]
    return partial(call_main, corl_scripts.main, "corl_scripts.py", *usual)


def check(corl, algo="td3bc", **sizes):
    values = {"seeds": 2, "steps": 200, "evaluate_every": 100, "episodes": 2}
    return corl_scripts.Check(OfflineConfig(HOPPER, algo, "real", **{**values, **sizes}), corl)


def seen(corl):
    """What the file was asked for, run by run."""
    return [json.loads(line) for line in (corl / "algorithms/offline/seen").read_text().splitlines()]


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


class TestOneSeed:
    def test_the_policy_is_evaluated_on_scaled_observations_in_our_episodes(self, corl, folder):
        observations = load(HOPPER, folder=folder).observations
        mean, std = observations.mean(0), observations.std(0) + 1e-3

        class Pushing:
            def mean_action(self, observation):
                return np.tanh(self.strength * ((observation - mean) / std)[:3])

        expected = []
        for Pushing.strength in (4.0, 8.0):  # of seed 3 after 100 and 200 updates
            expected.append(round(mean_return("Hopper-v5", Pushing(), agent_seed(3), 2), 2))
        assert corl_scripts.run(check(corl), folder, 3) == expected
        assert expected[0] != expected[1]

    def test_it_has_the_numbers_of_corl_and_the_sizes_of_ours(self, corl, folder):
        corl_scripts.run(check(corl), folder, 3)
        rows = len(load(HOPPER, folder=folder))
        assert seen(corl) == [
            {
                "device": "cpu", "env": HOPPER, "seed": 3, "eval_freq": 100, "n_episodes": 2, "max_timesteps": 200,
                "checkpoints_path": None, "buffer_size": rows, "tau": 0.005, "alpha": 0.1, "normalize": False,
                "name": "TD3_BC",
            }
        ]  # fmt: skip

    def test_a_non_finite_policy_has_no_return(self, corl, folder):
        script = corl / "algorithms/offline/td3_bc.py"
        script.write_text(SCRIPT.replace("self.total_it / 100", "(float('nan') if self.total_it > 150 else 1.0)"))
        first, second = corl_scripts.run(check(corl), folder, 0)
        assert first > 0
        assert second is None

    def test_stubs_are_removed_and_modules_restored(self, corl, folder, monkeypatch):
        for name in PACKAGES:
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, "gym", "another")
        corl_scripts.import_script(corl / "algorithms/offline/iql.py", load(HOPPER, folder=folder))
        assert {name: sys.modules[name] for name in PACKAGES if name in sys.modules} == {"gym": "another"}


class TestResult:
    def test_it_is_written_as_ours_are(self, call, corl, out, folder):
        status, _, _ = call("--algo", "td3bc", "iql", "--first-seed", "5")
        assert status == 0
        assert sorted(path.name for path in (out / HOPPER).iterdir()) == ["corl-iql.json", "corl-td3bc.json"]
        content = json.loads((out / HOPPER / "corl-td3bc.json").read_text())
        runs = [corl_scripts.run(check(corl), folder, seed) for seed in (5, 6)]
        curve = [
            {
                "step": step,
                "returns": list(returns),
                "scores": [round(normalised_score(HOPPER, value), 2) for value in returns],
            }
            for step, returns in zip((100, 200), zip(*runs, strict=True), strict=True)
        ]
        assert content["curve"] == curve
        assert content["final"] == curve[-1]["scores"]
        expected = {"dataset": HOPPER, "algo": "corl-td3bc", "data": "real", "steps": 200, "seeds": [5, 6]}
        expected |= {"origin": "regenerated", "real_rows": len(load(HOPPER, folder=folder)), "task": "Hopper-v5"}
        expected |= {"subsample": None, "augment": None, "network": None, "commit": "abc"}
        assert {name: content[name] for name in expected} == expected
        assert content["settings"]["published"]["alpha"] == "1e-1"
        assert content["settings"]["corl_commit"] == "unknown"
        assert content["wall_seconds"]["total"] > 0
        assert [made["commit"] for made in content["made_on"]] == ["abc"]
        assert content["command"].startswith("python corl_scripts.py --corl CORL ")
        assert content["machine"] and content["versions"]

    def test_an_existing_result_is_not_overwritten(self, call, out, monkeypatch):
        call()
        path = out / HOPPER / "corl-td3bc.json"
        before = path.read_bytes()
        monkeypatch.setattr(corl_scripts, "run", lambda *_: pytest.fail("it ran"))
        assert call()[:2] == (0, f"{path}: already exists\n")
        assert path.read_bytes() == before

    def test_tables_and_figures_leave_it_out(self, call, out):
        call()
        with pytest.raises(ValueError, match=r"td3bc-real\.json, found none"):
            read_results(out)
        path = out / HOPPER / "corl-td3bc.json"
        path.with_name("td3bc-real.json").write_text(path.read_text().replace("corl-td3bc", "td3bc"))
        assert [result.algo for result in read_results(out)] == ["td3bc"]

    def test_the_commit_is_that_of_the_checkout_and_not_of_a_folder_around_it(self, corl):
        git(corl.parent, "init")
        git(corl.parent, "commit", "--allow-empty", "-m", "around")
        assert check(corl).to_json()["corl_commit"] == "unknown"
        git(corl, "init")
        git(corl, "add", ".")
        git(corl, "commit", "-m", "its own")
        head = git(corl, "rev-parse", "HEAD").strip()
        assert check(corl).to_json()["corl_commit"] == head
        (corl / "algorithms/offline/td3_bc.py").write_text(SCRIPT + "# changed")
        assert check(corl).to_json()["corl_commit"] == f"{head}-dirty"


class TestResuming:
    @pytest.fixture
    def stopped(self, call, out, monkeypatch):
        """A run of which the second seed was stopped; gives what was noted of the first."""
        with monkeypatch.context() as patch:
            genuine = corl_scripts.run

            def run(check, folder, seed):
                if seed == 1:
                    raise OSError("stopped")
                return genuine(check, folder, seed)

            patch.setattr(corl_scripts, "run", run)
            assert call()[0] == 2
        assert [path.name for path in (out / HOPPER).iterdir()] == [".corl-td3bc.checkpoint"]
        return out / HOPPER / ".corl-td3bc.checkpoint"

    def test_only_the_seeds_that_are_missing_run(self, call, corl, out, stopped):
        assert call()[0] == 0
        assert [config["seed"] for config in seen(corl)] == [0, 1]
        assert not stopped.exists()
        in_parts = json.loads((out / HOPPER / "corl-td3bc.json").read_text())
        call("--out", out / "again")
        at_once = json.loads((out / "again" / HOPPER / "corl-td3bc.json").read_text())
        for name in ("curve", "final", "seeds", "settings", "made_on"):
            assert in_parts[name] == at_once[name]

    def test_an_interrupt_is_one_line(self, call, stopped, monkeypatch):
        before = stopped.read_bytes()

        def run(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(corl_scripts, "run", run)
        said = "interrupted; run the same command for the missing seeds"
        assert call()[::2] == (130, f"corl_scripts.py: error: {said}\n")
        assert stopped.read_bytes() == before

    def test_time_adds_up(self, call, out, stopped):
        state = json.loads(stopped.read_text())
        stopped.write_text(json.dumps({**state, "seconds": 1000.0}))
        call()
        assert json.loads((out / HOPPER / "corl-td3bc.json").read_text())["wall_seconds"]["total"] > 1000

    @pytest.mark.parametrize("change", [["--steps", "300"], ["--seeds", "3"], ["--episodes", "1"]])
    def test_a_checkpoint_of_other_settings_is_refused_and_kept(self, change, call, stopped):
        before = stopped.read_bytes()
        status, _, errors = call(*change)
        assert status == 2
        assert f"{stopped}: result has other settings" in errors
        assert stopped.read_bytes() == before

    def test_other_settings_of_corl_are_other_settings(self, call, corl, stopped):
        (corl / "configs/offline/td3_bc/hopper/medium_v2.yaml").write_text(PUBLISHED + "tau: 0.1\n")
        assert "result has other settings" in call()[2]

    def test_other_rows_are_refused(self, call, tmp_path, stopped):
        other = offline_stand_ins.write_sets(tmp_path / "other", rows=150)
        status, _, errors = call("--folder", other)
        assert status == 2
        assert "saved with other rows" in errors

    @pytest.mark.parametrize("content", ['{"settings": {}}', "damaged"])
    def test_a_result_of_other_settings_is_refused_and_kept(self, content, call, out):
        path = out / HOPPER / "corl-td3bc.json"
        path.parent.mkdir(parents=True)
        path.write_text(content)
        status, _, errors = call()
        assert status == 2
        assert str(path) in errors
        assert path.read_text() == content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--corl", "nowhere"], "corl: nowhere is not a checkout of CORL: no nowhere/algorithms/offline/td3"),
        (
            ["--dataset", "hopper-medum-regen"],
            "dataset: unknown data set 'hopper-medum-regen'; did you mean hopper-medium",
        ),
        (["--dataset", "hopper-medium-replay-regen"], "no settings for hopper-medium-replay-regen in"),
        (["--dataset", "hopper-medium-v2"], "make_datasets.py hopper-medium` to generate hopper-medium-regen"),
        (["--algo", "cql"], "--algo: invalid choice: 'cql'"),
        (["--algo", "td3bc", "edac"], "--algo: invalid choice: 'edac'"),
        (["--seeds", "0"], "seeds: expected a whole number of at least 1, got 0"),
        (["--first-seed", "-1"], "first_seed: "),
        (["--steps", "250"], "steps: expected a multiple of 100, got 250"),
        (["--evaluate-every", "300"], "steps: expected a multiple of evaluate_every=300, got 200"),
        (["--episodes", "0"], "episodes: "),
        (["--workers", "0"], "workers: expected a whole number of at least 1, got 0"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message, call, out, monkeypatch):
    monkeypatch.setattr(corl_scripts, "run", lambda *_: pytest.fail("it ran"))
    status, _, errors = call(*arguments)
    assert status == 2
    assert message in errors
    assert "Traceback" not in errors
    assert not out.exists()


@pytest.mark.slow
def test_the_program_itself_runs_each_seed_in_a_process(corl, folder, out):
    noting = "import os; config.name = str(os.getpid())"
    (corl / "algorithms/offline/td3_bc.py").write_text(SCRIPT.replace("wandb.run.save()", noting))
    command = [sys.executable, corl_scripts.__file__, "--corl", corl, "--dataset", HOPPER, "--algo", "td3bc"]
    command += ["--folder", folder, "--out", out, "--workers", 2, *SMALL]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "seed 0: returns [" in done.stdout and "seed 1: returns [" in done.stdout
    assert "D4RL score" not in done.stdout  # what CORL says on the way
    assert os.getpid() not in {int(config["name"]) for config in seen(corl)}
    content = json.loads((out / HOPPER / "corl-td3bc.json").read_text())
    runs = [corl_scripts.run(check(corl), folder, seed) for seed in (0, 1)]
    assert content["curve"][-1]["returns"] == [returns[-1] for returns in runs]


@pytest.mark.skipif(not os.environ.get("CORL_DIR"), reason="CORL_DIR does not name a checkout of CORL")
@pytest.mark.parametrize("algo", ["td3bc", "iql"])
def test_files_of_corl_itself(algo, folder):
    asked = check(Path(os.environ["CORL_DIR"]), algo)
    first, again, other = (corl_scripts.run(asked, folder, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert first[0] != first[1]  # it learns
