"""Rows of a Stable-Baselines3 buffer with encoded observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from synther_replay.adapters.sb3.rows import RealRows
from synther_replay.data.transitions import TransitionSpec
from synther_replay.replay.latents import Latents


class LatentRows(RealRows):
    """The real transitions of a buffer, with latents in place of observations.

    Each observation is encoded once: latents are kept in the mirror, also on the CPU, until the encoder's version
    changes.
    """

    def __init__(self, latents: Latents, buffer: Any, spec: TransitionSpec, seed: int, device: torch.device) -> None:
        """Start with an empty mirror."""
        self.latents = latents
        self._mirrored_version = latents.version
        super().__init__(buffer, spec, seed, device)

    @property
    def version(self) -> int | str:
        """Version of the encoder; the source drops synthetic rows of another one."""
        return self.latents.version

    def _observations(self, held: Any, index: np.ndarray) -> list[np.ndarray]:
        lines = held.reshape(self.capacity, *self.buffer.obs_shape)
        return [self.latents(torch.from_numpy(lines[index]).to(self.device)).cpu().numpy()]

    def _mirrors(self) -> bool:
        return True

    def _mirrored(self) -> Tensor:
        if self._mirrored_version != self.latents.version:
            self.forget()
            self._mirrored_version = self.latents.version
        mirror: Tensor = super()._mirrored()
        return mirror
