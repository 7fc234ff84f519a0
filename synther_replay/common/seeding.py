"""Seeds for independent random streams, derived from one seed without touching any global state."""

from __future__ import annotations

import numpy as np
import torch


def derive_seed(seed: int, *keys: int) -> int:
    """A seed for the stream named by `keys`; near seeds and keys give unrelated streams.

    >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(1, 0)
    (True, False)
    """
    return int(np.random.SeedSequence(seed, spawn_key=keys).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator_for(device: torch.device | str, seed: int, *keys: int) -> torch.Generator:
    """A fresh random generator on `device` for the stream named by `keys`."""
    return torch.Generator(device).manual_seed(derive_seed(seed, *keys))
