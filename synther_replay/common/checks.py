"""Checks of arguments that several modules make."""

from __future__ import annotations

import operator
from typing import Any

import torch


def whole_number(name: str, value: Any, *, least: int = 1) -> int:
    """A Python or NumPy integer of at least `least`, as a Python one.

    Raises:
        TypeError: Not an integer; a bool is none, either.
        ValueError: Too small.
    """
    if type(value) is not int and (isinstance(value, bool) or not hasattr(value, "__index__")):
        raise TypeError(f"{name}: expected a whole number, got {value!r}")
    number = operator.index(value)
    if number < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return number


def resolve_device(device: torch.device | str) -> torch.device:
    """A torch device with its index; "auto" is the GPU if there is one, else the CPU.

    Raises:
        ValueError: There is no such device.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device: expected 'auto' or a torch device, got {device!r}") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: there is no CUDA device, got {device!r}")
    if resolved.type == "cuda" and resolved.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return resolved


def device_or_cpu(device: torch.device) -> torch.device:
    """The device if this machine has it, else the CPU: for what was pickled on another machine."""
    missing = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    return torch.device("cpu") if missing else device
