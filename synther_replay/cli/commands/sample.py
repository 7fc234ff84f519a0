"""``synther sample``: a fitted generator in, a data set out."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from synther_replay.cli import options
from synther_replay.cli.generation import Target, generate, manifest_of, origin_of, sized
from synther_replay.cli.output import Output
from synther_replay.cli.work import WorkFolder
from synther_replay.errors import CheckpointError


def sample(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A generator saved by `synther fit`.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The file to write; its suffix chooses the format.")],
    rows: options.Rows,
    device: options.Device = "auto",
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Write transitions of a fitted generator to OUT.

    A command that was interrupted or killed continues when it is given again; rows so far wait in OUT.partial.

    Examples:
        synther sample hopper.safetensors hopper.hdf5 --rows 5M
        synther sample hopper.safetensors more.parquet --rows 100K --seed 1
    """
    place = options.device_of(device)
    output = Output(as_json=as_json)
    target = Target.of(out, overwrite=overwrite, given=model)
    generator = options.generator_of(model, place)
    if not generator.is_fitted or generator.stack != 1:
        raise CheckpointError(f"{model}: expected one fitted generator, got {generator.stack}")
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    manifest = manifest_of(model=digest, seed=seed, device=place.type, rows=rows, format=target.format)
    work = WorkFolder(target.path, manifest)
    written = generate(generator, target, rows, seed, origin_of(generator, str(model), seed), work, output)
    output.result(
        {"model": str(model), "seed": seed, "device": str(place), **written},
        f"{target.path}: {rows:,} rows ({sized(written['bytes'])}, {target.format}), generated in "
        f"{written['generate_seconds']:.1f} s, written in {written['write_seconds']:.1f} s",
    )
