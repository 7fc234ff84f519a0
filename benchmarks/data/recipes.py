"""How D4RL made its data sets, and how they are made again here: by whom, in what order, how many rows each.

Three things differ. The tasks are Gymnasium's of version 5. Medium-replay, which in D4RL is the replay buffer of a
run, follows such a run by its snapshots, because the buffer itself would be too large to be kept in a repository. And
not all policies are of plain SAC: all experts, and those of walker2d, come from SAC with synthetic replay, which gets
there in fewer steps (`behaviour/<task>/manifest.json` names them).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from synther_replay.benchmarks.data.behaviour import FOLDER, Behaviour, Snapshot
from synther_replay.benchmarks.data.download import RECIPES
from synther_replay.benchmarks.data.rollouts import Episodes, EpisodeSource, Walks
from synther_replay.benchmarks.environments.maze2d import MAZES
from synther_replay.benchmarks.environments.scores import LOCOMOTION
from synther_replay.common.checks import whole_number

_ROWS = {"random": 1_000_000, "medium": 1_000_000, "medium-expert": 2_000_000}
_REPLAY_ROWS = {"halfcheetah": 202_000, "hopper": 402_000, "walker2d": 302_000}
_MAZE_ROWS = {"umaze": 1_000_000, "medium": 2_000_000, "large": 4_000_000}


class MissingPolicyError(LookupError):
    """There is no policy of the kind that a recipe needs."""


@dataclass(frozen=True)
class Part:
    """Rows that follow one another and have the same player.

    Attributes:
        label: Names the player.
        player: Plays whole pieces: the last one of a part may reach into the rows of the next part.
        rows: Its share.
    """

    label: str
    player: EpisodeSource
    rows: int


@dataclass(frozen=True)
class Recipe:
    """How a data set is made.

    Attributes:
        name: One of `RECIPES`.
        sentence: The recipe in words.
        parts: One after the other.
        policies: SHA-256 of each policy that plays, by file.
    """

    name: str
    sentence: str
    parts: tuple[Part, ...]
    policies: dict[str, str]

    @property
    def rows(self) -> int:
        """Of the whole set."""
        return sum(part.rows for part in self.parts)


def default_rows(name: str) -> int:
    """As many as D4RL's set has."""
    task, _, kind = name.partition("-")
    if task == "maze2d":
        return _MAZE_ROWS[kind]
    return _REPLAY_ROWS[task] if kind == "medium-replay" else _ROWS[kind]


def recipe(name: str, rows: int | None = None, root: Path = FOLDER) -> Recipe:
    """Look a recipe up.

    Args:
        name: One of `RECIPES`.
        rows: None for as many as D4RL has.
        root: Folder of the behaviour policies.

    Raises:
        ValueError: There is no such recipe, or a policy that it needs is damaged.
        MissingPolicyError: There is no policy that it needs.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=3)
        raise ValueError(
            f"name: there is no recipe {name!r}, {'near' if near else 'but'} are {', '.join(near or RECIPES)}"
        )
    rows = default_rows(name) if rows is None else whole_number("rows", rows)
    task, _, kind = name.partition("-")
    if task == "maze2d":
        return _maze(name, kind, rows)
    return _locomotion(name, kind, rows, Behaviour.read(LOCOMOTION[task], root))


def _maze(name: str, size: str, rows: int) -> Recipe:
    walks = Walks(size)
    sentence = (
        f"Walks of {walks.length:,} steps through D4RL's maze {size}, to cells drawn at random, by a waypoint "
        "controller with normal noise of deviation 0.5 on its actions; a timeout marks the end of the way to a cell, "
        f"and the score is that of the mean reward in the {MAZES[size].limit} steps of an episode."
    )
    return Recipe(name, sentence, (Part("waypoints", walks, rows),), {})


def _locomotion(name: str, kind: str, rows: int, behaviour: Behaviour) -> Recipe:
    """Episodes of policies, None of which stands for uniform actions."""
    task = behaviour.task
    shares: list[tuple[Snapshot | None, float]]  # in any unit
    if kind == "random":
        shares, how = [(None, 1)], "uniform actions"
    elif kind == "medium-replay":
        medium = _needed(name, behaviour, "medium")
        shares = [(None, behaviour.random_steps), *nearest(behaviour.replay, behaviour.random_steps)]
        how = (
            f"what a run of ours did in the {medium.step:,} steps up to its medium policy ({_described(medium)}), "
            f"scaled to the number of rows: uniform actions in the first {behaviour.random_steps:,} steps, then "
            f"actions drawn from the nearest of {len(behaviour.replay)} snapshots, which stand for "
            "the run's own replay buffer because that is too large to be committed"
        )
    else:
        roles = ("medium", "expert") if kind == "medium-expert" else ("medium",)
        chosen = [_needed(name, behaviour, role) for role in roles]
        shares = [(snapshot, 1) for snapshot in chosen]
        each = [f"the {role} policy of a run of ours ({_described(s)})" for role, s in zip(roles, chosen, strict=True)]
        how = "actions drawn from " + ", then as many from ".join(each)
    players = [snapshot for snapshot, _ in shares]
    parts = [
        Part(s.file if s else "uniform", Episodes(task, behaviour.policy(s) if s else None), share)
        for s, share in zip(players, split(rows, [share for _, share in shares]), strict=True)
        if share
    ]
    sentence = f"Episodes of at most 1,000 steps of {task}: {how}."
    return Recipe(name, sentence, tuple(parts), {s.file: s.sha256 for s in players if s})


def _needed(name: str, behaviour: Behaviour, role: str) -> Snapshot:
    found: Snapshot | None = getattr(behaviour, role)
    if found is None:
        option = "--expert" if role == "expert" else "--medium-return"
        way = f"`python benchmarks/behaviour.py pick {option} ...` takes one from a run of online_dmc.py"
        raise MissingPolicyError(f"{name}: there is no {role} policy of {behaviour.task} in {behaviour.folder}; {way}")
    return found


def _described(snapshot: Snapshot) -> str:
    earned = f"{snapshot.mean_return:,.0f} +- {snapshot.std_return:,.0f}"
    algorithm = snapshot.file.partition("-")[0]
    return f"{algorithm}, seed {snapshot.seed}, {snapshot.step:,} steps, return {earned} with actions drawn"


def nearest(snapshots: Sequence[Snapshot], begin: int) -> list[tuple[Snapshot, float]]:
    """For how many of the steps from `begin` to the last snapshot each one is the nearest."""
    steps = np.array([snapshot.step for snapshot in snapshots], float)
    edges = np.concatenate([[begin], (steps[1:] + steps[:-1]) / 2, steps[-1:]]).clip(begin)
    return list(zip(snapshots, np.diff(edges).tolist(), strict=True))


def split(rows: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to `shares` that are `rows` in all.

    >>> split(10, [1, 1, 2])
    [2, 3, 5]
    """
    ends = np.rint(np.cumsum(shares) / np.sum(shares) * rows).astype(int)
    counts: list[int] = np.diff(ends, prepend=0).tolist()
    return counts
