"""One file for a tree of tensors and JSON values: versioned, atomic, loaded without executing code.

The file is a safetensors file. Its tensors are those of the tree, named by their path; its header holds the rest of
the tree as JSON, the kind and version of the content, and a checksum per tensor.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from synther_replay.errors import CheckpointError

FORMAT = "synther_replay"
VERSION = 1


def save_checkpoint(path: str | os.PathLike[str], kind: str, state: dict[str, Any]) -> None:
    """Write `state` to `path` in one step: whatever happens, the old file or the new one is there whole.

    Args:
        path: The file; its folder must exist.
        kind: What the state describes; `load_checkpoint` must ask for the same.
        state: A tree of dicts (string keys), lists, tuples, tensors, strings, numbers, booleans and None.
    """
    path = Path(path)
    tensors: dict[str, Tensor] = {}
    tree = _take_tensors(state, "", tensors)
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "kind": kind,
        "tree": json.dumps(tree),
        "checksums": json.dumps({name: _checksum(tensor) for name, tensor in tensors.items()}),
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(tensors, temporary, metadata=header)
        _to_disk(temporary)
        os.replace(temporary, path)
        _to_disk(path.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def load_checkpoint(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Read a state back, its tensors on the CPU.

    Raises:
        CheckpointError: The file is missing, truncated, damaged, of another origin or kind, or of a newer version.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"path: there is no file {path}")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            _check_header(path, header, kind)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"path: {path} is truncated or not a checkpoint of this library ({error})") from error
    try:
        checksums = json.loads(header["checksums"])
        tree = json.loads(header["tree"])
        damaged = [name for name in {*checksums, *tensors} if checksums.get(name) != _checksum(tensors[name])]
    except (KeyError, json.JSONDecodeError) as error:
        raise CheckpointError(f"path: {path} is damaged ({error!r})") from error
    if damaged:
        raise CheckpointError(f"path: {path} is damaged, its data do not match their checksums (first: {damaged[0]})")
    state = _put_tensors(tree, tensors)
    assert isinstance(state, dict)
    return state


def _check_header(path: Path, header: dict[str, str], kind: str) -> None:
    if header.get("format") != FORMAT:
        raise CheckpointError(f"path: {path} was not written by this library")
    version = header.get("version", "")
    if not version.isdigit() or int(version) > VERSION:
        raise CheckpointError(f"path: {path} has format version {version!r}; this release reads up to {VERSION}")
    if header.get("kind") != kind:
        raise CheckpointError(f"path: {path} holds a {header.get('kind')!r}, expected a {kind!r}")


def _take_tensors(node: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Replace every tensor of the tree by its name."""
    if isinstance(node, Tensor):
        tensor = node.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        shared = any(other.untyped_storage().data_ptr() == place for other in tensors.values())
        tensors[name] = tensor.clone() if shared else tensor  # safetensors refuses memory that two tensors share
        return {"__tensor__": name}
    if isinstance(node, dict):
        return {key: _take_tensors(value, f"{name}/{key}", tensors) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_take_tensors(value, f"{name}/{k}", tensors) for k, value in enumerate(node)]
    return node


def _put_tensors(node: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(node, dict):
        if node.keys() == {"__tensor__"}:
            return tensors[node["__tensor__"]]
        return {key: _put_tensors(value, tensors) for key, value in node.items()}
    if isinstance(node, list):
        return [_put_tensors(value, tensors) for value in node]
    return node


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data) if tensor.numel() else 0


def _to_disk(path: Path) -> None:
    """Ask the system to write a file, or the entries of a folder, to disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
