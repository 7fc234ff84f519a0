"""A folder of Parquet files with rows of one spec, read as one file; the order is that of their names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from synther_replay.errors import GenerationError
from synther_replay.files import parquet
from synther_replay.files.parquet import ParquetTable
from synther_replay.files.table import Arrays, Blocks, Column
from synther_replay.persistence.atomic import replacing

NAME = "Parquet shards"
MANIFEST = "_manifest.json"  # Arrow leaves names with a leading underscore out


class ShardedTable:
    """The files of a folder, one after the other.

    Raises:
        ValueError: A file that the manifest names is missing or has another size, or the columns of two files differ.
    """

    def __init__(self, folder: Path) -> None:
        """Read the headers of all files."""
        files = _files(folder)
        described = {shard["file"]: shard for shard in manifest_of(folder).get("shards", ())}
        if missing := sorted(described.keys() - {file.name for file in files}):
            raise ValueError(f"{len(missing)} of {len(described)} shards are missing, the first is {missing[0]}")
        for file in files:
            if file.name in described and (size := file.stat().st_size) != described[file.name]["bytes"]:
                raise ValueError(f"{file.name}: expected {described[file.name]['bytes']} bytes, got {size}")
        self._tables = [_open(file) for file in files]
        first = self._tables[0]
        for file, table in zip(files, self._tables, strict=True):
            if table.rows and table.columns != first.columns:
                raise ValueError(f"{file.name}: got columns {table.columns}, expected {first.columns}")
        self.rows = sum(table.rows for table in self._tables)
        self.columns: Mapping[str, Column] = first.columns
        self.about = first.about
        self.unknown = first.unknown

    def blocks(self, keys: Sequence[str], size: int) -> Generator[Arrays, None, None]:
        """Yield blocks of rows."""
        for table in self._tables:
            yield from table.blocks(keys, size)


def is_folder(path: Path) -> bool:
    """Whether there are Parquet files in a folder."""
    return path.is_dir() and bool(_files(path))


def is_whole(path: Path) -> bool:
    """Whether a folder holds a manifest, files that it names, and nothing else: then it may be replaced."""
    if not (path / MANIFEST).is_file():
        return False
    try:
        named = {str(shard["file"]) for shard in manifest_of(path)["shards"]}
    except (ValueError, KeyError, TypeError):
        return False
    return {entry.name for entry in path.iterdir()} <= named | {MANIFEST}


def check_installed() -> None:
    """Import the library of the format."""
    parquet.check_installed()


def open_table(path: Path) -> ShardedTable:
    """Read the headers of all files."""
    return ShardedTable(path)


def write(path: Path, count: int, blocks: Blocks, about: Mapping[str, Any]) -> None:
    """Refuse: shards are written one by one."""
    raise ValueError(f"{path}: write a file with the suffix .parquet, or use synther upsample --shards")


def name_of(shard: int, shards: int) -> str:
    """File name of a shard.

    >>> name_of(3, 64)
    'part-00003-of-00064.parquet'
    """
    return f"part-{shard:05d}-of-{shards:05d}.parquet"


def number_of(name: str) -> int:
    """Number of the shard with a file name of `name_of`.

    >>> number_of("part-00003-of-00064.parquet")
    3
    """
    return int(name.split("-")[1])


def is_there(folder: Path, entry: Mapping[str, Any]) -> bool:
    """Whether the file of an entry of the manifest exists with the size that it should have; it is not read."""
    file, size = folder / str(entry["file"]), int(entry["bytes"])
    return file.is_file() and file.stat().st_size == size


def describe(file: Path, rows: int) -> dict[str, Any]:
    """Return the entry of a shard in the manifest: its name, rows, bytes and SHA-256."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"file": file.name, "rows": rows, "bytes": file.stat().st_size, "sha256": digest}


def write_manifest(folder: Path, shards: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> None:
    """Write the manifest of a folder."""
    with replacing(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps({**about, "shards": list(shards)}, indent=1) + "\n")


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder; empty if it has none."""
    try:
        text = (folder / MANIFEST).read_text()
    except FileNotFoundError:
        return {}
    found = json.loads(text)
    if not isinstance(found, dict) or not isinstance(found.get("shards"), list):
        raise ValueError(f"{MANIFEST}: expected an object with a list of shards")
    return found


def verify(folder: Path) -> int:
    """Read all files of a folder with a manifest; return the number of rows.

    Raises:
        GenerationError: A file differs from what the manifest says.
    """
    total = 0
    for shard in manifest_of(folder)["shards"]:
        file = folder / shard["file"]
        if not file.is_file() or describe(file, shard["rows"]) != shard:
            raise GenerationError(f"{file}: missing, or not the file of the manifest")
        total += shard["rows"]
    return total


def _open(file: Path) -> ParquetTable:
    try:
        return ParquetTable(file)
    except (ValueError, OSError) as error:
        raise ValueError(f"{file.name}: {error}") from error


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.parquet") if not file.name.startswith((".", "_")))
