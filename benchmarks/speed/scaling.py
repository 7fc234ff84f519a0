"""Cost of a million rows, as measured, and the plan to a billion, computed from it."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from synther_replay.benchmarks.common.formatting import markdown_table

ROWS = 10**9  # of the plan
HOSTS = (1, 4, 16)  # with a GPU each
LINK = 10e9 / 8  # bytes per second to a shared file system, assumed: 10 Gbit/s


def cost_table(folder: Path) -> str:
    """Seconds and bytes of a million rows.

    Args:
        folder: Result files on speed.
    """
    gpu, command, sharded, written, ray = _measured(folder)
    shards = sharded["runs"][-1]
    run, columns = command["runs"][-1], written["results"]["columns"]
    tiny = json.loads((folder / "command-line-cpu.json").read_text())["runs"][0]["generate_seconds"] * 10
    rows = [
        ["generation with `fast()`", "one H200", _s(gpu), None],
        [
            "the same in `synther upsample`, with the file in which rows wait",
            "host of it",
            _s(_of_run(run)),
            4 * columns,
        ],
        ["writing HDF5", "host of it", _s(run["write_seconds"] * 1e6 / run["rows"]), run["bytes"] / run["rows"]],
        [
            "generation and 100 Parquet files at once",
            "host of it",
            _s(_of_run(shards)),
            shards["bytes"] / shards["rows"],
        ],
        *(
            [f"writing {name}", "one CPU core", f"{_processor(written, name):.2g} s", _bytes(written, name)]
            for name in written["results"]["formats"]
        ),
        ["generation with `tiny()`", "two CPU cores", f"{tiny:.0f} s", None],
        ["rows from an actor of Ray to a learner on its host", "two CPU cores", _s(ray), None],
    ]
    shown = [[what, where, seconds, size and f"{size:.0f} MB"] for what, where, seconds, size in rows]
    return markdown_table((f"1,000,000 rows of {columns} columns", "measured on", "time", "disk"), shown)


def plan_table(folder: Path) -> str:
    """Seconds that each part of `ROWS` rows in Parquet takes on several hosts; the largest bounds the whole.

    Args:
        folder: Result files on speed.
    """
    _, _, sharded, written, _ = _measured(folder)
    run, millions = sharded["runs"][-1], ROWS / 1e6
    size = run["bytes"] / run["rows"] * ROWS
    disk, cores = sharded["disk_bytes_per_second"], sharded["machine"]["cores"]
    parts = {
        "GPU and its host: generation to shards": [_of_run(run) * millions / hosts for hosts in HOSTS],
        f"CPU: compression on {cores} cores a host": [
            _processor(written, "Parquet") * millions / cores / hosts for hosts in HOSTS
        ],
        f"disk: {size / 1e9:.0f} GB at {disk / 1e9:.2g} GB/s, one for all": [size / disk] * len(HOSTS),
        "network: the same at 10 Gbit/s, one link for all": [size / LINK] * len(HOSTS),
    }
    rows = [[name, *(f"{value:,.0f} s" for value in seconds)] for name, seconds in parts.items()]
    bounds = [max(parts, key=lambda name: parts[name][place]).partition(":")[0] for place in range(len(HOSTS))]
    head = [f"{hosts} host{'s' if hosts > 1 else ''}" for hosts in HOSTS]
    return markdown_table((f"{ROWS:,} rows, computed", *head), [*rows, ["**bound by**", *bounds]])


def shards_table(folder: Path) -> str:
    """What `synther upsample` to shards took, for two numbers of rows.

    Args:
        folder: Result files on speed.
    """
    content = json.loads((folder / f"{_SHARDED}.json").read_text())
    runs, speed = content["runs"], content["disk_bytes_per_second"]
    parts = {
        "the whole command": [f"{run['wall_seconds']:.1f} s" for run in runs],
        f"fit to {runs[0]['real_rows']:,} rows": [f"{run['fit']['seconds']:.1f} s" for run in runs],
        "generation and files": [f"{run['generate_seconds']:.1f} s" for run in runs],
        "bytes of the files": [f"{run['bytes'] / 1e9:.1f} GB" for run in runs],
        "share of the disk's speed meanwhile": [
            f"{run['bytes'] / run['generate_seconds'] / speed:.0%}" for run in runs
        ],
        "GPU busy, share of the whole command": [f"{_busy(run):.0%}" for run in runs],
        "largest memory of the process": [f"{run['peak_bytes'] / 1e9:.1f} GB" for run in runs],
    }
    head = (f"{content['shards']} Parquet files, one H200", *(f"{run['rows']:,} rows" for run in runs))
    return markdown_table(head, [[name, *values] for name, values in parts.items()])


def _busy(run: dict[str, Any]) -> float:
    """Mean share of the time in which a kernel ran."""
    return statistics.mean(share for _, share in run["gpu_busy"])


def _measured(folder: Path) -> tuple[float, dict[str, Any], dict[str, Any], dict[str, Any], float]:
    """Seconds of a million rows on a GPU, two files of `upsampling.py`, that of `writing.py`, seconds that Ray adds."""
    read = {name: json.loads((folder / f"{name}.json").read_text()) for name in _FILES}
    gpu, command, sharded, written, ray = (read[name] for name in _FILES)
    generation, overhead = gpu["results"]["generation, fast"], ray["overhead"]
    added = overhead["overhead_seconds"]["sample"] * 1e6 / overhead["rows"]
    return generation["s"] * 1e6 / generation["rows"], command, sharded, written, added


_SHARDED = "upsampling-100m-h200"
_FILES = ("throughput-h200", "upsampling-h200", _SHARDED, "writing-cpu", "ray-cpu")


def _of_run(run: dict[str, Any]) -> float:
    """Seconds of a million rows that a command generated."""
    return float(run["generate_seconds"]) * 1e6 / float(run["rows"])


def _processor(written: dict[str, Any], name: str) -> float:
    """Median processor seconds of a million rows in a format."""
    found = written["results"]
    return statistics.median(run["processor_seconds"] for run in found["formats"][name]) * 1e6 / float(found["rows"])


def _bytes(written: dict[str, Any], name: str) -> float:
    """Bytes of a row in a format."""
    found = written["results"]
    return float(found["formats"][name][0]["bytes"]) / float(found["rows"])


def _s(seconds: float) -> str:
    return f"{seconds:.2g} s"
