"""Settings and small helpers that several test files share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

# The tests compute on matrices so small that threads cost more than they bring, above all where tests run in parallel.
torch.set_num_threads(1)


@pytest.fixture
def stream() -> Callable[[int], torch.Generator]:
    """Makes a random generator on the CPU from a seed."""
    return lambda seed: torch.Generator().manual_seed(seed)
