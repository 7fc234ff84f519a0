"""Make D4RL's data sets again, by its recipes and with our own policies, in minutes on a CPU.

    python benchmarks/make_datasets.py halfcheetah-medium-replay hopper-medium
    python benchmarks/make_datasets.py all --out datasets

Sets are called ``<name>-regen``, so that none is taken for an official one, and `datasets.load` finds them by that
name. A set depends on its recipe, its rows and its seed alone, not on the number of processes; on another kind of
processor or with another MuJoCo the last digits differ, and with them the episodes.
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
from synther_replay.benchmarks.data.generate import identity, is_there, make
from synther_replay.benchmarks.data.recipes import MissingPolicyError, Recipe, recipe
from synther_replay.benchmarks.data.registry import regenerated_folder
from synther_replay.benchmarks.data.rollouts import RolloutPool
from synther_replay.common.checks import whole_number

os.environ.setdefault("OMP_NUM_THREADS", "1")  # products are small, and there is a process for each core

_ALL = "all"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"{', '.join(RECIPES)}, or {_ALL}")
    parser.add_argument("--rows", type=int, help="of each set (as many as D4RL's has)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help=f"folder of the files ({regenerated_folder()})")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (one per core)")
    parser.add_argument("--overwrite", action="store_true", help="replace files that hold something else")
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
    """What there is to make, found out before anything is, and what cannot be made of all there is.

    Raises:
        ValueError: A name is unknown, or a file in the way.
        MissingPolicyError: There is no policy for a set that was asked for by its name.
    """
    everything = _ALL in args.names
    names = dict.fromkeys(RECIPES if everything else args.names)
    orders, left_out = [], []
    for name in names:
        try:
            made_by = recipe(name, args.rows)
        except MissingPolicyError as error:
            if not everything:
                raise
            left_out.append(str(error))
            continue
        path = args.out / f"{name}{REGENERATED}.hdf5"
        try:
            there = not args.overwrite and is_there(path, identity(made_by, args.seed))
        except ValueError as error:
            raise ValueError(f"{error}; --overwrite replaces it") from error
        if there:
            print(f"{path} is there already")
        else:
            orders.append((made_by, path))
    for _, path in orders:
        make_folder_of(path)
    return orders, left_out


def main() -> int:
    """Command line."""
    args = parse()
    try:
        orders, left_out = plan(args)
    except (ValueError, MissingPolicyError, OSError, ImportError) as error:
        return exit_with_error(2, error)
    path = args.out
    try:
        with RolloutPool(args.workers) as pool:
            for made_by, path in orders:
                begun = time.perf_counter()
                attributes = make(made_by, args.seed, path, pool)
                print(_line(path, attributes, time.perf_counter() - begun), flush=True)
    except KeyboardInterrupt:
        return exit_with_error(130, f"{path}: was interrupted, nothing of it is written")
    except BrokenProcessPool:
        return exit_with_error(1, f"{path}: a process that plays has died, nothing of it is written")
    except OSError as error:
        return exit_with_error(1, f"{path}: cannot be written, nothing of it is left: {error}")
    except ValueError as error:
        return exit_with_error(1, error)
    for sentence in left_out:
        exit_with_error(1, sentence)
    return 1 if left_out else 0


def _line(path: Path, attributes: dict[str, Any], seconds: float) -> str:
    returns, rows = attributes["returns"], attributes["rows"]
    found = "no whole episode"
    if returns["episodes"]:
        found = f"{returns['episodes']:,} episodes of {returns['mean']:.1f} +- {returns['std']:.1f}"
    score = "" if returns["score"] is None else f", score {returns['score']:.1f}"
    return f"{path}: {rows:,} rows, {found}{score}, {seconds:.0f} s, {rows / seconds:,.0f} rows/s"


if __name__ == "__main__":
    sys.exit(main())
