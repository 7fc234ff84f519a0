"""What the benchmarks' command lines have in common."""

from __future__ import annotations

import argparse
import ast
import difflib
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from synther_replay import GeneratorConfig

PRESETS = ("paper", "fast", "tiny")  # of generator and schedule
GENERATOR_PRESETS = (*PRESETS, "offline")
# Data sets on which the paper's generator has a network twice as wide as elsewhere, and ours is trained for longer: on
# the first, IQL learns more from that and not from width.
_DEMANDING = ("halfcheetah-medium-expert", "hopper-medium", "hopper-medium-expert")
_FOR_DEMANDING: dict[str, dict[str, Any]] = {"paper": {"width": 2048}, "offline": {"steps": 100_000}}
REFIT = "a refit is not interrupted: with preset paper leave some minutes"  # what a stop of an online run waits for


def duration(text: str) -> float:
    """Seconds on the command line."""
    if not float(text) >= 0:  # which NaN is not, either
        raise ValueError
    return float(text)


def folder(text: str) -> Path:
    """A folder on the command line that is there: one that is misspelt would be passed over for others."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return Path(text)


def add_run_options(parser: argparse.ArgumentParser, *, uninterrupted: str = "") -> None:
    """How long a run goes on, how often it is saved and what it runs on; `uninterrupted` is what a stop waits for."""
    waits = f"; {uninterrupted}" if uninterrupted else ""
    parser.add_argument("--time-limit", type=duration, help=f"seconds after which to save and stop{waits}")
    parser.add_argument("--checkpoint-every", type=duration, default=120.0, help="seconds between saves on the way")
    parser.add_argument("--workers", type=int, help="cores for environments, evaluations and simulations (all)")
    parser.add_argument("--device", default="auto")


def exit_with_error(status: int, why: object) -> int:
    """Say in a sentence why a program fails; gives the status that it ends with."""
    print(f"{Path(sys.argv[0]).name}: error: {why}", file=sys.stderr)
    return status


def generator_of(preset: str, changes: Mapping[str, Any], dataset: str = "") -> GeneratorConfig:
    """Settings of the generator.

    Args:
        preset: One of `GENERATOR_PRESETS`.
        changes: What else is asked for.
        dataset: Name of what it learns, which may ask for more than others.
    """
    names = [field.name for field in fields(GeneratorConfig)]
    for name in changes:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3) or names
            raise ValueError(f"set: the generator has no {name!r}, near are {', '.join(near)}")
    more = _FOR_DEMANDING.get(preset, {}) if dataset.rpartition("-")[0] in _DEMANDING else {}
    config: GeneratorConfig = getattr(GeneratorConfig, preset)(**{**more, **changes})
    return config


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE on the command line, the value as Python reads it or else as text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"set: expected NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
