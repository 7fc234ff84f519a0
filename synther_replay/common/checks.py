"""Argument checks shared by several modules."""

from __future__ import annotations

import operator
from typing import Any

import torch


def whole_number(name: str, value: Any, *, least: int = 1) -> int:
    """Return a Python or NumPy integer as an int.

    Raises:
        TypeError: Not an integer, or a bool.
        ValueError: Less than `least`.
    """
    if type(value) is not int and (isinstance(value, bool) or not hasattr(value, "__index__")):
        raise TypeError(f"{name}: expected a whole number, got {value!r}")
    number = operator.index(value)
    if number < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return number


def check_hook(on_refit: Any) -> None:
    """Raise TypeError unless a hook of refits can be called with a report; a class would make an object of it."""
    if isinstance(on_refit, type):
        name = on_refit.__name__
        raise TypeError(
            f"on_refit: expected a function of the report, got the class {name}; pass an object: {name}(...)"
        )
    if on_refit is not None and not callable(on_refit):
        raise TypeError(f"on_refit: expected a function of the report, got {on_refit!r}")


def resolve_device(device: torch.device | str) -> torch.device:
    """Return a torch device with its index; "auto" is the GPU if there is one, else the CPU.

    Raises:
        ValueError: The device does not exist.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device: expected 'auto' or a torch device, got {device!r}") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: got {device!r}, but CUDA is not available")
    if resolved.type == "cuda" and resolved.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return resolved


def device_or_cpu(device: torch.device) -> torch.device:
    """Return the device if it exists on this machine, else the CPU; for unpickling on another machine."""
    missing = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    return torch.device("cpu") if missing else device
