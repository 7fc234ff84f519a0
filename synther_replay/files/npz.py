"""NumPy's ``.npz`` files: the arrays that `d4rl.qlearning_dataset` returns, one row per transition.

An archive holds one array after the other. Arrays are written one at a time and read side by side, both in blocks.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from synther_replay.files.checks import check_count, check_expansion
from synther_replay.files.fields import names_of_fields, names_of_none, to_arrays
from synther_replay.files.table import SPEC, Arrays, Blocks, Column
from synther_replay.persistence.atomic import replacing

NAME = "NumPy"
SUFFIXES = (".npz",)

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_MOST_COMMENT = 65_535  # bytes, of the zip format
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal arrays give equal files


class NPZTable:
    """The arrays of an archive that D4RL's names or the file's own spec name."""

    def __init__(self, path: Path) -> None:
        """Read the headers of the arrays."""
        self._path = path
        with zipfile.ZipFile(path) as archive:
            self.about = _comment(archive)
            extra = {name for name, _ in self.about.get(SPEC, {}).get("extra", ())}
            members = {info.filename.removesuffix(".npy"): info.filename for info in archive.infolist()}
            found = names_of_fields(members, extra)
            self.unknown = names_of_none(members, found)
            self._members = {key: members[name] for key, name in found.items()}
            check_expansion(sum(archive.getinfo(name).file_size for name in self._members.values()), path)
            headers = {key: _header(archive, name) for key, name in self._members.items()}
        self.columns = {key: Column(shape[1:], dtype) for key, (shape, _, dtype) in headers.items()}
        self.rows = next((shape[0] for shape, _, _ in headers.values()), 0)
        for key, (shape, _, _) in headers.items():
            if shape[0] != self.rows:
                raise ValueError(f"{key}: expected {self.rows} rows, as {next(iter(headers))}, got {shape}")

    def blocks(self, keys: Sequence[str], size: int) -> Generator[Arrays, None, None]:
        """Yield blocks of rows."""
        with zipfile.ZipFile(self._path) as archive, ExitStack() as opened:
            parts = {key: self._blocks_of(archive, opened, key, size) for key in keys}
            for _ in range(0, self.rows, size):
                yield {key: next(part) for key, part in parts.items()}
            for part in parts.values():
                next(part, None)  # reads to the end, where zip compares the checksum

    def _blocks_of(self, archive: zipfile.ZipFile, opened: ExitStack, key: str, size: int) -> Iterator[np.ndarray]:
        member = opened.enter_context(archive.open(self._members[key]))
        shape, by_columns, dtype = _read_header(member)
        if by_columns and len(shape) > 1:  # rows are spread over the whole array
            values = np.frombuffer(_exactly(member, math.prod(shape) * dtype.itemsize), dtype).reshape(shape, order="F")
            yield from (values[start : start + size] for start in range(0, self.rows, size))
        else:
            row = math.prod(shape[1:]) * dtype.itemsize
            for start in range(0, self.rows, size):
                count = min(size, self.rows - start)
                yield np.frombuffer(_exactly(member, count * row), dtype).reshape(count, *shape[1:])
        if member.read(1):
            raise ValueError(f"{key}: unexpected bytes after the array")


def check_installed() -> None:
    """Nothing is needed."""


def open_table(path: Path) -> NPZTable:
    """Read the headers of a file."""
    return NPZTable(path)


def write(path: Path, count: int, blocks: Blocks, about: Mapping[str, Any]) -> None:
    """Write transitions, one row each; `blocks` is read once per array."""

    def named() -> Iterator[Arrays]:
        return map(to_arrays, blocks())

    keys = list(to_arrays(next(iter(blocks()))))
    with replacing(path) as temporary, _new_archive(temporary) as archive:
        text = json.dumps(dict(about)).encode()
        if len(text) > _MOST_COMMENT:
            text = json.dumps({key: value for key, value in about.items() if key != SPEC}).encode()
        archive.comment = text
        for key in keys:
            _write_array(archive, key, count, (block[key] for block in named()))


@contextmanager
def _new_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """A new archive. After an error it is dropped: to close it would raise another one if an array is half written."""
    with open(path, "wb") as file:
        archive = zipfile.ZipFile(file, "w", allowZip64=True)
        try:
            yield archive
            archive.close()
        except BaseException:
            archive.fp = None
            raise


def _write_array(archive: zipfile.ZipFile, key: str, count: int, blocks: Iterator[np.ndarray]) -> None:
    with archive.open(zipfile.ZipInfo(f"{key}.npy", _EPOCH), "w", force_zip64=True) as member:
        done = 0
        for block in blocks:
            if not done:
                header = {"descr": np.lib.format.dtype_to_descr(block.dtype), "fortran_order": False}
                np.lib.format.write_array_header_1_0(member, {**header, "shape": (count, *block.shape[1:])})
            member.write(np.ascontiguousarray(block).data.cast("B"))
            done += len(block)
            check_count(done, count, least=0)
        check_count(done, count)


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read a header that agrees with the size of the archive's member, which bounds the memory."""
    size = archive.getinfo(name).file_size
    with archive.open(name) as member:
        shape, by_columns, dtype = _read_header(member)
        if dtype.kind not in "biuf":
            raise ValueError(f"{name}: expected numbers, got {dtype}; pickled objects are not loaded")
        if not shape:
            raise ValueError(f"{name.removesuffix('.npy')}: expected shape (rows, ...), got ()")
        if min(shape) < 0 or math.prod(shape) * dtype.itemsize != size - member.tell():
            raise ValueError(f"{name}: {size} bytes cannot be rows of {dtype} of shape {shape}")
    return shape, by_columns, dtype


def _read_header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(member)
    if version not in _HEADERS:
        raise ValueError(f"arrays: unknown version {version} of NumPy's format")
    shape, by_columns, dtype = _HEADERS[version](member)
    return shape, by_columns, dtype


def _exactly(member: IO[bytes], size: int) -> bytes:
    data = member.read(size)
    if len(data) != size:
        raise ValueError(f"{getattr(member, 'name', 'array')}: truncated")
    return data


def _comment(archive: zipfile.ZipFile) -> dict[str, Any]:
    """Return what `write` put into the comment of the archive; other files have none."""
    try:
        about = json.loads(archive.comment)
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}
