"""``synther fit``: a data set in, a fitted generator out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from synther_replay.cli import options
from synther_replay.cli.fitting import fit_rows, open_source
from synther_replay.cli.generation import check_is_other
from synther_replay.cli.output import Output
from synther_replay.files.formats import located


def fit(
    source: Annotated[str, typer.Argument(metavar="IN", help="The real transitions.")],
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The file of the fitted generator.")],
    preset: options.Preset = None,
    device: options.Device = "auto",
    seed: options.Seed = 0,
    changes: options.Changes = None,
    episode_steps: options.EpisodeSteps = None,
    window: options.Window = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Fit a generator to IN and save it to MODEL, for `synther sample` and `DiffusionGenerator.load`.

    Examples:
        synther fit hopper_medium-v2.hdf5 hopper.safetensors
        synther fit replay.npz replay.safetensors --preset offline --set steps=50000
    """
    place = options.device_of(device)
    config = options.config_of(preset, changes, place)
    output = Output(as_json=as_json)
    if model.exists() and not overwrite:
        raise FileExistsError(f"{model}: exists; --overwrite replaces it")
    if not model.parent.is_dir():
        raise FileNotFoundError(f"{model}: folder {model.parent} does not exist")
    if not os.access(model.parent, os.W_OK):
        raise PermissionError(f"{model}: folder {model.parent} is not writable")
    if model.is_dir():
        raise IsADirectoryError(f"{model}: is a folder and not replaced")
    check_is_other(model, located(source, exists=True)[0])
    real = open_source(source, episode_steps, window, config, output)
    fitted = fit_rows(real, config, place, seed, output)
    fitted.generator.save(model)
    figures = fitted.figures
    values = {"input": source, "model": str(model), "real_rows": real.count, "not_modelled": real.not_modelled}
    output.result(
        {**values, "seed": seed, "device": str(place), **figures},
        f"{model}: {figures['parameters']:,} parameters, fitted to {real.count:,} rows in {figures['steps']:,} steps "
        f"and {figures['seconds']:.1f} s (loss {figures['loss']:.4f})",
    )
