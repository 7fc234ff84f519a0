"""What differs between two specs, for error messages: a whole spec can fill a screen."""

from __future__ import annotations

from typing import Any

import numpy as np

from synther_replay.data.spaces import Leaf
from synther_replay.data.spec import TransitionSpec

_MOST_NAMED = 4  # parts named in one description


def mismatch(got: TransitionSpec | Any, expected: TransitionSpec) -> str:
    """Return what differs: ``got spec (actions: shape (2,)), expected (actions: shape (1,))``.

    Args:
        got: A spec, or what a file says of one.
        expected: The spec that it should be.
    """
    theirs, ours = differing(got, expected)
    return f"got spec ({theirs}), expected ({ours})"


def differing(got: TransitionSpec | Any, expected: TransitionSpec, *, bounds: bool = True) -> tuple[str, str]:
    """Describe two specs by the parts that differ, all of both if no part does.

    >>> import gymnasium as gym
    >>> one, other = (TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(n)) for n in (2, 3))
    >>> differing(one, other)
    ('actions: 0.0 to 1.0', 'actions: 0.0 to 2.0')

    Args:
        got: A spec, or what a file says of one.
        expected: The other spec.
        bounds: Whether bounds and types of numbers count, too.
    """
    if not isinstance(got, TransitionSpec):
        try:
            got = TransitionSpec.from_json(got)
        except Exception:  # a forged description makes the constructor raise nearly anything
            return str(got), str(expected.to_json())
    theirs, ours = _leaves(got), _leaves(expected)
    pairs = {name: _sides(theirs.get(name), ours.get(name), bounds) for name in {**theirs, **ours}}
    parts = [(f"{name}: {one}", f"{name}: {other}") for name, (one, other) in pairs.items() if one != other]
    if not parts:
        return str(got.to_json()), str(expected.to_json())
    more = [f"and {len(parts) - _MOST_NAMED} more"] if len(parts) > _MOST_NAMED else []
    one, other = ("; ".join([*side[:_MOST_NAMED], *more]) for side in zip(*parts, strict=True))
    return one, other


def _leaves(spec: TransitionSpec) -> dict[str, Leaf]:
    """Leaves by name; next observations have those of observations."""
    fields = [field for field in spec.fields if field.name != "next_observations"]
    return {field.name + leaf.where: leaf for field in fields for leaf in field.leaves}


def _sides(got: Leaf | None, expected: Leaf | None, bounds: bool) -> tuple[str, str]:
    """Describe one leaf of both specs by what differs; empty if nothing does."""
    if got is None or expected is None:
        one, other = ("none" if leaf is None else f"shape {leaf.shape}" for leaf in (got, expected))
        return one, other
    facts = [(f"shape {leaf.shape}", leaf.kind, str(leaf.dtype).removeprefix("torch.")) for leaf in (got, expected)]
    pairs = list(zip(*facts, strict=True))[: 3 if bounds else 2]
    if bounds and got.shape == expected.shape:
        pairs.append(_bounds(got, expected))
    one, other = (", ".join(pair[side] for pair in pairs if pair[0] != pair[1]) for side in (0, 1))
    return one, other


def _bounds(got: Leaf, expected: Leaf) -> tuple[str, str]:
    """Bounds of the first column in which they differ."""
    column = int(np.argmax((got.low != expected.low) | (got.high != expected.high)))
    where = f" in column {column}" if got.size > 1 else ""
    one, other = (f"{float(leaf.low[column])} to {float(leaf.high[column])}{where}" for leaf in (got, expected))
    return one, other
