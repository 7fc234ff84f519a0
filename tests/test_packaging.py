"""What a user gets by installing and importing."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import numpy as np
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


@pytest.mark.slow
def test_a_wheel_works_without_the_checkout(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    source, environment = tmp_path / "source", tmp_path / "environment"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "tests", "docs", "build", "*.egg-info"))
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run((*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, source), check=True)
    (wheel,) = tmp_path.glob("synther_replay-*.whl")
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", environment), check=True)
    python = environment / "bin" / "python"
    packages = environment / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    subprocess.run((*pip, "install", "--no-deps", "--target", packages, wheel), check=True)
    # What it depends on. Such a line adds a folder and not what the `.pth` files in it point to, here the checkout.
    dependencies = {Path(np.__file__).parents[1], Path(sysconfig.get_path("purelib"))}
    (packages / "dependencies.pth").write_text("\n".join(map(str, dependencies)))

    rng = np.random.default_rng(0)
    real = {"observations": rng.normal(size=(200, 3)), "actions": rng.uniform(-1, 1, (200, 1)), "rewards": np.ones(200)}
    real |= {"next_observations": rng.normal(size=(200, 3)), "terminals": np.zeros(200, bool)}
    np.savez(tmp_path / "real.npz", **real)
    upsample = ("-m", "synther_replay", "upsample", "real.npz", "more.parquet", "--rows", "300", "--device", "cpu")
    subprocess.run((python, *upsample, "--set", "steps=20"), check=True, cwd=tmp_path)
    assert parquet.read_metadata(tmp_path / "more.parquet").num_rows == 300
    modules = "synther_replay, synther_replay.adapters.corl, synther_replay.benchmarks.online_dmc"
    code = f"import sys, {modules}; print(*(sys.modules[name].__file__ for name in '{modules}'.split(', ')), sep='\\n')"
    shown = subprocess.run((python, "-c", code), check=True, cwd=tmp_path, capture_output=True, text=True).stdout
    assert [Path(line).is_relative_to(packages) for line in shown.splitlines()] == [True] * 3
