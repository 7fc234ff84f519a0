"""Names of fields in files: D4RL's, for every format.

A Dict or Tuple observation takes one array per entry: ``observations/position``. Extra fields keep their name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from synther_replay.data.spaces import Leaf
from synther_replay.data.spec import Field, TransitionSpec
from synther_replay.data.transitions import Transitions
from synther_replay.files.table import Arrays

TERMINALS, TIMEOUTS = "terminals", "timeouts"
OBSERVATIONS, NEXT_OBSERVATIONS = "observations", "next_observations"
REQUIRED = (OBSERVATIONS, "actions", "rewards", TERMINALS)
KNOWN = (*REQUIRED, NEXT_OBSERVATIONS, TIMEOUTS)
# Left out, rows would be paired by their order in the file.
_LOOKS_LIKE_NEXT = re.compile(r"(next_?|new_)(obs|state|s\b)|(obs|observations?|states?|s)_?(next|prime|tp1|2)\b", re.I)
_UNCLEAR = ("dones", "done")  # no spelling of terminals: time limits may be among them
# Other spellings, as Gymnasium, Minari and course data sets have them.
_OTHER_NAMES = {
    "observation": OBSERVATIONS,
    "action": "actions",
    "reward": "rewards",
    "next_observation": NEXT_OBSERVATIONS,
    "terminal": TERMINALS,
    "terminated": TERMINALS,
    "terminations": TERMINALS,
    "truncated": TIMEOUTS,
    "truncations": TIMEOUTS,
}


def usual_name(key: str) -> str:
    """Return D4RL's name of an array; unknown ones stay.

    >>> usual_name("next_observation"), usual_name("observation/goal"), usual_name("cost")
    ('next_observations', 'observations/goal', 'cost')
    """
    root, slash, rest = key.partition("/")
    return _OTHER_NAMES.get(root, root) + slash + rest


def names_of_fields(names: Iterable[str], extra: Collection[str]) -> dict[str, str]:
    """Map D4RL's names of arrays to those in a file; arrays that belong to no field are left out.

    Args:
        names: All arrays of the file.
        extra: Extra fields, which the file's own spec names.

    Raises:
        ValueError: A field is there in two spellings, which may hold different values; or ``dones`` without terminals,
            or next observations under another name.
    """
    found: dict[str, str] = {}
    spellings: dict[str, str] = {}
    names = list(names)
    for name in names:
        key = usual_name(name)
        field = root_of(key)
        if field in KNOWN or field in extra:
            other = spellings.setdefault(field, root_of(name))
            if other != root_of(name):
                raise ValueError(f"{other}, {root_of(name)}: two spellings of one field; keep one of them")
            found[key] = name
    following = next((name for name in names if _LOOKS_LIKE_NEXT.match(name)), None)
    if following and OBSERVATIONS in spellings and NEXT_OBSERVATIONS not in spellings:
        raise ValueError(
            f"{NEXT_OBSERVATIONS}: missing; {following} looks like them: rename it, or remove it if the next "
            "observation of a row is that of the next row"
        )
    unclear = next((name for name in names if name in _UNCLEAR), None)
    if unclear and TERMINALS not in spellings:
        raise ValueError(
            f"{TERMINALS}: missing; {unclear} is there, but may hold time limits, too: rename it to {TERMINALS} if it "
            f"does not, else store the two as {TERMINALS} and {TIMEOUTS}"
        )
    return found


def names_of_none(names: Iterable[str], found: Mapping[str, str]) -> list[str]:
    """Return the names of arrays that belong to no field, sorted; those in a group as one.

    >>> names_of_none(["actions", "infos/qpos", "infos/qvel"], {"actions": "actions"})
    ['infos']
    """
    return sorted({root_of(name) for name in names} - {root_of(name) for name in found.values()})


def root_of(key: str) -> str:
    """Return the field that an array belongs to."""
    return key.partition("/")[0]


def key_of(field: Field, leaf: Leaf) -> str:
    """Return the name of the array that holds one leaf of a field."""
    return "/".join((TERMINALS if field.name == "terminated" else field.name, *map(str, leaf.path)))


def leaves(spec: TransitionSpec) -> Iterator[tuple[str, Leaf, slice]]:
    """Yield the name, the leaf and the columns of every array of a spec."""
    for field in spec.fields:
        for leaf, columns in field.leaf_columns():
            yield key_of(field, leaf), leaf, columns


def to_arrays(transitions: Transitions) -> Arrays:
    """Return transitions as named arrays in the types of their spaces; real numbers are float32, as the rows are."""
    rows, arrays = transitions.rows.cpu(), {}
    for key, leaf, columns in leaves(transitions.spec):
        part = rows[:, columns].reshape(len(rows), *leaf.shape)
        part = part > 0.5 if leaf.kind == "flag" else part if leaf.kind == "real" else part.to(leaf.dtype)
        arrays[key] = part.numpy()
    return arrays


def to_transitions(spec: TransitionSpec, arrays: Mapping[str, np.ndarray]) -> Transitions:
    """Validate named arrays and pack them.

    Raises:
        ValueError: An array has another shape, holds NaN or infinity, or a value outside its discrete set; or a flag is
            neither 0 nor 1.
    """
    flags = arrays[TERMINALS]
    check_flags(TERMINALS, flags)
    arrays = {**arrays, TERMINALS: flags.astype(bool)}
    values = {field.name: _nested(field, arrays, len(flags)) for field in spec.fields}
    return Transitions.from_arrays(spec, **values, device=torch.device("cpu"))


def check_flags(key: str, flags: np.ndarray) -> None:
    """Raise ValueError unless all are 0 or 1."""
    known = np.isin(flags, (0, 1))
    if not known.all():
        raise ValueError(f"{key}: expected 0 and 1, got {flags[~known].flat[0]}")


def check_finite(key: str, values: np.ndarray, rows: np.ndarray) -> None:
    """Raise ValueError unless all values are finite in float32, which rows have; it names the first other one.

    Args:
        key: Name of the array.
        values: Its rows, ``(n, ...)``.
        rows: Their numbers in the file, ``(n,)``.
    """
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(values.astype(np.float32, copy=False))
    if wrong.any():
        row, *inner = map(int, np.unravel_index(wrong.argmax(), wrong.shape))
        column = f", column {', '.join(map(str, inner))}" if inner else ""
        found = f"got {values[(row, *inner)]} in row {rows[row]}{column}"
        raise ValueError(f"{key}: expected finite numbers in float32, {found} (counted from 0)")


def _nested(field: Field, arrays: Mapping[str, np.ndarray], rows: int) -> Any:
    """Return the values of a field in the nesting of its space."""
    nested: Any = {}
    for leaf, _ in field.leaf_columns():
        # A column of scalars may be stored as (n, 1), a list column flat.
        part = arrays[key_of(field, leaf)]
        part = part.reshape(rows, *leaf.shape) if part.size == rows * leaf.size else part
        if not leaf.path:
            return part
        place = nested
        for step in leaf.path[:-1]:
            place = place.setdefault(step, {})
        place[leaf.path[-1]] = part
    return nested
