"""What learners of many seeds have in common: a stream of random numbers, a state, and graphs captured on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from synther_replay.common.acceleration import capture
from synther_replay.common.seeding import derive_seed


class CapturedLearner:
    """Base of learners whose updates are recorded once and replayed.

    Args:
        device: Where to learn.
        seed: The same seed and the same calls give the same networks on the same device.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        """Begin the first stream of random numbers."""
        self.device, self.seed = device, seed
        self.rng = torch.Generator(device)
        self.reseed(0)

    def reseed(self, number: int) -> None:
        """Begin the stream of random numbers with this number: a run can be continued wherever one begins."""
        self.rng.manual_seed(derive_seed(self.seed, 1, number))

    def state_dict(self) -> dict[str, Any]:
        """Everything that learning goes on from, the transitions aside."""
        return {name: tensor.clone() for name, tensor in self._tensors().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue, in place: captured graphs stay valid."""
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])
        self._follow_load()

    def _tensors(self) -> dict[str, Tensor]:
        """What makes up the state, by name."""
        raise NotImplementedError

    def _follow_load(self) -> None:
        """Bring up to date what is derived from the state."""

    def _normal(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self.rng, device=self.device)

    def _captured(self, function: Callable[[], None]) -> Callable[[], None]:
        """The same as one replay of all its kernels; on the CPU the function itself."""
        if self.device.type != "cuda":
            return function
        before = self.state_dict()
        replay = capture(function, self.rng)
        self.load_state_dict(before)
        return replay
