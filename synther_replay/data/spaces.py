"""Gymnasium spaces as a flat list of leaves, and as JSON.

A `Leaf` is one array of an observation or action: a whole `Box`, or one entry of a `Dict` or `Tuple`. Its kind is one
of

* ``real``: continuous (a floating-point `Box`);
* ``ordinal``: integers with an order, rounded when decoded (an integer `Box`, for example an image);
* ``category``: integers without an order (`Discrete`, `MultiDiscrete`, `MultiBinary`);
* ``flag``: 0 or 1, the field `terminated` alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces

Kind = Literal["real", "ordinal", "category", "flag"]
Path = tuple[str | int, ...]

# float32 represents every integer up to this one exactly, and larger ones with 24 significant bits.
MAX_EXACT_INTEGER = 2**24
_MOST_VALUES = 2**16  # of a space that is read from a file; models are limited to fewer


@dataclass(frozen=True, eq=False)
class Leaf:
    """One array inside a space.

    Attributes:
        path: Keys and indices inside Dict and Tuple spaces; empty for a plain space.
        shape: Shape of one value.
        dtype: Type of decoded values.
        kind: See the docstring of the module.
        low: Smallest value per column, flat, may be ``-inf``.
        high: Largest value per column, flat, may be ``inf``.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: Kind
    low: np.ndarray
    high: np.ndarray

    @property
    def where(self) -> str:
        """The path for error messages: ``['camera'][0]``."""
        return "".join(f"[{key!r}]" for key in self.path)

    @cached_property
    def size(self) -> int:
        """Number of columns."""
        return int(np.prod(self.shape, dtype=np.int64))


def leaves_of(space: spaces.Space[Any], name: str, path: Path = ()) -> tuple[Leaf, ...]:
    """Return the leaves of a space in a fixed order (`Dict` keys in the order of the space).

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of them.
        name: Name of the space in error messages.
        path: Path of the space inside the outermost one.

    Raises:
        TypeError: The space, or a space inside it, has an unsupported type.
        ValueError: A discrete space has more values than float32 can represent exactly, or a space has no entries.
    """
    where = name + "".join(f"[{key!r}]" for key in path)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        entries = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        leaves = tuple(leaf for key, sub in entries for leaf in leaves_of(sub, name, (*path, key)))
        if not leaves:
            raise ValueError(f"{where}: the space has no entries (got {space})")
        return leaves
    if isinstance(space, spaces.Box):
        if space.dtype == np.longdouble:
            raise TypeError(f"{where}: {space.dtype} is not supported; use float64 or smaller (got {space})")
        kind: Kind = "real" if np.issubdtype(space.dtype, np.floating) else "ordinal"
        leaf = _leaf(path, space.shape, space.dtype, kind, space.low, space.high)
    elif isinstance(space, spaces.Discrete):
        leaf = _leaf(path, (), space.dtype, "category", space.start, space.start + space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        leaf = _leaf(path, space.shape, space.dtype, "category", space.start, space.start + space.nvec - 1)
    elif isinstance(space, spaces.MultiBinary):
        leaf = _leaf(path, space.shape, space.dtype, "category", np.zeros(space.shape), np.ones(space.shape))
    else:
        raise TypeError(
            f"{where}: {type(space).__name__} is not supported; use Box, Discrete, MultiDiscrete, MultiBinary, "
            f"or Dict and Tuple of these (got {space})"
        )
    if leaf.size == 0:
        raise ValueError(f"{where}: the space has no entries (got {space})")
    if leaf.kind == "category" and max(abs(leaf.low).max(), abs(leaf.high).max()) > MAX_EXACT_INTEGER:
        raise ValueError(f"{where}: integers beyond {MAX_EXACT_INTEGER} are not exact in float32 (got {space})")
    return (leaf,)


def _leaf(path: Path, shape: tuple[int, ...], dtype: Any, kind: Kind, low: Any, high: Any) -> Leaf:
    flat_low, flat_high = (np.asarray(bound, dtype=np.float64).reshape(-1) for bound in (low, high))
    torch_dtype = torch.from_numpy(np.empty(0, dtype=dtype)).dtype
    if kind == "ordinal":
        least, most = integer_limits(torch_dtype)
        flat_low, flat_high = flat_low.clip(least), flat_high.clip(max=most)
    if torch_dtype == torch.float16:  # float32 rows have a larger range than float16
        largest = torch.finfo(torch_dtype).max
        flat_low, flat_high = flat_low.clip(-largest), flat_high.clip(max=largest)
    return Leaf(path, tuple(shape), torch_dtype, kind, flat_low, flat_high)


def integer_limits(dtype: torch.dtype) -> tuple[float, float]:
    """Return the smallest and the largest float32 number that an integer dtype (or bool) can hold."""
    if dtype == torch.bool:
        return 0.0, 1.0
    limits = torch.iinfo(dtype)
    most = np.float32(limits.max)
    if int(most) > limits.max:  # rounded up
        most = np.nextafter(most, np.float32(0))
    return float(limits.min), float(most)


def pick(value: Any, path: Path, name: str) -> Any:
    """Return the entry of a nested observation or action at a leaf's path."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{name}: entry {key!r} of path {path} is missing (got {type(value).__name__})") from error
    return value


def nest(space: spaces.Space[Any], values: Sequence[Any]) -> Any:
    """Arrange one value per leaf in the nesting of the space; inverse of `leaves_of`."""
    remaining = iter(values)

    def build(sub: spaces.Space[Any]) -> Any:
        if isinstance(sub, spaces.Dict):
            return {key: build(inner) for key, inner in sub.spaces.items()}
        if isinstance(sub, spaces.Tuple):
            return tuple(build(inner) for inner in sub.spaces)
        return next(remaining)

    return build(space)


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """Return a supported space as JSON values."""
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": [[key, space_to_json(sub)] for key, sub in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(sub) for sub in space.spaces]}
    details: dict[str, Any]
    if isinstance(space, spaces.Box):
        details = {"type": "Box", "shape": list(space.shape), "low": _compact(space.low), "high": _compact(space.high)}
    elif isinstance(space, spaces.Discrete):
        details = {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    elif isinstance(space, spaces.MultiDiscrete):
        details = {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    elif isinstance(space, spaces.MultiBinary):
        details = {"type": "MultiBinary", "shape": list(space.shape)}
    else:
        raise TypeError(f"space: {type(space).__name__} is not supported (got {space})")
    return details | {"dtype": np.dtype(space.dtype).name}


def space_from_json(description: Mapping[str, Any]) -> spaces.Space[Any]:
    """Inverse of `space_to_json`.

    Raises:
        ValueError: The space has more than 2^16 values, for which a few characters of a forged file would be enough.
    """
    if (size := _size_in_json(description)) > _MOST_VALUES:
        raise ValueError(f"space: expected at most {_MOST_VALUES} values, got {size}")
    kind = description["type"]
    if kind == "Dict":
        return spaces.Dict([(key, space_from_json(sub)) for key, sub in description["spaces"]])
    if kind == "Tuple":
        return spaces.Tuple([space_from_json(sub) for sub in description["spaces"]])
    if kind == "MultiBinary":
        return spaces.MultiBinary(description["shape"])
    dtype: Any = np.dtype(description["dtype"]).type
    if kind == "Box":
        shape = tuple(description["shape"])
        low, high = (np.broadcast_to(np.asarray(description[b], dtype=dtype), shape) for b in ("low", "high"))
        return spaces.Box(low, high, shape, dtype)
    if kind == "Discrete":
        # Gymnasium before 1.2.2 takes no dtype here and always uses int64.
        options = {} if dtype is np.int64 else {"dtype": dtype}
        return spaces.Discrete(description["n"], start=description["start"], **options)
    if kind == "MultiDiscrete":
        nvec, start = (np.asarray(description[key]) for key in ("nvec", "start"))
        return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)
    raise ValueError(f"space: unknown type {kind!r}")


def _size_in_json(description: Mapping[str, Any]) -> int:
    """Return the number of values in a described space."""
    if description["type"] == "Dict":
        return sum(_size_in_json(sub) for _, sub in description["spaces"])
    if description["type"] == "Tuple":
        return sum(_size_in_json(sub) for sub in description["spaces"])
    return math.prod(description.get("shape", ()))  # others list their values


def _compact(bound: np.ndarray) -> Any:
    """Return a bound array as one number if all entries are equal, to keep the JSON of images short.

    JSON has no infinity; it becomes a string, which NumPy parses.
    """
    if (bound == bound.flat[0]).all():
        bound = bound.reshape(-1)[:1].reshape(())
    return np.where(np.isfinite(bound), bound.astype(object), bound.astype(str)).tolist()
