"""Trees of dicts, lists and tensors, such as the states of models."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor


def on_cpu(tree: Any) -> Any:
    """Return the tree with all tensors on the CPU; tensors that are there already are not copied."""
    if isinstance(tree, dict):
        return {key: on_cpu(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(on_cpu(value) for value in tree)
    return tree.cpu() if isinstance(tree, Tensor) else tree


def state_of(part: Any) -> dict[str, Any]:
    """A copy of the state of an object with `state_dict`; that of `torch.nn.Module` returns the live tensors."""
    state: dict[str, Any] = part.state_dict()
    return copy.deepcopy(state) if isinstance(part, torch.nn.Module) else state
