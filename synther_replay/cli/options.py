"""Options that several sub-commands share, and how their values are read."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from synther_replay.common.checks import resolve_device
from synther_replay.common.short_forms import default_preset
from synther_replay.config import GeneratorConfig
from synther_replay.errors import CheckpointError
from synther_replay.generator import DiffusionGenerator

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
# A comma elsewhere than before three digits is that of a decimal number in many languages.
_COUNT = re.compile(r"((?:\d{1,3}(?:[_,]\d{3})+|\d+)(?:\.\d+)?(?:[eE]\d+)?)\s*([KMGkmg]?)")


def count(text: str | int) -> int:
    """Read a number of rows; a default is a number already.

    >>> count("5M"), count("2.5k"), count("1_000"), count("1e6")
    (5000000, 2500, 1000, 1000000)

    Raises:
        typer.BadParameter: It is not a positive whole number.
    """
    found = _COUNT.fullmatch(str(text).strip())
    value = float(re.sub("[_,]", "", found[1])) * _UNITS[found[2].upper()] if found else 0.0
    if not 1 <= value < math.inf or value != int(value):
        raise typer.BadParameter(f"expected a number of rows such as 5M, 250K or 1000, got {text!r}")
    return int(value)


def window_rows(text: str) -> int:
    """Read a number of rows of a window.

    Raises:
        typer.BadParameter: It is not a whole number, or too small for a fit.
    """
    if (rows := count(text)) < DiffusionGenerator.min_window:
        raise typer.BadParameter(f"expected at least {DiffusionGenerator.min_window} rows, got {text!r}")
    return rows


Rows = Annotated[
    int, typer.Option("--rows", parser=count, metavar="N", help="Rows to generate, for example 5M or 250K.")
]
RowsOrTimes = Annotated[
    int | None, typer.Option("--rows", parser=count, metavar="N", help="Rows to generate, for example 5M or 250K.")
]
Preset = Annotated[
    str | None,
    typer.Option(help="Settings: tiny, fast, offline or paper.", show_default="fast on a GPU, tiny on a CPU"),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, or auto: the GPU if there is one.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes on the same machine.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change a setting of the preset, for example steps=20000."),
]
EpisodeSteps = Annotated[
    int | None,
    typer.Option(min=1, help="Time limit of episodes, for raw files without timeouts.", metavar="N"),
]
Window = Annotated[
    int | None,
    typer.Option(
        "--window",
        parser=window_rows,
        metavar="N",
        help="Real rows in memory at a time; a larger file is read again and again while the model trains.",
        show_default="rows of 512 MiB",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")]


def device_of(name: str) -> torch.device:
    """Return the device; wrong names are wrong usage."""
    try:
        return resolve_device(name)
    except (ValueError, RuntimeError, TypeError) as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error


def generator_of(model: Path, device: torch.device) -> DiffusionGenerator:
    """Load a saved generator; errors name its file."""
    try:
        return DiffusionGenerator.load(model, device=device)
    except CheckpointError as error:
        raise CheckpointError(str(error).removeprefix("path: ")) from error


def config_of(preset: str | None, changes: list[str] | None, device: torch.device) -> GeneratorConfig:
    """Return the settings of a generator, without a time limit: results must not depend on the machine's speed."""
    try:
        given = dict(_setting(change) for change in changes or ())
        chosen = preset or default_preset(device)
        return GeneratorConfig.of({"max_seconds": None, **given, "preset": chosen}, name="--set")
    except (ValueError, TypeError) as error:
        hint = "--preset" if "preset" in str(error) else "--set"
        raise typer.BadParameter(str(error).removeprefix("--set: "), param_hint=hint) from error


def _setting(change: str) -> tuple[str, Any]:
    name, equals, value = change.partition("=")
    if not equals:
        raise ValueError(f"expected NAME=VALUE, got {change!r}")
    try:
        return name.strip(), ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name.strip(), value
