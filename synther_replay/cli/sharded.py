"""Generating rows into a folder of shards, here or by Ray; a killed command continues with those that are missing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from enum import StrEnum
from typing import Any

from synther_replay.cli.generation import Target, size_of
from synther_replay.cli.output import Output
from synther_replay.cli.work import WorkFolder
from synther_replay.distributed.sharding import ShardPlan, file_threads, finished, write_by_ray, write_here
from synther_replay.files import shards
from synther_replay.files.table import SPEC
from synther_replay.generator import DiffusionGenerator


class Engine(StrEnum):
    """Who makes the shards."""

    local = "local"
    ray = "ray"


def generate_shards(
    generator: DiffusionGenerator,
    target: Target,
    plan: ShardPlan,
    engine: Engine,
    origin: Mapping[str, Any],
    work: WorkFolder,
    output: Output,
) -> dict[str, Any]:
    """Generate all shards and move the folder to its place; returns figures for the result.

    Args:
        generator: The generator whose file is `work.model`.
        target: The folder to write.
        plan: How rows are divided.
        engine: Who makes the shards.
        origin: What the files tell of their origin.
        work: Where shards wait until all are there.
        output: Shows the progress.
    """
    begun = time.monotonic()
    work.shards.mkdir(exist_ok=True)
    entries = finished(work.shards, plan)
    resumed = sum(entry["rows"] for entry in entries.values())
    missing = [shard for shard in range(plan.count) if shard not in entries]
    spec, device = generator.spec, generator.device
    about = {**origin, "rows": plan.rows, "shards": plan.count, SPEC: spec.to_json()}
    writer = {"model": str(work.model.resolve()), "folder": str(work.shards.resolve()), "plan": plan, "about": about}
    threads = 1 if device.type == "cpu" else file_threads()  # on a CPU nearly all the time goes into drawing
    if engine is Engine.ray:
        on_gpu = int(device.type == "cuda")
        made = write_by_ray(missing, num_gpus=on_gpu, threads=threads, device=device.type, **writer)
    else:
        made = write_here(missing, threads=threads, device=str(device), **writer)
    with closing(made), output.step("generating", plan.rows, resumed) as advance:  # an interrupt here ends its threads
        for entry in made:
            entries[shards.number_of(entry["file"])] = entry
            advance(entry["rows"])
    generated = time.monotonic()
    # by their sizes: to read all of them again would take as long as to write them
    listed = [entries[shard] for shard in sorted(entries) if shards.is_there(work.shards, entries[shard])]
    if len(listed) < plan.count:
        raise RuntimeError(
            f"{target.path}: {plan.count - len(listed)} shards are missing; run the same command to go on"
        )
    about = {key: value for key, value in about.items() if key != "shards"}
    shards.write_manifest(work.shards, listed, about)
    target.check_free()  # somebody may have written it meanwhile
    work.deliver_shards(target.path)
    work.remove()
    return {
        "output": str(target.path),
        "format": target.format,
        "rows": plan.rows,
        "columns": spec.dim,
        "engine": str(engine),
        "shards": plan.count,
        "resumed_rows": resumed,
        "bytes": size_of(target.path),
        "generate_seconds": round(generated - begun, 3),
        "write_seconds": round(time.monotonic() - generated, 3),
        "rows_per_second": round((plan.rows - resumed) / max(generated - begun, 1e-9)),
    }
