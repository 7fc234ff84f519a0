"""Make D4RL's data sets again, by its recipes and with our own policies, in minutes on a CPU.

    python benchmarks/make_datasets.py halfcheetah-medium-replay hopper-medium
    python benchmarks/make_datasets.py all --out datasets

Sets are called ``<name>-regen``, so that none is taken for an official one, and `datasets.load` finds them by that
name. A set depends on its recipe, its rows and its seed alone, not on the number of processes; on another kind of
processor or with another MuJoCo the last digits differ, and with them the episodes.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # products are small, and there is a process for each core

import argparse
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command_line import failed
from dataset_files import RECIPES, REGENERATED
from dataset_format import Rows, paired, read, write
from datasets import normalised_score, regenerated_folder
from maze2d import MAZES
from recipes import MissingPolicyError, Recipe, recipe
from reporting import make_folder_of, origin
from rollouts import Studio
from tqdm import tqdm

from synther_replay.checks import whole_number
from synther_replay.seeding import derive_seed

_ALL = "all"
_SAME = ("rows", "seed", "policies")  # attributes that say what is in a set of some name; the recipe is in words


def collect(made_by: Recipe, seed: int, studio: Studio, progress: Callable[[int], Any]) -> tuple[Rows, list[Any]]:
    """Play a data set.

    Episodes stay whole, as they do in a replay buffer: the last one of a part is taken from the next part's rows. Only
    the end of the set cuts one, which then ends without a flag, as D4RL's do.

    Args:
        made_by: Its recipe.
        seed: Of the set.
        studio: Plays.
        progress: Is told how many rows have come, again and again.

    Returns:
        The rows, and of each part its label, rows and pieces.
    """
    total, filled, end = made_by.rows, 0, 0
    rows: Rows = {}
    parts = []
    for number, part in enumerate(made_by.parts):
        end += part.rows
        # A piece has its own stream in each recipe and part: what plays before it does not matter.
        seeds = partial(derive_seed, seed, zlib.crc32(made_by.name.encode()), number)
        begun, pieces = filled, 0
        for piece in studio.pieces(part.player, seeds, end - filled):
            rows = rows or {key: np.empty((total, *values.shape[1:]), values.dtype) for key, values in piece.items()}
            count = min(len(piece["rewards"]), total - filled)
            for key, values in piece.items():
                rows[key][filled : filled + count] = values[:count]
            filled += count
            pieces += 1
            progress(count)
        parts.append({"player": part.label, "rows": filled - begun, "pieces": pieces})
    return rows, parts


def earned(name: str, rows: Rows) -> dict[str, Any]:
    """Returns of the whole episodes in a set, as its reader will find them, and D4RL's score of them."""
    task, _, kind = name.partition("-")
    _, returns = paired(rows, limit=1_000, where=name)
    mean, deviation = (float(returns.mean()), float(returns.std())) if len(returns) else (None, None)
    # In a maze an episode of the data is the way to one cell, one of the task has a fixed number of steps.
    scored = float(rows["rewards"].mean(dtype=np.float64)) * MAZES[kind].limit if task == "maze2d" else mean
    score = None if scored is None else normalised_score(name + REGENERATED, scored)
    return {"mean": mean, "std": deviation, "episodes": len(returns), "score": score}


def identity(made_by: Recipe, seed: int) -> dict[str, Any]:
    """The attributes that say what is in a set."""
    return {"recipe": made_by.sentence, "rows": made_by.rows, "seed": seed, "policies": made_by.policies}


def make(made_by: Recipe, seed: int, path: Path, studio: Studio) -> dict[str, Any]:
    """Play a data set and write it; until it is whole there is nothing at `path`. Returns its attributes."""
    with tqdm(total=made_by.rows, desc=path.stem, unit=" rows", unit_scale=True, disable=None) as bar:
        rows, parts = collect(made_by, seed, studio, bar.update)
    made_with = origin(torch.device("cpu"))
    attributes = {
        # What makes this set anywhere: folders and numbers of processes are of this machine only.
        "command": f"python benchmarks/make_datasets.py {made_by.name} --rows {made_by.rows} --seed {seed}",
        "commit": made_with["commit"],
        "versions": made_with["versions"],
        "name": made_by.name + REGENERATED,
        **identity(made_by, seed),
        "parts": parts,
        "returns": earned(made_by.name, rows),
    }
    write(path, rows, attributes)
    return attributes


def is_there(path: Path, wanted: dict[str, Any]) -> bool:
    """Whether a file holds the set that is wanted.

    Raises:
        ValueError: It holds something else.
    """
    if not path.exists():
        return False
    _, attributes = read(path)
    other = [key for key in _SAME if attributes.get(key) != wanted[key]]
    if other:
        shown = ", ".join(f"{key} {attributes.get(key)!r}" for key in other if key != "policies") or "other policies"
        raise ValueError(f"{path}: is another set, with {shown}")
    return True


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
        return failed(2, error)
    path = args.out
    try:
        with Studio(args.workers) as studio:
            for made_by, path in orders:
                begun = time.perf_counter()
                attributes = make(made_by, args.seed, path, studio)
                print(_line(path, attributes, time.perf_counter() - begun), flush=True)
    except KeyboardInterrupt:
        return failed(130, f"{path}: was interrupted, nothing of it is written")
    except BrokenProcessPool:
        return failed(1, f"{path}: a process that plays has died, nothing of it is written")
    except OSError as error:
        return failed(1, f"{path}: cannot be written, nothing of it is left: {error}")
    except ValueError as error:
        return failed(1, error)
    for sentence in left_out:
        failed(1, sentence)
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
