"""Minari's data sets: by the name of an installed one, or by folder.

A generated transition is an episode of one step, because no other follows it: every reader of Minari then sees exactly
the transitions. Minari's own writer takes about 15 KB for such an episode. Here it takes its numbers and about 1 KB:
arrays stand in their headers, and all episodes share the arrays of their flags.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from synther_replay.data.transitions import Transitions, TransitionSpec
from synther_replay.files.checks import check_count, needs
from synther_replay.files.fields import NEXT_OBSERVATIONS, OBSERVATIONS, TERMINALS, root_of, to_arrays
from synther_replay.files.table import SPEC, Arrays, Blocks, Column
from synther_replay.persistence.atomic import replacing_folder

NAME = "Minari"
PREFIX = "minari:"
_DATA, _MAIN, _METADATA = "data", "main_data.hdf5", "metadata.json"
_OWN = "synther_replay"  # key of ours in the metadata
_HEADERS = 1_300  # bytes of an episode besides its numbers
_ID = re.compile(r"[-_\w]+(/[-_\w]+)*-v\d+")


class MinariTable:
    """The steps of all episodes, one after the other, with their next observations."""

    def __init__(self, path: Path) -> None:
        """Read the description of the data set."""
        minari = needs("minari.dataset.minari_dataset", "minari")
        self._data = minari.MinariDataset(path / _DATA)
        spec = TransitionSpec.from_spaces(self._data.observation_space, self._data.action_space)
        metadata = json.loads((path / _DATA / _METADATA).read_text())
        told = ("dataset_id", "algorithm_name", "author", "code_permalink", "description", "env_spec", "total_episodes")
        self.about = {key: metadata[key] for key in told if key in metadata}
        self.about |= {SPEC: spec.to_json(), **metadata.get(_OWN, {})}
        self.rows = int(self._data.total_steps)
        self.unknown: list[str] = []
        self.columns = {
            key: Column(values.shape[1:], values.dtype) for key, values in to_arrays(_no_rows(spec)).items()
        }

    def blocks(self, keys: Sequence[str], size: int) -> Generator[Arrays, None, None]:
        """Yield blocks of rows; an episode that is longer than a block is held in memory."""
        held: list[Arrays] = []
        count = total = 0  # rows in `held`, and of all episodes so far
        for episode in self._data.iterate_episodes():
            steps = _steps(episode)
            held.append({key: _found(steps, key) for key in keys})
            count += len(steps["rewards"])
            total += len(steps["rewards"])
            while count >= size:
                joined = _joined(held)
                yield {key: values[:size] for key, values in joined.items()}
                held, count = [{key: values[size:] for key, values in joined.items()}], count - size
        if total != self.rows:  # the number of episodes is in the same description and may be wrong, too
            raise ValueError(
                f"{_METADATA}: expected total_steps {self.rows}, got {total} in {len(self._data)} episodes"
            )
        if count:
            yield _joined(held)


def is_id(name: str) -> bool:
    """Return whether a text can be the name of a data set.

    >>> is_id("D4RL/door/human-v2"), is_id("door.hdf5")
    (True, False)
    """
    return _ID.fullmatch(name) is not None


def folder_of(name: str) -> Path:
    """Return the folder of an installed data set."""
    needs("minari", "minari")
    folder: Path = needs("minari.storage.datasets_root_dir", "minari").get_dataset_path(name)
    return folder


def is_folder(path: Path) -> bool:
    """Return whether a folder holds a data set."""
    return (path / _DATA / _METADATA).is_file()


def check_installed() -> None:
    """Import the libraries of the format."""
    needs("h5py", "minari")
    needs("minari", "minari")


def open_table(path: Path) -> MinariTable:
    """Read the description of the data set in a folder."""
    if not is_folder(path):
        raise FileNotFoundError(f"no data set of Minari: {path / _DATA / _METADATA} does not exist")
    return MinariTable(path)


def write(path: Path, count: int, blocks: Blocks, about: Mapping[str, Any]) -> None:
    """Write transitions as episodes of one step to a folder."""
    minari, spec = needs("minari", "minari"), next(blocks()).spec
    serialise = needs("minari.serialization", "minari").serialize_space
    if spec.extra:
        raise ValueError(f"extra fields: Minari has no place for {', '.join(spec.extra)}; write another format")
    name = path.name if is_id(path.name) else f"{path.name}-v0"
    metadata = {
        "total_episodes": count,
        "total_steps": count,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": serialise(spec.observation_space),
        "action_space": serialise(spec.action_space),
        "dataset_id": about.get("dataset_id", name),
        "description": "Generated transitions: every episode has one step and stands for itself.",
        "algorithm_name": "synther_replay",
        "minari_version": minari.__version__,
        _OWN: {key: value for key, value in about.items() if key != SPEC},
    }
    needed = count * (_HEADERS + 4 * spec.dim)
    if shutil.disk_usage(path.parent).free < needed:  # HDF5 crashes the interpreter when the disk is full
        raise OSError(errno.ENOSPC, f"No space left on device (about {needed:,} bytes are needed)", str(path))
    with replacing_folder(path) as temporary:
        data = temporary / _DATA
        data.mkdir()
        _write_episodes(data / _MAIN, count, blocks)
        metadata["dataset_size"] = round((data / _MAIN).stat().st_size / 1e6, 1)
        (data / _METADATA).write_text(json.dumps(metadata))


def _write_episodes(path: Path, count: int, blocks: Blocks) -> None:
    """Write episodes with HDF5's own functions: those of h5py for groups and data sets take several times as long."""
    h5py, done = needs("h5py", "files"), 0
    with h5py.File(path, "w", libver="latest") as file:
        episodes = _Episodes(h5py, file)
        for block in blocks():
            arrays = to_arrays(block)
            check_count(done + len(block), count, least=0)
            for row in range(len(block)):
                episodes.add(done + row, {key: values[row] for key, values in arrays.items()})
            done += len(block)
    check_count(done, count)


class _Episodes:
    """Adds episodes of one step to a file."""

    def __init__(self, h5py: Any, file: Any) -> None:
        self._h5py, self._file = h5py, file.id
        self._settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._settings.set_layout(h5py.h5d.COMPACT)
        self._of_groups = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        for settings in (self._settings, self._of_groups):
            settings.set_obj_track_times(False)  # the same rows give the same bytes at any time of day
        self._scalar = h5py.h5s.create(h5py.h5s.SCALAR)
        shared = file.create_group("shared")  # Minari reads only groups named episode_...
        for name, flag in ((b"yes", True), (b"no", False)):
            shared.create_dataset(name, data=np.array([flag]))
        shared.create_group("infos")
        self._shared = shared.id

    def add(self, number: int, row: Mapping[str, np.ndarray]) -> None:
        h5py = self._h5py
        group = self._made_group(self._file, b"episode_%d" % number)
        for key, value in row.items():
            root = root_of(key)
            if root == OBSERVATIONS:
                following = row[NEXT_OBSERVATIONS + key.removeprefix(OBSERVATIONS)]
                self._add_array(group, key, np.stack((value, following)))
            elif root in ("actions", "rewards"):
                self._add_array(group, key, np.asarray(value)[None])
        flags = (b"yes", b"no") if row[TERMINALS] else (b"no", b"yes")
        for name, target in zip((b"terminations", b"truncations", b"infos"), (*flags, b"infos"), strict=True):
            group.links.create_hard(name, self._shared, target)
        for name, whole in ((b"id", number), (b"total_steps", 1)):
            h5py.h5a.create(group, name, h5py.h5t.STD_I64LE, self._scalar).write(np.array(whole))

    def _made_group(self, parent: Any, name: bytes) -> Any:
        return self._h5py.h5g.create(parent, name, gcpl=self._of_groups)

    def _add_array(self, group: Any, key: str, values: np.ndarray) -> None:
        h5py = self._h5py
        *groups, name = key.split("/")
        for step in groups:
            step = step if not step.isdecimal() else f"_index_{step}"
            exists = step.encode() in group
            group = h5py.h5g.open(group, step.encode()) if exists else self._made_group(group, step.encode())
        name = f"_index_{name}" if groups and name.isdecimal() else name
        kind, space = h5py.h5t.py_create(values.dtype, logical=True), h5py.h5s.create_simple(values.shape)
        data = h5py.h5d.create(group, name.encode(), kind, space, self._settings)
        data.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(values))


def _steps(episode: Any) -> dict[str, Any]:
    """Return the fields of an episode; observations have one row more than the others."""
    return {
        OBSERVATIONS: _without(episode.observations, slice(None, -1)),
        "actions": episode.actions,
        "rewards": np.asarray(episode.rewards),
        NEXT_OBSERVATIONS: _without(episode.observations, slice(1, None)),
        TERMINALS: np.asarray(episode.terminations),
    }


def _without(values: Any, rows: slice) -> Any:
    if isinstance(values, dict):
        return {key: _without(value, rows) for key, value in values.items()}
    if isinstance(values, tuple):
        return tuple(_without(value, rows) for value in values)
    return np.asarray(values)[rows]


def _found(steps: Mapping[str, Any], key: str) -> np.ndarray:
    value: Any = steps
    for step in key.split("/"):
        value = value[int(step)] if isinstance(value, tuple) else value[step]
    return np.asarray(value)


def _joined(parts: list[Arrays]) -> Arrays:
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _no_rows(spec: TransitionSpec) -> Transitions:
    return Transitions(spec, torch.empty(0, spec.dim, dtype=torch.float32, device="cpu"))
