"""Exceptions of this library, besides `ValueError` and `TypeError` for bad arguments."""

from __future__ import annotations

import torch


class NotFittedError(RuntimeError):
    """`sample` was called before `fit` or `load`."""


class DivergedError(RuntimeError):
    """The training loss became non-finite; the previous model is kept."""


class GenerationError(RuntimeError):
    """The generator produced too many invalid rows."""


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, of another kind or a newer version, or does not match the object."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out. On a CPU and in cuBLAS, torch reports this as a plain RuntimeError."""
    text = str(error).lower()
    phrases = ("out of memory", "not enough memory", "can't allocate memory", "alloc_failed")
    matches = any(phrase in text for phrase in phrases)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (isinstance(error, RuntimeError) and matches)
