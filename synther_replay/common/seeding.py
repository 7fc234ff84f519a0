"""Independent random streams derived from one seed; global random state is never touched."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """What a random stream is for: the first key after the seed in `derive_seed`.

    With another number the same seed gives other rows. Two names may have one number where further keys tell them
    apart.
    """

    # of a generator's seed
    WEIGHTS = 1  # initial weights and noise frequencies of the denoiser
    TRAINING = 2  # batches and noise of the training
    VALIDATION = 3  # batches and noise of the held-out loss
    GENERATED = 4  # generated rows, or codes of them
    OUTCOME_FIT = 5  # training of the outcome model
    OUTCOMES = 6  # outcomes of generated rows
    WEIGHTED = 7  # draw of real rows by their weights
    COMPARED_REAL = 8  # real rows that generated ones are compared with after the training
    COMPARED_GENERATED = 9  # generated rows of that comparison
    WINDOWS = 10  # deal of the rows of a stream to windows
    CONSISTENCY_FIT = 11  # training of the regressions of `consistent`
    RARE_OUTCOMES = 12  # places of the real rows of rare outcomes among generated ones

    # of a buffer's seed
    REAL = 10  # order of the real rows in batches; the number of a block follows, see `IndexStream`
    SYNTHETIC = 11  # order of the synthetic rows in batches, likewise
    PLACES = 12  # places of the real rows in a batch, likewise
    GOALS = 13  # virtual goals of batches
    FITTED_GOALS = 14  # virtual goals of the rows of a fit
    RELEVANCE = 15  # seed of the relevance

    # of the seed of a file to write
    SHARDS = 13  # seeds of the blocks of a shard
    BLOCKS = 16  # seeds of the blocks of a single file

    # of a relevance's seed
    FORWARD_WEIGHTS = 0  # initial weights of the forward model of `Curiosity`
    FORWARD_TRAINING = 1  # its batches

    # of a report's seed
    SET_ASIDE = 1  # real rows to compare with the synthetic ones; not those that `memorisation` draws


def derive_seed(seed: int, *keys: int) -> int:
    """Return the seed of the stream named by `keys`, a `Stream` first; similar seeds and keys give independent streams.

    >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(1, 0)
    (True, False)
    """
    return int(np.random.SeedSequence(seed, spawn_key=keys).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator_for(device: torch.device | str, seed: int, *keys: int) -> torch.Generator:
    """Return a new random generator on `device` for the stream named by `keys`."""
    return torch.Generator(device).manual_seed(derive_seed(seed, *keys))
