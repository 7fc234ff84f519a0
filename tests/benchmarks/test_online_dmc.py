"""The command line of the online benchmark and of its ablation, in process."""

import json
import sys
from pathlib import Path

import online_stand_ins
import pytest
import torch

from synther_replay import GeneratorConfig
from synther_replay.benchmarks import online_dmc
from synther_replay.benchmarks.environments.parallel import WorkerDiedError
from synther_replay.benchmarks.fidelity.rows import read_dataset
from synther_replay.benchmarks.online import results as online_results
from synther_replay.benchmarks.online import run as online_run
from synther_replay.benchmarks.online.settings import Settings
from synther_replay.relevance import Guidance

SMALL = ["--random-steps", "40", "--steps", "120", "--utd", "1", "--episodes", "1", "--device", "cpu"]
GENERATOR = ["--refit-every", "50", "--rows", "64"]
GENERATOR += [part for text in ("width=32", "depth=1", "steps=10", "sampling_steps=3") for part in ("--set", text)]


@pytest.fixture(autouse=True)
def quick(monkeypatch, precision_restored):
    online_stand_ins.install(monkeypatch)


@pytest.fixture
def no_run(monkeypatch):
    """Nothing may be built."""
    monkeypatch.setattr(online_dmc, "run_to_file", lambda *_, **__: pytest.fail("it ran"))


@pytest.fixture
def call(call_main, tmp_path):
    """Call a program with arguments; gives its exit status, output and errors."""

    def program(*arguments):
        return call_main(online_dmc.main, "online_dmc.py", *arguments, "--out", tmp_path)

    return program


@pytest.mark.usefixtures("no_run")
class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--algo", "ppo"], "--algo: invalid choice: 'ppo'"),
            (["--algo", "synther", "--preset", "slow"], "--preset: invalid choice: 'slow'"),
            (["--algo", "sac", "--preset", "fast"], "algo: sac has no generator"),
            (["--algo", "redq", "--rows", "5"], "algo: redq has no generator"),
            (["--algo", "sac20", "--set", "width=8"], "algo: sac20 has no generator"),
            (["--algo", "sac", "--real-ratio", "0.5"], "--real-ratio: --algo sac uses real rows only"),
            (["--algo", "synther", "--set", "width"], "set: expected NAME=VALUE, got 'width'"),
            (["--algo", "synther", "--set", "width=7"], "width: expected a multiple of 8"),
            (["--algo", "synther", "--set", "width=wide"], "width: expected a whole number, got 'wide'"),
            (["--algo", "synther", "--set", "widht=64"], "widht"),
            (["--algo", "synther", "--set", "=64"], "--set: unknown setting ''"),
            (["--algo", "sac", "--critic", "layer-norm"], "layernorm"),
            (["--algo", "sac", "--agent", "critics"], "--agent: expected NAME=VALUE, got 'critics'"),
            (["--algo", "sac", "--agent", "critic=3"], "critics"),
            (["--algo", "sac", "--agent", "critics=0"], "critics: "),
            (["--algo", "sac", "--first-refit", "100"], "algo: sac has no generator"),
            (["--algo", "sac", "--relevance", "reward"], "algo: sac has no generator"),
            (["--algo", "synther", "--relevance", "curiosty"], "did you mean 'curiosity'"),
            (["--algo", "synther", "--relevance", "reward", "--top", "2"], "top: "),
            (["--algo", "synther", "--guidance", "3"], "--relevance: required"),
            (["--algo", "synther", "--rows", "0"], "rows: "),
            (["--algo", "synther", "--refit-every", "0"], "every: "),
            (["--algo", "synther", "--real-ratio", "1.5"], "real_ratio: expected a number from 0 to 1, got 1.5"),
            (["--algo", "synther", "--real-ratio", "-0.1"], "real_ratio: expected a number from 0 to 1, got -0.1"),
            (["--algo", "synther", "--real-ratio", "nan"], "real_ratio: expected a number from 0 to 1, got nan"),
            (["--algo", "sac", "--seeds", "0"], "seeds: expected a whole number of at least 1, got 0"),
            (["--algo", "sac", "--steps", "0"], "steps: "),
            (["--algo", "sac", "--steps", "5000"], "--steps: expected more than the 5,000 steps without training"),
            (["--algo", "sac", "--utd", "0"], "utd: "),
            (["--algo", "sac", "--episodes", "-1"], "episodes: "),
            (["--algo", "sac", "--random-steps", "0"], "random_steps: "),
            (["--algo", "sac", "--first-seed", "-1"], "first_seed: "),
            (["--algo", "sac", "--workers", "0"], "workers: "),
            (["--algo", "sac", "--tag", "a/b"], "--tag: expected part of a file name, got 'a/b'"),
            (["--algo", "sac", "--time-limit", "nan"], "--time-limit: invalid duration value: 'nan'"),
            (["--algo", "sac", "--checkpoint-every", "-1"], "--checkpoint-every: invalid duration value: '-1'"),
            (["--algo", "sac", "--device", "nowhere"], "device: expected 'auto' or a torch device, got 'nowhere'"),
            (["--algo", "sac", "--device", "meta"], "device: got 'meta'"),
            ([], "the following arguments are required: --algo"),
        ],
    )
    def test_invalid_arguments_are_refused(self, arguments, message, call, tmp_path):
        status, _, errors = call("--env", "Pendulum-v1", *arguments)
        assert status == 2
        assert message in errors
        assert "Traceback" not in errors
        assert not list(tmp_path.iterdir())

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
    def test_a_missing_gpu_is_refused(self, call):
        assert call("--env", "Pendulum-v1", "--algo", "sac", "--device", "cuda")[0] == 2

    def test_a_result_of_other_settings_is_not_overwritten(self, call, tmp_path):
        path = tmp_path / "Pendulum-v1" / "sac.json"
        path.parent.mkdir()
        for content in ('{"settings": {"steps": 1}}', "{}", "damaged"):
            path.write_text(content)
            status, _, errors = call("--env", "Pendulum-v1", "--algo", "sac", *SMALL)
            assert status == 2
            assert errors.startswith("online_dmc.py: error: ")
            assert str(path) in errors
            assert path.read_text() == content


@pytest.mark.parametrize(
    ("env", "message"), [("Pendulum-v7", "did you mean Pendulum-v1"), ("CartPole-v1", "expected Box observations")]
)
def test_an_unsupported_task_leaves_no_files(env, message, call, tmp_path):
    status, _, errors = call("--env", env, "--algo", "sac", *SMALL)
    assert status == 2
    assert message in errors
    assert not list(tmp_path.iterdir())


class TestSettingsOf:
    def parse(self, monkeypatch, *arguments):
        monkeypatch.setattr(sys, "argv", ["online_dmc.py", "--env", "x", *arguments, "--device", "cpu"])
        return online_dmc.parse()

    @pytest.mark.parametrize(
        ("algo", "expected"),
        [("sac", (None, 1)), ("sac20", (None, 20)), ("redq", (None, 20)), ("synther", ("tiny", 20))],
    )
    def test_defaults_are_those_of_algorithm_and_cpu(self, monkeypatch, algo, expected):
        found = self.parse(monkeypatch, "--algo", algo).settings
        assert (found.preset, found.utd) == expected
        assert found == Settings("x", algo, expected[0], seeds=1, steps=6_000, utd=expected[1])

    def test_the_critic_and_its_options_are_parsed(self, monkeypatch):
        arguments = ["--critic", "ensemble", "--agent", "critics=4", "--agent", "normalise_observations=True"]
        found = self.parse(monkeypatch, "--algo", "synther", *arguments, "--first-refit", "7000").settings
        assert (found.critic, found.agent) == ("ensemble", {"critics": 4, "normalise_observations": True})
        assert found.retrain_schedule().start == 7_000

    def test_the_relevance_and_its_options_are_parsed(self, monkeypatch):
        arguments = ["--relevance", "curiosity", "--top", "0.1", "--guided-share", "0.5"]
        found = self.parse(monkeypatch, "--algo", "synther", *arguments).settings
        assert found.guidance() == Guidance("curiosity", top=0.1, guidance=2.0, share=0.5)
        assert self.parse(monkeypatch, "--algo", "synther").settings.guidance() is None

    def test_defaults_on_a_gpu(self, monkeypatch):
        args = self.parse(monkeypatch, "--algo", "synther")
        args.device = torch.device("cuda", 0)
        found = online_dmc.settings_of(args)
        assert (found.preset, found.seeds, found.steps) == ("fast", 8, 100_000)

    def test_all_options_are_parsed(self, monkeypatch):
        sizes = {"seeds": 3, "steps": 70, "utd": 4, "first-seed": 9, "random-steps": 11, "episodes": 2}
        arguments = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
        arguments += ["--preset", "paper", "--real-ratio", "0", "--refit-every", "40", "--rows", "8"]
        arguments += ["--set", "solver=heun", "--set", "betas=(0.8, 0.9)", "--set", "patience=None", "--set", "eta=0.5"]
        found = self.parse(monkeypatch, "--algo", "synther", *arguments).settings
        sizes = {name.replace("-", "_"): value for name, value in sizes.items()}
        generator = {"solver": "heun", "betas": (0.8, 0.9), "patience": None, "eta": 0.5}
        others = {"real_ratio": 0.0, "schedule": {"every": 40, "rows": 8}, "generator": generator}
        assert found == Settings("x", "synther", "paper", **sizes, **others)

    def test_default_folder_is_not_the_published_one(self, monkeypatch):
        args = self.parse(monkeypatch, "--algo", "sac")
        assert args.out == Path("results/online")
        assert "/results/" in (Path(__file__).parents[2] / ".gitignore").read_text().split()
        assert args.checkpoint_every == 120  # the run of 144 s that the README tells of would lose a part only

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [
            (["--algo", "redq"], "redq.json"),
            (["--algo", "sac", "--tag", "b"], "sac-b.json"),
            (["--algo", "synther"], "synther-tiny.json"),
            (["--algo", "synther", "--preset", "paper", "--tag", "real.25"], "synther-paper-real.25.json"),
        ],
    )
    def test_file_names(self, monkeypatch, arguments, name):
        args = self.parse(monkeypatch, *arguments, "--out", "here")
        assert str(online_dmc.result_path(args)) == f"here/x/{name}"


class TestRunning:
    @pytest.mark.slow
    def test_a_run_stops_resumes_and_writes_its_result(self, call, tmp_path, monkeypatch):
        arguments = ("--env", "Pendulum-v1", "--algo", "synther", "--seeds", "2", *SMALL, *GENERATOR, "--tag", "t")
        folder, path = tmp_path / "Pendulum-v1", tmp_path / "Pendulum-v1" / "synther-tiny-t.json"
        status, out, _ = call(*arguments, "--time-limit", "0")
        assert (status, out.splitlines()[-1]) == (0, "stopped at step 50 of 120; run the same command to resume")
        assert [p.name for p in folder.iterdir()] == [".synther-tiny-t.checkpoint"]
        status, out, _ = call(
            *arguments, "--keep-policies", str(tmp_path / "kept"), "--keep-rows", str(tmp_path / "rows")
        )
        assert status == 0
        assert "resumed at step 50" in out
        assert str(path) in out.splitlines()[-1]
        assert [p.name for p in folder.iterdir()] == [path.name]
        assert [p.name for p in (tmp_path / "kept" / "Pendulum-v1" / path.stem).iterdir()] == ["120.safetensors"]
        kept = sorted((tmp_path / "rows").iterdir())
        assert [p.name for p in kept] == [f"Pendulum-v1-synther-tiny-t-{seed}.npz" for seed in (0, 1)]
        assert len(read_dataset(str(kept[1]))) == 120
        content = json.loads(path.read_text())
        assert set(online_results.KEYS) | {
            "settings",
            "critic",
            "value_estimates",
            "diverged",
            "failed_at",
            "fits",
            "made_on",
        } == set(content)
        assert content["command"].startswith("python online_dmc.py --env Pendulum-v1 --algo synther")
        assert [fit["step"] for fit in content["fits"]] == [50, 100]
        chosen = GeneratorConfig.tiny(width=32, depth=1, steps=10, sampling_steps=3, max_seconds=None)
        assert GeneratorConfig.from_json(content["settings"]["generator"]) == chosen
        assert content["settings"]["schedule"]["start"] == 50
        assert online_results.read_run(path).returns.shape == (2, 1)
        monkeypatch.setattr(online_dmc, "run_to_file", lambda *_, **__: pytest.fail("it ran"))
        before = path.read_bytes()
        status, out, _ = call(*arguments)
        assert (status, out) == (0, f"{path}: already exists\n")
        assert path.read_bytes() == before

    def test_a_checkpoint_of_other_settings_is_refused_and_kept(self, call, tmp_path):
        call("--env", "Pendulum-v1", "--algo", "sac", *SMALL, "--time-limit", "0")
        checkpoint = tmp_path / "Pendulum-v1" / ".sac.checkpoint"
        before = checkpoint.read_bytes()
        status, _, errors = call("--env", "Pendulum-v1", "--algo", "sac", *SMALL, "--first-seed", "1")
        assert status == 2
        assert "checkpoint has other settings" in errors
        assert checkpoint.read_bytes() == before

    def test_a_damaged_checkpoint_is_refused_and_kept(self, call, tmp_path):
        checkpoint = tmp_path / "Pendulum-v1" / ".sac.checkpoint"
        checkpoint.parent.mkdir()
        checkpoint.write_bytes(b"nothing of ours")
        status, _, errors = call("--env", "Pendulum-v1", "--algo", "sac", *SMALL)
        assert status == 2
        assert str(checkpoint) in errors
        assert checkpoint.read_bytes() == b"nothing of ours"

    def test_a_full_disk_is_one_line_and_the_result_is_printed(self, call, tmp_path, full_disk):
        arguments, path = ("--env", "Pendulum-v1", "--algo", "sac", *SMALL), tmp_path / "Pendulum-v1" / "sac.json"
        full_disk()
        status, told, errors = call(*arguments)
        assert (status, len(errors.splitlines())) == (2, 1)
        assert errors.startswith(f"online_dmc.py: error: {path}: cannot write the file (No space left on device); ")
        assert not list(path.parent.iterdir())
        path.write_text(told.splitlines()[-1])
        assert call(*arguments)[:2] == (0, f"{path}: already exists\n")

    def test_an_interrupt_is_one_line(self, call, tmp_path, monkeypatch):
        arguments, path = ("--env", "Pendulum-v1", "--algo", "sac", *SMALL), tmp_path / "Pendulum-v1" / "sac.json"

        def interrupted(self):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(online_stand_ins.Environments, "end_step", interrupted)
            said = f"online_dmc.py: error: {path}: interrupted; run the same command to "
            assert call(*arguments)[::2] == (130, f"{said}start over (no checkpoint was saved)\n")
        call(*arguments, "--time-limit", "0")
        with monkeypatch.context() as patch:
            patch.setattr(online_stand_ins.Environments, "end_step", interrupted)
            assert call(*arguments)[::2] == (130, f"{said}resume from the last checkpoint\n")
        assert "resumed at step 50" in call(*arguments)[1]

    def test_a_dead_worker_is_one_line(self, call, tmp_path, monkeypatch):
        def died(self):
            raise WorkerDiedError("a process has died")

        monkeypatch.setattr(online_stand_ins.Environments, "end_step", died)
        path = tmp_path / "Pendulum-v1" / "sac.json"
        said = (
            f"online_dmc.py: error: {path}: a process has died; run the same command to start over "
            "(no checkpoint was saved)\n"
        )
        assert call("--env", "Pendulum-v1", "--algo", "sac", *SMALL)[::2] == (1, said)

    def test_running_on_a_cpu_warns(self, monkeypatch, tmp_path):
        class Ran(Exception):
            pass

        def run_to_file(*_, **__):
            raise Ran

        monkeypatch.setattr(online_dmc, "run_to_file", run_to_file)
        command = ["online_dmc.py", "--env", "Pendulum-v1", "--algo", "sac", *SMALL, "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", command)
        expected = r"no GPU.* 1 seed\(s\) for 120 steps"
        with pytest.warns(UserWarning, match=expected), pytest.raises(Ran):
            online_dmc.main()

    def test_limits_are_passed_on(self, call, monkeypatch):
        seen = {}

        def run(self, checkpoint, **limits):
            seen.update(limits)
            return False

        monkeypatch.setattr(online_run.OnlineRun, "run", run)
        limits = ("--time-limit", "7", "--checkpoint-every", "0", "--workers", "3")
        assert call("--env", "Pendulum-v1", "--algo", "sac", *SMALL, *limits)[0] == 0
        assert seen == {"time_limit": 7.0, "checkpoint_every": 0.0, "workers": 3}
