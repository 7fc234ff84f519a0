"""What the benchmarks' command lines have in common."""

from __future__ import annotations

import ast
from typing import Any

PRESETS = ("paper", "fast", "tiny")  # of the generator


def duration(text: str) -> float:
    """Seconds on the command line."""
    if not float(text) >= 0:  # which NaN is not, either
        raise ValueError
    return float(text)


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE on the command line, the value as Python reads it or else as text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"set: expected NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
