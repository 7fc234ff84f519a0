"""What a user gets by installing and importing."""

import ast
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import synther_replay

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = ("stable_baselines3", "sb3_contrib", "torchrl", "tensordict")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter in the repository's root, where `import adapters` finds the folder."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_import_pulls_in_no_rl_framework():
    done = run_python(f"import sys, synther_replay; print([name for name in {FRAMEWORKS} if name in sys.modules])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_plain_adapters_is_refused():
    done = run_python("import adapters")
    assert done.returncode != 0
    assert "ImportError: import 'synther_replay.adapters' instead of 'adapters'" in done.stderr


def test_adapters_import_when_installed():
    if importlib.util.find_spec("synther_replay.adapters") is None:
        pytest.skip("synther_replay is not installed: adapters/ is mapped into the package by the installation")
    done = run_python("import synther_replay.adapters as a; print(a.__name__)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "synther_replay.adapters"


def test_package_declares_its_types():
    assert (Path(synther_replay.__file__).parent / "py.typed").exists()


def test_pyproject_agrees_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["version"] == synther_replay.__version__
    listed = project["tool"]["setuptools"]["packages"]
    folders = {".".join(file.parent.relative_to(ROOT).parts) for file in ROOT.glob("synther_replay/**/__init__.py")}
    assert set(listed) == folders | {"synther_replay.adapters"}


def imports_of(module: str) -> set[str]:
    """The modules of ours that a module imports, directly or through others."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        path = ROOT / Path(*waiting.pop().split("."))
        tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
        names = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
        ours = {name for name in names if name.startswith("synther_replay.")} - found
        found |= ours
        waiting += ours
    return found


def test_the_buffer_knows_no_diffusion():
    known = imports_of("synther_replay.buffer")
    assert "synther_replay.store" in known
    assert not [name for name in known if "diffusion" in name or name.endswith((".generator", ".codec", ".config"))]


def test_diffusion_knows_no_reinforcement_learning():
    for path in (ROOT / "synther_replay" / "diffusion").glob("*.py"):
        known = imports_of(f"synther_replay.diffusion.{path.stem}".removesuffix(".__init__"))
        assert not [name for name in known if name.endswith((".transitions", ".spaces", ".buffer", ".codec"))], path
