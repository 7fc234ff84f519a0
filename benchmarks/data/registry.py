"""Offline data sets by name: official ones of D4RL, regenerated ones, and those of Minari.

    load("walker2d-medium-replay-v2")      official: by D4RL if installed, else from its folder, or downloaded
    load("walker2d-medium-replay-regen")   made by make_datasets.py
    load("mujoco/hopper/medium-v0")        Minari
    load("folder/set.hdf5")                any file in D4RL's format

Official data are what `d4rl.qlearning_dataset` returns, unless a folder is given. Of a file, the transitions are those
that it keeps, with the next observations of the file if it has any. Of Minari, all transitions are used.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
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
from synther_replay.benchmarks.data.hdf5 import read, to_transitions, validated, write
from synther_replay.benchmarks.environments.ant_maps import ANT_MAPS
from synther_replay.benchmarks.environments.mazes import MAZES
from synther_replay.benchmarks.environments.scores import D4RL_RETURNS, TASK_COLUMNS

__all__ = ["Dataset", "load", "normalised_score", "regenerated_folder", "write"]

# Steps per episode where they are not 1,000, by prefix of a name.
_LIMITS = {
    **{f"maze2d-{size}": maze.limit for size, maze in MAZES.items()},
    **{f"antmaze-{size}": maze.limit for size, maze in ANT_MAPS.items()},
    "kitchen": 280,
}
_NAMES = {file_name(name): name for name in ADDRESSES}
_QLEARNING = ("observations", "actions", "rewards", "next_observations", "terminals")  # order of `Transitions`


@dataclass(frozen=True, eq=False)
class Dataset:
    """Transitions in the order in which they were collected.

    Attributes:
        name: The name given to `load`; for a file, the official name if it has D4RL's file name, else its stem.
        origin: "official", "regenerated", "minari" or "file".
        path: File or folder it was read from.
        observations: ``(n, observation_dim)``, float32.
        actions: ``(n, action_dim)``, float32.
        rewards: ``(n,)``, float32.
        next_observations: ``(n, observation_dim)``, float32.
        terminals: ``(n,)``, bool: the task ended the episode.
        timeouts: ``(n,)``, bool: the task did not, but the next row does not continue this one.
        attributes: Attributes of the file; a regenerated data set has at least ``command`` and ``recipe``.
        episode_returns: Returns of complete episodes; None for a subsample, which has no complete episodes.
        timeouts_derived: Whether the file has no timeouts, so that they were derived from the task's step limit.
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
        """First row of each episode and the row after its last, ``(episodes, 2)``."""
        stops = np.flatnonzero(self.terminals | self.timeouts) + 1
        if not len(stops) or stops[-1] < len(self):
            stops = np.append(stops, len(self))
        return np.stack([np.append(0, stops[:-1]), stops], axis=1)

    def returns(self) -> np.ndarray:
        """Returns of complete episodes, ``(episodes,)``; includes rewards of rows that are not transitions."""
        if self.episode_returns is None:
            raise ValueError(f"{self.name}: a subsample has no complete episodes, so it has no returns")
        return self.episode_returns

    def subsample(self, fraction: float, seed: int) -> Dataset:
        """A random subset of the transitions, drawn without replacement, as in the paper; each is its own episode.

        Args:
            fraction: Share of the transitions, above 0 and at most 1.
            seed: Random seed.
        """
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction: expected a number above 0 and at most 1, got {fraction!r}")
        count = max(1, round(fraction * len(self)))
        index = np.sort(np.random.default_rng(seed).choice(len(self), count, replace=False))
        fields = {key: getattr(self, key)[index] for key in _QLEARNING}
        return replace(self, **fields, timeouts=~fields["terminals"], episode_returns=None)

    def spec(self) -> TransitionSpec:
        """Layout of the transitions; the range of actions is [-1, 1], or that of the data if it is wider."""
        high = np.maximum(1, np.abs(self.actions).max(axis=0))
        return TransitionSpec.from_spaces(Box(-np.inf, np.inf, self.observations.shape[1:]), Box(-high, high))

    def transitions(self, spec: TransitionSpec | None = None) -> Transitions:
        """All transitions, with the layout `spec` or that of the data set."""
        fields = (getattr(self, key) for key in _QLEARNING)
        return Transitions.from_arrays(self.spec() if spec is None else spec, *fields)

    def digest(self) -> str:
        """Digest of the transitions."""
        return hashlib.sha256(self.transitions().rows.cpu().numpy().tobytes()).hexdigest()[:16]

    def to_qlearning(self) -> dict[str, np.ndarray]:
        """Copies of the arrays under the keys of `d4rl.qlearning_dataset`, for `ReplayBuffer.load_d4rl_dataset`."""
        return {key: getattr(self, key).copy() for key in _QLEARNING}


def load(name: str | Path, *, folder: Path | None = None, download: bool = True) -> Dataset:
    """Find and read a data set.

    Args:
        name: Official name, regenerated name, Minari name, or path of a file; see the module's docstring.
        folder: Folder to search first, and to download to; the default folders are searched in any case. With a
            folder, D4RL itself is not asked.
        download: Whether to download a missing official or Minari data set.

    Raises:
        FileNotFoundError: It was not found. The message lists the folders and how to regenerate it.
        ImportError: h5py or minari is required and not installed.
        ValueError: The file is damaged or not a valid data set.
    """
    name = str(name)
    if name.endswith((".hdf5", ".h5")):
        origin, path = "file", Path(name).expanduser()
        name = _NAMES.get(path.name, path.stem)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: file not found")
    elif "/" in name:
        return _from_minari(name, download)
    elif name in ADDRESSES and folder is None and has_d4rl():
        return _from_d4rl(name)
    else:
        origin = "regenerated" if name.endswith(REGENERATED) else "official"
        path = locate(name, folder, download=download)
    rows, attributes = read(path)
    if "recipe" in attributes and not name.endswith(REGENERATED):
        raise ValueError(
            f"{path}: a regenerated data set (it has the attribute 'recipe'), but its name does not end in "
            f"{REGENERATED}: got {name}"
        )
    if "recipe" not in attributes and name.endswith(REGENERATED):
        raise ValueError(f"{path}: a regenerated data set needs the attribute 'recipe', got {sorted(attributes)}")
    if attributes.get("name", name) != name:
        raise ValueError(f"{path}: got data set {attributes['name']}, expected {name}")
    transitions, returns = to_transitions(rows, limit=_limit(name), where=path)
    columns = transitions["observations"].shape[1], transitions["actions"].shape[1]
    expected = _by_prefix(TASK_COLUMNS, name) or columns
    if columns != expected:
        raise ValueError(
            f"{path}: {name}: got {columns[0]} columns of observations and {columns[1]} of actions, expected "
            f"{expected[0]} and {expected[1]}"
        )
    file_info = {"attributes": attributes, "episode_returns": returns, "timeouts_derived": "timeouts" not in rows}
    return Dataset(name, origin, path, **transitions, **file_info)


def normalised_score(name: str, mean_return: float) -> float:
    """D4RL's normalised score of a return: 0 is a random policy, 100 an expert.

    Args:
        name: Name of an official data set, or of a regenerated one, which has the scale of the official one.
        mean_return: Undiscounted return.
    """
    if name not in ADDRESSES and name not in (recipe + REGENERATED for recipe in RECIPES):
        raise ValueError(
            f"name: expected an official data set of {', '.join(D4RL_RETURNS)} or a regenerated one, got {name!r}"
        )
    low, high = _by_prefix(D4RL_RETURNS, name)
    return float(100 * (mean_return - low) / (high - low))


def has_d4rl() -> bool:
    """Whether D4RL itself is installed."""
    return find_spec("d4rl") is not None


def _from_d4rl(name: str) -> Dataset:
    """What D4RL's `qlearning_dataset` returns, as it is."""
    try:
        d4rl, gym = import_module("d4rl"), import_module("gym")
    except Exception as error:  # of mujoco-py, which compiles itself when imported
        raise ImportError(
            f"{name}: d4rl is installed but cannot be imported ({error}); give --folder instead"
        ) from error
    environment = gym.make(name)
    raw = environment.get_dataset()
    rows = validated(d4rl.qlearning_dataset(environment, dataset=raw), name)
    ended = np.append((rows["next_observations"][:-1] != rows["observations"][1:]).any(1), True)
    _, returns = to_transitions(validated(raw, name), limit=_limit(name), where=name)
    transitions = {**rows, "timeouts": ended & ~rows["terminals"]}
    file_info = {"attributes": {}, "episode_returns": returns, "timeouts_derived": "timeouts" not in raw}
    return Dataset(name, "official", Path(environment.unwrapped.dataset_filepath), **transitions, **file_info)


def _limit(name: str) -> int:
    """Steps per episode."""
    limit: int = _by_prefix(_LIMITS, name) or 1_000
    return limit


def _by_prefix(table: Mapping[str, Any], name: str) -> Any:
    return next((value for prefix, value in table.items() if name.startswith(f"{prefix}-")), None)


def _from_minari(name: str, download: bool) -> Dataset:
    """Read a data set of Minari; no row is dropped, as each has its own next observation."""
    try:
        minari = import_module("minari")
    except ImportError as error:
        raise ImportError(f"{name} is a Minari data set, which requires: pip install 'minari[hdf5,hf]'") from error
    try:
        source = minari.load_dataset(name, download=download)
    except Exception as error:  # Minari raises many kinds of errors for names, formats and servers
        raise FileNotFoundError(f"{name}: Minari cannot load it: {error}") from error
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    returns = []
    for episode in source.iterate_episodes():
        if not isinstance(episode.observations, np.ndarray) or not isinstance(episode.actions, np.ndarray):
            raise ValueError(
                f"{name}: expected array observations and actions, got {source.observation_space} and "
                f"{source.action_space}"
            )
        ended = bool(episode.terminations[-1])
        parts["observations"].append(episode.observations[:-1])
        parts["next_observations"].append(episode.observations[1:])
        parts["actions"].append(episode.actions)
        parts["rewards"].append(episode.rewards)
        parts["terminals"].append(episode.terminations)
        parts["timeouts"].append(np.zeros(len(episode.rewards), bool))
        parts["timeouts"][-1][-1] = not ended  # also for an episode that was cut off
        if ended or episode.truncations[-1]:
            returns.append(episode.rewards.sum())
    rows = validated({key: np.concatenate(arrays) for key, arrays in parts.items()}, name)
    path = Path(source.spec.data_path)
    return Dataset(name, "minari", path, **rows, attributes={}, episode_returns=np.array(returns))
