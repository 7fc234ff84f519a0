"""A recorded data set for learners: n-step transitions whose observations are numbers of stacks, and their latents.

Frames stay where they are: an observation is the number of its stack, a column of the row. Learners gather the images
of a batch, and `LatentBuffer` encodes all rows once.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from synther_replay import RingBuffer, Transitions, TransitionSpec
from synther_replay.benchmarks.pixels.archive import Archive
from synther_replay.benchmarks.pixels.frames import Stacks
from synther_replay.benchmarks.pixels.networks import Agent
from synther_replay.common.seeding import generator_for
from synther_replay.replay.latents import LatentBuffer


class PixelRows:
    """Transitions of all episodes of an archive.

    Args:
        archive: The episodes.
        n_step: Steps that a transition spans; those that an episode has no room for are left out.
        gamma: Discount of the rewards within a transition.
        device: Where frames and rows are kept.
        threads: Threads that decode the frames.

    Attributes:
        stacks: The frames.
        spec: Layout of the transitions.
        buffer: The transitions.
    """

    def __init__(self, archive: Archive, *, n_step: int, gamma: float, device: torch.device, threads: int = 1) -> None:
        """Decode the frames and sum the rewards."""
        self.stacks = Stacks(archive.decoded(threads=threads), archive.starts(), device)
        numbers = gym.spaces.Box(0, len(archive) - 1, (1,), np.int64)
        self.spec = TransitionSpec.from_spaces(numbers, gym.spaces.Box(-1, 1, archive.action.shape[1:], np.float32))
        rows = _transitions(archive, self.spec, n_step, gamma)
        self.buffer = RingBuffer(self.spec, len(rows), device=device)
        self.buffer.add(rows.to(device))

    def view(self, observations: Tensor, rng: torch.Generator) -> Tensor:
        """The images of stack numbers ``(B, 1)``, with random shifts."""
        return self.stacks.shifted(observations[:, 0].long(), rng)

    def latents(self, agent: Agent, seed: int) -> Transitions:
        """The transitions with latents of a trained agent, from images with random shifts, as in the paper."""
        rng = generator_for(self.stacks.frames.device, seed, 2)
        return LatentBuffer(self.buffer, lambda numbers: agent.latents(self.view(numbers, rng))).transitions()


def _transitions(archive: Archive, spec: TransitionSpec, n_step: int, gamma: float) -> Transitions:
    """n-step transitions; row i of an archive has the action that led to frame i."""
    starts = archive.starts()
    ends = starts + np.repeat(archive.lengths, archive.lengths)
    now = np.arange(len(archive))
    now = now[now + n_step < ends]
    if not len(now):
        raise ValueError(f"n_step: no episode is longer than {n_step} steps, got lengths {archive.lengths.tolist()}")
    rewards = sum(gamma**k * archive.reward[now + 1 + k] for k in range(n_step))
    terminated = archive.discount[now + n_step] == 0
    return Transitions.from_arrays(
        spec, now[:, None], archive.action[now + 1], rewards, (now + n_step)[:, None], terminated
    )
