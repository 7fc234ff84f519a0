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
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # products are small, and there is a process for each core

import numpy as np
from command_line import PRESETS, duration
from online_run import run_to_file
from online_settings import Settings
from reporting import markdown_table
from stretches import is_done

from synther_replay.checks import resolve_device

RESULTS = Path(__file__).parent / "results" / "ablation"
# What each changes of the preset; results hold all settings, so they stay clear when the preset moves on.
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "every-5000": {"schedule": {"every": 5_000}},
    "every-10000": {"schedule": {"every": 10_000}},
    "steps-500": {"generator": {"refresh_steps": 500}},
    "steps-4500": {"generator": {"refresh_steps": 4_500}},
    "sampler-8": {"generator": {"sampling_steps": 8}},
    "sampler-12": {"generator": {"sampling_steps": 12}},
    "real-25": {"real_ratio": 0.25},
    "real-75": {"real_ratio": 0.75},
    "rows-25k": {"schedule": {"rows": 25_000}},
    "width-1024": {"generator": {"width": 1024}},
    "width-256": {"generator": {"width": 256}},
    "batch-256": {"generator": {"batch_size": 256}},
    "squeezed": {"generator": {"squeeze_rows": True}},  # the same as the base where rows are short
}


def settings_of(variant: str, **others: Any) -> Settings:
    """The preset with the changes of a variant; `others` are the settings that all variants share."""
    return Settings(algo="synther", **others, **VARIANTS[variant])


def table(folder: Path) -> str:
    """One line per variant that is there, in the order of `VARIANTS`; returns at every 10,000 steps and the last."""
    results = {name: folder / f"{name}.json" for name in VARIANTS}
    results = {name: json.loads(path.read_text()) for name, path in results.items() if path.exists()}
    if not results:
        return "no variant is finished"
    curves = {name: {p["step"]: p["returns"] for p in result["curve"]} for name, result in results.items()}
    steps = sorted({step for curve in curves.values() for step in curve if step % 10_000 == 0 or step == max(curve)})
    rows = []
    for name, curve in curves.items():
        seconds = [f"{results[name]['wall_seconds'][part]:.0f}" for part in ("fit", "generate", "total")]
        rows.append([name, *(_summary(curve[step]) if step in curve else None for step in steps), *seconds])
    return markdown_table(("variant", *(f"{step:,}" for step in steps), "fit, s", "generate, s", "all, s"), rows)


def _summary(returns: list[float | None]) -> str:
    known = [value for value in returns if value is not None]
    if not known:
        return "failed"
    return f"{np.mean(known):.0f} +- {np.std(known, ddof=1) if len(known) > 1 else 0:.0f}"


def main() -> int:
    """Command line."""
    args = parse()
    begun, folder = time.monotonic(), args.out / args.env
    for name, settings in args.settings.items():
        path = folder / f"{name}.json"
        left = None if args.time_limit is None else args.time_limit - (time.monotonic() - begun)
        try:
            if is_done(path, settings):
                continue
            if left is not None and left <= 0:
                break
            print(f"{args.env}, {name}", flush=True)
            finished = run_to_file(path, settings, args.device, time_limit=left, workers=args.workers).finished
        except ValueError as error:
            print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
            return 2
        if not finished:
            break
        gc.collect()  # the captured graphs of the last run hold its memory
    print(table(folder))
    return 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--preset", default="fast", choices=PRESETS)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--utd", type=int, default=20)
    parser.add_argument("--random-steps", type=int, default=5_000)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--time-limit", type=duration, help="seconds after which to save and stop")
    parser.add_argument("--workers", type=int, help="cores for environments and evaluations (all)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    sizes = ("env", "preset", "seeds", "steps", "utd", "random_steps", "episodes")
    try:
        args.device = resolve_device(args.device)
        shared = {name: getattr(args, name) for name in sizes}
        args.settings = {variant: settings_of(variant, **shared) for variant in args.variants}
    except ValueError as error:
        parser.error(str(error))
    return args


if __name__ == "__main__":
    sys.exit(main())
