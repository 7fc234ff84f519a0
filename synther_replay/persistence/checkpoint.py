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

from torch import Tensor

from synther_replay.errors import CheckpointError
from synther_replay.persistence import tensor_file
from synther_replay.persistence.atomic import replacing

FORMAT = "synther_replay"
VERSION = 3
_RENAMED_IN_2 = {"refresh_steps": "refit_steps", "refreshes": "refits"}  # keys of version 1
_TENSOR = "__tensor__"  # reserved key


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
        tensor_file.write(temporary, tensors, header)


def load_checkpoint(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Load a state; tensors are on the CPU.

    Raises:
        CheckpointError: The file is missing, truncated, damaged, not a checkpoint of this kind, or of a newer version.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"path: {path} is not a file" if path.exists() else f"path: {path} does not exist")
    try:
        with path.open("rb") as file:
            entries, header = tensor_file.read_header(file)
            _check_header(path, header, kind)
            tensors = tensor_file.read_tensors(file, entries)
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
        if node.dtype not in tensor_file.DTYPES.values():
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
    return {
        "dtype": str(tensor.dtype),
        "shape": list(tensor.shape),
        "checksum": zlib.crc32(tensor_file.memory_of(tensor)),
    }
