"""``synther info``: what a file is, its sizes and rates, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.table import Table

from synther_replay.cli import options
from synther_replay.cli.generation import size_of, sized
from synther_replay.cli.output import Output
from synther_replay.files.reading import FileError, TransitionFile, open_file
from synther_replay.files.table import SPEC

_LONGEST = 200  # characters of a value in the table


def info(
    path: Annotated[str, typer.Argument(metavar="FILE", help="A data set, or a generator saved by `synther fit`.")],
    episode_steps: options.EpisodeSteps = None,
    as_json: options.Json = False,
) -> None:
    """Say what FILE is: format, sizes, ranges, rates, origin.

    Examples:
        synther info hopper_medium-v2.hdf5
        synther info D4RL/pen/human-v2
        synther info hopper.safetensors --json
    """
    output = Output(as_json=as_json, always=True)
    values = _of_model(Path(path)) if _is_checkpoint(Path(path)) else _of_data(path, episode_steps, output)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for key, value in _lines(values):
        table.add_row(key, value)
    output.result(values, table)


def _is_checkpoint(path: Path) -> bool:
    """Return whether the file begins as checkpoints do: with the size of a JSON header, then the header."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def _of_model(path: Path) -> dict[str, Any]:
    generator = options.generator_of(path, torch.device("cpu"))
    return {
        "file": str(path),
        "format": "generator of synther_replay",
        "bytes": size_of(path),
        "fitted": generator.is_fitted,
        "models": generator.stack,
        "parameters": generator.parameters,
        "observation_space": str(generator.spec.observation_space),
        "action_space": str(generator.spec.action_space),
        "columns": generator.spec.dim,
        "seed": generator.seed,
        "settings": generator.config.to_json(),
    }


def _of_data(path: str, episode_steps: int | None, output: Output) -> dict[str, Any]:
    file = open_file(path, episode_steps=episode_steps)
    spec = file.spec
    return {
        "file": str(file.path),
        "format": f"{file.format}, raw: next observations are those of the next row" if file.is_raw else file.format,
        "bytes": size_of(file.path),
        "rows": file.rows,
        **_rates(file, output),
        "observation_space": str(spec.observation_space),
        "action_space": str(spec.action_space),
        "extra_fields": list(spec.extra),
        "not_modelled": file.not_modelled,
        "columns": spec.dim,
        "origin": {key: value for key, value in file.about.items() if key != SPEC},
    }


def _rates(file: TransitionFile, output: Output) -> dict[str, Any]:
    """Read the file once; return the number of transitions, of terminations, and the range of rewards."""
    count = terminated = 0
    total = squares = 0.0
    low, high = np.inf, -np.inf
    with output.step(f"reading {file.path.name}", file.rows) as advance:
        for block in file.blocks():
            rewards = block.rewards.double()
            count += len(block)
            terminated += int(block.terminated.sum())
            total, squares = total + float(rewards.sum()), squares + float(rewards.square().sum())
            low, high = min(low, float(rewards.min())), max(high, float(rewards.max()))
            advance(len(block))
    if not count:
        raise FileError(f"{file.path}: observations: no transitions in {file.rows} rows")
    mean = total / count
    return {
        "transitions": count,
        "terminated": terminated,
        "terminated_rate": terminated / count,
        "reward": {"mean": mean, "std": max(0.0, squares / count - mean**2) ** 0.5, "min": low, "max": high},
    }


def _lines(values: Mapping[str, Any], indent: str = "") -> list[tuple[str, str]]:
    lines = []
    for key, value in values.items():
        name = indent + key.replace("_", " ")
        if isinstance(value, Mapping):
            lines += [(name, ""), *_lines(value, indent + "  ")]
        elif isinstance(value, float):
            lines.append((name, f"{value:.6g}"))
        elif key == "bytes":
            lines.append((name, sized(value)))
        elif isinstance(value, int) and not isinstance(value, bool) and key != "seed":
            lines.append((name, f"{value:,}"))
        elif value not in ([], {}, None):
            text = " ".join(str(value).split())
            lines.append((name, text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."))
    return lines
