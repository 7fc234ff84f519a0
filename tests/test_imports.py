"""Imports point one way: a package imports only what stands before it, and no two modules import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Each part may import those that stand before it; parts on one line do not import each other.
LIBRARY = [
    ("errors",),
    ("common",),
    ("persistence", "data", "diffusion", "simulators"),
    ("config", "files", "metrics", "protocols"),
    ("relevance",),
    ("replay", "model", "report"),
    ("generator",),
    ("options", "watching", "distributed"),
    ("adapters",),
    ("cli",),
    ("__main__",),
    ("benchmarks",),
]
BENCHMARKS = [
    ("common",),
    ("environments",),
    ("agents",),
    ("data",),
    ("online", "offline", "pixels"),
    ("peers",),
    ("fidelity", "speed"),
    ("scripts",),
]
ADAPTERS = [("corl", "sb3", "skrl", "torchrl")]


def modules() -> dict[str, Path]:
    """All modules by the name that they are imported by."""
    found = {}
    for folder, package in (("synther_replay", ()), ("adapters", ("adapters",)), ("benchmarks", ("benchmarks",))):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join(("synther_replay", *package, *parts))] = path
    return found


MODULES = modules()


def imported(name: str) -> Iterator[str]:
    """Modules of ours that a module imports, also within functions."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in MODULES or node.module in MODULES:
                    yield inner if inner in MODULES else str(node.module)


EDGES = {name: sorted(set(imported(name))) for name in MODULES}


def part_of(name: str, prefix: str, parts: set[str]) -> str | None:
    """Which part a module belongs to; None for one outside `prefix` or for the package itself."""
    if not name.startswith(f"{prefix}."):
        return None
    first = name.removeprefix(f"{prefix}.").split(".")[0]
    return first if first in parts else "scripts" if prefix.endswith("benchmarks") else first


@pytest.mark.parametrize(
    ("prefix", "layers"),
    [
        ("synther_replay", LIBRARY),
        ("synther_replay.benchmarks", BENCHMARKS),
        ("synther_replay.adapters", ADAPTERS),
    ],
)
def test_imports_point_one_way(prefix: str, layers: list[tuple[str, ...]]) -> None:
    height = {part: number for number, layer in enumerate(layers) for part in layer}
    wrong = []
    for name, targets in EDGES.items():
        here = part_of(name, prefix, set(height))
        for target in targets:
            there = part_of(target, prefix, set(height))
            if here and there and here != there:
                assert {here, there} <= set(height), f"{name} or {target}: {here} or {there} has no place in the layers"
                if height[there] >= height[here]:
                    wrong.append(f"{name} imports {target}")
    assert not wrong


def test_no_two_modules_import_each_other_by_any_way() -> None:
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name in done:
            return
        for target in EDGES[name]:
            visit(target, (*way, name))
        done.add(name)

    for name in MODULES:
        visit(name, ())


def reached(name: str) -> set[str]:
    """Modules that a module imports, directly or through others."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = set(EDGES[waiting.pop()]) - found
        found |= new
        waiting += new
    return found


def test_the_buffer_knows_no_diffusion() -> None:
    known = reached("synther_replay.replay.buffer")
    assert "synther_replay.replay.store" in known
    assert not [name for name in known if "diffusion" in name or name.endswith((".generator", ".codec", ".config"))]


def test_diffusion_knows_no_reinforcement_learning() -> None:
    for name in MODULES:
        if name.startswith("synther_replay.diffusion"):
            assert not [other for other in reached(name) if ".data." in other or ".replay." in other], name


def test_the_library_imports_no_framework() -> None:
    frameworks = {"stable_baselines3", "torchrl", "tensordict", "h5py", "skrl", "rl_zoo3"}
    for name, path in MODULES.items():
        if not name.startswith(("synther_replay.adapters", "synther_replay.benchmarks")):
            nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
            roots = {str(node.module).split(".")[0] for node in nodes}
            assert not roots & frameworks, name
