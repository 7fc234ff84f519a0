"""Checkpoints: a tree of tensors and JSON values in one file; versioned, atomic, loaded without executing code.

A checkpoint is a safetensors file with numbered tensors. Its header holds the tree as JSON, with the number, dtype,
shape and checksum of each tensor, and a checksum of the header.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from synther_replay.errors import CheckpointError
from synther_replay.persistence.atomic import replacing

FORMAT = "synther_replay"
VERSION = 2
_RENAMED_IN_2 = {"refresh_steps": "refit_steps", "refreshes": "refits"}  # keys of version 1
_TENSOR = "__tensor__"  # reserved key
# Names of the dtypes in safetensors files.
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}


def save_checkpoint(path: str | os.PathLike[str], kind: str, state: dict[str, Any]) -> None:
    """Write `state` to `path` atomically.

    Args:
        path: The file; its folder must exist.
        kind: Kind of the state, for example "diffusion generator"; `load_checkpoint` checks it.
        state: A tree of dicts with string keys, lists, tuples (loaded as lists), tensors, strings, numbers, booleans
            and None.

    Raises:
        TypeError: The state holds another type, or a tensor of an unsupported dtype.
        FileNotFoundError: The folder does not exist.
        OSError: The file cannot be written, for example because the disk is full.
    """
    path = Path(path)
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_take_tensors(state, tensors))
    header = {"format": FORMAT, "version": str(VERSION), "kind": kind, "tree": tree}
    header["checksum"] = _header_checksum(header)
    with replacing(path) as temporary:
        _write_safetensors(temporary, tensors, header)


def load_checkpoint(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Load a state; tensors are on the CPU.

    Raises:
        CheckpointError: The file is missing, truncated, damaged, not a checkpoint of this kind, or of a newer version.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"path: {path} is not a file" if path.exists() else f"path: {path} does not exist")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            _check_header(path, header, kind)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # a forged header makes the reader raise nearly anything
        raise CheckpointError(f"path: {path} is truncated or not a checkpoint of this library ({error})") from error
    try:
        state = _put_tensors(json.loads(header["tree"]), tensors)
        if tensors or not isinstance(state, dict):
            raise ValueError(f"unexpected tensors {sorted(tensors)}" if tensors else f"expected a dict, got {state!r}")
    except Exception as error:
        raise CheckpointError(f"path: {path} is damaged ({error})") from error
    return _renamed(state) if int(header["version"]) < 2 else state


def _check_header(path: Path, header: dict[str, str], kind: str) -> None:
    if header.get("format") != FORMAT:
        raise CheckpointError(f"path: {path} was not written by this library")
    version = header.get("version", "")
    if not version.isdecimal() or len(version) > 9 or int(version) > VERSION:
        raise CheckpointError(
            f"path: {path} has format version {version!r}, this version of the library reads up to {VERSION}"
        )
    if header.get("checksum") != _header_checksum(header):
        raise CheckpointError(f"path: {path} is damaged (header checksum mismatch)")
    if header.get("kind") != kind:
        raise CheckpointError(f"path: {path}: got kind {header.get('kind')!r}, expected {kind!r}")


def _renamed(node: Any) -> Any:
    """The tree of a version 1 file with today's keys."""
    if isinstance(node, dict):
        return {_RENAMED_IN_2.get(key, key): _renamed(value) for key, value in node.items()}
    return [_renamed(value) for value in node] if isinstance(node, list) else node


def _header_checksum(header: dict[str, str]) -> str:
    return str(zlib.crc32("\n".join(header.get(k, "") for k in ("format", "version", "kind", "tree")).encode()))


def _take_tensors(node: Any, tensors: dict[str, Tensor]) -> Any:
    """Replace every tensor in the tree by its description and collect the tensors."""
    if isinstance(node, Tensor):
        name = str(len(tensors))
        tensors[name] = node.detach().cpu().contiguous()
        if node.dtype not in _DTYPES:
            raise TypeError(f"state: tensors of {node.dtype} cannot be saved")
        return {_TENSOR: name, **_describe(tensors[name])}
    if isinstance(node, dict):
        for key in node:
            if not isinstance(key, str) or key == _TENSOR:
                raise TypeError(f"state: expected string keys other than {_TENSOR!r}, got {key!r}")
        return {key: _take_tensors(value, tensors) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_take_tensors(value, tensors) for value in node]
    return node


def _put_tensors(node: Any, tensors: dict[str, Tensor]) -> Any:
    """Inverse of `_take_tensors`; removes tensors from `tensors` and checks them against their descriptions."""
    if isinstance(node, dict):
        if _TENSOR not in node:
            return {key: _put_tensors(value, tensors) for key, value in node.items()}
        tensor = tensors.pop(node[_TENSOR])
        if node != {_TENSOR: node[_TENSOR], **_describe(tensor)}:
            raise ValueError(f"tensor {node[_TENSOR]} does not match its description")
        return tensor
    if isinstance(node, list):
        return [_put_tensors(value, tensors) for value in node]
    return node


def _describe(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype), "shape": list(tensor.shape), "checksum": zlib.crc32(_bytes(tensor))}


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def _write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file: length of the header, header, tensors.

    Not by the library: it writes through a temporary file of its own, which a killed process leaves behind, and ignores
    the umask.
    """
    in_order = sorted(tensors, key=lambda name: -tensors[name].element_size())  # keeps every tensor aligned
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in in_order:
        start, end = end, end + tensors[name].nbytes
        shape = list(tensors[name].shape)
        header[name] = {"dtype": _DTYPES[tensors[name].dtype], "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for name in in_order:
            file.write(_bytes(tensors[name]))
