"""Fits to a stream against fits to the same rows in memory: fidelity, time, and memory by the size of the file.

    python benchmarks/make_datasets.py halfcheetah-medium-replay hopper-medium --rows 200000 --out data
    python -m synther_replay.benchmarks.speed.streaming data/*.hdf5 --windows 4 --seeds 3 --out streaming-cpu.json

Memory is the largest resident size of a fresh process that fits a generator to a file of so many rows, drawn with
replacement from those of the first data set, less that of a process which only loads the libraries (Linux).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.common.timing import synchronise
from synther_replay.common.checks import resolve_device
from synther_replay.common.short_forms import default_preset
from synther_replay.files import open_file, read, write_blocks
from synther_replay.metrics import fidelity

_GENERATED = 50_000
_BLOCK = 50_000


def compare(path: Path, windows: int, seeds: int, config: GeneratorConfig, device: torch.device) -> dict[str, Any]:
    """Scores and seconds of fits in memory and to a stream, for every seed."""
    real, file = read(path), open_file(path)
    found: dict[str, Any] = {"rows": len(real), "columns": real.spec.dim, "windows": windows}
    for name, rows, options in (
        ("in memory", real, {}),
        ("stream", file, {"window": -(-len(real) // windows)}),
    ):
        scores = []
        for seed in range(seeds):
            generator = DiffusionGenerator(real.spec, config, device=device, seed=seed)
            begun = time.perf_counter()
            generator.fit(rows, progress=False, **options)
            synchronise(device)
            seconds = time.perf_counter() - begun
            judged = fidelity(real, generator.sample(_GENERATED).to("cpu"), warn=False)
            scores.append({"marginal": judged.marginal, "correlation": judged.correlation, "seconds": seconds})
        found[name] = scores
    return found


def peak(path: Path | None, window: int, steps: int, config: GeneratorConfig) -> int:
    """Largest resident size of this process in bytes, after a fit to a file on the CPU."""
    if path is not None:
        file = open_file(path)
        DiffusionGenerator(file.spec, config, device="cpu").fit(file, window=window, steps=steps, progress=False)
    # Not getrusage: its maximum includes that of the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


def memory(source: Path, sizes: Sequence[int], window: int, steps: int, preset: str) -> list[dict[str, int]]:
    """Memory of a fit for each size of the file."""
    real, found = read(source), []
    command = [sys.executable, "-m", "synther_replay.benchmarks.speed.streaming", "--preset", preset]
    options = ["--window", str(window), "--steps", str(steps)]

    def child(path: str) -> int:
        done = subprocess.run(
            [*command, "--child", path, *options, str(source)], stdout=subprocess.PIPE, text=True, check=True
        )
        return int(json.loads(done.stdout.splitlines()[-1]))

    empty = child("")
    with tempfile.TemporaryDirectory() as folder:
        for rows in sizes:
            path = Path(folder) / "rows.hdf5"
            write_blocks(path, rows, lambda rows=rows: _drawn(real, rows), {})  # type: ignore[misc]
            size = path.stat().st_size
            found.append({"rows": rows, "file_bytes": size, "memory_bytes": child(str(path)) - empty})
            path.unlink()
    return found


def _drawn(real: Transitions, count: int) -> Iterator[Transitions]:
    rng = torch.Generator().manual_seed(0)
    for start in range(0, count, _BLOCK):
        index = torch.randint(len(real), (min(_BLOCK, count - start),), generator=rng)
        yield Transitions(real.spec, real.rows[index])


def table(content: dict[str, Any]) -> str:
    """Fidelity and memory as tables."""
    rows = []
    for name, found in content["fidelity"].items():
        for kind in ("in memory", "stream"):
            columns = [[score[key] for score in found[kind]] for key in ("marginal", "correlation")]
            spread = [f"{statistics.mean(c):.4f} ± {statistics.pstdev(c):.4f}" for c in columns]
            how = kind if kind == "in memory" else f"{found['windows']} windows"
            rows.append([f"{name}, {found['rows']:,} rows", how, *spread])
    parts = [markdown_table(("data", "fit", "marginal", "correlation"), rows)]
    if content["memory"]:
        window = content["settings"]["window"]
        rows = [
            [f"{m['rows']:,}", f"{m['file_bytes'] / 2**20:,.0f} MiB", f"{m['memory_bytes'] / 2**20:,.0f} MiB"]
            for m in content["memory"]
        ]
        parts.append(markdown_table(("rows of the file", "its size", f"memory, window of {window:,} rows"), rows))
    return "\n\n".join(parts)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path, help="files of transitions")
    parser.add_argument("--windows", type=int, default=4, help="windows of a stream (4)")
    parser.add_argument("--seeds", type=int, default=3, help="fits of each kind (3)")
    parser.add_argument("--preset", help="settings of the generator (fast on a GPU, tiny on a CPU)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--sizes", type=int, nargs="*", default=[], help="rows of the files whose fits show the memory")
    parser.add_argument("--window", type=int, default=200_000, help="rows of a window there (200,000)")
    parser.add_argument("--steps", type=int, default=200, help="gradient steps there (200)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    device = resolve_device(args.device)
    preset = args.preset or default_preset(device)
    config = GeneratorConfig.of({"preset": preset, "max_seconds": None})
    if args.child is not None:
        print(json.dumps(peak(Path(args.child) if args.child else None, args.window, args.steps, config)))
        return
    if args.out:
        make_folder_of(args.out)
    settings = {"preset": preset, "window": args.window, "steps": args.steps, "generated": _GENERATED}
    content: dict[str, Any] = {"settings": settings, "fidelity": {}}
    for path in args.data:
        content["fidelity"][path.stem] = compare(path, args.windows, args.seeds, config, device)
    content["memory"] = memory(args.data[0], args.sizes, args.window, args.steps, preset)
    print(table(content))
    if args.out:
        write_json(args.out, {**content, **origin(device)})


if __name__ == "__main__":
    main()
