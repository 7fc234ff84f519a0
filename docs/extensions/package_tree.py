"""Shows mkdocstrings the package as it is when installed.

`adapters/` and other folders lie beside `synther_replay/` and are mapped into it by `tool.setuptools.package-dir`.
A reader of source files does not know that, so it gets a folder of links in which the packages lie where they belong.
"""

from __future__ import annotations

import tempfile
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority

_ROOT = Path(__file__).parents[2]
_TREE = tempfile.TemporaryDirectory(prefix="synther-docs-")  # removed when the process ends


@event_priority(100)  # before mkdocstrings reads its settings
def on_config(config: Any) -> Any:
    """Point mkdocstrings to the assembled package."""
    tree = Path(_TREE.name)
    if not any(tree.iterdir()):
        _assemble(tree)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(tree)]
    return config


def _assemble(tree: Path) -> None:
    package = tree / "synther_replay"
    package.mkdir()
    for entry in (_ROOT / package.name).iterdir():
        (package / entry.name).symlink_to(entry)
    settings = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    for name, folder in settings["tool"]["setuptools"].get("package-dir", {}).items():
        parent, _, child = name.rpartition(".")
        if parent == package.name and not (package / child).exists():
            (package / child).symlink_to(_ROOT / folder)
