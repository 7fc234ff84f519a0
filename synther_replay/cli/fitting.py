"""Reading a file and fitting a generator to it, for the commands that do."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from synther_replay.cli.output import Output
from synther_replay.cli.threads import choose_threads
from synther_replay.config import GeneratorConfig
from synther_replay.data.transitions import Transitions
from synther_replay.files.reading import FileError, open_file
from synther_replay.generator import DiffusionGenerator


@dataclass(frozen=True)
class Fitted:
    """A generator and figures of its fit for the result."""

    generator: DiffusionGenerator
    figures: dict[str, Any]


def read_rows(path: str, episode_steps: int | None, output: Output) -> Transitions:
    """Read all transitions of a file."""
    file = open_file(path, episode_steps=episode_steps)
    with output.step(f"reading {file.path.name}", file.rows) as advance:
        parts = []
        for block in file.blocks():
            parts.append(block.rows)
            advance(len(block))
    if sum(map(len, parts)) < DiffusionGenerator.min_rows:
        found = f"{sum(map(len, parts))} transitions in {file.rows} rows"
        raise FileError(f"{path}: expected at least {DiffusionGenerator.min_rows} transitions to fit, got {found}")
    return Transitions(file.spec, torch.cat(parts))


def fit_rows(rows: Transitions, config: GeneratorConfig, device: torch.device, seed: int, output: Output) -> Fitted:
    """Fit a new generator."""
    begun = time.monotonic()
    choose_threads(config, device)
    generator = DiffusionGenerator(rows.spec, config, device=device, seed=seed)
    report = generator.fit(rows, progress=output.is_interactive)
    held_out = None if report.held_out_loss is None else round(report.held_out_loss, 6)
    figures = {
        "parameters": generator.parameters,
        "steps": report.steps,
        "loss": round(report.loss, 6),
        "held_out_loss": held_out,
        "stopped_early": report.stopped_early,
        "seconds": round(time.monotonic() - begun, 3),
    }
    return Fitted(generator, figures)
