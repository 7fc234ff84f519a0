"""The spec of a file that does not hold one: inferred from the shapes, types and ranges of its arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from synther_replay.data.spec import TransitionSpec
from synther_replay.files.fields import NEXT_OBSERVATIONS, OBSERVATIONS, REQUIRED, check_finite, root_of
from synther_replay.files.table import ROWS, SPEC, Arrays, Column, Table, block_rows, numbered

_ACTIONS = "actions"
_LARGEST_INTEGER = 2**24  # of float32, which rows have
_MOST_CATEGORIES = 1_024  # of an observation that is one integer; one that can be larger counts or measures something


def spec_of(table: Table) -> TransitionSpec:
    """Return the spec that the file holds, else an inferred one.

    Observations are unbounded. Actions have the range of the data, so that no generated one lies outside. Integers, one
    per row, are categories from 0 to the largest one found; not in observations if some are negative or beyond 1,023.
    Actions that are true or false have two categories.

    Raises:
        ValueError: A field is missing, or its arrays are no observations or actions.
    """
    check_fields(table.columns)
    if table.about.get(SPEC):
        try:
            return TransitionSpec.from_json(table.about[SPEC])
        except Exception as error:  # a forged description makes the constructor raise nearly anything
            raise ValueError(f"{SPEC}: not a valid layout of transitions ({error})") from error
    if not table.rows:
        raise ValueError("observations: expected at least one row, got none")
    scanned = [
        key
        for key, column in table.columns.items()
        if root_of(key) == _ACTIONS or (_is_category(column) and root_of(key) in (OBSERVATIONS, NEXT_OBSERVATIONS))
    ]
    values = sum(int(np.prod(table.columns[key].shape)) for key in scanned)
    with closing(table.blocks(scanned, block_rows(values))) as blocks:  # errors close the file, too
        ranges = _ranges(blocks)
    columns = dict(table.columns)
    for key in [key for key in columns if root_of(key) == NEXT_OBSERVATIONS]:
        own = OBSERVATIONS + key.removeprefix(NEXT_OBSERVATIONS)  # which may have a value as a next one only
        if own in columns:
            columns[own] = replace(columns[own], dtype=np.result_type(columns[own].dtype, columns[key].dtype))
        if own in ranges and key in ranges:
            (low, high), (next_low, next_high) = ranges[own], ranges[key]
            ranges[own] = np.minimum(low, next_low), np.maximum(high, next_high)
    return TransitionSpec.from_spaces(_space(OBSERVATIONS, columns, ranges), _space(_ACTIONS, columns, ranges))


def check_fields(columns: Iterable[str]) -> None:
    """Raise ValueError if a required field is missing."""
    roots = {root_of(key) for key in columns}
    missing = [key for key in REQUIRED if key not in roots]
    if missing:
        raise ValueError(f"{', '.join(missing)}: missing; found {', '.join(sorted(roots)) or 'no known field'}")


def _ranges(blocks: Iterable[Arrays]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the smallest and the largest value of each column of each array."""
    ranges: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for block in numbered(blocks):
        rows = block.pop(ROWS)
        for key, values in block.items():
            check_finite(key, values, rows)
            low, high = values.min(0), values.max(0)
            if key in ranges:
                low, high = np.minimum(low, ranges[key][0]), np.maximum(high, ranges[key][1])
            ranges[key] = low, high
    return ranges


def _space(
    root: str, columns: Mapping[str, Column], ranges: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> spaces.Space[Any]:
    """Return the space of observations or actions; a Dict if it has several arrays."""
    if root in columns:
        return _leaf_space(root, columns[root], ranges)
    nested: dict[str, Any] = {}
    for key in sorted(key for key in columns if root_of(key) == root):
        place, steps = nested, key.split("/")[1:]
        for step in steps[:-1]:
            place = place.setdefault(step, {})
        place[steps[-1]] = _leaf_space(key, columns[key], ranges)
    return _dict_space(nested)


def _dict_space(nested: Mapping[str, Any]) -> spaces.Dict:
    return spaces.Dict({key: _dict_space(sub) if isinstance(sub, dict) else sub for key, sub in nested.items()})


def _leaf_space(
    key: str, column: Column, ranges: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary:
    is_action, is_integer = root_of(key) == _ACTIONS, column.dtype.kind in "iu"
    if is_action and column.dtype.kind == "b":
        return spaces.MultiBinary(column.shape) if column.shape else spaces.Discrete(2)
    if _is_category(column):
        low, high = (int(limit.reshape(-1)[0]) for limit in ranges[key])
        if is_action and low < 0:
            raise ValueError(f"{key}: expected integers of at least 0, got {low}")
        if is_action or 0 <= low <= high < _MOST_CATEGORIES:
            return spaces.MultiDiscrete([high + 1]) if column.shape else spaces.Discrete(high + 1)
    if is_action:
        smallest, largest = ranges[key]
        if is_integer and smallest.min() >= -_LARGEST_INTEGER and largest.max() <= _LARGEST_INTEGER:
            return spaces.Box(smallest, largest, column.shape, column.dtype.type)
        # In float32, as rows are: of a wider type the bounds could lie between two numbers of float32.
        low32, high32 = (np.asarray(limit, np.float32) for limit in (smallest, largest))
        return spaces.Box(low32, high32, column.shape, np.float32)
    if column.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, column.shape, np.float32)
    if column.dtype.kind == "b":
        return spaces.Box(0, 1, column.shape, np.int8)
    limits = np.iinfo(column.dtype)
    return spaces.Box(limits.min, limits.max, column.shape, column.dtype.type)


def _is_category(column: Column) -> bool:
    return column.dtype.kind in "iu" and column.shape in ((), (1,))
