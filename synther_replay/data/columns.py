"""Names of the columns of a row of transitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from synther_replay.data.spaces import Leaf
from synther_replay.data.transitions import TransitionSpec

_SINGULAR = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "next_observations": "next_observation",
}


def column_names(spec: TransitionSpec, names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return one name per column: ``observation[3]``, ``observation['camera'][2]``, ``reward``, ``terminated``.

    Args:
        spec: Layout of the rows.
        names: Own names of the observation's columns, or of all columns. A name of the observation is used for the
            next observation, too: ``speed`` and ``next speed``.

    Raises:
        ValueError: The number of names is neither that of the observation's columns nor that of all.

    >>> import gymnasium as gym
    >>> spec = TransitionSpec.from_spaces(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2))
    >>> column_names(spec)[:4], column_names(spec, ["angle", "speed"])[1::4]
    (('observation[0]', 'observation[1]', 'action', 'reward'), ('speed', 'next speed'))
    """
    if names is not None and len(names) == spec.dim:
        return tuple(map(str, names))
    if names is not None and len(names) != spec.observation_dim:
        wanted = f"{spec.observation_dim} (the columns of the observation) or {spec.dim} (all columns)"
        raise ValueError(f"names: expected {wanted}, got {len(names)}")
    found: list[str] = []
    for field in spec.fields:
        found += _leaf_names(_SINGULAR.get(field.name, field.name), field.leaves)
    if names is not None:
        found[spec.observations] = map(str, names)
        found[spec.next_observations] = (f"next {name}" for name in names)
    return tuple(found)


def _leaf_names(field: str, leaves: Sequence[Leaf]) -> Iterator[str]:
    for leaf in leaves:
        for index in np.ndindex(leaf.shape):
            yield f"{field}{leaf.where}{list(index) or ''}"
