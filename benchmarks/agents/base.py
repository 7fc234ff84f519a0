"""Base class of seed-parallel learners: random stream, state, and CUDA graph capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from synther_replay.common.acceleration import capture
from synther_replay.common.seeding import derive_seed


class CapturedLearner:
    """Base of learners whose updates are captured once as a CUDA graph and replayed.

    Args:
        device: Device of the learner.
        seed: Random seed; equal seeds and calls give equal networks on the same device.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        """Start random stream 0."""
        self.device, self.seed = device, seed
        self.rng = torch.Generator(device)
        self._learn: Callable[[], None] | None = None  # the captured updates
        self.reseed(0)

    def prepare(self) -> None:
        """Capture the updates of `learn`, unless done; uses random numbers, so call `reseed` afterwards."""
        if self._learn is None:
            self._learn = self._captured(self._draw_and_update)

    def learn(self) -> None:
        """Make the updates of one call; asynchronous on a GPU."""
        if self._learn is None:
            self.prepare()
        assert self._learn is not None
        self._learn()

    def reseed(self, number: int) -> None:
        """Start the random stream with this number; a run can be resumed at the start of a stream."""
        self.rng.manual_seed(derive_seed(self.seed, 1, number))

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, without the transitions."""
        return {name: tensor.clone() for name, tensor in self._tensors().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict` in place, so that captured graphs stay valid."""
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])
        self._after_load()

    def _draw_and_update(self) -> None:
        """Make the updates of one call of `learn`."""
        raise NotImplementedError

    def _tensors(self) -> dict[str, Tensor]:
        """Tensors of the state, by name."""
        raise NotImplementedError

    def _after_load(self) -> None:
        """Update everything that is derived from the state."""

    def _normal(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self.rng, device=self.device)

    def _captured(self, function: Callable[[], None]) -> Callable[[], None]:
        """Capture a function as a CUDA graph and return its replay; on the CPU, return the function itself."""
        if self.device.type != "cuda":
            return function
        before = self.state_dict()
        replay = capture(function, self.rng)
        self.load_state_dict(before)
        return replay
