"""What a user gets by installing and importing."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import synther_replay

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = ("stable_baselines3", "sb3_contrib", "torchrl", "tensordict", "skrl", "rl_zoo3")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter in the repository's root, where `import adapters` finds the folder."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)


IMPORTS = f"""
import sys, synther_replay
print([name for name in {FRAMEWORKS} if name in sys.modules])
import synther_replay.adapters as adapters
print(adapters.__name__)
from synther_replay.benchmarks.agents.sac import StackedSAC
print(StackedSAC.__module__)
"""


def test_import_pulls_in_no_rl_framework_and_adapters_and_agents_are_found():
    if importlib.util.find_spec("synther_replay.adapters") is None:
        pytest.skip("synther_replay is not installed: adapters/ is mapped into the package by the installation")
    done = run_python(IMPORTS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["[]", "synther_replay.adapters", "synther_replay.benchmarks.agents.sac", ""]


def test_plain_adapters_is_refused():
    done = run_python("import adapters")
    assert done.returncode != 0
    assert "ImportError: import 'synther_replay.adapters' instead of 'adapters'" in done.stderr


@pytest.mark.parametrize("command", [("benchmarks/online_dmc.py",), ("-m", "synther_replay.benchmarks.online_dmc")])
def test_benchmarks_run_as_scripts_and_as_modules(command, tmp_path):
    script = [str(ROOT / part) if part.endswith(".py") else part for part in command]
    done = subprocess.run(
        [sys.executable, *script, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "--algo" in done.stdout


def test_package_declares_its_types():
    assert (Path(synther_replay.__file__).parent / "py.typed").exists()


def test_pyproject_agrees_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["version"] == synther_replay.__version__
    listed = project["tool"]["setuptools"]["packages"]
    files = [
        file for top in ("synther_replay", "adapters", "benchmarks") for file in ROOT.glob(f"{top}/**/__init__.py")
    ]
    folders = [file.parent.relative_to(ROOT).parts for file in files]
    mapped = (parts if parts[0] == "synther_replay" else ("synther_replay", *parts) for parts in folders)
    assert set(listed) == {".".join(parts) for parts in mapped}
