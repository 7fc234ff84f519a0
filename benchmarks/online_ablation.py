"""What each setting of the generator does to returns: one change at a time, on one task, in one process.

    python benchmarks/online_ablation.py --env HalfCheetah-v5 --steps 30000

writes ``benchmarks/results/ablation/HalfCheetah-v5/<variant>.json`` for each variant, in the format of online_dmc.py,
and prints a table of all that are there. Stopped by ``--time-limit`` or otherwise, the same command goes on with the
variant that was not finished.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the worker processes: each computes small products alone

import numpy as np
import torch
from online_run import OnlineRun, Settings, is_done
from reporting import markdown_table, origin, write_json

from synther_replay.checks import resolve_device

RESULTS = Path(__file__).parent / "results" / "ablation"
# Changes of `Settings`; the base is `fast`.
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "every-5000": {"schedule": {"every": 5_000}},
    "every-10000": {"schedule": {"every": 10_000}},
    "refresh-250": {"generator": {"refresh_steps": 250}},
    "refresh-3000": {"generator": {"refresh_steps": 3_000}},
    "sampler-8": {"generator": {"sampling_steps": 8}},
    "sampler-12": {"generator": {"sampling_steps": 12}},
    "rows-50k": {"schedule": {"rows": 50_000}},
    "real-25": {"real_ratio": 0.25},
    "real-75": {"real_ratio": 0.75},
    "cheap": {
        "schedule": {"every": 5_000, "rows": 100_000},
        "generator": {"refresh_steps": 500, "sampling_steps": 16},
    },
}


def table(folder: Path) -> str:
    """One line per variant that is there, in the order of `VARIANTS`."""
    rows = []
    for name in VARIANTS:
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text())
        scores = [_summary(point["returns"]) for point in result["curve"] if point["step"] % 10_000 == 0]
        wall = result["wall_seconds"]
        rows.append([name, *scores, f"{wall['fit']:.0f}", f"{wall['generate']:.0f}", f"{wall['total']:.0f}"])
    if not rows:
        return "no variant is finished"
    steps = [f"{point['step']:,}" for point in result["curve"] if point["step"] % 10_000 == 0]
    return markdown_table(("variant", *steps, "fit, s", "generate, s", "all, s"), rows)


def _summary(returns: list[float | None]) -> str:
    known = [value for value in returns if value is not None]
    return f"{np.mean(known):.0f} +- {np.std(known, ddof=1) if len(known) > 1 else 0:.0f}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--utd", type=int, default=20)
    parser.add_argument("--random-steps", type=int, default=5_000)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--time-limit", type=float, help="seconds after which to save and stop")
    parser.add_argument("--workers", type=int, help="cores for environments and evaluations (all)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    begun, device, folder = time.monotonic(), resolve_device(args.device), args.out / args.env
    sizes = {
        name: getattr(args, name) for name in ("env", "preset", "seeds", "steps", "utd", "random_steps", "episodes")
    }
    base = Settings(algo="synther", **sizes)
    torch.set_float32_matmul_precision("high")  # tensor cores
    for name in args.variants:
        settings, path = replace(base, **VARIANTS[name]), folder / f"{name}.json"
        if is_done(path, settings):
            continue
        left = None if args.time_limit is None else args.time_limit - (time.monotonic() - begun)
        if left is not None and left <= 0:
            break
        checkpoint = folder / f".{name}.checkpoint"
        run = OnlineRun(settings, device)
        print(f"{args.env}, {name}", flush=True)
        if not run.run(checkpoint, time_limit=left, workers=args.workers):
            break
        write_json(path, {**run.result(), **origin(device)})
        checkpoint.unlink(missing_ok=True)
        del run
        gc.collect()  # the captured graphs of the last run hold its memory
    print(table(folder))


if __name__ == "__main__":
    main()
