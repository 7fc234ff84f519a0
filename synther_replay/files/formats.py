"""Which format a path has: by its suffix; a folder has Parquet files or is, as a name is, a data set of Minari."""

from __future__ import annotations

import os
from pathlib import Path

from synther_replay.files import hdf5, minari, npz, parquet, shards
from synther_replay.files.table import Format

_BY_SUFFIX: dict[str, Format] = {suffix: module for module in (hdf5, npz, parquet) for suffix in module.SUFFIXES}
_EXPECTED = f"expected a suffix ({', '.join(_BY_SUFFIX)}), or a folder or minari:NAME-v0 for Minari"


def located(path: str | os.PathLike[str], *, exists: bool) -> tuple[Path, Format]:
    """Return the path of a file or folder, and its format.

    Args:
        path: A path, or the name of an installed data set of Minari, with the prefix ``minari:`` if there is a doubt.
        exists: Whether it is to be read. A name without prefix is then looked for among the data sets of Minari.

    Raises:
        FileNotFoundError: It is to be read and does not exist.
        ValueError: The format is unknown.
    """
    text = os.fspath(path)
    if text.startswith(minari.PREFIX):
        name = text.removeprefix(minari.PREFIX)
        if not minari.is_id(name):
            raise ValueError(f"{text}: expected a name such as minari:pendulum/synthetic-v0")
        found = minari.folder_of(name)
        if exists and not minari.is_folder(found):
            raise FileNotFoundError(f"{text}: no such data set in {found.parent}; run: minari download {name}")
        return found, minari
    place = Path(text)
    known = _BY_SUFFIX.get(place.suffix.lower())
    if exists and not place.exists():
        if known is None and minari.is_id(text):
            return located(minari.PREFIX + text, exists=True)
        raise FileNotFoundError(f"{text}: no such file")
    if exists and place.is_dir():
        if shards.is_folder(place):
            return place, shards
        if not minari.is_folder(place):
            raise ValueError(f"{text}: a folder without Parquet files or a data set of Minari (data/metadata.json)")
        return place, minari
    if known is None and not place.suffix and not exists:
        return place, minari
    if known is None:
        raise ValueError(f"{text}: unknown format; {_EXPECTED}")
    return place, known
