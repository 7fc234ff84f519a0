"""Independent random streams derived from one seed; global random state is never touched."""

from __future__ import annotations

import numpy as np
import torch


def derive_seed(seed: int, *keys: int) -> int:
    """Return the seed of the stream named by `keys`; similar seeds and keys give independent streams.

    >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(1, 0)
    (True, False)
    """
    return int(np.random.SeedSequence(seed, spawn_key=keys).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator_for(device: torch.device | str, seed: int, *keys: int) -> torch.Generator:
    """Return a new random generator on `device` for the stream named by `keys`."""
    return torch.Generator(device).manual_seed(derive_seed(seed, *keys))
