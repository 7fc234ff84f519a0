"""Collects a regenerated data set and writes it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.data.download import REGENERATED
from synther_replay.benchmarks.data.hdf5 import Rows, paired, read, write
from synther_replay.benchmarks.data.recipes import Recipe
from synther_replay.benchmarks.data.registry import normalised_score
from synther_replay.benchmarks.data.rollouts import RolloutPool
from synther_replay.benchmarks.environments.maze2d import MAZES
from synther_replay.common.seeding import derive_seed

_SAME = ("rows", "seed", "policies")  # attributes that say what is in a set of some name; the recipe is in words


def collect(made_by: Recipe, seed: int, pool: RolloutPool, progress: Callable[[int], Any]) -> tuple[Rows, list[Any]]:
    """Play a data set.

    Episodes stay whole, as they do in a replay buffer: the last one of a part is taken from the next part's rows. Only
    the end of the set cuts one, which then ends without a flag, as D4RL's do.

    Args:
        made_by: Its recipe.
        seed: Of the set.
        pool: Plays.
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
        for piece in pool.pieces(part.player, seeds, end - filled):
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


def make(made_by: Recipe, seed: int, path: Path, pool: RolloutPool) -> dict[str, Any]:
    """Play a data set and write it; until it is whole there is nothing at `path`. Returns its attributes."""
    with tqdm(total=made_by.rows, desc=path.stem, unit=" rows", unit_scale=True, disable=None) as bar:
        rows, parts = collect(made_by, seed, pool, bar.update)
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
