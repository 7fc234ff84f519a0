"""The errors of this library that are not plain `ValueError` or `TypeError`."""

from __future__ import annotations

import torch


class NotFittedError(RuntimeError):
    """`sample` was asked of a generator that has not been fitted or loaded."""


class DivergedError(RuntimeError):
    """Training met a loss that is not finite; the model from before the call is kept."""


class GenerationError(RuntimeError):
    """A generator rejected so many of its own rows that it could not fill the request."""


class CheckpointError(ValueError):
    """A file is missing, damaged, foreign, made by a newer version, or does not fit the object it is loaded into."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: torch says so in a plain RuntimeError on a CPU and in cuBLAS."""
    text = str(error).lower()
    signs = ("out of memory", "not enough memory", "can't allocate memory", "alloc_failed")
    told = any(sign in text for sign in signs)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (isinstance(error, RuntimeError) and told)
