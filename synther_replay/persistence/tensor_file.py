"""Files in the safetensors format: the length of a JSON header, the header, the bytes of the tensors.

The safetensors library is not used. It writes through a temporary file of its own, which a killed process leaves
behind, and ignores the umask; an interrupt while it reads comes out as another error. It reads these files, and this
module reads its files.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_METADATA = "__metadata__"  # its key in the header


def write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write contiguous tensors on the CPU."""
    in_order = sorted(tensors, key=lambda name: -tensors[name].element_size())  # keeps every tensor aligned
    header: dict[str, Any] = {_METADATA: metadata}
    end = 0
    for name in in_order:
        start, end = end, end + tensors[name].nbytes
        shape = list(tensors[name].shape)
        header[name] = {"dtype": _NAMES[tensors[name].dtype], "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for name in in_order:
            file.write(memory_of(tensors[name]))


def read_header(file: BinaryIO) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the header of a file at its beginning.

    Returns:
        The entries for `read_tensors`, and the metadata.

    Raises:
        ValueError: Not such a file, or the header does not describe the bytes after it exactly.
    """
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= size - 8:
        raise ValueError(f"a header of {length} bytes in a file of {size} bytes")
    header = json.loads(file.read(length))
    metadata = header.pop(_METADATA, {})
    if not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("metadata that are not text")
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        start, (first, last) = end, entry["data_offsets"]
        shape = [int(length) for length in entry["shape"]]
        end = start + math.prod(shape) * DTYPES[entry["dtype"]].itemsize
        if (first, last) != (start, end) or min(shape, default=0) < 0:
            raise ValueError(f"tensor {name} at {first} to {last}, expected at {start} to {end}")
    if 8 + length + end != size:
        raise ValueError(f"{size} bytes, expected {8 + length + end}")
    return header, metadata


def read_tensors(file: BinaryIO, entries: dict[str, Any]) -> dict[str, Tensor]:
    """Read the tensors that follow the header."""
    begin, tensors = file.tell(), {}
    for name, entry in entries.items():
        tensors[name] = torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]], device="cpu")
        memory = memory_of(tensors[name])
        file.seek(begin + entry["data_offsets"][0])
        if file.readinto(memory) != len(memory):  # type: ignore[attr-defined]
            raise ValueError(f"tensor {name} is truncated")
    return tensors


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(bytearray())
