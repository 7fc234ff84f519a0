"""Names of the columns of a row of transitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from synther_replay.data.spaces import Leaf
from synther_replay.data.transitions import TransitionSpec


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
    observation, action, following = (
        tuple(_leaf_names(field, leaves))
        for field, leaves in (
            ("observation", spec.observation_leaves),
            ("action", spec.action_leaves),
            ("next_observation", spec.observation_leaves),
        )
    )
    if names is not None:
        observation, following = tuple(map(str, names)), tuple(f"next {name}" for name in names)
    return (*observation, *action, "reward", *following, "terminated")


def _leaf_names(field: str, leaves: Sequence[Leaf]) -> Iterator[str]:
    for leaf in leaves:
        for index in np.ndindex(leaf.shape):
            yield f"{field}{leaf.where}{list(index) or ''}"
