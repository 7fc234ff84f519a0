"""Recipes of the regenerated data sets: which policies collect, in what order, how many rows each.

They follow D4RL, with these differences:

- The tasks are version 5 of Gymnasium's.
- D4RL's medium-replay is the replay buffer of a training run. Here it is collected by snapshots of such a run, because
  the buffer itself is too large for a repository.
- All experts and the policies of walker2d were trained by SAC with synthetic replay, which needs fewer steps, and not
  by plain SAC (see `policies/<task>/manifest.json`).
- The ant of antmaze is that of `environments.ant`, with a policy of our own that sees the way to go in the frame of its
  torso; its waypoints are those of `ant_walks.Guide`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from synther_replay.benchmarks.data.ant_walks import ACTION_NOISE, AntWalks
from synther_replay.benchmarks.data.behaviour import FOLDER, Behaviour, Snapshot
from synther_replay.benchmarks.data.download import RECIPES
from synther_replay.benchmarks.data.rollouts import Episodes, EpisodeSource, Walks
from synther_replay.benchmarks.environments.ant_maps import AntMap
from synther_replay.benchmarks.environments.mazes import MAZES
from synther_replay.benchmarks.environments.scores import LOCOMOTION
from synther_replay.common.checks import whole_number

_ROWS = {"random": 1_000_000, "medium": 1_000_000, "medium-expert": 2_000_000}
_REPLAY_ROWS = {"halfcheetah": 202_000, "hopper": 402_000, "walker2d": 302_000}
_MAZE_ROWS = {"umaze": 1_000_000, "medium": 2_000_000, "large": 4_000_000}
_ANT_MAZE_ROWS = 1_000_000
_WALKER = "ant-goal"
"""Task of the policy that walks in ant mazes."""


class MissingPolicyError(LookupError):
    """A policy that a recipe needs does not exist."""


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a data set that come from one source.

    Attributes:
        label: Name of the source.
        source: Source of the rollouts; the last rollout of a part may extend into the rows of the next part.
        rows: Number of rows.
    """

    label: str
    source: EpisodeSource
    rows: int


@dataclass(frozen=True)
class Recipe:
    """How a data set is generated.

    Attributes:
        name: One of `RECIPES`.
        description: The recipe in words.
        parts: The parts, in order.
        policies: SHA-256 of each policy, by file name.
    """

    name: str
    description: str
    parts: tuple[Part, ...]
    policies: dict[str, str]

    @property
    def rows(self) -> int:
        """Number of rows of the data set."""
        return sum(part.rows for part in self.parts)


def default_rows(name: str) -> int:
    """Number of rows of D4RL's data set."""
    task, _, kind = name.partition("-")
    if task == "maze2d":
        return _MAZE_ROWS[kind]
    if task == "antmaze":
        return _ANT_MAZE_ROWS
    return _REPLAY_ROWS[task] if kind == "medium-replay" else _ROWS[kind]


def recipe(name: str, rows: int | None = None, root: Path = FOLDER) -> Recipe:
    """Look up a recipe by name.

    Args:
        name: One of `RECIPES`.
        rows: Number of rows; None for as many as D4RL has.
        root: Folder of the behaviour policies.

    Raises:
        ValueError: The name is unknown, or a policy file is damaged.
        MissingPolicyError: A policy that the recipe needs does not exist.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"expected one of {', '.join(RECIPES)}"
        raise ValueError(f"name: unknown recipe {name!r}; {hint}")
    rows = default_rows(name) if rows is None else whole_number("rows", rows)
    task, _, kind = name.partition("-")
    if task == "maze2d":
        return _maze(name, kind, rows)
    if task == "antmaze":
        return _ant_maze(name, kind.partition("-")[0], rows, Behaviour.read(_WALKER, root))
    return _locomotion(name, kind, rows, Behaviour.read(LOCOMOTION[task], root))


def _maze(name: str, size: str, rows: int) -> Recipe:
    walks = Walks(size)
    description = (
        f"Walks of {walks.length:,} steps through D4RL's maze {size}, to random cells, by a waypoint controller with "
        "normal noise of standard deviation 0.5 on its actions. A timeout marks the arrival at a cell. The score is "
        f"that of the mean reward times the {MAZES[size].limit} steps of an episode."
    )
    return Recipe(name, description, (Part("waypoints", walks, rows),), {})


def _ant_maze(name: str, size: str, rows: int, behaviour: Behaviour) -> Recipe:
    walker, maze = _needed(name, behaviour, "expert"), AntMap.named(size)
    starts = "any open cell but these" if maze.many_starts else "the start cell"
    description = (
        f"Episodes of {maze.limit:,} steps in D4RL's maze {size}, each from {starts} to a random goal in one of the "
        f"cells {', '.join(map(str, maze.goals))} (row, column): a goal-reaching policy ({_described(walker)}) is led "
        "by waypoints along shortest paths, with sampled actions and normal noise of standard deviation "
        f"{ACTION_NOISE}. "
        "Rewards and terminals mark rows whose next observation is within 0.5 of "
        f"({maze.reward_goal[0]:g}, {maze.reward_goal[1]:g}), the mean of the goals that the task draws. The score is "
        "the share of episodes with a reward."
    )
    part = Part(walker.file, AntWalks(size, behaviour.policy(walker)), rows)
    return Recipe(name, description, (part,), {walker.file: walker.sha256})


def _locomotion(name: str, kind: str, rows: int, behaviour: Behaviour) -> Recipe:
    """Episodes of the behaviour policies."""
    task = behaviour.task
    shares: list[tuple[Snapshot | None, float]]  # policy (None: uniform actions) and its share, in any unit
    if kind == "random":
        shares, how = [(None, 1)], "uniform actions"
    elif kind == "medium-replay":
        medium = _needed(name, behaviour, "medium")
        shares = [(None, behaviour.random_steps), *nearest(behaviour.replay, behaviour.random_steps)]
        how = (
            f"a training run of {medium.step:,} steps up to its medium policy ({_described(medium)}), scaled to the "
            f"number of rows: uniform actions in the first {behaviour.random_steps:,} steps, then actions sampled from "
            f"the nearest of {len(behaviour.replay)} snapshots, which replace the run's own replay buffer because "
            "that is too large to be committed"
        )
    else:
        roles = ("medium", "expert") if kind == "medium-expert" else ("medium",)
        chosen = [_needed(name, behaviour, role) for role in roles]
        shares = [(snapshot, 1) for snapshot in chosen]
        each = [f"the {role} policy of a training run ({_described(s)})" for role, s in zip(roles, chosen, strict=True)]
        how = "actions sampled from " + ", then as many from ".join(each)
    snapshots = [snapshot for snapshot, _ in shares]
    parts = [
        Part(s.file if s else "uniform", Episodes(task, behaviour.policy(s) if s else None), share)
        for s, share in zip(snapshots, split(rows, [share for _, share in shares]), strict=True)
        if share
    ]
    description = f"Episodes of at most 1,000 steps of {task}: {how}."
    return Recipe(name, description, tuple(parts), {s.file: s.sha256 for s in snapshots if s})


def _needed(name: str, behaviour: Behaviour, role: str) -> Snapshot:
    found: Snapshot | None = getattr(behaviour, role)
    if found is None:
        option = "--expert" if role == "expert" else "--medium-return"
        command = f"python -m synther_replay.benchmarks.data.behaviour pick {option} ..."
        raise MissingPolicyError(
            f"{name}: no {role} policy of {behaviour.task} in {behaviour.folder}; take one from a run of online_dmc.py "
            f"with `{command}`"
        )
    return found


def _described(snapshot: Snapshot) -> str:
    returns = f"{snapshot.mean_return:,.0f} +- {snapshot.std_return:,.0f}"
    algorithm = snapshot.file.partition("-")[0]
    return f"{algorithm}, seed {snapshot.seed}, {snapshot.step:,} steps, return {returns} with sampled actions"


def nearest(snapshots: Sequence[Snapshot], begin: int) -> list[tuple[Snapshot, float]]:
    """Each snapshot with the number of steps, from `begin` to the last snapshot, to which it is the nearest."""
    steps = np.array([snapshot.step for snapshot in snapshots], float)
    edges = np.concatenate([[begin], (steps[1:] + steps[:-1]) / 2, steps[-1:]]).clip(begin)
    return list(zip(snapshots, np.diff(edges).tolist(), strict=True))


def split(rows: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to `shares` that sum to `rows`.

    >>> split(10, [1, 1, 2])
    [2, 3, 5]
    """
    ends = np.rint(np.cumsum(shares) / np.sum(shares) * rows).astype(int)
    counts: list[int] = np.diff(ends, prepend=0).tolist()
    return counts
