"""The command line of the offline benchmark, in process but for one run of the program itself."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import offline_stand_ins
import pytest
import torch
from offline_stand_ins import HOPPER, MAZE

from synther_replay import DivergedError, GenerationError, GeneratorConfig
from synther_replay.adapters.corl import ReplayBuffer
from synther_replay.benchmarks import offline_d4rl
from synther_replay.benchmarks.agents.offline_base import OfflineLearner
from synther_replay.benchmarks.data.registry import load, write
from synther_replay.benchmarks.offline import run as offline_run
from synther_replay.benchmarks.offline.rows import DataSource
from synther_replay.benchmarks.offline.settings import OfflineConfig

BENCHMARKS = Path(offline_d4rl.__file__).parent
SMALL = ["--steps", "40", "--evaluate-every", "16", "--episodes", "1", "--seeds", "2", "--device", "cpu"]
GENERATOR = ["--rows", "96"]
GENERATOR += [part for text in ("width=32", "depth=1", "steps=10", "sampling_steps=3") for part in ("--set", text)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return offline_stand_ins.write_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    offline_stand_ins.no_other_sets(monkeypatch, tmp_path)


@pytest.fixture
def quick(monkeypatch):
    offline_stand_ins.install(monkeypatch)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def call(call_main, folder, out):
    """Call the program with arguments; gives its exit status, output and errors."""
    return partial(call_main, offline_d4rl.main, "offline_d4rl.py", "--folder", folder, "--out", out)


def expect_refusal(answer, message):
    """Expect an error message of one line and exit status 2."""
    status, _, errors = answer
    assert status == 2
    assert message in errors
    assert "Traceback" not in errors


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["--dataset", "hopper-medum-regen"],
                "dataset: unknown data set 'hopper-medum-regen'; did you mean hopper-medium",
            ),
            (["--dataset", "kitchen-complete-v0"], "dataset: unknown data set 'kitchen-complete-v0'"),
            (["--dataset", "mujoco/hopper/medium-v0"], "dataset: unknown data set 'mujoco/hopper/medium-v0'"),
            (["--algo", "sac"], "--algo: invalid choice: 'sac'"),
            (["--algo", "td3bc", "ddpg"], "--algo: invalid choice: 'ddpg'"),
            (["--data", "fake"], "--data: invalid choice: 'fake'"),
            (["--preset", "slow"], "--preset: invalid choice: 'slow'"),
            (["--augment", "noise"], "--augment: invalid choice: 'noise'"),
            (["--seeds", "0"], "seeds: expected a whole number of at least 1, got 0"),
            (["--seeds", "two"], "--seeds: invalid int value: 'two'"),
            (["--steps", "0"], "steps: expected a whole number of at least 1, got 0"),
            (["--steps", "150"], "steps: expected a multiple of 100, got 150"),
            (["--evaluate-every", "1"], "evaluate_every: expected a multiple of 100, got 1"),
            (["--episodes", "-1"], "episodes: "),
            (["--first-seed", "-1"], "first_seed: "),
            (["--folder", "nowhere"], "--folder: expected an existing folder, got 'nowhere'"),
            (["--folder", __file__], f"--folder: expected an existing folder, got {__file__!r}"),
            (["--subsample", "0"], "subsample: expected a number above 0 and at most 1, got 0.0"),
            (["--subsample", "15"], "subsample: expected a number above 0 and at most 1, got 15.0"),
            (["--subsample", "nan"], "subsample: "),
            (["--workers", "0"], "workers: "),
            (["--time-limit", "nan"], "--time-limit: invalid duration value: 'nan'"),
            (["--checkpoint-every", "-1"], "--checkpoint-every: invalid duration value: '-1'"),
            (["--device", "nowhere"], "device: expected 'auto' or a torch device, got 'nowhere'"),
            (["--device", "meta"], "device: got 'meta'"),
            (["--data", "synther", "--rows", "0"], "rows: "),
            (["--data", "synther", "--set", "width"], "set: expected NAME=VALUE, got 'width'"),
            (["--data", "synther", "--set", "width=7"], "width: expected a multiple of 8"),
            (["--data", "mixed", "--set", "width=wide"], "width: expected a whole number, got 'wide'"),
            (["--data", "mixed", "--set", "widht=64"], "widht"),
            (["--data", "mixed", "--real-ratio", "1.5"], "real_ratio: expected a number from 0 to 1, got 1.5"),
            (["--preset", "tiny"], "--preset: requires --data synther or mixed, got --data real"),
            (["--rows", "100"], "--rows: requires --data synther or mixed, got --data real"),
            (["--set", "width=64"], "--set: requires --data synther or mixed, got --data real"),
            (
                ["--data", "real", "synther", "--real-ratio", "0"],
                "--real-ratio: requires --data mixed, got --data real synther",
            ),
        ],
    )
    def test_invalid_arguments_are_refused(self, arguments, message, call, out, monkeypatch):
        monkeypatch.setattr(offline_d4rl, "run_to_file", lambda *_, **__: pytest.fail("it ran"))
        expect_refusal(call("--dataset", HOPPER, "--algo", "td3bc", *arguments), message)
        assert not out.exists()

    @pytest.mark.parametrize(("given", "missing"), [("--dataset", "--algo"), ("--algo", "--dataset")])
    def test_required_options(self, given, missing, call):
        value = {"--dataset": HOPPER, "--algo": "iql"}[given]
        expect_refusal(call(given, value), f"the following arguments are required: {missing}")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
    def test_a_missing_gpu_is_refused(self, call):
        expect_refusal(call("--dataset", HOPPER, "--algo", "td3bc", "--device", "cuda"), "device: got 'cuda'")


class TestBadData:
    def expect(self, answer, message, out):
        expect_refusal(answer, message)
        assert answer[2].startswith("offline_d4rl.py: error: ")
        assert len(answer[2].splitlines()) == 1
        assert not out.exists()

    @pytest.mark.parametrize("name", ["walker2d-medium-regen", "walker2d-medium-v2"])
    def test_a_set_that_is_not_here(self, name, call, out):
        answer = call("--dataset", name, "--algo", "td3bc", "--device", "cpu")
        self.expect(answer, "make_datasets.py walker2d-medium` to generate walker2d-medium-regen", out)

    def changed(self, folder, tmp_path, change):
        content = bytearray((folder / f"{HOPPER}.hdf5").read_bytes())
        (tmp_path / f"{HOPPER}.hdf5").write_bytes(change(content))
        return "--dataset", HOPPER, "--algo", "td3bc", "--device", "cpu", "--folder", tmp_path

    @pytest.mark.parametrize(
        "change",
        [lambda content: content[: len(content) // 2], lambda content: content[:100], lambda _: b"", lambda _: b"text"],
        ids=["half", "beginning", "empty", "foreign"],
    )
    def test_a_truncated_or_foreign_file(self, change, folder, tmp_path, call, out):
        answer = call(*self.changed(folder, tmp_path, change))
        self.expect(answer, f"{HOPPER}.hdf5: cannot read the file as HDF5", out)

    def test_rows_that_are_not_finite_are_counted(self, tmp_path, call, out):
        h5py = pytest.importorskip("h5py")
        arrays = dict(offline_stand_ins.collected("Hopper-v5", 200))
        arrays["rewards"] = arrays["rewards"].copy()
        arrays["rewards"][[3, 7]] = float("nan")
        with h5py.File(tmp_path / f"{HOPPER}.hdf5", "w") as file:
            for key, values in arrays.items():
                file[key] = values
        answer = call("--dataset", HOPPER, "--algo", "td3bc", "--device", "cpu", "--folder", tmp_path)
        self.expect(answer, "2 of 200 rows are non-finite in float32: rewards 2", out)

    @pytest.mark.usefixtures("quick")
    def test_missing_timeouts_warn_and_the_run_continues(self, tmp_path, call, out):
        arrays = {k: v for k, v in offline_stand_ins.collected("Hopper-v5", 200).items() if k != "timeouts"}
        write(tmp_path / f"{HOPPER}.hdf5", arrays, {"command": "", "recipe": {}})
        with pytest.warns(UserWarning, match="no timeouts.* after 1000 steps"):
            status, _, _ = call("--dataset", HOPPER, "--algo", "td3bc", *SMALL, "--folder", tmp_path)
        assert status == 0
        result = json.loads((out / HOPPER / "td3bc-real.json").read_text())
        assert (result["real_rows"], result["timeouts_derived"]) == (199, True)


class TestConfigs:
    def parse(self, monkeypatch, *arguments):
        monkeypatch.setattr(sys, "argv", ["offline_d4rl.py", "--dataset", HOPPER, *arguments, "--device", "cpu"])
        return offline_d4rl.parse()

    def test_one_config_per_pair_ordered_by_shared_rows(self, monkeypatch):
        args = self.parse(monkeypatch, "--algo", "iql", "td3bc", "--data", "synther", "real", "mixed")
        assert [config.name for config in args.configs] == [
            "iql-synther",
            "td3bc-synther",
            "iql-real",
            "td3bc-real",
            "iql-mixed",
            "td3bc-mixed",
        ]

    @pytest.mark.parametrize("data", ["real", "synther", "mixed"])
    def test_defaults_on_a_cpu(self, monkeypatch, data):
        (found,) = self.parse(monkeypatch, "--algo", "iql", "--data", data).configs
        generator = {} if data == "real" else {"preset": "tiny", "rows": 100_000}
        assert found == OfflineConfig(HOPPER, "iql", data, seeds=1, steps=20_000, evaluate_every=5_000, **generator)

    @pytest.mark.parametrize("data", ["real", "synther", "mixed"])
    def test_defaults_on_a_gpu(self, monkeypatch, data):
        args = self.parse(monkeypatch, "--algo", "iql", "--data", data)
        args.device = torch.device("cuda", 0)
        found = offline_d4rl.config_of(args, HOPPER, "iql", data)
        generator = {} if data == "real" else {"preset": "offline"}
        assert found == OfflineConfig(HOPPER, "iql", data, seeds=8, steps=1_000_000, **generator)

    def test_real_data_is_the_default(self, monkeypatch):
        assert [config.name for config in self.parse(monkeypatch, "--algo", "td3bc").configs] == ["td3bc-real"]

    def test_all_options_are_parsed(self, monkeypatch):
        sizes = {"seeds": 3, "steps": 700, "first-seed": 9, "episodes": 2, "evaluate-every": 300, "rows": 8}
        arguments = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
        arguments += ["--preset", "paper", "--real-ratio", "0", "--subsample", "0.15", "--network", "large"]
        arguments += ["--precise"]
        arguments += ["--set", "solver=heun", "--set", "betas=(0.8, 0.9)", "--set", "patience=None", "--set", "eta=0.5"]
        (found,) = self.parse(monkeypatch, "--algo", "td3bc", "--data", "mixed", *arguments).configs
        generator = {"solver": "heun", "betas": (0.8, 0.9), "patience": None, "eta": 0.5}
        others = {"preset": "paper", "real_ratio": 0.0, "subsample": 0.15, "network": "large", "precise": True}
        sizes = {name.replace("-", "_"): value for name, value in sizes.items()}
        assert found == OfflineConfig(HOPPER, "td3bc", "mixed", generator=generator, **sizes, **others)
        assert found.generator_config() == GeneratorConfig.paper(width=2048, **generator)

    def test_options_of_other_data_are_not_settings_of_a_config(self, monkeypatch):
        """Else its result would count as one of other settings, depending on what it was asked for together with."""
        of_others = ["--rows", "70", "--preset", "fast", "--set", "width=64", "--real-ratio", "0.25"]
        together = self.parse(monkeypatch, "--algo", "iql", "--data", "real", "synther", "mixed", *of_others).configs
        assert [together[0]] == self.parse(monkeypatch, "--algo", "iql", "--data", "real").configs
        assert [together[1]] == self.parse(monkeypatch, "--algo", "iql", "--data", "synther", *of_others[:-2]).configs
        assert (together[2].real_ratio, together[2].rows, together[2].generator) == (0.25, 70, {"width": 64})


@pytest.mark.usefixtures("quick")
class TestRunning:
    PAIRS = ("--dataset", HOPPER, "--algo", "td3bc", "iql", "--data", "real", "synther", *SMALL, *GENERATOR)
    NAMES = ("td3bc-real", "iql-real", "td3bc-synther", "iql-synther")

    def results(self, out):
        return sorted(path.name for path in (out / HOPPER).iterdir())

    @pytest.mark.slow
    def test_all_pairs_run_in_one_call_and_are_not_repeated(self, call, out, monkeypatch):
        fits, genuine = [], ReplayBuffer.upsample
        monkeypatch.setattr(ReplayBuffer, "upsample", lambda self, n: (fits.append(n), genuine(self, n))[1])
        status, told, _ = call(*self.PAIRS)
        paths = [out / HOPPER / f"{name}.json" for name in self.NAMES]
        assert status == 0
        assert [line.partition(".json: ")[0] for line in told.splitlines() if ".json: " in line] == [
            str(path.with_suffix("")) for path in paths
        ]
        assert fits == [96]
        assert self.results(out) == sorted(path.name for path in paths)
        contents = [json.loads(path.read_text()) for path in paths]
        assert [f"{content['algo']}-{content['data']}" for content in contents] == list(self.NAMES)
        assert contents[2]["command"].startswith("python offline_d4rl.py --folder ")
        chosen = GeneratorConfig.tiny(width=32, depth=1, steps=10, sampling_steps=3, max_seconds=None)
        recorded = contents[3]["settings"]["generator"] | {"direct_rows": True}  # omitted
        assert GeneratorConfig.from_json(recorded) == chosen
        before = [path.read_bytes() for path in paths]
        monkeypatch.setattr(offline_d4rl, "run_to_file", lambda *_, **__: pytest.fail("it ran"))
        status, told, _ = call(*self.PAIRS)
        assert (status, told) == (0, "".join(f"{path}: already exists\n" for path in paths))
        assert [path.read_bytes() for path in paths] == before

    def test_a_result_of_another_data_set_version_is_refused(self, call, out, folder):
        arguments = ("--dataset", HOPPER, "--algo", "td3bc", *SMALL)
        call(*arguments)
        path = out / HOPPER / "td3bc-real.json"
        content = json.loads(path.read_text())
        assert content["dataset_digest"] == load(HOPPER, folder=folder).digest()
        path.write_text(json.dumps({**content, "dataset_digest": "that of another"}))
        status, _, complaint = call(*arguments)
        assert status == 2
        assert f"{path}: made from another version of {HOPPER} (got digest " in complaint
        assert json.loads(path.read_text())["dataset_digest"] == "that of another"

    def test_a_time_limit_stops_and_the_same_command_resumes(self, call, out):
        arguments = ("--dataset", HOPPER, "--algo", "td3bc", "--data", "real", "synther", *SMALL, *GENERATOR)
        answers = [call(*arguments, "--time-limit", "0") for _ in range(12)]
        assert {status for status, _, _ in answers} == {0}
        last_lines = [told.splitlines()[-1] for _, told, _ in answers]
        stops = [f"stopped at update {k} of 40; run the same command to resume" for k in (12, 16, 24, 32, 36)]
        between = "time limit reached before td3bc-synther; run the same command to resume"
        assert last_lines[:-1] == [*stops, between, *stops]
        assert last_lines[-1].startswith(str(out / HOPPER / "td3bc-synther.json: "))
        assert self.results(out) == ["td3bc-real.json", "td3bc-synther.json"]

    def test_each_config_gets_the_time_left(self, call, out, monkeypatch):
        given, genuine = [], offline_run.OfflineRun.run

        def run(self, checkpoint, *, time_limit, **limits):
            given.append(time_limit)
            return genuine(self, checkpoint, time_limit=None, **limits)

        clock = iter([0.0, 1.0, 40.0, 101.0])
        monkeypatch.setattr(offline_d4rl, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        monkeypatch.setattr(offline_run.OfflineRun, "run", run)
        status, told, _ = call(*self.PAIRS, "--time-limit", "100")
        assert (status, given) == (0, [99.0, 60.0])
        assert told.splitlines()[-1] == "time limit reached before td3bc-synther; run the same command to resume"
        assert self.results(out) == ["iql-real.json", "td3bc-real.json"]

    def test_limits_are_passed_on(self, call, monkeypatch):
        seen = {}

        def run(self, checkpoint, **limits):
            seen.update(limits)
            return False

        monkeypatch.setattr(offline_run.OfflineRun, "run", run)
        limits = ("--checkpoint-every", "0", "--workers", "3")
        assert call("--dataset", HOPPER, "--algo", "td3bc", *SMALL, *limits)[0] == 0
        assert seen == {"time_limit": None, "checkpoint_every": 0.0, "workers": 3}

    @pytest.mark.slow
    def test_each_set_has_a_folder_and_each_variant_a_file(self, call, out):
        for arguments in (["--subsample", "0.5"], ["--augment", "additive"], ["--dataset", MAZE]):
            assert call("--dataset", HOPPER, "--algo", "td3bc", *SMALL, "--steps", "4", *arguments)[0] == 0
        found = sorted(str(path.relative_to(out)) for path in out.rglob("*.json"))
        assert found == [
            f"{HOPPER}/td3bc-real-50pct.json",
            f"{HOPPER}/td3bc-real-additive.json",
            f"{MAZE}/td3bc-real.json",
        ]

    @pytest.mark.parametrize("content", ['{"settings": {"steps": 1}}', "{}", "damaged"])
    def test_a_result_of_other_settings_is_refused_and_kept(self, content, call, out):
        path = out / HOPPER / "td3bc-real.json"
        path.parent.mkdir(parents=True)
        path.write_text(content)
        answer = call("--dataset", HOPPER, "--algo", "td3bc", *SMALL)
        expect_refusal(answer, str(path))
        assert answer[2].startswith("offline_d4rl.py: error: ")
        assert path.read_text() == content

    def test_a_checkpoint_of_other_settings_is_refused_and_kept(self, call, out):
        call("--dataset", HOPPER, "--algo", "td3bc", *SMALL, "--time-limit", "0")
        checkpoint = out / HOPPER / ".td3bc-real.checkpoint"
        before = checkpoint.read_bytes()
        answer = call("--dataset", HOPPER, "--algo", "td3bc", *SMALL, "--first-seed", "1")
        expect_refusal(answer, "checkpoint has other settings")
        assert checkpoint.read_bytes() == before

    def test_a_damaged_checkpoint_is_refused_and_kept(self, call, out):
        checkpoint = out / HOPPER / ".td3bc-real.checkpoint"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.write_bytes(b"nothing of ours")
        expect_refusal(call("--dataset", HOPPER, "--algo", "td3bc", *SMALL), str(checkpoint))
        assert checkpoint.read_bytes() == b"nothing of ours"

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "error",
        [
            DivergedError("the loss is nan"),
            GenerationError("the generator rejected its rows"),
            MemoryError("no memory for so many rows"),
            OSError("No space left on device"),
            ImportError("HDF5 files need h5py"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_an_error_is_one_line_and_finished_results_stay(self, error, call, out, monkeypatch):
        genuine = DataSource.rows

        def rows(self, config):
            if config.synthetic:
                raise error
            return genuine(self, config)

        monkeypatch.setattr(DataSource, "rows", rows)
        answer = call(*self.PAIRS)
        expect_refusal(answer, f"offline_d4rl.py: error: {error}")
        assert self.results(out) == ["iql-real.json", "td3bc-real.json"]

    def test_a_full_disk_is_one_line_and_the_result_is_printed(self, call, out, full_disk):
        arguments, path = ("--dataset", HOPPER, "--algo", "td3bc", *SMALL), out / HOPPER / "td3bc-real.json"
        full_disk()
        status, told, errors = call(*arguments)
        begins = f"offline_d4rl.py: error: {path}: cannot write the file (No space left on device); "
        assert (status, len(errors.splitlines())) == (2, 1)
        assert errors.startswith(begins)
        assert not self.results(out)
        path.write_text(told.splitlines()[-1])
        assert call(*arguments)[:2] == (0, f"{path}: already exists\n")

    @pytest.mark.parametrize(
        ("saves", "hint"),
        [
            ((), "start over (no checkpoint was saved)"),
            (("--checkpoint-every", "0"), "resume from the last checkpoint"),
        ],
    )
    def test_an_interrupt_is_one_line(self, saves, hint, call, out, monkeypatch):
        arguments = ("--dataset", HOPPER, "--algo", "td3bc", *SMALL)
        learn, left = OfflineLearner.learn, [5]  # more than the first chunk has

        def interrupted(self):
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            learn(self)

        with monkeypatch.context() as patch:
            patch.setattr(OfflineLearner, "learn", interrupted)
            status, _, errors = call(*arguments, *saves)
        path = out / HOPPER / "td3bc-real.json"
        said = f"offline_d4rl.py: error: {path}: interrupted; run the same command to {hint}\n"
        assert (status, errors) == (130, said)
        status, told, _ = call(*arguments)
        assert status == 0
        assert ("resumed at update 16" in told) == bool(saves)

    def test_gpu_out_of_memory_is_one_line(self, call, out, monkeypatch):
        def learner(self, rows):
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(OfflineConfig, "learner", learner)
        answer = call("--dataset", HOPPER, "--algo", "td3bc", *SMALL)
        expect_refusal(answer, "agents of td3bc-real; use fewer --seeds: CUDA out of memory")
        assert not self.results(out)

    def test_any_other_error_is_not_hidden(self, call, monkeypatch):
        def rows(self, config):
            raise RuntimeError("a bug")

        monkeypatch.setattr(DataSource, "rows", rows)
        with pytest.raises(RuntimeError, match="a bug"):
            call("--dataset", HOPPER, "--algo", "td3bc", *SMALL)

    def test_too_few_rows_for_a_generator(self, call):
        arguments = ("--dataset", HOPPER, "--algo", "td3bc", "--data", "synther", *SMALL, *GENERATOR)
        expect_refusal(call(*arguments, "--subsample", "0.1"), "expected at least 32 valid rows to fit, got 20")

    def test_running_on_a_cpu_warns(self, monkeypatch, folder, out):
        command = ["offline_d4rl.py", "--dataset", HOPPER, "--algo", "td3bc", *SMALL, "--steps", "4"]
        monkeypatch.setattr(sys, "argv", [*command, "--folder", str(folder), "--out", str(out)])
        with pytest.warns(UserWarning, match="no GPU"):
            assert offline_d4rl.main() == 0


@pytest.mark.slow
def test_the_program_itself(folder, out):
    """With evaluation processes and networks of the default size."""
    sizes = ["--steps", "100", "--episodes", "1", "--seeds", "1", "--workers", "1"]
    command = [sys.executable, BENCHMARKS / "offline_d4rl.py", "--dataset", HOPPER, "--algo", "iql", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *sizes, "--folder", folder, "--out", out], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    content = json.loads((out / HOPPER / "iql-real.json").read_text())
    assert [point["step"] for point in content["curve"]] == [100]
    assert isinstance(content["final"][0], float)
    assert done.stdout.splitlines()[-1].startswith(f"{out / HOPPER / 'iql-real.json'}: ")
