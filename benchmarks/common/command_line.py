"""Options, argument types and error exit shared by the command lines of the benchmarks."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REFIT_NOTE = "a running refit is finished first, which takes minutes with preset paper"


def duration(text: str) -> float:
    """Argument type: a number of seconds."""
    if not float(text) >= 0:  # also refuses NaN
        raise ValueError
    return float(text)


def folder(text: str) -> Path:
    """Argument type: an existing folder. A misspelt one would silently fall back to the default folders."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"expected an existing folder, got {text!r}")
    return Path(text)


def add_run_options(parser: argparse.ArgumentParser, *, time_limit_note: str = "", checkpoints: bool = True) -> None:
    """Add time limit, checkpoint interval, worker processes and device.

    Args:
        parser: Parser of the command line.
        time_limit_note: Appended to the help of --time-limit.
        checkpoints: Whether the run saves checkpoints.
    """
    note = f"; {time_limit_note}" if time_limit_note else ""
    parser.add_argument("--time-limit", type=duration, help=f"seconds after which the run saves and stops{note}")
    if checkpoints:
        parser.add_argument(
            "--checkpoint-every", type=duration, default=120.0, help="seconds between checkpoints (120)"
        )
    parser.add_argument("--workers", type=int, help="CPU cores for environments and evaluation (default: all)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto: a GPU if there is one)")


def add_generator_options(parser: argparse.ArgumentParser, presets: Sequence[str], preset_help: str) -> None:
    """Add the preset of the generator and overrides of its options; see `setting`."""
    parser.add_argument("--preset", choices=presets, help=preset_help)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override an option of the generator preset; can be repeated",
    )


def exit_with_error(status: int, message: object) -> int:
    """Print an error message to stderr and return the exit status."""
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    return status


def setting(text: str, option: str = "--set") -> tuple[str, Any]:
    """Parse NAME=VALUE of an option; the value is a Python literal, or a string if it is not one."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{option}: expected NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
