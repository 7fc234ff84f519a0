"""States of the parts of a buffer, which a checkpoint holds."""

from __future__ import annotations

import copy
from typing import Any

import torch

from synther_replay.protocols import Stateful


def stateful(part: object, name: str) -> Stateful:
    """Return the part if it has `state_dict` and `load_state_dict`, else raise TypeError."""
    if not isinstance(part, Stateful):
        raise TypeError(
            f"{name}: {type(part).__name__} cannot be saved, it lacks state_dict and load_state_dict"
            + ("; use include_real=False and save it separately" if name == "real" else "")
        )
    return part


def state_of(part: Stateful) -> dict[str, Any]:
    """A copy of a part's state; `torch.nn.Module.state_dict` returns the live tensors."""
    state = part.state_dict()
    return copy.deepcopy(state) if isinstance(part, torch.nn.Module) else state
