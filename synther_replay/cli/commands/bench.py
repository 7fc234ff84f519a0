"""``synther bench``: what this machine does, and what to choose."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
import typer
from gymnasium import spaces
from rich.table import Table

from synther_replay.cli import options
from synther_replay.cli.output import Output
from synther_replay.cli.threads import choose_threads
from synther_replay.config import GeneratorConfig
from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.generator import DiffusionGenerator

_PRESETS = {"cpu": ("tiny", "fast"), "cuda": ("fast", "offline")}  # from small to large
_REAL_ROWS = 20_000
_LONG = 60.0  # seconds of a first fit that most people wait for


def bench(
    preset: Annotated[
        list[str] | None,
        typer.Option(help="Preset to measure; may be repeated.", show_default="by device"),
    ] = None,
    observations: Annotated[int, typer.Option(min=1, help="Values of an observation.")] = 17,
    actions: Annotated[int, typer.Option(min=1, help="Values of an action.")] = 6,
    steps: Annotated[int, typer.Option(min=1, help="Training steps to measure.")] = 25,
    rows: Annotated[
        int, typer.Option(parser=options.count, metavar="N", help="Rows to generate and measure.")
    ] = 16_384,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Measure rows per second and seconds per fit of each preset on this machine, and recommend one.

    Short fits are measured after one to warm up, and extrapolated to the steps of the preset; early stopping makes
    them shorter.

    Examples:
        synther bench
        synther bench --observations 60 --actions 9 --preset fast --json
    """
    place = options.device_of(device)
    output = Output(as_json=as_json, always=True)
    real = _random_rows(observations, actions)
    measured = {}
    for name in preset or _PRESETS.get(place.type, _PRESETS["cuda"]):
        config = options.config_of(name, None, place)
        with output.step(f"measuring {name}"):
            measured[name] = _measure(real, config, place, steps, rows)
    advice = _advice(measured)
    values = {"device": str(place), "machine": _machine(place), "columns": real.spec.dim, "presets": measured}
    table = Table("preset", "parameters", "ms per step", "first fit", "refit", "rows per second", title=_machine(place))
    for name, figures in measured.items():
        seconds = (f"{figures[key]:,.0f} s" for key in ("fit_seconds", "refit_seconds"))
        speed = f"{figures['rows_per_second']:,}"
        table.add_row(name, f"{figures['parameters']:,}", f"{figures['step_ms']:.1f}", *seconds, speed)
    table.caption = advice
    output.result({**values, "advice": advice}, table)


def _random_rows(observations: int, actions: int) -> Transitions:
    """Rows of a linear system: cheap, and as long as real ones."""
    spec = TransitionSpec.from_spaces(spaces.Box(-np.inf, np.inf, (observations,)), spaces.Box(-1, 1, (actions,)))
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(_REAL_ROWS, spec.dim, generator=rng, dtype=torch.float32, device="cpu")
    rows[:, spec.actions] = rows[:, spec.actions].tanh()
    rows[:, spec.next_observations] = rows[:, spec.observations] + 0.1 * rows[:, spec.next_observations]
    rows[:, spec.terminated] = 0.0
    return Transitions(spec, rows)


def _measure(real: Transitions, config: GeneratorConfig, device: torch.device, steps: int, rows: int) -> dict[str, Any]:
    choose_threads(config, device)
    generator = DiffusionGenerator(real.spec, config, device=device, seed=0)
    generator.fit(real, steps=steps, from_scratch=True, progress=False)
    few, many = (
        _timed(device, partial(generator.fit, real, steps=count, from_scratch=True, progress=False))
        for count in (steps, 3 * steps)
    )
    generator.sample(min(rows, config.chunk))
    sample_seconds = _timed(device, partial(generator.sample, rows))
    # The rest is done once per fit: encoding, held-out evaluations, calibration.
    per_step = max(many - few, 0.01 * many) / (2 * steps)
    rest = max(0.0, few - per_step * steps)
    refit_steps = config.refit_steps if config.warm_start else config.steps
    return {
        "parameters": generator.parameters,
        "step_ms": round(1e3 * per_step, 3),
        "fit_seconds": round(rest + per_step * config.steps, 1),
        "refit_seconds": round(rest + per_step * refit_steps, 1),
        "rows_per_second": round(rows / sample_seconds),
    }


def _timed(device: torch.device, work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return max(time.monotonic() - begun, 1e-9)


def _advice(measured: dict[str, dict[str, Any]]) -> str:
    """Recommend the largest preset whose first fit takes about a minute at most; presets go from small to large."""
    short = [name for name, figures in measured.items() if figures["fit_seconds"] <= _LONG]
    chosen = short[-1] if short else next(iter(measured))
    figures = measured[chosen]
    million = 1e6 / figures["rows_per_second"]
    return f"--preset {chosen}: fits in about {figures['fit_seconds']:,.0f} s, then 1M rows in {million:,.0f} s"


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {os.cpu_count()} cores"
