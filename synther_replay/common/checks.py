"""Argument checks shared by several modules."""

from __future__ import annotations

import inspect
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


def received(value: Any) -> str:
    """Say for an error what an argument got; of a class or a function, what to pass in its place.

    >>> received(7), received(int)
    ('got 7', 'got the class int; pass an object: int(...)')
    >>> received(int.from_bytes)
    'got int.from_bytes, which was not called; pass what it returns: int.from_bytes(...)'
    """
    name = getattr(value, "__qualname__", None)
    if isinstance(value, type):
        return f"got the class {name}; pass an object: {name}(...)"
    if name is not None and inspect.isroutine(value) and "<" not in name:  # a lambda has no name to call
        return f"got {name}, which was not called; pass what it returns: {name}(...)"
    return f"got {value!r}"


def check_call(expected: str, function: Any, *arguments: Any, **named: Any) -> None:
    """Raise TypeError unless a function takes these arguments, as far as can be told before the call.

    Args:
        expected: What is expected, with the name of the argument, for the error.
        function: The function.
        *arguments: Arguments of the call.
        **named: Arguments by name.
    """
    if not callable(function):
        raise TypeError(f"{expected}, {received(function)}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one that is not written in Python
        return
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        raise TypeError(f"{expected}; {function!r} does not take that: {error}") from error


def names_argument(function: Any, name: str) -> bool:
    """Whether the signature of a function has an argument of this name, and not only ``**options`` that take any."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # one that is not written in Python
        return False


def check_function(expected: str, function: Any, *arguments: Any) -> None:
    """Like `check_call`; a class is refused, too, because a call would make an object of the arguments."""
    if isinstance(function, type):
        raise TypeError(f"{expected}, {received(function)}")
    check_call(expected, function, *arguments)


def check_hook(on_refit: Any) -> None:
    """Raise TypeError unless a hook of refits can be called with a report, and with the source if it takes that."""
    if on_refit is not None:
        arguments = 2 if getattr(on_refit, "takes_source", False) else 1
        check_function("on_refit: expected a function of the report", on_refit, *[None] * arguments)


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
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device: got {device!r}, but there are {torch.cuda.device_count()} GPUs")
    if resolved.type not in ("cpu", "cuda"):
        _check_other(resolved)
    if resolved.type == "cuda" and resolved.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return resolved


def _check_other(device: torch.device) -> None:
    """Raise ValueError for a device that is neither CPU nor CUDA and cannot hold numbers here."""
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # which one depends on the device
        raise ValueError(f"device: got {str(device)!r}, which PyTorch cannot compute on here") from error


def device_or_cpu(device: torch.device) -> torch.device:
    """Return the device if it exists on this machine, else the CPU; for unpickling on another machine."""
    missing = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    return torch.device("cpu") if missing else device
