"""What each setting of the generator does to returns: one change at a time, on one task, in one process.

    python benchmarks/online_ablation.py --env HalfCheetah-v5 --steps 30000

writes ``results/ablation/HalfCheetah-v5/<variant>.json`` for each variant, from where one stands and in the format of
online_dmc.py, and prints a table of all that are there. Stopped by ``--time-limit`` or otherwise, the same command goes
on with the variant that was not finished.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # products are small, and there is a process for each core

from command_line import PRESETS, REFIT, add_run_options, failed
from online_run import run_to_file
from online_settings import Settings
from reporting import markdown_table, mean_and_spread
from stretches import differences, is_done, read_result
from workers import WorkerDiedError

from synther_replay.checks import resolve_device, whole_number

RESULTS = Path("results", "ablation")
# What each changes of the preset; results hold all settings, so they stay clear when the preset moves on.
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "every-5000": {"schedule": {"every": 5_000}},
    "every-10000": {"schedule": {"every": 10_000}},
    "steps-500": {"generator": {"refresh_steps": 500}},
    "steps-3000": {"generator": {"refresh_steps": 3_000}},
    "sampler-8": {"generator": {"sampling_steps": 8}},
    "sampler-24": {"generator": {"sampling_steps": 24}},
    "real-25": {"real_ratio": 0.25},
    "real-75": {"real_ratio": 0.75},
    "rows-100k": {"schedule": {"rows": 100_000}},
    "rows-1m": {"schedule": {"rows": 1_000_000}},
    "raw-rewards": {"generator": {"normalise_rewards": False}},
    "no-early-stop": {"generator": {"patience": None}},
    "squeezed": {"generator": {"squeeze_rows": True}},  # the same as the base where rows are short
}
SIZES = ("steps", "seeds", "episodes", "first_seed")  # results that differ in these do not compare


def settings_of(variant: str, **others: Any) -> Settings:
    """The preset with the changes of a variant; `others` are the settings that all variants share."""
    return Settings(algo="synther", **others, **VARIANTS[variant])


def results_in(folder: Path, sizes: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """The results of a folder, by name: variants in their order, then others.

    All must have the same `SIZES`: those that are given, or else those of the first.
    """
    names = sorted(path.stem for path in folder.glob("*.json"))
    names = [name for name in VARIANTS if name in names] + [name for name in names if name not in VARIANTS]
    results = {name: read_result(folder / f"{name}.json") for name in names}
    for name, result in results.items():
        found = result.get("settings") or {}
        found = {key: found.get(key) for key in SIZES}
        sizes = sizes or found
        if other := differences(found, sizes):
            path = folder / f"{name}.json"
            raise ValueError(f"{path} does not compare with the others ({other}); move it, or choose another --out")
    return results


def table(folder: Path) -> str:
    """One line per result that is there, as `results_in` has them; returns at every 10,000 steps and the last."""
    results = results_in(folder)
    if not results:
        return "no variant is finished"
    curves = {name: {p["step"]: p["returns"] for p in result["curve"]} for name, result in results.items()}
    steps = sorted({step for curve in curves.values() for step in curve if step % 10_000 == 0 or step == max(curve)})
    rows = []
    for name, curve in curves.items():
        wall = results[name]["wall_seconds"]
        seconds = [f"{wall[part]:.0f}" if part in wall else None for part in ("fit", "generate", "total")]
        rows.append([name, *(_summary(curve[step]) if step in curve else None for step in steps), *seconds])
    return markdown_table(("variant", *(f"{step:,}" for step in steps), "fit, s", "generate, s", "all, s"), rows)


def _summary(returns: list[float | None]) -> str:
    known = [value for value in returns if value is not None]
    return mean_and_spread(known) if known else "failed"


def main() -> int:
    """Command line."""
    args = parse()
    folder = args.out / args.env
    try:
        results_in(folder, args.sizes)  # before the runs, and not when they are to be shown
        run_variants(folder, args)
        print(table(folder))
    except (ValueError, OSError) as error:
        return failed(2, error)
    except WorkerDiedError as error:
        return failed(1, f"{error}; the same command takes up the variant that is not finished")
    except KeyboardInterrupt:
        return failed(130, "interrupted; the same command takes up the variant that is not finished")
    return 0


def run_variants(folder: Path, args: argparse.Namespace) -> None:
    """Run what is missing, one variant after another, until all are there or time is over."""
    begun = time.monotonic()
    for name, settings in args.settings.items():
        path = folder / f"{name}.json"
        left = None if args.time_limit is None else args.time_limit - (time.monotonic() - begun)
        if is_done(path, settings):
            continue
        if left is not None and left <= 0:
            return
        print(f"{args.env}, {name}", flush=True)
        limits = {"time_limit": left, "checkpoint_every": args.checkpoint_every, "workers": args.workers}
        if not run_to_file(path, settings, args.device, **limits).finished:
            return
        gc.collect()  # the captured graphs of the last run hold its memory


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
    add_run_options(parser, uninterrupted=REFIT)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    names = ("env", "preset", "seeds", "steps", "utd", "random_steps", "episodes")
    try:
        args.device = resolve_device(args.device)
        shared = {name: getattr(args, name) for name in names}
        args.settings = {variant: settings_of(variant, **shared) for variant in args.variants}
        args.sizes = {key: getattr(args.settings[args.variants[0]], key) for key in SIZES}
        if args.workers is not None:
            whole_number("workers", args.workers)
    except ValueError as error:
        parser.error(str(error))
    return args


if __name__ == "__main__":
    sys.exit(main())
