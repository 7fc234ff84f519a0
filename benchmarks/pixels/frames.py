"""Stacks of frames: which frames make an observation, and how a batch of them is gathered and shifted."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor

STACK = 3
PAD = 4  # largest shift of the augmentation in pixels


def stack_numbers(starts: Tensor) -> Tensor:
    """Numbers of the frames of each stack, oldest first, ``(N,)`` to ``(N, STACK)``.

    Before the first frame of an episode, that frame is repeated.

    Args:
        starts: Number of the first frame of each frame's episode.
    """
    numbers = torch.arange(len(starts), device=starts.device)
    back = torch.arange(STACK - 1, -1, -1, device=starts.device)
    return torch.maximum(numbers[:, None] - back, starts[:, None])


class Stacks:
    """Frames of a data set on a device, read as stacks with random shifts.

    Args:
        frames: All frames, ``(N, height, width, 3)``, uint8.
        starts: See `stack_numbers`.
        device: Where they are kept.
    """

    def __init__(self, frames: np.ndarray, starts: np.ndarray, device: torch.device) -> None:
        """Move the frames."""
        self.frames = torch.from_numpy(frames).to(device)
        self.numbers = stack_numbers(torch.from_numpy(starts).to(device))

    def __len__(self) -> int:
        """Number of stacks, one per frame."""
        return len(self.frames)

    def images(self, of: Tensor, shifts: Tensor) -> Tensor:
        """Stacks as images ``(B, 3 * STACK, height, width)`` in uint8, with channels last in memory.

        Args:
            of: Number of the last frame of each, ``(B,)``.
            shifts: Pixels to shift by, from -PAD to PAD, ``(B, 2)``: rows, columns. Pixels at the edges are repeated.
        """
        height, width = self.frames.shape[1:3]
        rows, columns = (
            (torch.arange(size, device=of.device) + shifts[:, axis, None]).clamp(0, size - 1)
            for axis, size in ((0, height), (1, width))
        )
        stacks = self.numbers[of]
        images = self.frames[stacks[:, None, None, :], rows[:, :, None, None], columns[:, None, :, None]]
        return images.flatten(3).permute(0, 3, 1, 2)

    def shifted(self, of: Tensor, rng: torch.Generator) -> Tensor:
        """Stacks with random shifts: the augmentation of DrQ."""
        shifts = torch.randint(-PAD, PAD + 1, (len(of), 2), generator=rng, device=of.device)
        return self.images(of, shifts)


class LiveStack:
    """The last frames of a running episode.

    Args:
        first: First frame of the episode.
    """

    def __init__(self, first: np.ndarray) -> None:
        """Repeat the first frame."""
        self._frames = deque([first] * STACK, maxlen=STACK)

    def add(self, frame: np.ndarray) -> None:
        """Append the newest frame."""
        self._frames.append(frame)

    def image(self) -> Tensor:
        """The stack as a batch of one image, laid out as in `Stacks.images`."""
        return torch.from_numpy(np.concatenate(self._frames, axis=-1))[None].permute(0, 3, 1, 2)
