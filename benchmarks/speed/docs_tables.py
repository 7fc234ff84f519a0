"""Generated tables of README and of the pages on speed, scale and the command line, by name, from published results.

Measurements that a result file lacks are left out.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.online.results import read_run
from synther_replay.benchmarks.online.tables import returns_cell
from synther_replay.benchmarks.speed import by_hand, scaling, streaming

Measured = dict[str, dict[str, Any]]
ONLINE = "HalfCheetah-v5/synther-fast-seeds-100.json"
"""Online run of eight seeds that used the GPU alone."""
_STEP, _GENERATION, _AGENT = "training step, M = 1, batch 256", "generation, paper", "published agent"
_FRAMEWORKS = ("Stable-Baselines3", "TorchRL", "CORL")


def tables(results: Path) -> dict[str, str]:
    """Tables and sentences by name.

    Args:
        results: Folder of the published results.
    """
    folder = results / "speed"
    gpu, cpu = _measured(folder / "throughput-h200.json"), _measured(folder / "throughput-cpu.json")
    online = json.loads((results / "online" / "main" / ONLINE).read_text())
    return {
        "readme-speed": sentences(gpu, online),
        "speed-core": core_table(gpu),
        "speed-first-use": _first_use(_measured(folder / "first-use-h200.json")),
        "speed-cpu": cpu_table(cpu, large_refit=_measured(folder / "large-refit-cpu.json")),
        "scale-background": background_table(_measured(folder / "background-cpu.json")),
        "scale-background-gpu": background_table(
            _measured(folder / "background-h200.json"), "SAC on HalfCheetah-v5, one H200"
        ),
        "scale-background-online": background_runs_table(results / "online"),
        "scale-streaming": streaming.table(json.loads((folder / "streaming-cpu.json").read_text())),
        "scale-ray": ray_tables(json.loads((folder / "ray-cpu.json").read_text())),
        "scale-cost": scaling.cost_table(folder),
        "scale-shards": scaling.shards_table(folder),
        "scale-plan": scaling.plan_table(folder),
        "speed-adapters": adapters_table({name: _of_adapters(folder, name.lower()) for name in ("CPU", "H200")}),
        "speed-published-run": published_run_table(gpu),
        "speed-online": _online(online),
        "speed-sb3": sb3_table(_measured(folder / "sb3-updates-h200.json")),
        "command-line-by-hand": by_hand.table(json.loads((folder / "by-hand-cpu.json").read_text())),
        "command-line-upsampling": upsampling_table(json.loads((folder / "upsampling-h200.json").read_text())),
        "speed-offline": _offline(folder / "offline-alone.json", results / "offline" / "main"),
    }


def report(content: dict[str, Any]) -> str:
    """All tables of one result file of throughput.py."""
    measured, machine = content["results"], content["machine"]["accelerator"] or "CPU"
    core = core_table(measured, machine) if _GENERATION in measured else cpu_table(measured, machine)
    parts = (core, adapters_table({machine: measured}), published_run_table(measured, machine))
    return "\n\n".join(part for part in parts if part)


def core_table(gpu: Measured, machine: str = "one H200") -> str:
    """Training, generation, buffer and metrics on a GPU, compared with the published code.

    Args:
        gpu: Measurements to show.
        machine: Name of the machine.
    """
    step, generation, buffer = gpu[_STEP], gpu[_GENERATION], gpu["buffer, batch 256, r = 0.5"]
    fast, refit, conditions = gpu["generation, fast"], gpu["refit, fast, warm"], gpu["conditions, fast"]
    training = f"training step, batch 256, {step['parameters'] / 1e6:.1f}M parameters"
    rows = [
        [training, _ms(step, "published_ms"), _ms(step, "ms"), _times(step)],
        ["1M rows with `paper()`", _s(generation, "published_s"), _s(generation, "s"), _times(generation)],
        ["training step of eight models at once", None, _ms(gpu["training step, M = 8, batch 256"], "ms"), None],
        ["1M rows with `fast()`", None, _s(fast, "s"), None],
        ["the same at a condition", None, _s(conditions, "conditioned_sample_s"), None],
        ["the same at a condition, guidance 2", None, _s(conditions, "guided_sample_s"), None],
        ["training step of `fast()`", None, _ms(conditions, "plain_step_ms"), None],
        ["the same with a condition", None, _ms(conditions, "conditioned_step_ms"), None],
        ["the same with weights", None, _ms(conditions, "weighted_step_ms"), None],
        [f"warm refit of `fast()` and its {refit['rows']:,} rows", None, _s(refit, "s"), None],
        ["`buffer.sample(256)`, half synthetic", None, f"{buffer['sample_us']:.0f} us", None],
        ["one gather of the same number of rows", None, f"{buffer['one_gather_us']:.0f} us", None],
        ["`fidelity` of 1M against 1M rows", None, _s(gpu["fidelity"], "s"), None],
    ]
    return markdown_table((machine, "published code", "here", "ratio"), rows)


def _first_use(measured: Measured) -> str:
    """First fit and sample in a process, and those with other sizes."""
    titles = {
        "first": "first in a process",
        "other observations": "then with another number of observations",
        "other network": "then with another width of the network",
        "long observations": "then with 348 observations",
    }
    rows = [
        [title, *(_s(found, f"{name}, {part}") for found in measured.values() for part in ("fit", "sample"))]
        for name, title in titles.items()
    ]
    return markdown_table(("one H200", *(f"{part}, {state}" for state in measured for part in ("fit", "sample"))), rows)


def cpu_table(cpu: Measured, machine: str = "two CPU cores", *, large_refit: dict[str, Any] | None = None) -> str:
    """Training, buffer and metrics on a CPU, with preset `tiny()`, and results of large_refit.py."""
    refit, buffer = cpu["refit, tiny, warm"], cpu["buffer, batch 256, r = 0.5"]
    large = large_refit and [
        f"warm fit of `tiny()` to {large_refit['rows']:,} real rows; memory beyond theirs",
        f"{statistics.median(large_refit['refit_seconds']):.2g} s; {large_refit['memory_of_matrix']:.2g} times theirs",
    ]
    rows = [
        ["training step of `tiny()`, batch 256", _ms(cpu[_STEP], "ms")],
        [f"warm refit of `tiny()` and its {refit['rows']:,} rows", _s(refit, "s")],
        *([large] if large else []),
        ["`buffer.sample(256)`, half synthetic", f"{buffer['sample_us']:.0f} us"],
        ["`buffer.add`", f"{buffer['add_us']:.0f} us"],
        ["`fidelity` of 1M against 1M rows", _s(cpu["fidelity"], "s")],
    ]
    return markdown_table((machine, "here"), rows)


def background_table(modes: Measured, machine: str = "SAC on Humanoid-v5, two CPU cores") -> str:
    """What a refit costs the learner of Stable-Baselines3, by `refit`."""
    if not modes:
        return ""
    titles = {
        "refit_seconds": "time of the refit",
        "pause_seconds": "learner stands still for it",
        "later_pause": "learner stands still for a later refit",
        "longest_step": "longest step of `learn`",
        "longest_step_before_refit": "longest step before the refit",
        "median_step": "median step without a refit",
        "median_step_during_refit": "median step during the refit",
    }
    later = [
        statistics.median(found["later_pauses"]) if found.get("later_pauses") else None for found in modes.values()
    ]
    columns = [{**found, "later_pause": pause} for found, pause in zip(modes.values(), later, strict=True)]
    cells = {title: [found.get(name) for found in columns] for name, title in titles.items()}
    rows = [
        [title, *(None if value is None else f"{value:.3g} s" for value in own)]
        for title, own in cells.items()
        if any(own)
    ]
    return markdown_table((machine, *(f'`refit="{mode}"`' for mode in modes)), rows)


def background_runs_table(online: Path) -> str:
    """Waits, time and return of online runs with refits in the background, after an inline run with the same seeds.

    Args:
        online: Folder of the published results of the online benchmark.
    """
    titles = {
        f"main/{ONLINE}": "inline, version 0.2",
        "background/HalfCheetah-v5/lag-250.json": "background, `lag=250`",
        "background/HalfCheetah-v5/lag-1250.json": "background, `lag=1250` (the default)",
    }
    rows = []
    for name, title in titles.items():
        content, run = json.loads((online / name).read_text()), read_run(online / name)
        wall = run.wall_seconds
        pauses = [fit["pause_seconds"] for fit in content["fits"] if "pause_seconds" in fit]
        shown = (pauses[0], statistics.median(pauses[1:]), max(pauses[1:])) if pauses else ()
        cells = [f"{pause:.2g} s" for pause in shown] or [None] * 3
        waits = f"{(wall['fit'] + wall['generate']) / wall['total']:.1%}"
        rows.append([title, *cells, waits, f"{wall['total'] - wall['start']:.0f} s", returns_cell(run.at(run.budget))])
    head = (
        "first wait",
        "median of the others",
        "longest of the others",
        "waiting, share of the run",
        "run after its start",
    )
    return markdown_table(("refits", *head, "return"), rows)


def ray_tables(content: dict[str, Any]) -> str:
    """Seconds of a refit in this process and by an actor of Ray, and of learners that share an actor.

    Args:
        content: A result file of by_ray.py.
    """
    compared = content["overhead"]
    titles = {"fit": "fit", "sample": f"{compared['rows']:,} rows of {compared['columns']} columns"}
    seconds = {
        part: [", ".join(f"{one[part]:.2f}" for one in compared["seconds"][way]) for way in ("in_process", "ray")]
        for part in titles
    }
    rows = [[title, *seconds[part], f"{compared['overhead_seconds'][part]:.2f}"] for part, title in titles.items()]
    overhead = markdown_table(("seconds of", "in this process", "by Ray", "median of the differences"), rows)
    shared = [
        [one["learners"], ", ".join(f"{value:.2f}" for value in one["seconds"]), f"{one['times_one']:.1f}"]
        for one in content["shared"]
    ]
    head = ("learners that share an actor", "seconds until all have their rows", "median, times that of one")
    return f"{overhead}\n\n{markdown_table(head, shared)}"


def upsampling_table(content: dict[str, Any]) -> str:
    """Seconds of the first command on a machine, which compiles kernels, and of the next one.

    Args:
        content: A result file of upsampling.py with two runs of the same number of rows.
    """
    runs = content["runs"]
    parts = {
        "the whole command": [run["wall_seconds"] for run in runs],
        "fit": [run["fit"]["seconds"] for run in runs],
        "generation": [run["generate_seconds"] for run in runs],
        "writing": [run["write_seconds"] for run in runs],
    }
    head = f"{runs[0]['rows']:,} rows of {runs[0]['columns']} columns, one H200"
    rows = [[title, *(f"{value:.1f} s" for value in seconds)] for title, seconds in parts.items()]
    return markdown_table((head, "first use", "after that"), rows)


def adapters_table(machines: dict[str, Measured]) -> str:
    """Time of each adapter divided by that of the framework's own buffer.

    Args:
        machines: Measurements by name of the machine.
    """
    parts = {"add": "`add`", "sample": "`sample`", "add and sample": "both in turn"}
    head = [f"{title}, {machine}" for machine in machines for title in parts.values()]
    rows = []
    for name in _FRAMEWORKS:
        entries = [measured.get(f"adapter, {name}", {}) for measured in machines.values()]
        cells = [entry.get(f"{part}_ratio") for entry in entries for part in parts]
        rows.append([name, *(None if cell is None else f"{cell:.2f}x" for cell in cells)])
    return markdown_table(("adapter", *head), rows)


def published_run(gpu: Measured) -> list[tuple[str, float, str]]:
    """Name, hours and timing of each part of one seed of the published online experiment.

    Returns:
        The parts; empty if one was not measured.
    """
    if _AGENT not in gpu or "published_s" not in gpu.get(_GENERATION, {}):
        return []
    agent = gpu[_AGENT]
    insertion = re.sub(r"\d+", lambda digits: f"{int(digits[0]):,}", agent["insert_note"])
    fit_step = gpu[_STEP]["published_ms"] / 1e3
    seconds = {
        "10 fits of 100,000 steps": (10 * 100_000 * fit_step, "1,000,000 times one training step"),
        "10 times generating 1M rows": (10 * gpu[_GENERATION]["published_s"], "ten times the time of 100,000 rows"),
        "10 times inserting 1M rows": (10 * agent["insert_1m_rows_s"], insertion),
        "95,000 steps of learning": (95_000 * agent["train_s"], "95,000 times one call of `train`"),
        "100,000 environment steps": (100_000 * agent["environment_step_s"], "100,000 times one step"),
    }
    return [(name, value / 3600, timing) for name, (value, timing) in seconds.items()]


def published_run_table(gpu: Measured, machine: str = "one H200") -> str:
    """Parts of the published run and their sum; empty if a part was not measured. See `published_run`."""
    parts = published_run(gpu)
    if not parts:
        return ""
    total = sum(hours for _, hours, _ in parts)
    rows = [[name, f"{hours:.2f}", f"{hours / total:.0%}", timing] for name, hours, timing in parts]
    rows.append(["**total**", f"**{total:.2f}**", "100%", "sum of the parts"])
    return markdown_table((f"one seed of the published agent, {machine}", "hours", "share", "timed as"), rows)


def sb3_table(measured: Measured) -> str:
    """Updates per second in Stable-Baselines3."""
    rows = [
        [name, f"{entry['updates_per_second']:,.0f}", f"{entry['ms_per_call']:.1f}"] for name, entry in measured.items()
    ]
    return markdown_table(("20 updates per call, batch 256, one H200", "updates per second", "ms per call"), rows)


def sentences(gpu: Measured, online: dict[str, Any]) -> str:
    """Summary for the README.

    Args:
        gpu: Measurements of the ratios and of the published agent.
        online: Content of an online result file.
    """
    seeds, wall = len(online["seeds"]), online["wall_seconds"]["total"]
    text = (
        f"On one H200 a training step is {gpu[_STEP]['ratio']:.0f} times and generation "
        f"{gpu[_GENERATION]['ratio']:.0f} times as fast as in the published code. "
        f"{seeds} seeds of {online['steps']:,} steps on {online['env']} take {wall:.0f} s together"
    )
    parts = published_run(gpu)
    if not parts:
        return f"{text}."
    hours = sum(hours for _, hours, _ in parts)
    return f"{text}; one seed of the published agent takes about {hours:.1f} hours, the sum of its parts timed there."


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
    """Seconds of offline training, and of fit and generation with preset `paper()`."""
    rows: list[list[Any]] = []
    for algo, name in (("TD3+BC", "td3bc"), ("IQL", "iql")):
        path = main / "walker2d-medium-regen" / f"{name}-real.json"
        if path.is_file():
            content = json.loads(path.read_text())
            wall, seeds = content["wall_seconds"], len(content["seeds"])
            title = f"{algo}, {seeds} seeds, {content['steps']:,} updates, real rows of walker2d medium"
            rows.append([title, f"{wall['total'] - wall['data']:.0f}"])
    content = json.loads(alone.read_text())
    rows.append([f"fit of `paper()`, {content['fit_steps']:,} steps", f"{content['fit_seconds']:.0f}"])
    rows.append([f"{content['synthetic_rows']:,} rows of `paper()`", f"{content['generate_seconds']:.0f}"])
    return markdown_table(("alone on one H200", "seconds"), rows)


def _of_adapters(folder: Path, machine: str) -> Measured:
    """Measurements of the adapters alone, else those of throughput.py."""
    return _measured(folder / f"throughput-{machine}.json") | _measured(folder / f"adapters-{machine}.json")


def _measured(path: Path) -> Measured:
    return json.loads(path.read_text())["results"] if path.is_file() else {}


def _ms(entry: dict[str, Any], key: str) -> str | None:
    return f"{entry[key]:.3g} ms" if key in entry else None


def _s(entry: dict[str, Any], key: str) -> str | None:
    return f"{entry[key]:.2g} s" if key in entry else None


def _times(entry: dict[str, Any]) -> str | None:
    return f"{entry['ratio']:.3g}x" if "ratio" in entry else None
