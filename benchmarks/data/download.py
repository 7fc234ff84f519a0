"""Files of data sets: D4RL's names and addresses, the folders to search, and the download."""

from __future__ import annotations

import difflib
import os
import re
from http.client import HTTPException
from itertools import product
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

HOST = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
REGENERATED = "-regen"  # suffix of the names of regenerated data sets

# Environment variable that names the folder, and the default folder in the home directory.
D4RL_FOLDER_VARIABLE = "D4RL_DATASET_DIR"
_D4RL_FOLDERS = D4RL_FOLDER_VARIABLE, ".d4rl"
_OWN_FOLDERS = "SYNTHER_REPLAY_DATASETS", ".synther_replay"

_MAZES = ("umaze", "medium", "large")
ANT_MAZES = {  # maze, several starts, several goals
    "umaze": ("u-maze", False, False),
    "umaze-diverse": ("u-maze", True, True),
    "medium-play": ("big-maze", True, False),
    "medium-diverse": ("big-maze", True, True),
    "large-play": ("hardest-maze", True, False),
    "large-diverse": ("hardest-maze", True, True),
}
_KITCHENS = {
    "complete": "mini_kitchen_microwave_kettle_light_slider",
    "partial": "kitchen_microwave_kettle_light_slider",
    "mixed": "kitchen_microwave_kettle_bottomburner_light",
}
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_BLOCK = 1 << 20  # bytes per read
_TIMEOUT = 30  # seconds without data


def _addresses() -> dict[str, str]:
    runs = ("random", "medium", "expert", "medium-replay", "full-replay", "medium-expert")
    found = {}
    for task, run, version in product(("halfcheetah", "hopper", "walker2d", "ant"), runs, ("v1", "v2")):
        file = f"{task}_{run.replace('-', '_')}-{version}.hdf5"
        found[f"{task}-{run}-{version}"] = f"gym_mujoco_{version}/{file}"
    for maze in _MAZES:
        found[f"maze2d-{maze}-v1"] = f"maze2d/maze2d-{maze}-sparse-v1.hdf5"
    for name, (maze, starts, goals) in ANT_MAZES.items():
        file = f"Ant_maze_{maze}_noisy_multistart_{starts}_multigoal_{goals}_sparse_fixed.hdf5"
        found[f"antmaze-{name}-v2"] = f"ant_maze_v2/{file}"
    for name, file in _KITCHENS.items():
        found[f"kitchen-{name}-v0"] = f"kitchen/{file}-v0.hdf5"
    return found


ADDRESSES = _addresses()
"""Paths below `HOST`, by official name; the last part of the path is the file name on disk."""

_RUNS = "random", "medium-replay", "medium", "medium-expert"
RECIPES = tuple(
    f"{task}-{kind}"
    for task, kinds in (
        ("halfcheetah", _RUNS),
        ("hopper", _RUNS),
        ("walker2d", _RUNS),
        ("maze2d", _MAZES),
        ("antmaze", ("umaze", "medium-play", "large-play")),
    )
    for kind in kinds
)
"""Data sets that `make_datasets.py` can regenerate."""


def file_name(name: str) -> str:
    """File name of a data set, as D4RL uses it."""
    return ADDRESSES[name].rpartition("/")[2] if name in ADDRESSES else f"{name}.hdf5"


def regenerated_folder() -> Path:
    """Default folder of regenerated data sets."""
    return _folders(*_OWN_FOLDERS)[0]


def d4rl_folders() -> list[Path]:
    """Folders in which D4RL keeps its files."""
    return _folders(*_D4RL_FOLDERS)


def locate(name: str, folder: Path | None = None, *, download: bool = True) -> Path:
    """Path of a data set's file: in the first folder that has it, else downloaded from D4RL's server.

    Args:
        name: Official name, or a name that ends in `REGENERATED`.
        folder: Folder to search first, and to download to.
        download: Whether to download a missing file.

    Raises:
        FileNotFoundError: The file was not found. The message lists the folders and how to regenerate the data set.
    """
    usual = _OWN_FOLDERS if name.endswith(REGENERATED) else _D4RL_FOLDERS
    folders = [*([Path(folder)] if folder else []), *_folders(*usual)]
    files = list(dict.fromkeys((file_name(name), f"{name}.hdf5")))
    for path in (place / file for place in folders for file in files):
        if path.is_file():
            return path
    failure = ""
    if download and name in ADDRESSES:
        try:
            return fetch(f"{HOST}/{ADDRESSES[name]}", folders[0] / files[0])
        except OSError as error:
            failure = f"; download failed ({error})"
    searched = f"{name}: no {' or '.join(files)} in {' or '.join(map(str, folders))}"
    raise FileNotFoundError(f"{searched}{failure}; {_missing_hint(name)}")


def _folders(variable: str, home: str) -> list[Path]:
    """The folder of the environment variable, if set, then the default folder."""
    given = os.environ.get(variable)
    return [*([Path(given).expanduser()] if given else []), Path.home() / home / "datasets"]


def _missing_hint(name: str) -> str:
    """What to do about a missing file."""
    plain = re.sub(rf"(-v\d+|{REGENERATED})$", "", name)
    if plain in RECIPES:
        return f"run `python benchmarks/make_datasets.py {plain}` to generate {plain}{REGENERATED}"
    if name in ADDRESSES:
        return "this data set cannot be regenerated"
    near = difflib.get_close_matches(name, [*ADDRESSES, *(recipe + REGENERATED for recipe in RECIPES)], n=3)
    return f"unknown data set; did you mean {', '.join(near)}?" if near else "unknown data set"


def fetch(url: str, target: Path) -> Path:
    """Download an HDF5 file. An incomplete download is kept as ``<target>.part`` and resumed.

    Raises:
        OSError: The download is incomplete or not an HDF5 file; `target` is unchanged.
    """
    part = target.with_name(target.name + ".part")
    try:
        size = _receive(url, part)
    except (HTTPException, URLError) as error:
        raise OSError(f"{url}: {getattr(error, 'reason', error)!r}") from error
    if part.stat().st_size != size:
        raise OSError(f"{url}: got {part.stat().st_size} of {size} bytes; the next attempt resumes {part}")
    with part.open("rb") as file:
        if file.read(len(_HDF5_SIGNATURE)) != _HDF5_SIGNATURE:
            part.unlink()  # for example the login page of a network; resuming would not help
            raise OSError(f"{url}: the downloaded file is not HDF5")
    os.replace(part, target)
    return target


def _receive(url: str, part: Path) -> int:
    """Download the missing bytes to `part`; returns the size of the whole file."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urlopen(request, timeout=_TIMEOUT) as response:
            length, resumed = response.headers.get("Content-Length", ""), response.status == 206
            if not length.isdecimal():
                raise OSError(f"{url}: the server sent no Content-Length")
            sent = response.headers.get("Content-Range", "")
            if resumed and not sent.startswith(f"bytes {have}-"):
                raise OSError(f"{url}: Content-Range: got {sent!r}, expected a range from byte {have}")
            have = have if resumed else 0  # a server without range requests sends the whole file
            size = have + int(length)
            part.parent.mkdir(parents=True, exist_ok=True)
            label = part.name.removesuffix(".part")
            with (
                part.open("ab" if resumed else "wb") as file,
                tqdm(total=size, initial=have, desc=label, unit="B", unit_scale=True, disable=None) as bar,
            ):
                while block := response.read(_BLOCK):
                    file.write(block)
                    bar.update(len(block))
                file.flush()
                os.fsync(file.fileno())
            return size
    except HTTPError as error:
        if error.code != 416:  # 416: no bytes after those already present
            raise OSError(f"{url}: {error}") from error
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return have
    part.unlink()  # longer than the file, so it is not a part of it
    return _receive(url, part)
