"""States of single generators as the state of a stack, and back.

Every tensor of a state has a leading axis of the models, apart from the numbers of the calibrated columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.data.calibration import Calibration

State = dict[str, Any]
_OF_ALL = [("calibration", kind, "columns") for kind in Calibration._fields]  # tensors that the models share
_OWN = ("seed", "draws", "rejected")  # entries in which states that can be stacked may differ
# Those of the training, too: a learner that missed a fit, or stopped one early, has fewer. A stack has the largest.
_COUNTERS = [("trainer", name) for name in ("starts", "fits", "adam_steps")]


def signature(state: State | None) -> str:
    """Describe a state; states of equal signature can be stacked."""
    if state is None:
        return "not fitted"

    def described(path: tuple[str, ...], value: Any) -> Any:
        if not isinstance(value, Tensor):
            return None if path in _COUNTERS else value
        return value.tolist() if path in _OF_ALL else [str(value.dtype), list(value.shape)]

    own = {name: value for name, value in state.items() if name not in _OWN}
    return repr(_mapped(described, own))


def stacked(states: Sequence[State], seed: int) -> State:
    """Return the state of a stack with this seed, of states of equal signature."""

    def joined(path: tuple[str, ...], *values: Any) -> Any:
        if path in _COUNTERS:
            return max(values)
        if not isinstance(values[0], Tensor) or path in _OF_ALL:
            return values[0]
        return torch.cat(values)

    together: State = _mapped(joined, *states)
    return together | {"stack": len(states), "seed": seed}


def member(state: State, number: int) -> State:
    """Return the state of one model of a stack."""

    def own(path: tuple[str, ...], value: Any) -> Any:
        if not isinstance(value, Tensor) or path in _OF_ALL:
            return value
        return value[number : number + 1].clone()

    alone: State = _mapped(own, state)
    return alone | {"stack": 1}


def as_arrays(state: State) -> State:
    """Return a state with arrays instead of tensors: the object store holds them without a copy."""
    arrays: State = _mapped(lambda _, value: value.cpu().numpy() if isinstance(value, Tensor) else value, state)
    return arrays


def as_tensors(state: State) -> State:
    """Return a state with tensors instead of arrays; they are copies, because the object store is read-only."""
    tensors: State = _mapped(
        lambda _, value: torch.tensor(value, device="cpu") if isinstance(value, np.ndarray) else value, state
    )
    return tensors


def _mapped(function: Callable[..., Any], *trees: Any, path: tuple[str, ...] = ()) -> Any:
    """Apply a function to path and values of all leaves of trees with equal keys."""
    if not isinstance(trees[0], dict):
        return function(path, *trees)
    return {key: _mapped(function, *(tree[key] for tree in trees), path=(*path, key)) for key in trees[0]}
