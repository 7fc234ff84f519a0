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
    """Return whether memory ran out; torch has a class of its own for this only in some cases.

    On a CPU and in CUDA's libraries it is a plain RuntimeError. A library that cannot allocate its workspace says
    ``..._STATUS_ALLOC_FAILED``, or ``..._STATUS_NOT_INITIALIZED`` if it was to be its first.
    """
    text = str(error).lower()
    phrases = (
        "out of memory",
        "not enough memory",
        "can't allocate memory",
        "cudaerrormemoryallocation",
        "status_alloc_failed",
        "status_not_initialized",
    )
    matches = any(phrase in text for phrase in phrases)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (isinstance(error, RuntimeError) and matches)
