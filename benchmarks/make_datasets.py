"""Regenerate D4RL's data sets by its recipes with our own policies, in minutes on a CPU.

    python benchmarks/make_datasets.py halfcheetah-medium-replay hopper-medium
    python benchmarks/make_datasets.py all --out datasets

Data sets are named ``<name>-regen``, so that they are not mistaken for official ones; offline_d4rl.py finds them by
that name. The content depends on recipe, number of rows and seed, not on the number of processes. On another type of
CPU or with another version of MuJoCo, rounding differs, and with it the episodes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from synther_replay.benchmarks.common.command_line import exit_with_error
from synther_replay.benchmarks.common.files import make_folder_of
from synther_replay.benchmarks.data.download import RECIPES, REGENERATED
from synther_replay.benchmarks.data.generate import already_generated, identity, make
from synther_replay.benchmarks.data.recipes import MissingPolicyError, Recipe, recipe
from synther_replay.benchmarks.data.registry import regenerated_folder
from synther_replay.benchmarks.data.rollouts import RolloutPool
from synther_replay.common.checks import whole_number

os.environ.setdefault("OMP_NUM_THREADS", "1")  # matrices are small, and there is one process per core

_ALL = "all"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"{', '.join(RECIPES)}, or {_ALL}")
    parser.add_argument("--rows", type=int, help="rows per data set (default: as many as D4RL's)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all episodes (0)")
    parser.add_argument("--out", type=Path, help=f"folder of the files ({regenerated_folder()})")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files with other content")
    args = parser.parse_args()
    try:
        if args.rows is not None:
            whole_number("rows", args.rows)
        whole_number("seed", args.seed, least=0)
        whole_number("workers", args.workers)
    except ValueError as error:
        parser.error(str(error))
    args.out = args.out or regenerated_folder()
    return args


def plan(args: argparse.Namespace) -> tuple[list[tuple[Recipe, Path]], list[str]]:
    """Decide what to generate, before anything is generated.

    Returns:
        Recipe and path of each data set to generate, and an error message for each that is skipped.

    Raises:
        ValueError: A name is unknown, or a file exists with other content.
        MissingPolicyError: A data set was requested by name and its policy is missing.
    """
    everything = _ALL in args.names
    names = dict.fromkeys(RECIPES if everything else args.names)
    jobs, skipped = [], []
    for name in names:
        try:
            chosen = recipe(name, args.rows)
        except MissingPolicyError as error:
            if not everything:
                raise
            skipped.append(str(error))
            continue
        path = args.out / f"{name}{REGENERATED}.hdf5"
        try:
            exists = not args.overwrite and already_generated(path, identity(chosen, args.seed))
        except ValueError as error:
            raise ValueError(f"{error}; use --overwrite to replace it") from error
        if exists:
            print(f"{path}: already exists")
        else:
            jobs.append((chosen, path))
    for _, path in jobs:
        make_folder_of(path)
    return jobs, skipped


def main() -> int:
    """Command line."""
    args = parse()
    try:
        jobs, skipped = plan(args)
    except (ValueError, MissingPolicyError, OSError, ImportError) as error:
        return exit_with_error(2, error)
    path = args.out
    try:
        with RolloutPool(args.workers) as pool:
            for chosen, path in jobs:
                started = time.perf_counter()
                attributes = make(chosen, args.seed, path, pool)
                print(_summary(path, attributes, time.perf_counter() - started), flush=True)
    except KeyboardInterrupt:
        return exit_with_error(130, f"{path}: interrupted; the file was not written")
    except BrokenProcessPool:
        return exit_with_error(1, f"{path}: a worker process died; the file was not written")
    except OSError as error:
        return exit_with_error(1, f"{path}: cannot write the file: {error}")
    except ValueError as error:
        return exit_with_error(1, error)
    for message in skipped:
        exit_with_error(1, message)
    return 1 if skipped else 0


def _summary(path: Path, attributes: dict[str, Any], seconds: float) -> str:
    returns, rows = attributes["returns"], attributes["rows"]
    episodes = "no complete episode"
    if returns["episodes"]:
        episodes = f"{returns['episodes']:,} episodes, return {returns['mean']:.1f} +- {returns['std']:.1f}"
    score = "" if returns["score"] is None else f", score {returns['score']:.1f}"
    return f"{path}: {rows:,} rows, {episodes}{score}, {seconds:.0f} s, {rows / seconds:,.0f} rows/s"


if __name__ == "__main__":
    sys.exit(main())
