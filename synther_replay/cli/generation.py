"""Generating rows into a file: in blocks, each with a seed of its own, so that a killed command can continue."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import synther_replay
from synther_replay.cli.output import Output
from synther_replay.cli.threads import choose_threads
from synther_replay.cli.work import WorkFolder
from synther_replay.common.seeding import Stream, derive_seed
from synther_replay.config import GeneratorConfig
from synther_replay.files import minari, shards
from synther_replay.files.formats import located
from synther_replay.files.spool import Spool
from synther_replay.files.table import SPEC
from synther_replay.files.writing import write_blocks
from synther_replay.generator import DiffusionGenerator


@dataclass(frozen=True)
class Target:
    """A file to write, which was checked before anything expensive.

    Attributes:
        path: The file or folder.
        format: Name of its format.
        overwrite: Whether it may replace another.
    """

    path: Path
    format: str
    overwrite: bool

    @classmethod
    def of(cls, out: str, *, overwrite: bool, given: Path | None = None, in_shards: bool = False) -> Target:
        """Check that the output can be written.

        Args:
            out: The output, as given.
            overwrite: Whether it may replace another.
            given: The input, which it must not be.
            in_shards: Whether it is a folder of Parquet files, whatever its name.

        Raises:
            ValueError: The format is unknown, or the output is the input.
            OSError: The output exists, or its folder does not exist or cannot be written.
            ImportError: A library of the format is missing.
        """
        path, chosen = (Path(out), shards) if in_shards else located(out, exists=False)
        chosen.check_installed()
        if out.startswith("minari:"):
            path.parent.mkdir(parents=True, exist_ok=True)
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path}: folder {path.parent} does not exist")
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(f"{path}: folder {path.parent} is not writable")
        if given is not None:
            check_is_other(path, given)
            if in_shards and path.resolve() in given.resolve().parents:
                raise ValueError(f"{path}: holds the input; write to another folder")
        if in_shards and path.is_file():
            raise FileExistsError(f"{path}: is a file; shards need a folder")
        is_ours = minari.is_folder(path) if chosen is minari else chosen is shards and shards.is_whole(path)
        if path.is_dir() and any(path.iterdir()) and not is_ours:
            raise FileExistsError(f"{path}: is a folder of other files and not replaced")
        target = cls(path, chosen.NAME, overwrite)
        target.check_free()
        return target

    def check_free(self) -> None:
        """Raise `FileExistsError` if there is a file that must not be replaced."""
        if self.path.exists() and not self.overwrite:
            raise FileExistsError(f"{self.path}: exists; --overwrite replaces it")


def check_is_other(path: Path, given: Path) -> None:
    """Raise ValueError if an output is the input, or lies in its folder and would be read as a part of it."""
    real, own = path.resolve(), given.resolve()
    if real == own or own in real.parents:
        raise ValueError(f"{path}: is the input, or a part of it; write to another file")


def generate(
    generator: DiffusionGenerator,
    target: Target,
    rows: int,
    seed: int,
    origin: Mapping[str, Any],
    work: WorkFolder,
    output: Output,
) -> dict[str, Any]:
    """Generate rows and write them; returns figures for the result.

    Args:
        generator: A fitted generator.
        target: What to write.
        rows: Number of rows.
        seed: Seed of the rows.
        origin: What the file tells of its origin.
        work: Where rows wait until all are there.
        output: Shows the progress.
    """
    begun = time.monotonic()
    choose_threads(generator.config, generator.device)
    spool = Spool(work.rows, generator.spec, rows)
    resumed = spool.rows
    with output.step("generating", rows, resumed) as advance:
        while spool.next_size:
            size = spool.next_size
            spool.append(generator.sample(size, seed=derive_seed(seed, Stream.BLOCKS, spool.number)))
            advance(size)
    generated = time.monotonic()
    target.check_free()  # somebody may have written it meanwhile
    with output.step(f"writing {target.path.name}"):
        write_blocks(target.path, rows, spool.blocks, {**origin, "rows": rows, SPEC: generator.spec.to_json()})
    work.remove()
    return {
        "output": str(target.path),
        "format": target.format,
        "rows": rows,
        "columns": generator.spec.dim,
        "resumed_rows": resumed,
        "bytes": size_of(target.path),
        "generate_seconds": round(generated - begun, 3),
        "write_seconds": round(time.monotonic() - generated, 3),
        "rows_per_second": round((rows - resumed) / max(generated - begun, 1e-9)),
    }


def origin_of(generator: DiffusionGenerator, source: str, seed: int) -> dict[str, Any]:
    """Return what a file tells of its origin; the same in every run, because the same seed gives the same bytes."""
    return {
        "made_by": f"synther_replay {synther_replay.__version__}",
        "source": Path(source).name or source,
        "seed": seed,
        "settings": _changes(generator.config),
    }


def _changes(config: GeneratorConfig) -> dict[str, Any]:
    """Return the settings that differ from those of the preset `fast`."""
    usual = GeneratorConfig().to_json()
    return {name: value for name, value in config.to_json().items() if value != usual[name]}


def manifest_of(**given: Any) -> dict[str, Any]:
    """Return what rows depend on, with the versions that may change them."""
    return {**given, "version": synther_replay.__version__, "torch": str(torch.__version__)}


def size_of(path: Path) -> int:
    """Return the bytes of a file or folder."""
    files = [path] if path.is_file() else [inner for inner in path.rglob("*") if inner.is_file()]
    return sum(file.stat().st_size for file in files)


def sized(count: float) -> str:
    """Return bytes for people.

    >>> sized(999), sized(16_800_000)
    ('999 B', '16.8 MB')
    """
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1_000 or unit == "GB":
            break
        count /= 1_000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
