"""Tables of the documents about speed, by name, from the published results; what was not measured is left out."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synther_replay.benchmarks.common.formatting import markdown_table

Measured = dict[str, dict[str, Any]]
RUN = "published run, 100,000 steps"
ONLINE = "HalfCheetah-v5/synther-fast-seeds-100.json"
"""A run of eight seeds that had the GPU for itself."""
_STEP, _GENERATION = "training step, M = 1, batch 256", "generation, paper"
_FITS, _ROWS = "10 fits of 100,000 steps, hours", "10 times generating 1M rows, hours"
_ADAPTERS = {"Stable-Baselines3": "Stable-Baselines3", "TorchRL": "TorchRL", "CORL": "CORL"}


def tables(results: Path) -> dict[str, str]:
    """The tables of the documents by name.

    Args:
        results: Folder of the published results.
    """
    folder = results / "speed"
    gpu, earlier, cpu = (_measured(folder / f"throughput-{name}.json") for name in ("h200", "h200-earlier", "cpu"))
    online = json.loads((results / "online" / "main" / ONLINE).read_text())
    return {
        "readme-speed": sentences(gpu, earlier, online),
        "speed-core": core_table(gpu, earlier),
        "speed-cpu": cpu_table(cpu),
        "speed-adapters": adapters_table({"CPU": cpu, "H200": {**earlier, **gpu}}),
        "speed-published-run": published_run_table(gpu, earlier),
        "speed-online": _online(online),
        "speed-sb3": sb3_table(_measured(folder / "sb3-updates-h200.json")),
        "speed-offline": _offline(folder / "offline-alone.json", results / "offline" / "main"),
    }


def report(content: dict[str, Any]) -> str:
    """All tables of one file of throughput.py."""
    measured, where = content["results"], content["machine"]["accelerator"] or "CPU"
    core = core_table(measured, {}, where) if _GENERATION in measured else cpu_table(measured, where)
    parts = (core, adapters_table({where: measured}), published_run_table(measured, {}))
    return "\n\n".join(part for part in parts if part)


def core_table(gpu: Measured, earlier: Measured, where: str = "one H200") -> str:
    """Training, generation, buffer and metrics on a GPU, beside the published code.

    Args:
        gpu: The run to show.
        earlier: Another one, in which the published code was timed, too; may be empty.
        where: Name of the machine.
    """
    refit, buffer = gpu["refit, fast, warm"], gpu["buffer, batch 256, r = 0.5"]
    rows: list[list[Any]] = []
    for run, note in ((gpu, ""), (earlier, ", earlier run")):
        if run:
            step, generation = run[_STEP], run[_GENERATION]
            what = f"training step, batch 256, {step['parameters'] / 1e6:.1f}M parameters{note}"
            rows.append([what, _ms(step, "published_ms"), _ms(step, "ms"), _times(step)])
            what = f"1M rows with `paper()`{note}"
            rows.append([what, _s(generation, "published_s"), _s(generation, "s"), _times(generation)])
    rows += [
        ["training step of eight models at once", None, _ms(gpu["training step, M = 8, batch 256"], "ms"), None],
        ["1M rows with `fast()`", None, _s(gpu["generation, fast"], "s"), None],
        [f"warm refit of `fast()` and its {refit['rows']:,} rows", None, _s(refit, "s"), None],
        ["`buffer.sample(256)`, half synthetic", None, f"{buffer['sample_us']:.0f} us", None],
        ["the same rows by one gather", None, f"{buffer['one_gather_us']:.0f} us", None],
        ["`fidelity` of 1M against 1M rows", None, _s(gpu["fidelity"], "s"), None],
        ["first fit of a process, compilation included", None, _s(gpu["first use"], "fit_s"), None],
    ]
    return markdown_table((where, "published code", "here", "ratio"), rows)


def cpu_table(cpu: Measured, where: str = "two CPU cores") -> str:
    """The same on a CPU, with the preset for it."""
    refit, buffer = cpu["refit, tiny, warm"], cpu["buffer, batch 256, r = 0.5"]
    rows = [
        ["training step of `tiny()`, batch 256", _ms(cpu[_STEP], "ms")],
        [f"warm refit of `tiny()` and its {refit['rows']:,} rows", _s(refit, "s")],
        ["`buffer.sample(256)`, half synthetic", f"{buffer['sample_us']:.0f} us"],
        ["`buffer.add`", f"{buffer['add_us']:.0f} us"],
        ["`fidelity` of 1M against 1M rows", _s(cpu["fidelity"], "s")],
    ]
    return markdown_table((where, "here"), rows)


def adapters_table(machines: dict[str, Measured]) -> str:
    """Time of an adapter over that of the framework's own buffer."""
    parts = {"add": "`add`", "sample": "`sample`", "add and sample": "both in turn"}
    head = [f"{title}, {machine}" for machine in machines for title in parts.values()]
    rows = []
    for name, title in _ADAPTERS.items():
        entries = [measured.get(f"adapter, {name}", {}) for measured in machines.values()]
        cells = [entry.get(f"{part}_ratio") for entry in entries for part in parts]
        rows.append([title, *(None if cell is None else f"{cell:.2f}x" for cell in cells)])
    return markdown_table(("adapter", *head), rows)


def published_run_table(gpu: Measured, earlier: Measured) -> str:
    """One seed of the published online experiment in its parts; empty where that was not measured."""
    if RUN not in gpu:
        return ""
    run = gpu[RUN]
    parts = [key.removesuffix(", hours") for key in run if key.endswith(", hours")]
    rows: list[list[Any]] = [[part, f"{run[f'{part}, hours']:.2f}", f"{run[f'{part}, share']:.0%}"] for part in parts]
    rows.append(["**total**", f"**{run['hours']:.2f}**", "100%"])
    if earlier:
        rows.append(["total, fits and generation as in the earlier run", f"{_hours(gpu, earlier):.2f}", None])
    return markdown_table(("one seed of the published agent, one H200", "hours", "share"), rows)


def _hours(gpu: Measured, earlier: Measured) -> float:
    """Of the published run, with the generator's parts of another measurement."""
    hours = sum(value for key, value in gpu[RUN].items() if key.endswith(", hours") and key not in (_FITS, _ROWS))
    fits = 10 * 100_000 * earlier[_STEP]["published_ms"] / 1e3
    return float(hours + (fits + 10 * earlier[_GENERATION]["published_s"]) / 3600)


def sb3_table(measured: Measured) -> str:
    """Updates per second in Stable-Baselines3."""
    rows = [
        [name, f"{entry['updates_per_second']:,.0f}", f"{entry['ms_per_call']:.1f}"] for name, entry in measured.items()
    ]
    return markdown_table(("20 updates per call, batch 256, one H200", "updates per second", "ms per call"), rows)


def sentences(gpu: Measured, earlier: Measured, online: dict[str, Any]) -> str:
    """What the README says."""
    runs = [run for run in (gpu, earlier) if run]
    step, generation = (_span([run[key]["ratio"] for run in runs]) for key in (_STEP, _GENERATION))
    seeds, seconds = len(online["seeds"]), online["wall_seconds"]["total"]
    text = (
        f"On one H200 a training step is {step} times and generation {generation} times as fast as in the published "
        f"code. {seeds} seeds of {online['steps']:,} steps on {online['env']} take {seconds:.0f} s together"
    )
    if RUN not in gpu:
        return f"{text}."
    hours = [gpu[RUN]["hours"], *([_hours(gpu, earlier)] if earlier else [])]
    times = min(hours) * 3600 / (seconds / seeds)
    return (
        f"{text}; one seed of the published agent takes {_span(hours, 1)} hours, counted up from timings of its parts. "
        f"Per seed that is at least {math.floor(times / 100) * 100:,} times as long."
    )


def _span(values: Sequence[float], digits: int = 0) -> str:
    texts = dict.fromkeys(f"{value:.{digits}f}" for value in sorted(values))
    return " to ".join(texts)


def _online(content: dict[str, Any]) -> str:
    wall = content["wall_seconds"]
    titles = {
        "learner": "updates of the agents",
        "env": "environment steps",
        "fit": f"{len(content['fits'])} fits",
        "generate": "generation",
        "evaluate": "evaluation",
        "start": "start",
    }
    rows = [
        [title, f"{wall[part]:.0f}", f"{wall[part] / wall['total']:.0%}"]
        for part, title in titles.items()
        if part in wall
    ]
    rows.append(["**total**", f"**{wall['total']:.0f}**", "100%"])
    head = f"{len(content['seeds'])} seeds, {content['steps']:,} steps, {content['env']}, one H200"
    return markdown_table((head, "seconds", "share"), rows)


def _offline(alone: Path, main: Path) -> str:
    rows: list[list[Any]] = []
    for algo, name in (("TD3+BC", "td3bc"), ("IQL", "iql")):
        path = main / "walker2d-medium-regen" / f"{name}-real.json"
        if path.is_file():
            content = json.loads(path.read_text())
            wall = content["wall_seconds"]
            what = f"{algo}, {len(content['seeds'])} seeds, {content['steps']:,} updates, real rows of walker2d medium"
            rows.append([what, f"{wall['total'] - wall['data']:.0f}"])
    content = json.loads(alone.read_text())
    rows.append([f"fit of `paper()`, {content['fit_steps']:,} steps", f"{content['fit_seconds']:.0f}"])
    rows.append([f"{content['synthetic_rows']:,} rows of `paper()`", f"{content['generate_seconds']:.0f}"])
    return markdown_table(("alone on one H200", "seconds"), rows)


def _measured(path: Path) -> Measured:
    return json.loads(path.read_text())["results"] if path.is_file() else {}


def _ms(entry: dict[str, Any], key: str) -> str | None:
    return f"{entry[key]:.3g} ms" if key in entry else None


def _s(entry: dict[str, Any], key: str) -> str | None:
    return f"{entry[key]:.2g} s" if key in entry else None


def _times(entry: dict[str, Any]) -> str | None:
    return f"{entry['ratio']:.3g}x" if "ratio" in entry else None
