"""``synther upsample``: a data set in, a larger one out."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from synther_replay.cli import options
from synther_replay.cli.fitting import fit_rows, open_source
from synther_replay.cli.generation import Target, generate, manifest_of, origin_of, sized
from synther_replay.cli.output import Output
from synther_replay.cli.sharded import Engine, generate_shards
from synther_replay.cli.work import WorkFolder
from synther_replay.distributed.sharding import ShardPlan
from synther_replay.distributed.worker import ray as check_ray
from synther_replay.errors import CheckpointError
from synther_replay.files.formats import located
from synther_replay.generator import DiffusionGenerator

_SHARDS = 64  # with --engine ray, if nothing else is asked for


def upsample(
    source: Annotated[str, typer.Argument(metavar="IN", help="The real transitions.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The file to write; its suffix chooses the format.")],
    rows: options.RowsOrTimes = None,
    times: Annotated[float | None, typer.Option(help="Rows to generate, in multiples of the real ones.")] = None,
    preset: options.Preset = None,
    device: options.Device = "auto",
    seed: options.Seed = 0,
    changes: options.Changes = None,
    episode_steps: options.EpisodeSteps = None,
    window: options.Window = None,
    shards: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Write a folder of N Parquet files instead of one file.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="Who makes the shards: this process, or a cluster of Ray.")
    ] = Engine.local,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Fit a generator to IN and write generated transitions to OUT.

    A command that was interrupted or killed continues when it is given again; rows so far wait in OUT.partial.

    Examples:
        synther upsample hopper_medium-v2.hdf5 hopper.parquet --rows 5M
        synther upsample D4RL/pen/human-v2 minari:pen/synthetic-v0 --times 10
        synther upsample replay.npz more.npz --rows 1M --preset offline --device cuda
        synther upsample replay.npz more.npz --times 2 --set steps=20000 --json
        synther upsample replay.npz more/ --rows 100M --engine ray --shards 64
    """
    if (rows is None) == (times is None):
        raise typer.BadParameter("expected one of --rows and --times", param_hint="--rows")
    if times is not None and not 0 < times < 1e9:
        raise typer.BadParameter(f"expected a positive number, got {times}", param_hint="--times")
    place = options.device_of(device)
    config = options.config_of(preset, changes, place)
    output = Output(as_json=as_json)
    if engine is Engine.ray:
        shards = shards or _SHARDS
        check_ray()
    given, _ = located(source, exists=True)
    target = Target.of(out, overwrite=overwrite, given=given, in_shards=shards is not None)
    real = open_source(source, episode_steps, window, config, output)
    if rows is None:
        assert times is not None
        rows = max(1, round(times * real.count))
    plan = None if shards is None else ShardPlan(rows, shards, seed)
    manifest = manifest_of(
        data=real.digest(),
        config=config.to_json(),
        window=real.window,
        seed=seed,
        device=place.type,
        rows=rows,
        format=target.format,
        shards=shards,
    )
    work = WorkFolder(target.path, manifest)
    generator, figures = _continued(work, str(place)), None
    if generator is None:
        fitted = fit_rows(real, config, place, seed, output)
        generator, figures = fitted.generator, fitted.figures
        generator.save(work.model)
    real_rows, not_modelled = real.count, real.not_modelled
    del real  # the rows asked for may need the memory
    origin = {**origin_of(generator, source, seed), "real_rows": real_rows}
    if plan is None:
        written = generate(generator, target, rows, seed, origin, work, output)
    else:
        written = generate_shards(generator, target, plan, engine, origin, work, output)
    values: dict[str, Any] = {
        "input": source,
        "real_rows": real_rows,
        "not_modelled": not_modelled,
        "seed": seed,
        "device": str(place),
        "fit": figures,
        **written,
    }
    output.result(
        values,
        f"{target.path}: {rows:,} rows ({sized(written['bytes'])}, {target.format}) from {real_rows:,} real ones; "
        f"fitted in {0.0 if figures is None else figures['seconds']:.1f} s, "
        f"generated in {written['generate_seconds']:.1f} s, written in {written['write_seconds']:.1f} s",
    )


def _continued(work: WorkFolder, device: str) -> DiffusionGenerator | None:
    """Return the generator that an earlier command fitted, if any."""
    if not (work.is_continued and work.model.exists()):
        return None
    try:
        return DiffusionGenerator.load(work.model, device=device)
    except CheckpointError:  # damaged since; the fit is repeated
        return None
