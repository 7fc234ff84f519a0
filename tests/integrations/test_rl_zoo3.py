"""rl_zoo3 trains with our buffer, from a YAML file without Python in it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("rl_zoo3")
pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "rl_zoo3.yml"


def zoo(program, folder, *options):
    command = [sys.executable, "-m", f"rl_zoo3.{program}", "--algo", "sac", "--env", "Pendulum-v1", "-f", str(folder)]
    done = subprocess.run(
        [*command, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train(folder, settings, *options):
    (folder / "settings.yml").write_text(yaml.safe_dump({"Pendulum-v1": settings}))
    ours = ("--conf-file", str(folder / "settings.yml"), "--gym-packages", "synther_replay.adapters.sb3.zoo")
    return zoo("train", folder, *ours, "--eval-freq", "-1", "--log-interval", "-1", "--seed", "0", *options)


@pytest.fixture
def settings():
    """The example with tiny budgets."""
    found = yaml.safe_load(EXAMPLE.read_text())["Pendulum-v1"]
    found["replay_buffer_kwargs"]["generator"] |= {"steps": 10, "width": 16, "depth": 1}
    found["replay_buffer_kwargs"]["schedule"] |= {"start": 120, "rows": 100}
    return found | {"n_timesteps": 150, "gradient_steps": 1, "policy_kwargs": {"net_arch": [8]}}


def test_a_yaml_file_trains_saves_goes_on_and_plays(tmp_path, settings):
    printed = train(tmp_path, settings, "--save-replay-buffer")
    assert "refit 1 | step 12" in printed
    saved = tmp_path / "sac" / "Pendulum-v1_1"
    assert (saved / "replay_buffer.pkl").exists()
    zoo("enjoy", tmp_path, "--no-render", "-n", "5")
    again = train(tmp_path, settings | {"n_timesteps": 10}, "--trained-agent", str(saved / "Pendulum-v1.zip"))
    assert "Loading replay buffer" in again


@pytest.mark.parametrize(
    "short",
    [{"generator": "tiny", "schedule": 100}, {"generator": {"steps": "1e1"}}, {"refit": "background", "lag": 50}],
)
def test_short_forms_work(tmp_path, settings, short):
    train(tmp_path, settings | {"n_timesteps": 5, "replay_buffer_kwargs": short})
