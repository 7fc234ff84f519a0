"""The stages of the pixel benchmark from the command line: without rendering, and with it where OSMesa is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("PIL")
from synther_replay.benchmarks import offline_pixels
from synther_replay.benchmarks.agents.networks.mlp import Layers, MlpShape, initialise_like_torch
from synther_replay.benchmarks.agents.policy import save_policies
from synther_replay.benchmarks.data.behaviour import Behaviour, Snapshot, _digest
from synther_replay.benchmarks.pixels import docs_tables
from synther_replay.benchmarks.pixels.archive import Archive
from synther_replay.benchmarks.pixels.codec import CodecSettings, encode
from synther_replay.benchmarks.pixels.rendering import SIZE, missing_renderer

DATASET = "walker-walk-medium"
SMALL = ["--updates=2", "--rows=40", "--set=steps=10", "--set=width=16", "--device=cpu"]
SMALL += ["--learner=batch_size=2", "--learner=hidden=16"]


def call(*arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["offline_pixels.py", f"--dataset={DATASET}", *map(str, arguments)])
    return offline_pixels.main()


@pytest.fixture
def work(tmp_path):
    """A folder with a recorded data set of noise."""
    rng, parts = np.random.default_rng(0), []
    for _ in range(2):
        frames = rng.integers(0, 255, (20, SIZE, SIZE, 3), np.uint8)
        actions, rewards = rng.uniform(-1, 1, (19, 6)).astype("f4"), rng.uniform(0, 1, 19).astype("f4")
        parts.append(Archive.of_episode(encode(frames, CodecSettings(speed=10)), actions, rewards, False, {}))
    Archive.joined(parts, {"settings": {}}).write(tmp_path / "data" / f"{DATASET}.npz")
    return tmp_path


@pytest.mark.slow
class TestStages:
    @pytest.mark.parametrize("algo", ["bc", "drqbc"])
    def test_train_latents_and_heads_write_results_once(self, work, algo, monkeypatch, capsys):
        stages = ["train", "latents", "heads", f"--work={work}", f"--algo={algo}", *SMALL]
        assert call(*stages, monkeypatch=monkeypatch) == 0
        folder = work / "runs" / DATASET / f"{algo}-0"
        results = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
        assert set(results) == {"train", "latents", "heads-real", "heads-synthetic"}
        assert all(result["command"] and result["commit"] and result["machine"] for result in results.values())
        assert results["latents"]["row_length"] == {"bc": 50, "drqbc": 100}[algo] * 2 + 6 + 1 + 1
        assert results["heads-real"]["rows"] == 34 and results["heads-synthetic"]["rows"] == 40
        assert {path.name for path in folder.glob("policy-*")} == {
            f"policy-{name}.safetensors" for name in ("encoder", "pixels", "real", "synthetic")
        }
        written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
        capsys.readouterr()
        assert call(*stages, monkeypatch=monkeypatch) == 0
        assert written == {path: path.stat().st_mtime_ns for path in folder.iterdir()}

    def test_other_settings_are_refused(self, work, monkeypatch, capsys):
        stages = ["train", f"--work={work}", "--algo=bc", *SMALL]
        assert call(*stages, monkeypatch=monkeypatch) == 0
        assert call(*stages, "--updates=3", monkeypatch=monkeypatch) == 2
        assert "result has other settings (updates: got 2, expected 3)" in capsys.readouterr().err

    def test_a_time_limit_stops_and_the_same_command_goes_on(self, work, monkeypatch, capsys):
        stages = ["train", f"--work={work}", "--algo=bc", *SMALL, "--updates=12"]
        assert call(*stages, "--time-limit=0", monkeypatch=monkeypatch) == 0
        assert "time limit reached" in capsys.readouterr().out
        assert call(*stages, monkeypatch=monkeypatch) == 0
        assert "resumed at update 10" in capsys.readouterr().out


class TestCommandLine:
    def test_a_stage_before_its_time_says_what_is_missing(self, work, monkeypatch, capsys):
        assert call("latents", f"--work={work}", "--algo=bc", *SMALL, monkeypatch=monkeypatch) == 2
        assert "train.json: missing; run the stage train first" in capsys.readouterr().err

    def test_a_missing_data_set_is_named(self, tmp_path, monkeypatch, capsys):
        assert call("train", f"--work={tmp_path}", *SMALL, monkeypatch=monkeypatch) == 2
        assert f"{DATASET}.npz" in capsys.readouterr().err

    def test_a_missing_policy_is_named(self, tmp_path, monkeypatch, capsys):
        places = [f"--work={tmp_path}", f"--policies={tmp_path}"]
        assert call("record", *places, monkeypatch=monkeypatch) == 2
        assert "no medium policy in" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ("--dataset=walker-walk-best", "level: expected one of medium, expert, mixed, got 'best'"),
            ("--episodes=0", "episodes: expected a whole number of at least 1"),
            ("--codec=quality=200", "quality: expected 0 to 100"),
            ("--learner=speed=1", "speed"),
        ],
    )
    def test_bad_options_are_refused(self, option, message, monkeypatch, capsys):
        with pytest.raises(SystemExit):
            call("train", option, monkeypatch=monkeypatch)
        assert message in capsys.readouterr().err


def untrained_policy(folder):
    """A manifest with one untrained policy of walker-walk."""
    shape = MlpShape(24, 12, 8, 2)
    path = folder / "walker-walk-repeat2" / "sac-0-1.safetensors"
    save_policies(path, Layers.of(initialise_like_torch(shape, 1, torch.Generator().manual_seed(0)), shape))
    snapshot = Snapshot(path.name, _digest(path), 1, 0, 0.0, 0.0, 0.0, 1)
    Behaviour("walker-walk-repeat2", path.parent, medium=snapshot, replay=(snapshot,)).write()


@pytest.mark.slow
@pytest.mark.skipif(missing_renderer() is not None, reason=f"cannot render: {missing_renderer()}")
def test_all_stages_in_the_environment(tmp_path):
    untrained_policy(tmp_path / "policies")
    script = str(Path(offline_pixels.__file__).resolve())
    common = ["--dataset", DATASET, "--work", str(tmp_path), "--workers", "1"]
    recording = ["--episodes", "2", "--steps", "20", "--policies", str(tmp_path / "policies")]
    # dm_control chooses its renderer when it is imported, so this cannot run in the process of the tests
    environment = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}

    def run(*arguments):
        command = [sys.executable, script, *arguments, *common]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("record", "train", "latents", "heads", "evaluate", *recording, *SMALL, "--algo", "bc", "--returns", "2")
    archive = Archive.read(tmp_path / "data" / f"{DATASET}.npz")
    assert archive.lengths.tolist() == [21, 21] and archive.decoded().shape == (42, SIZE, SIZE, 3)
    assert archive.decoded().std() > 10 and archive.about["action_repeat"] == 2
    result = json.loads((tmp_path / DATASET / "bc-0.json").read_text())
    assert {name: len(part["returns"]) for name, part in result["policies"].items()} == {
        "pixels": 2,
        "real": 2,
        "synthetic": 2,
    }
    assert all(0 <= value <= 40 for part in result["policies"].values() for value in part["returns"])
    assert set(result["stages"]) == {"train", "latents", "heads-real", "heads-synthetic"}
    assert "already exists" in run("record", "evaluate", *recording, "--algo", "bc", "--returns", "2")
    (tmp_path / "data" / f"{DATASET}.npz").unlink()
    interrupted_after_one_episode(tmp_path / "data" / f"{DATASET}.parts", archive)
    run("record", *recording)
    again = Archive.read(tmp_path / "data" / f"{DATASET}.npz")
    assert (again.reward[1:21] == 7).all(), "the first episode was not recorded again"
    assert np.array_equal(again.action[21:], archive.action[21:])
    assert np.array_equal(again.decoded()[21:], archive.decoded()[21:])  # the files hold their time of creation, too


def interrupted_after_one_episode(folder, archive):
    """What an interrupted recording leaves; the rewards of its episode tell it from a new one."""
    frames = encode(archive.decoded()[:21], CodecSettings(speed=10))
    about = {"signal_to_noise": 30.0}
    part = Archive.of_episode(frames, archive.action[1:21], np.full(20, 7, "f4"), False, about)
    part.write(folder / "00000.npz")
    (folder / "settings.json").write_text(json.dumps({key: archive.about[key] for key in ("settings", "policies")}))


def result(dataset, algo, seed, returns, **policies):
    stages = {"train": {"settings": {"algo": algo, "seed": seed, "updates": 5}}}
    parts = {name: {"returns": values} for name, values in {"pixels": returns, **policies}.items()}
    return {
        "dataset": dataset,
        "algo": algo,
        "seed": seed,
        "policies": parts,
        "stages": stages,
        "settings": {"episodes": 2},
    }


class TestTable:
    def written(self, folder, *results):
        for content in results:
            path = folder / "offline" / "pixels" / content["dataset"] / f"{content['algo']}-{content['seed']}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
        return docs_tables.tables(folder)

    def test_there_is_none_without_results(self, tmp_path):
        assert docs_tables.tables(tmp_path) == {}

    def test_scores_are_tenths_of_the_mean_returns(self, tmp_path):
        heads = {"real": [400, 500], "synthetic": [None, 1000]}
        lines = self.written(
            tmp_path,
            result("walker-walk-expert", "bc", 0, [100, 300], **heads),
            result("walker-walk-expert", "bc", 1, [300, 500], **heads),
            result("cheetah-run-medium", "bc", 0, [100, 100], **heads),
        )["offline-pixels"].splitlines()
        assert lines[0] == "| score | agent of images | heads on real latents | heads on synthetic latents |"
        assert lines[2].startswith("| BC, walker-walk-expert | 30.0 +- 14.1 [") and "(2 seeds)" in lines[2]
        assert lines[3] == "| BC, cheetah-run-medium | 10.0 (1 seed) | 45.0 (1 seed) | 50.0 (1 seed) |"
        assert lines[4] == "| **BC, mean of 2 sets** | 20.0 | 45.0 | 50.0 |" and len(lines) == 5

    def test_a_mean_of_several_seeds_on_each_set_has_an_interval(self, tmp_path):
        sets = ("walker-walk-expert", "cheetah-run-medium")
        runs = (result(name, "bc", seed, [100 * seed], real=[0], synthetic=[0]) for name in sets for seed in (0, 1))
        lines = self.written(tmp_path, *runs)["offline-pixels"].splitlines()
        assert lines[-1].startswith("| **BC, mean of 2 sets** | 5.0 [0.0, ")

    def test_runs_of_other_settings_are_refused(self, tmp_path):
        other = result("walker-walk-expert", "bc", 1, [1, 2])
        other["stages"]["train"]["settings"]["updates"] = 6
        with pytest.raises(ValueError, match=r"bc-1.json: train: other settings .*updates: got 6, expected 5"):
            self.written(tmp_path, result("walker-walk-expert", "bc", 0, [1, 2]), other)

    def test_a_damaged_file_is_named(self, tmp_path):
        path = tmp_path / "offline" / "pixels" / "any" / "bc-0.json"
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        with pytest.raises(ValueError, match=r"bc-0.json: not a result"):
            docs_tables.tables(tmp_path)
