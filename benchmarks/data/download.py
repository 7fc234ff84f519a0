"""Where the files of data sets lie: D4RL's names and addresses, the folders to look in, and the download."""

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
REGENERATED = "-regen"  # how the name of every set ends that was made here, by D4RL's recipe

# The variable of the environment that names the folder, and where it is in the home of the user.
_D4RL_FOLDERS = "D4RL_DATASET_DIR", ".d4rl"
_OWN_FOLDERS = "SYNTHER_REPLAY_DATASETS", ".synther_replay"

_MAZES = ("umaze", "medium", "large")
_ANT_MAZES = {  # maze, whether it has several starts, and several goals
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
_BLOCK = 1 << 20  # bytes received at a time
_PATIENCE = 30  # seconds without a byte


def _addresses() -> dict[str, str]:
    runs = ("random", "medium", "expert", "medium-replay", "full-replay", "medium-expert")
    found = {}
    for task, run, version in product(("halfcheetah", "hopper", "walker2d", "ant"), runs, ("v1", "v2")):
        file = f"{task}_{run.replace('-', '_')}-{version}.hdf5"
        found[f"{task}-{run}-{version}"] = f"gym_mujoco_{version}/{file}"
    for maze in _MAZES:
        found[f"maze2d-{maze}-v1"] = f"maze2d/maze2d-{maze}-sparse-v1.hdf5"
    for name, (maze, starts, goals) in _ANT_MAZES.items():
        file = f"Ant_maze_{maze}_noisy_multistart_{starts}_multigoal_{goals}_sparse_fixed.hdf5"
        found[f"antmaze-{name}-v2"] = f"ant_maze_v2/{file}"
    for name, file in _KITCHENS.items():
        found[f"kitchen-{name}-v0"] = f"kitchen/{file}-v0.hdf5"
    return found


ADDRESSES = _addresses()
"""Below `HOST`, by the official name; a file keeps the last part of its address as its name on disk."""

_RUNS = "random", "medium-replay", "medium", "medium-expert"
RECIPES = tuple(
    f"{task}-{kind}"
    for task, kinds in (("halfcheetah", _RUNS), ("hopper", _RUNS), ("walker2d", _RUNS), ("maze2d", _MAZES))
    for kind in kinds
)
"""What `make_datasets.py` can regenerate."""


def file_name(name: str) -> str:
    """Of a data set on disk, as D4RL has it."""
    return ADDRESSES[name].rpartition("/")[2] if name in ADDRESSES else f"{name}.hdf5"


def regenerated_folder() -> Path:
    """Where regenerated sets are kept."""
    return _folders(*_OWN_FOLDERS)[0]


def locate(name: str, folder: Path | None = None, *, download: bool = True) -> Path:
    """The file of a data set: from the first folder that has it, else from D4RL's server.

    Args:
        name: Official, or ending in `REGENERATED`.
        folder: To look in first, and to download to.
        download: Whether to ask the server.

    Raises:
        FileNotFoundError: There is none; the message says where it was sought and how to regenerate it.
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
            failure = f", the download failed ({error})"
    sought = f"{name}: there is no {' or '.join(files)} in {' or '.join(map(str, folders))}"
    raise FileNotFoundError(f"{sought}{failure}; {_way_out(name)}")


def _folders(variable: str, home: str) -> list[Path]:
    """What the environment says, then the usual place."""
    given = os.environ.get(variable)
    return [*([Path(given).expanduser()] if given else []), Path.home() / home / "datasets"]


def _way_out(name: str) -> str:
    """What someone can do who has not got the file."""
    plain = re.sub(rf"(-v\d+|{REGENERATED})$", "", name)
    if plain in RECIPES:
        return f"`python benchmarks/make_datasets.py {plain}` makes {plain}{REGENERATED} by D4RL's recipe"
    if name in ADDRESSES:
        return "there is no recipe to regenerate it"
    near = difflib.get_close_matches(name, [*ADDRESSES, *(recipe + REGENERATED for recipe in RECIPES)], n=3)
    return f"no set of that name is known, near are {', '.join(near)}" if near else "no set of that name is known"


def fetch(url: str, target: Path) -> Path:
    """Download an HDF5 file; what there is of an unfinished one lies beside it as ``.part`` and is continued.

    Raises:
        OSError: It did not arrive whole; there is nothing new under the name of `target`.
    """
    part = target.with_name(target.name + ".part")
    try:
        size = _receive(url, part)
    except (HTTPException, URLError) as error:
        raise OSError(f"{url}: {getattr(error, 'reason', error)!r}") from error
    if part.stat().st_size != size:
        raise OSError(f"{url}: {part.stat().st_size} of {size} bytes came, the next attempt continues {part}")
    with part.open("rb") as file:
        if file.read(len(_HDF5_SIGNATURE)) != _HDF5_SIGNATURE:
            part.unlink()  # such as the login page of a network: continuing would not mend it
            raise OSError(f"{url}: what came is no HDF5 file")
    os.replace(part, target)
    return target


def _receive(url: str, part: Path) -> int:
    """Append what is missing; returns the size of the whole file."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urlopen(request, timeout=_PATIENCE) as answer:
            length, continued = answer.headers.get("Content-Length", ""), answer.status == 206
            if not length.isdecimal():
                raise OSError(f"{url}: the server does not say how many bytes there are")
            if continued and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                raise OSError(f"{url}: the server does not continue at byte {have}")
            have = have if continued else 0  # a server that cannot continue sends all of it
            size = have + int(length)
            part.parent.mkdir(parents=True, exist_ok=True)
            label = part.name.removesuffix(".part")
            with (
                part.open("ab" if continued else "wb") as file,
                tqdm(total=size, initial=have, desc=label, unit="B", unit_scale=True, disable=None) as bar,
            ):
                while block := answer.read(_BLOCK):
                    file.write(block)
                    bar.update(len(block))
                file.flush()
                os.fsync(file.fileno())
            return size
    except HTTPError as error:
        if error.code != 416:  # that is: there is no byte after those
            raise OSError(f"{url}: {error}") from error
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return have
    part.unlink()  # longer than the file, so no part of it
    return _receive(url, part)
