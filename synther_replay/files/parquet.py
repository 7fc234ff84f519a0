"""Parquet files: a row per transition, lists of float32 and plain numbers, as Hugging Face's `datasets` reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from synther_replay.files.checks import check_count, needs
from synther_replay.files.fields import names_of_fields, names_of_none, to_arrays
from synther_replay.files.table import SPEC, Arrays, Blocks, Column
from synther_replay.persistence.atomic import replacing

NAME = "Parquet"
SUFFIXES = (".parquet",)

_KEY = b"synther_replay"  # in the metadata of the schema


class ParquetTable:
    """The columns of a file that D4RL's names or the file's own spec name."""

    def __init__(self, path: Path) -> None:
        """Read schema and metadata."""
        self._path = path
        with _parquet().ParquetFile(path) as file:
            schema, self.rows = file.schema_arrow, file.metadata.num_rows
            self.about = _about(schema.metadata or {})
            extra = {name for name, _ in self.about.get(SPEC, {}).get("extra", ())}
            self._names = names_of_fields(schema.names, extra)
            self.unknown = names_of_none(schema.names, self._names)
            first = next(file.iter_batches(1, columns=list(self._names.values())), None) if self.rows else None
        self.columns = {
            key: _column(key, schema.field(name).type, None if first is None else first.column(name))
            for key, name in self._names.items()
        }

    def blocks(self, keys: Sequence[str], size: int) -> Generator[Arrays, None, None]:
        """Yield blocks of rows."""
        names = [self._names[key] for key in keys]
        with _parquet().ParquetFile(self._path) as file:
            for batch in file.iter_batches(size, columns=names):
                yield {
                    key: _values(key, batch.column(name), self.columns[key])
                    for key, name in zip(keys, names, strict=True)
                }


def check_installed() -> None:
    """Import the library of the format."""
    _parquet()


def open_table(path: Path) -> ParquetTable:
    """Read the header of a file."""
    return ParquetTable(path)


def write(path: Path, count: int, blocks: Blocks, about: Mapping[str, Any]) -> None:
    """Write transitions, one row each, a row group per block."""
    arrow, parquet = needs("pyarrow", "files"), _parquet()
    first = to_arrays(next(blocks()))
    types = [arrow.from_numpy_dtype(values.dtype) for values in first.values()]
    lists = [values.ndim > 1 for values in first.values()]
    fields = [
        arrow.field(key, arrow.list_(kind) if is_list else kind, nullable=False)
        for key, kind, is_list in zip(first, types, lists, strict=True)
    ]
    schema = arrow.schema(fields, metadata={_KEY: json.dumps(dict(about)).encode()})
    # Dictionaries of values do not help: nearly all numbers differ.
    options = {"compression": "zstd", "use_dictionary": False}
    with replacing(path) as temporary, parquet.ParquetWriter(temporary, schema, **options) as writer:
        done = 0
        for block in blocks():
            done += len(block)
            check_count(done, count, least=0)
            arrays = [_array(arrow, values) for values in to_arrays(block).values()]
            writer.write_batch(arrow.RecordBatch.from_arrays(arrays, schema=schema))
        check_count(done, count)


def _array(arrow: Any, values: np.ndarray) -> Any:
    if values.ndim == 1:
        return arrow.array(values)
    width = math.prod(values.shape[1:])
    offsets = np.arange(0, (len(values) + 1) * width, width, dtype=np.int32)
    return arrow.ListArray.from_arrays(offsets, arrow.array(np.ascontiguousarray(values).reshape(-1)))


def _column(key: str, kind: Any, first: Any) -> Column:
    """Describe a column; the length of its lists is that of the first row."""
    types = needs("pyarrow.types", "files")
    shape: list[int] = []
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind = kind.value_type
        if first is not None:
            shape.append(len(first[0]) if first[0].is_valid else 0)
            first = first.flatten()
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise ValueError(f"{key}: expected numbers or lists of numbers, got {kind}")
    return Column(tuple(shape), np.dtype(kind.to_pandas_dtype()))


def _values(key: str, array: Any, column: Column) -> np.ndarray:
    """Return a column as an array ``(n, *shape)``; raise ValueError for nulls and lists of other lengths."""
    types = needs("pyarrow.types", "files")
    rows, count = len(array), len(array)
    for length in column.shape:
        if array.null_count:
            raise ValueError(f"{key}: expected a list in every row, got null")
        if types.is_fixed_size_list(array.type):
            lengths = np.full(len(array), array.type.list_size)
        else:
            lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths != length).any():
            raise ValueError(f"{key}: expected lists of {length} numbers, got one of {lengths[lengths != length][0]}")
        array, count = array.flatten(), count * length
    if array.null_count or len(array) != count:
        raise ValueError(f"{key}: expected a number in every row, got null")
    values: np.ndarray = array.to_numpy(zero_copy_only=False)
    return values.reshape(rows, *column.shape)


def _about(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    try:
        about = json.loads(metadata.get(_KEY, b"{}"))
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def _parquet() -> Any:
    return needs("pyarrow.parquet", "files")
