"""Reading a file and fitting a generator to it, for the commands that do."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from synther_replay.cli.output import Output
from synther_replay.cli.threads import choose_threads
from synther_replay.config import GeneratorConfig
from synther_replay.data.codec import TransitionCodec
from synther_replay.data.transitions import Transitions
from synther_replay.files.reading import FileError, TransitionFile, open_file
from synther_replay.generator import DiffusionGenerator
from synther_replay.model.windows import WINDOW_VALUES


@dataclass(frozen=True)
class Fitted:
    """A generator and figures of its fit for the result."""

    generator: DiffusionGenerator
    figures: dict[str, Any]


@dataclass(frozen=True)
class Source:
    """The transitions of a file, in memory or to be read in blocks."""

    rows: Transitions | TransitionFile
    count: int
    window: int | None  # rows of a stream that are in memory at a time
    not_modelled: list[str]  # arrays of the file that are no part of the transitions

    def digest(self) -> str:
        """Return a digest of rows and spec."""
        blocks = [self.rows] if isinstance(self.rows, Transitions) else self.rows.blocks()
        digest = hashlib.sha256(repr(self.rows.spec.to_json()).encode())
        for block in blocks:
            digest.update(np.ascontiguousarray(block.rows.numpy()).data.cast("B") if len(block) else b"")
        return digest.hexdigest()


def open_source(
    path: str, episode_steps: int | None, window: int | None, config: GeneratorConfig, output: Output
) -> Source:
    """Read all transitions of a file for a generator; one with more rows than a window is opened only."""
    file = open_file(path, episode_steps=episode_steps)
    try:
        config.network(TransitionCodec(file.spec).code_dim)
    except ValueError as error:  # rows that are too long
        raise FileError(f"{file.path}: {error}") from error
    if file.not_modelled:
        output.note(f"{file.path.name}: not modelled: {', '.join(file.not_modelled)}")
    if file.rows > (window or max(1, WINDOW_VALUES // file.spec.dim)):
        return Source(file, _enough(file, file.count()), window, file.not_modelled)
    with output.step(f"reading {file.path.name}", file.rows) as advance:
        parts = []
        for block in file.blocks():
            parts.append(block.rows)
            advance(len(block))
    count = _enough(file, sum(map(len, parts)))
    return Source(Transitions(file.spec, torch.cat(parts)), count, None, file.not_modelled)


def _enough(file: TransitionFile, count: int) -> int:
    if count < DiffusionGenerator.min_rows:
        found = f"{count} transitions in {file.rows} rows"
        raise FileError(f"{file.path}: expected at least {DiffusionGenerator.min_rows} transitions to fit, got {found}")
    return count


def fit_rows(source: Source, config: GeneratorConfig, device: torch.device, seed: int, output: Output) -> Fitted:
    """Fit a new generator."""
    begun = time.monotonic()
    choose_threads(config, device)
    generator = DiffusionGenerator(source.rows.spec, config, device=device, seed=seed)
    report = generator.fit(source.rows, window=source.window, progress=output.is_interactive)
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
