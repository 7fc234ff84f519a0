"""Data sets of offline reinforcement learning by name: official ones of D4RL, regenerated ones, those of Minari.

    load("walker2d-medium-replay-v2")      official: from D4RL's folders, or downloaded
    load("walker2d-medium-replay-regen")   made by make_datasets.py; never to be taken for an official one
    load("mujoco/hopper/medium-v0")        Minari
    load("folder/set.hdf5")                any file in D4RL's format

Of a file they are the transitions that D4RL's `qlearning_dataset` keeps, with the next observations that the file says,
where it does; of Minari all there are.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from synther_replay import Transitions, TransitionSpec
from synther_replay.benchmarks.data.download import (
    ADDRESSES,
    RECIPES,
    REGENERATED,
    file_name,
    locate,
    regenerated_folder,
)
from synther_replay.benchmarks.data.hdf5 import checked, paired, read, write
from synther_replay.benchmarks.environments.maze2d import MAZES
from synther_replay.benchmarks.environments.scores import REFERENCE, TASK_COLUMNS

__all__ = ["Dataset", "load", "normalised_score", "regenerated_folder", "write"]

# Steps of an episode where D4RL does not register 1,000, by the beginning of a name.
_LIMITS = {**{f"maze2d-{size}": maze.limit for size, maze in MAZES.items()}, "antmaze-umaze": 700, "kitchen": 280}
_NAMES = {file_name(name): name for name in ADDRESSES}
_QLEARNING = ("observations", "actions", "rewards", "next_observations", "terminals")  # in a transition's order


@dataclass(frozen=True, eq=False)
class Dataset:
    """Transitions in the order in which they were collected.

    Attributes:
        name: As given to `load`; of a file the official one, if it is named like one of D4RL's, else its stem.
        origin: "official", "regenerated", "minari" or "file".
        path: Where it was read from.
        observations: ``(n, observation_dim)``, float32.
        actions: ``(n, action_dim)``, float32.
        rewards: ``(n,)``, float32.
        next_observations: ``(n, observation_dim)``, float32.
        terminals: ``(n,)``, bool: the task ended the episode.
        timeouts: ``(n,)``, bool: the task did not, but the next row is no continuation.
        attributes: What the file says of itself; of a regenerated set at least ``command`` and ``recipe``.
        episode_returns: What `returns` gives; None where there are no whole episodes, in a subsample.
        timeouts_derived: Whether the file has no timeouts, and an episode is taken to end at the task's limit of steps.
    """

    name: str
    origin: str
    path: Path
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminals: np.ndarray
    timeouts: np.ndarray
    attributes: Mapping[str, Any]
    episode_returns: np.ndarray | None
    timeouts_derived: bool = False

    def __len__(self) -> int:
        """Number of transitions."""
        return len(self.rewards)

    def __repr__(self) -> str:
        """Name, origin and sizes."""
        sizes = f"{len(self)} transitions of {self.observations.shape[1]} + {self.actions.shape[1]} columns"
        return f"Dataset({self.name!r}, {self.origin}, {sizes})"

    def episodes(self) -> np.ndarray:
        """First row of each episode and the row after its last, ``(episodes, 2)``, as far as it has transitions."""
        stops = np.flatnonzero(self.terminals | self.timeouts) + 1
        if not len(stops) or stops[-1] < len(self):
            stops = np.append(stops, len(self))
        return np.stack([np.append(0, stops[:-1]), stops], axis=1)

    def returns(self) -> np.ndarray:
        """Of the whole episodes of the file, ``(episodes,)``, with the rewards of rows that are no transitions."""
        if self.episode_returns is None:
            raise ValueError(f"{self.name}: there are no whole episodes in a subsample")
        return self.episode_returns

    def subsample(self, fraction: float, seed: int) -> Dataset:
        """Some transitions, drawn uniformly without replacement, as the paper does; each is an episode of its own.

        Args:
            fraction: Above 0, at most 1: their share.
            seed: The same one gives the same transitions.
        """
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction: expected a number above 0 and at most 1, got {fraction!r}")
        count = max(1, round(fraction * len(self)))
        index = np.sort(np.random.default_rng(seed).choice(len(self), count, replace=False))
        fields = {key: getattr(self, key)[index] for key in _QLEARNING}
        return replace(self, **fields, timeouts=~fields["terminals"], episode_returns=None)

    def spec(self) -> TransitionSpec:
        """Layout of the transitions: actions in [-1, 1], as D4RL's are, or in their own range where that is wider."""
        high = np.maximum(1, np.abs(self.actions).max(axis=0))
        return TransitionSpec.from_spaces(Box(-np.inf, np.inf, self.observations.shape[1:]), Box(-high, high))

    def transitions(self, spec: TransitionSpec | None = None) -> Transitions:
        """Packed for a generator, under `spec` or that of the set itself."""
        fields = (getattr(self, key) for key in _QLEARNING)
        return Transitions.from_arrays(self.spec() if spec is None else spec, *fields)

    def digest(self) -> str:
        """Of the transitions: other ones have another."""
        return hashlib.sha256(self.transitions().rows.cpu().numpy().tobytes()).hexdigest()[:16]

    def to_qlearning(self) -> dict[str, np.ndarray]:
        """Copies of the arrays as `d4rl.qlearning_dataset` names them, for `ReplayBuffer.load_d4rl_dataset`."""
        return {key: getattr(self, key).copy() for key in _QLEARNING}


def load(name: str | Path, *, folder: Path | None = None, download: bool = True) -> Dataset:
    """Find and read a data set.

    Args:
        name: Official, regenerated, of Minari, or the path of a file: see above.
        folder: To look in first, and to download to; else as D4RL does it.
        download: Whether an official or a Minari set that is not here may be downloaded.

    Raises:
        FileNotFoundError: It is not here; the message says where it was sought and how to regenerate it.
        ImportError: h5py or minari is needed and not installed.
        ValueError: The file is damaged or no data set.
    """
    name = str(name)
    if name.endswith((".hdf5", ".h5")):
        origin, path = "file", Path(name).expanduser()
        name = _NAMES.get(path.name, path.stem)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file")
    elif "/" in name:
        return _from_minari(name, download)
    else:
        origin = "regenerated" if name.endswith(REGENERATED) else "official"
        path = locate(name, folder, download=download)
    rows, attributes = read(path)
    if "recipe" in attributes and not name.endswith(REGENERATED):
        raise ValueError(f"{path}: is a regenerated set, it has a recipe, but its name does not end in {REGENERATED}")
    if "recipe" not in attributes and name.endswith(REGENERATED):
        raise ValueError(f"{path}: does not say by what recipe it was made, as every regenerated set does")
    if attributes.get("name", name) != name:
        raise ValueError(f"{path}: is {attributes['name']}, and not {name}")
    transitions, returns = paired(rows, limit=_by_beginning(_LIMITS, name) or 1_000, where=path)
    columns = transitions["observations"].shape[1], transitions["actions"].shape[1]
    if columns != (_by_beginning(TASK_COLUMNS, name) or columns):
        expected = " + ".join(map(str, _by_beginning(TASK_COLUMNS, name)))
        raise ValueError(f"{path}: expected observations and actions of {expected} numbers in {name}, got {columns}")
    of_file = {"attributes": attributes, "episode_returns": returns, "timeouts_derived": "timeouts" not in rows}
    return Dataset(name, origin, path, **transitions, **of_file)


def normalised_score(name: str, mean_return: float) -> float:
    """D4RL's score of a return: 0 is a random policy, 100 an expert.

    Args:
        name: Of an official set, or a regenerated one, which has the score of its official namesake.
        mean_return: Not discounted.
    """
    if name not in ADDRESSES and name not in (recipe + REGENERATED for recipe in RECIPES):
        raise ValueError(f"name: expected an official set of {', '.join(REFERENCE)} or a regenerated one, got {name!r}")
    low, high = _by_beginning(REFERENCE, name)
    return float(100 * (mean_return - low) / (high - low))


def _by_beginning(table: Mapping[str, Any], name: str) -> Any:
    return next((value for beginning, value in table.items() if name.startswith(f"{beginning}-")), None)


def _from_minari(name: str, download: bool) -> Dataset:
    """A set of Minari, one episode after the other; no row is left out, as each has its own next observation."""
    try:
        minari = import_module("minari")
    except ImportError as error:
        raise ImportError(f"{name} is a set of Minari: pip install 'minari[hdf5,hf]'") from error
    try:
        source = minari.load_dataset(name, download=download)
    except Exception as error:  # of whatever kind its servers, formats and names have
        raise FileNotFoundError(f"{name}: Minari does not give it: {error}") from error
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    returns = []
    for episode in source.iterate_episodes():
        if not isinstance(episode.observations, np.ndarray) or not isinstance(episode.actions, np.ndarray):
            raise ValueError(f"{name}: expected vectors, it has {source.observation_space} and {source.action_space}")
        ended = bool(episode.terminations[-1])
        parts["observations"].append(episode.observations[:-1])
        parts["next_observations"].append(episode.observations[1:])
        parts["actions"].append(episode.actions)
        parts["rewards"].append(episode.rewards)
        parts["terminals"].append(episode.terminations)
        parts["timeouts"].append(np.zeros(len(episode.rewards), bool))
        parts["timeouts"][-1][-1] = not ended  # nor does one continue that was left before its end
        if ended or episode.truncations[-1]:
            returns.append(episode.rewards.sum())
    rows = checked({key: np.concatenate(arrays) for key, arrays in parts.items()}, name)
    path = Path(source.spec.data_path)
    return Dataset(name, "minari", path, **rows, attributes={}, episode_returns=np.array(returns))
