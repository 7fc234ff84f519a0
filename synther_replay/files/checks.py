"""Checks that all formats share."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from synther_replay.errors import GenerationError

_MOST_EXPANSION = 1_100  # arrays may be this many times as large as their file; deflate reaches 1,032


def check_count(got: int, expected: int, *, least: int | None = None) -> None:
    """Raise GenerationError unless `got` rows are `expected`, or from `least` to `expected`."""
    if not (expected if least is None else least) <= got <= expected:
        raise GenerationError(f"rows: expected {expected}, got {got}")


def check_expansion(needed: int, path: Path) -> None:
    """Raise ValueError for arrays that are far larger than their file, which a forged header can say."""
    size = path.stat().st_size
    if needed > _MOST_EXPANSION * size:
        raise ValueError(f"the arrays need {needed:,} bytes, more than {_MOST_EXPANSION} times the file's {size:,}")


def needs(module: str, extra: str) -> Any:
    """Import a library of a format; raise ImportError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        raise ImportError(f"these files need {root}: pip install 'synther-replay[{extra}]'") from error
