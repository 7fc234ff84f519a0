"""NumPy and HDF5 files of arrays: written atomically, read without trust.

The HDF5 library crashes the interpreter after a write that failed, and it swallows an interrupt in the middle of one.
It therefore writes only the description of the arrays, to memory; Python writes the rows to their places in the file.

The library also crashes on some damaged files. The checksum of the whole file stands behind the end of the HDF5 data,
where other readers ignore it, and is compared before the library sees the file.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from synther_replay.errors import GenerationError
from synther_replay.persistence.atomic import replacing

HDF5 = (".hdf5", ".h5")
Arrays = dict[str, np.ndarray]

_PAGE = 2**14  # bytes, more than the description of all arrays needs
_PIECE = 2**24  # bytes read at once for the checksum
_MARK = b"synther_replay crc32 "  # with eight hexadecimal digits the end of an HDF5 file; also in its description
_MOST_EXPANSION = 100  # arrays may be this many times as large as their compressed file
_LARGEST_CHUNK = 2**20  # bytes of a chunk that is larger than its data set
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}  # others may load code from other libraries


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return the path if its suffix is supported, else raise ValueError."""
    path = Path(path)
    if path.suffix not in (".npz", *HDF5):
        raise ValueError(f"path: expected the suffix .npz, .hdf5 or .h5, got {path}")
    return path


def write(path: Path, rows: int, blocks: Iterable[Arrays], note: str) -> None:
    """Write arrays of `rows` rows, given in blocks, to a file atomically.

    Args:
        path: The file. HDF5 is written block by block; for ``.npz``, all arrays are held in memory.
        rows: Number of rows of each array.
        blocks: Consecutive rows, with the same keys in each block.
        note: Description of the contents, an attribute of the HDF5 file.

    Raises:
        OSError: The file cannot be written, for example because the disk is full.
        GenerationError: The blocks have fewer or more rows.
    """
    with replacing(path) as temporary:
        if path.suffix in HDF5:
            _write_hdf5(temporary, rows, blocks, note)
        else:
            _write_npz(temporary, rows, blocks)


def read(path: Path, keys: Sequence[str]) -> Arrays:
    """Read the arrays among `keys` that the file has; nothing is executed, and no other file is read.

    Memory is bounded by the size of the file; for compressed files by 100 times their size.

    Raises:
        FileNotFoundError: The file does not exist.
        Exception: The file is damaged. NumPy, zip and HDF5 raise different errors.
    """
    return _read_hdf5(path, keys) if path.suffix in HDF5 else _read_npz(path, keys)


def _write_npz(path: Path, rows: int, blocks: Iterable[Arrays]) -> None:
    parts = list(blocks)
    arrays: dict[str, Any] = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    for values in arrays.values():
        _check_rows(len(values), rows)
    with path.open("wb") as file:
        try:
            np.savez(file, **arrays)
        except ValueError as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # hidden by an error about the unfinished archive
                raise error.__context__ from None
            raise


def _write_hdf5(path: Path, rows: int, blocks: Iterable[Arrays], note: str) -> None:
    blocks = iter(blocks)
    first = next(blocks)
    description, offsets, size = _described(rows, first, note)
    with path.open("w+b") as file:
        file.write(description)
        start = 0
        for block in itertools.chain((first,), blocks):
            end = start + len(next(iter(block.values())))
            _check_rows(end, rows, least=0)
            for key, values in block.items():
                file.seek(offsets[key] + start * (values.nbytes // len(values)))
                file.write(np.ascontiguousarray(values).data.cast("B"))
            start = end
        _check_rows(start, rows)
        file.truncate(size)
        file.write(_MARK + _checksum_of(file, size))  # at the end, up to which the checksum has read


def _described(rows: int, block: Arrays, note: str) -> tuple[bytes, dict[str, int], int]:
    """Describe arrays like those in `block`, with `rows` rows.

    Returns:
        The beginning of the HDF5 file, where the rows of each array begin, and the size of the file.
    """
    h5py, image = _h5py(), io.BytesIO()
    # Pages keep the description apart from the rows; it comes first.
    with h5py.File(image, "w", fs_strategy="page", fs_page_size=_PAGE) as file:
        file.attrs["note"], file.attrs["checksum"] = note, np.bytes_(_MARK)
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # every array gets its place, ...
        settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # ... but nothing is written there
        offsets = {
            key: file.create_dataset(key, (rows, *values.shape[1:]), values.dtype, dcpl=settings).id.get_offset()
            for key, values in block.items()
        }
        file.flush()
        size = file.id.get_filesize()
    description = image.getvalue()
    assert len(description) <= min(offsets.values())
    return description, offsets, size


def _check_rows(got: int, expected: int, *, least: int | None = None) -> None:
    if not (expected if least is None else least) <= got <= expected:
        raise GenerationError(f"rows: expected {expected}, got {got}")


def _read_npz(path: Path, keys: Sequence[str]) -> Arrays:
    with zipfile.ZipFile(path) as archive:
        found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        found = {key: found[key] for key in keys if key in found}
        _check_size(sum(info.file_size for info in found.values()), path)
        return {key: _array_in(archive, info) for key, info in found.items()}


def _array_in(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Read an array whose header agrees with the size of the archive's member, which bounds the memory."""
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with archive.open(info) as member:
        shape, _, dtype = headers[np.lib.format.read_magic(member)](member)
        if dtype.kind not in "biuf":
            raise ValueError(f"{info.filename}: expected numbers, got {dtype}; pickled objects are not loaded")
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != info.file_size - member.tell():
            raise ValueError(f"{info.filename}: {info.file_size} bytes cannot be {dtype} of shape {shape}")
    with archive.open(info) as member:
        array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):  # reads to the end, where zip compares the checksum
            raise ValueError(f"{info.filename}: unexpected bytes after the array")
    return array


def _read_hdf5(path: Path, keys: Sequence[str]) -> Arrays:
    with path.open("rb") as plain:
        _compare_checksum(plain)
    h5py = _h5py()
    with h5py.File(path, "r") as file:
        names = set(file)
        found = {key: _own_data_set(h5py, file, key) for key in keys if key in names}
        _check_size(sum(data.nbytes for data in found.values()), path)
        return {key: data[()] for key, data in found.items()}


def _compare_checksum(file: Any) -> None:
    """Raise ValueError if a file of `_write_hdf5` has changed since."""
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


def _own_data_set(h5py: Any, file: Any, key: str) -> Any:
    """Return a data set of numbers that are all in this file; raise ValueError for anything else.

    Missing parts would be read as zeros. Links and external storage would read other files.
    """
    link = file.get(key, getlink=True)
    data = file[key] if isinstance(link, h5py.HardLink) else None
    if not isinstance(data, h5py.Dataset) or data.external or data.is_virtual:
        raise ValueError(f"{key}: expected a data set in the file itself")
    if data.shape is None or data.dtype.kind not in "biuf":
        raise ValueError(f"{key}: expected numbers, got {data.dtype} of shape {data.shape}")
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


def _check_size(needed: int, path: Path) -> None:
    size = path.stat().st_size
    if needed > _MOST_EXPANSION * size:
        raise ValueError(f"the arrays need {needed:,} bytes, more than {_MOST_EXPANSION} times the file's {size:,}")


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 files need h5py: pip install 'synther-replay[corl]'") from error
    return h5py
