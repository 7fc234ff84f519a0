"""HDF5 files in D4RL's layout: read without trust, written so that `d4rl.qlearning_dataset` reads them back whole.

The HDF5 library crashes the interpreter after a write that failed, and it swallows an interrupt in the middle of one.
It therefore writes only the description of the arrays, to memory; Python writes the rows to their places in the file.

The library also crashes on some damaged files. The checksum of the whole file stands behind the end of the HDF5 data,
where other readers ignore it, and is compared before the library sees the file.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from synther_replay.files.checks import check_count, check_expansion, needs
from synther_replay.files.fields import names_of_fields, names_of_none, root_of, to_arrays, usual_name
from synther_replay.files.pairing import unpaired
from synther_replay.files.table import SPEC, Arrays, Blocks, Column
from synther_replay.persistence.atomic import replacing

NAME = "HDF5"
SUFFIXES = (".hdf5", ".h5")
NOTE = (
    "generated transitions, for d4rl.qlearning_dataset: each is followed by a row with its next observation and a "
    "timeout, which is no transition"
)

_PAGE = 2**14  # bytes, more than the description of some 50 arrays needs; for more of them it is doubled
_PIECE = 2**24  # bytes read at once for the checksum
_MARK = b"synther_replay crc32 "  # with eight hexadecimal digits the end of an HDF5 file; also in its description
_LARGEST_CHUNK = 2**20  # bytes of a chunk that is larger than its data set
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}  # others may load code from other libraries
_NO_ROWS = "metadata"  # group of D4RL's files with the weights of a policy
_MOST_ABOUT = 2**12  # bytes of an attribute; a longer spec is left out and inferred by readers


class HDF5Table:
    """The arrays of a file that D4RL's names or the file's own spec name."""

    def __init__(self, path: Path) -> None:
        """Read the header."""
        self._path = path
        with path.open("rb") as plain:
            _compare_checksum(plain)
        h5py = needs("h5py", "files")
        with h5py.File(path, "r") as file:
            self.about = {key: _decoded(value) for key, value in file.attrs.items() if key != "checksum"}
            self.about.update(self.about.pop("about", {}))
            extra = {name for name, _ in self.about.get(SPEC, {}).get("extra", ())}
            roots = names_of_fields(file, extra)
            found = {usual_name(path): path for key in roots.values() for path in _data_sets(h5py, file, key)}
            self.columns = {key: _column(file[path]) for key, path in found.items()}
            shapes = {key: file[path].shape for key, path in found.items()}
            self.unknown = [key for key in names_of_none(file, roots) if key != _NO_ROWS]
        self._places = found
        self.rows = next((shape[0] for shape in shapes.values()), 0)
        for key, shape in shapes.items():
            if shape[0] != self.rows:
                raise ValueError(f"{key}: expected {self.rows} rows, as {next(iter(shapes))}, got {shape}")

    def blocks(self, keys: Sequence[str], size: int) -> Generator[Arrays, None, None]:
        """Yield blocks of rows."""
        h5py = needs("h5py", "files")
        with h5py.File(self._path, "r") as file:
            sets = {key: _own_data_set(h5py, file, self._places[key]) for key in keys}
            check_expansion(sum(data.nbytes for data in sets.values()), self._path)
            for start in range(0, self.rows, size):
                yield {key: data[start : start + size] for key, data in sets.items()}


def check_installed() -> None:
    """Import the library of the format."""
    needs("h5py", "files")


def open_table(path: Path) -> HDF5Table:
    """Read the header of a file."""
    return HDF5Table(path)


def write(path: Path, count: int, blocks: Blocks, about: Mapping[str, Any]) -> None:
    """Write transitions; each takes two rows, see `pairing`."""
    write_arrays(path, 2 * count, (unpaired(to_arrays(block)) for block in blocks()), NOTE, about)


def write_arrays(
    path: Path, rows: int, blocks: Iterable[Arrays], note: str, about: Mapping[str, Any] | None = None
) -> None:
    """Write arrays of `rows` rows, given in blocks with the same keys, to a file atomically."""
    with replacing(path) as temporary:
        _write(temporary, rows, blocks, note, about)


def _write(path: Path, rows: int, given: Iterable[Arrays], note: str, about: Mapping[str, Any] | None) -> None:
    blocks = iter(given)
    first = next(blocks)
    description, offsets, size = _described(rows, first, note, about)
    with path.open("w+b") as file:
        file.write(description)
        start = 0
        for block in itertools.chain((first,), blocks):
            end = start + len(next(iter(block.values())))
            check_count(end, rows, least=0)
            for key, values in block.items():
                file.seek(offsets[key] + start * (values.nbytes // len(values)))
                file.write(np.ascontiguousarray(values).data.cast("B"))
            start = end
        check_count(start, rows)
        file.truncate(size)
        file.write(_MARK + _checksum_of(file, size))  # at the end, up to which the checksum has read


def _described(
    rows: int, block: Arrays, note: str, about: Mapping[str, Any] | None
) -> tuple[bytes, dict[str, int], int]:
    """Describe arrays like those in `block`, with `rows` rows.

    Returns:
        The beginning of the HDF5 file, where the rows of each array begin, and the size of the file.
    """
    page = _PAGE
    while True:
        description, offsets, size = _described_in(page, rows, block, note, about)
        if len(description) <= min(offsets.values()):
            return description, offsets, size
        page *= 2


def _described_in(
    page: int, rows: int, block: Arrays, note: str, about: Mapping[str, Any] | None
) -> tuple[bytes, dict[str, int], int]:
    """Describe arrays in pages of a size; the description comes before all rows if it fits into one page."""
    h5py, image = needs("h5py", "files"), io.BytesIO()
    with h5py.File(image, "w", fs_strategy="page", fs_page_size=page) as file:
        file.attrs["note"], file.attrs["checksum"] = note, np.bytes_(_MARK)
        if about:
            text = json.dumps(dict(about))
            if len(text) > _MOST_ABOUT:
                text = json.dumps({key: value for key, value in about.items() if key != SPEC})
            file.attrs["about"] = text
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # every array gets its place, ...
        settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # ... but nothing is written there
        offsets = {
            key: file.create_dataset(key, (rows, *values.shape[1:]), values.dtype, dcpl=settings).id.get_offset()
            for key, values in block.items()
        }
        file.flush()
        size = file.id.get_filesize()
    return image.getvalue(), offsets, size


def _compare_checksum(file: Any) -> None:
    """Raise ValueError if a file of `write` has changed since."""
    description = file.read(2 * _PAGE)
    size = max(0, file.seek(0, os.SEEK_END) - len(_MARK) - 8)
    file.seek(size)
    end = file.read()
    if not end.startswith(_MARK) and _MARK not in description:
        return  # by another program, or by an older version of this one
    if end != _MARK + _checksum_of(file, size):
        raise ValueError("damaged, or changed after it was written (checksum mismatch)")


def _checksum_of(file: Any, size: int) -> bytes:
    """CRC-32 of the first `size` bytes, as eight hexadecimal digits."""
    file.seek(0)
    checksum = 0
    while size > 0 and (piece := file.read(min(size, _PIECE))):
        checksum = zlib.crc32(piece, checksum)
        size -= len(piece)
    return b"%08x" % checksum


def _data_sets(h5py: Any, file: Any, key: str) -> Iterator[str]:
    """Yield the path of a data set, or of all data sets of a group, without following links to elsewhere."""
    if not isinstance(file.get(key, getlink=True), h5py.HardLink):
        raise ValueError(f"{key}: expected a data set in the file itself")
    if isinstance(file[key], h5py.Group):
        if key.count("/") > 16:
            raise ValueError(f"{root_of(key)}: groups are nested too deeply")
        for inner in file[key]:
            yield from _data_sets(h5py, file, f"{key}/{inner}")
    else:
        yield key


def _column(data: Any) -> Column:
    if not data.shape or data.dtype.kind not in "biuf":
        raise ValueError(f"{data.name.strip('/')}: expected rows of numbers, got {data.dtype} of shape {data.shape}")
    return Column(tuple(data.shape[1:]), data.dtype)


def _own_data_set(h5py: Any, file: Any, key: str) -> Any:
    """Return a data set of numbers that are all in this file; raise ValueError for anything else.

    Missing parts would be read as zeros. Links and external storage would read other files.
    """
    link = file.get(key, getlink=True)
    data = file[key] if isinstance(link, h5py.HardLink) else None
    if not isinstance(data, h5py.Dataset) or data.external or data.is_virtual:
        raise ValueError(f"{key}: expected a data set in the file itself")
    if not data.shape or data.dtype.kind not in "biuf":
        raise ValueError(f"{key}: expected rows of numbers, got {data.dtype} of shape {data.shape}")
    settings = data.id.get_create_plist()
    filters = {settings.get_filter(index)[0] for index in range(settings.get_nfilters())}
    if filters - _FILTERS.keys():
        raise ValueError(f"{key}: expected no filters other than {[*_FILTERS.values()]}, got {sorted(filters)}")
    if data.chunks is None:
        complete = data.id.get_storage_size() == data.nbytes
    else:
        chunks = math.prod(-(-rows // chunk) for rows, chunk in zip(data.shape, data.chunks, strict=True))
        size = math.prod(data.chunks) * data.dtype.itemsize
        complete = size <= max(_LARGEST_CHUNK, data.nbytes) and data.id.get_num_chunks() == chunks
    if not complete:
        raise ValueError(f"{key}: parts of the data set are missing")
    return data


def _decoded(value: Any) -> Any:
    """Decode an attribute: text of JSON, bytes, or a NumPy value."""
    value = value.decode(errors="replace") if isinstance(value, bytes) else value
    try:
        return json.loads(value) if isinstance(value, str) else value.tolist()
    except (AttributeError, ValueError):
        return str(value)
