"""Generate a data set from its recipe and write it."""

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
from synther_replay.benchmarks.data.ant_walks import successes
from synther_replay.benchmarks.data.download import REGENERATED
from synther_replay.benchmarks.data.hdf5 import Rows, read, to_transitions, write
from synther_replay.benchmarks.data.recipes import Recipe
from synther_replay.benchmarks.data.registry import normalised_score
from synther_replay.benchmarks.data.rollouts import RolloutPool
from synther_replay.benchmarks.environments.mazes import MAZES
from synther_replay.common.seeding import derive_seed

_IDENTITY = ("rows", "seed", "policies")  # attributes that determine the content; "recipe" is only a description


def collect(recipe: Recipe, seed: int, pool: RolloutPool, progress: Callable[[int], Any]) -> tuple[Rows, list[Any]]:
    """Collect the rows of a data set.

    Rollouts stay complete, as in a replay buffer: the last one of a part extends into the rows of the next part. Only
    the end of the data set cuts a rollout, which then ends without a flag, as in D4RL.

    Args:
        recipe: The recipe.
        seed: Seed of the data set.
        pool: Runs the rollouts.
        progress: Called with the number of new rows after each rollout.

    Returns:
        The rows, and for each part its label, number of rows and number of rollouts.
    """
    total, filled, end = recipe.rows, 0, 0
    rows: Rows = {}
    parts = []
    for number, part in enumerate(recipe.parts):
        end += part.rows
        # The seed of a rollout depends on recipe, part and number only, and not on what was collected before.
        seeds = partial(derive_seed, seed, zlib.crc32(recipe.name.encode()), number)
        first, count = filled, 0
        for rollout in pool.rollouts(part.source, seeds, end - filled):
            rows = rows or {key: np.empty((total, *values.shape[1:]), values.dtype) for key, values in rollout.items()}
            length = min(len(rollout["rewards"]), total - filled)
            for key, values in rollout.items():
                rows[key][filled : filled + length] = values[:length]
            filled += length
            count += 1
            progress(length)
        parts.append({"player": part.label, "rows": filled - first, "pieces": count})
    return rows, parts


def return_summary(name: str, rows: Rows) -> dict[str, Any]:
    """Mean, standard deviation and number of the complete episodes' returns, and their D4RL score.

    In an ant maze, the return of an episode is 1 if it would have ended at the goal, else 0.
    """
    task, _, kind = name.partition("-")
    _, returns = to_transitions(rows, limit=1_000, where=name)
    if task == "antmaze":
        returns = successes(rows)
    mean, deviation = (float(returns.mean()), float(returns.std())) if len(returns) else (None, None)
    # An episode of maze data ends at a target cell; an episode of the task has a fixed number of steps.
    scored = float(rows["rewards"].mean(dtype=np.float64)) * MAZES[kind].limit if task == "maze2d" else mean
    score = None if scored is None else normalised_score(name + REGENERATED, scored)
    return {"mean": mean, "std": deviation, "episodes": len(returns), "score": score}


def identity(recipe: Recipe, seed: int) -> dict[str, Any]:
    """File attributes that identify the content of a data set."""
    return {"recipe": recipe.description, "rows": recipe.rows, "seed": seed, "policies": recipe.policies}


def make(recipe: Recipe, seed: int, path: Path, pool: RolloutPool) -> dict[str, Any]:
    """Collect a data set and write it atomically to `path`; returns its attributes."""
    with tqdm(total=recipe.rows, desc=path.stem, unit=" rows", unit_scale=True, disable=None) as bar:
        rows, parts = collect(recipe, seed, pool, bar.update)
    made_with = origin(torch.device("cpu"))
    attributes = {
        # Reproduces the content on any machine: folder and number of processes are left out.
        "command": f"python benchmarks/make_datasets.py {recipe.name} --rows {recipe.rows} --seed {seed}",
        "commit": made_with["commit"],
        "versions": made_with["versions"],
        "name": recipe.name + REGENERATED,
        **identity(recipe, seed),
        "parts": parts,
        "returns": return_summary(recipe.name, rows),
    }
    write(path, rows, attributes)
    return attributes


def already_generated(path: Path, expected: dict[str, Any]) -> bool:
    """Whether `path` holds the data set with these attributes.

    Raises:
        ValueError: The file exists with other content.
    """
    if not path.exists():
        return False
    _, attributes = read(path)
    different = [key for key in _IDENTITY if attributes.get(key) != expected[key]]
    if different:
        shown = "; ".join(_difference(key, attributes.get(key), expected[key]) for key in different)
        raise ValueError(f"{path}: file exists with other content ({shown})")
    return True


def _difference(key: str, found: Any, expected: Any) -> str:
    if key == "policies":  # digests by file name
        found, expected = (", ".join(sorted(files or {})) or "none" for files in (found, expected))
        if found == expected:
            return f"policies: other digests of {found}"
    return f"{key}: got {found}, expected {expected}"
