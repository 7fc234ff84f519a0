"""Latents: an encoder between real observations and the generator, for observations that are too long to model.

The generator then models the encoder's outputs, and batches hold these instead of observations, real and synthetic
rows alike. The agent must take them, too: put the same encoder in front of its networks when it acts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from synther_replay.common.by_attributes import ByAttributes
from synther_replay.common.checks import check_function
from synther_replay.common.notices import Notices
from synther_replay.data.spec import TransitionSpec
from synther_replay.data.transitions import Transitions
from synther_replay.protocols import RealBuffer
from synther_replay.replay.states import stateful

_ROWS_AT_ONCE = 1_024  # observations encoded at once: images are large


@runtime_checkable
class Encoder(Protocol, metaclass=ByAttributes):
    """A function from observations to latents, with a version.

    A plain function or `torch.nn.Module` will do, too; it counts as frozen. Give it an attribute `version` (int or
    str) if it changes, and change that with it: synthetic rows, and the model, are then made anew.
    """

    version: int | str

    def __call__(self, observations: Any) -> Tensor:
        """Encode observations ``(n, *shape)`` as latents ``(n, k)``."""


class Latents:
    """An encoder, its output width and its version; checks what the encoder returns.

    Args:
        encoder: Maps a tensor of observations ``(n, *shape)`` in the dtype of their space to latents ``(n, k)``.
        observation_space: Space of the observations.
        device: Device of the observations that it is given.
    """

    def __init__(
        self,
        encoder: Callable[[Any], Tensor],
        observation_space: spaces.Space[Any],
        device: torch.device | str = "cpu",
    ) -> None:
        """Encode one observation to learn the width."""
        check_function("encoder: expected a function of observations", encoder, None)
        if not isinstance(observation_space, spaces.Box):
            raise TypeError(f"encoder: expected a Box of observations, got {observation_space}")
        self.encoder = encoder
        self._version = self._read_version()
        self._notices = Notices()
        low, high = observation_space.low, observation_space.high
        middle = np.where(np.isfinite(low) & np.isfinite(high), low / 2 + high / 2, 0).astype(observation_space.dtype)
        self._width: int | None = None
        self._width = self(torch.from_numpy(middle[None]).to(device)).shape[1]

    @property
    def version(self) -> int | str:
        """Version of the encoder; 0 if it has none, and the last one, with a warning, if it cannot be read."""
        try:
            self._version = self._read_version()
        except Exception as error:  # must not end a training run
            self._notices.warn(
                "version", 1, f"encoder: version not read, kept {self._version!r}: {error!r}", stacklevel=2
            )
        return self._version

    def _read_version(self) -> int | str:
        version = getattr(self.encoder, "version", 0)
        if not isinstance(version, int | str):
            raise TypeError(f"encoder: expected a version that is an int or str, got {version!r}")
        return version

    @property
    def space(self) -> spaces.Box:
        """Space of the latents."""
        return spaces.Box(-np.inf, np.inf, (self._width or 0,), np.float32)

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor:
        """Encode observations ``(n, *shape)``, a block at a time, as float32 ``(n, k)``.

        Raises:
            TypeError: The encoder returns no tensor.
            ValueError: It returns another shape than at first.
        """
        return torch.cat([self._block(block) for block in observations.split(_ROWS_AT_ONCE)])

    def _block(self, observations: Tensor) -> Tensor:
        latents = self.encoder(observations)
        if not isinstance(latents, Tensor):
            raise TypeError(f"encoder: expected it to return a tensor, got {type(latents).__name__}")
        if latents.ndim != 2 or len(latents) != len(observations) or self._width not in (None, latents.shape[1]):
            expected = (len(observations), self._width or "k")
            raise ValueError(f"encoder: expected latents of shape {expected}, got {tuple(latents.shape)}")
        return latents.detach().float()


class LatentBuffer:
    """Real transitions with encoded observations; pass it to `SyntheticReplayBuffer` in place of the real buffer.

    Observations are stored as they are and encoded when they are read, so the encoder may change (see `Encoder`).

    >>> import gymnasium as gym
    >>> from synther_replay import RingBuffer
    >>> spec = TransitionSpec.from_spaces(gym.spaces.Box(0, 255, (8, 8), "uint8"), gym.spaces.Discrete(2))
    >>> real = LatentBuffer(RingBuffer(spec, 1_000, device="cpu"), lambda images: images.float().mean(1) / 255)
    >>> real.spec.observation_dim, real.input_spec.observation_dim
    (8, 64)

    Args:
        real: Buffer of the transitions as they are.
        encoder: See `Latents`.
        spec: Layout of the transitions in it. None: the spec of `real`.

    Attributes:
        spec: Layout of the transitions that are read.
        input_spec: Layout of the transitions that are added.
    """

    def __init__(
        self, real: RealBuffer, encoder: Callable[[Any], Tensor], *, spec: TransitionSpec | None = None
    ) -> None:
        """Find the layout of encoded transitions."""
        if not isinstance(real, RealBuffer):
            raise TypeError(f"real: expected the methods of RealBuffer, got {type(real).__name__}")
        found = spec or getattr(real, "spec", None)
        if not isinstance(found, TransitionSpec):
            raise TypeError(f"spec: required, because real has none (got {found!r})")
        self.real, self.input_spec = real, found
        self.latents = Latents(encoder, found.observation_space, getattr(real, "device", "cpu"))
        self.spec = TransitionSpec.from_spaces(self.latents.space, found.action_space, extra=found.extra)

    @property
    def version(self) -> int | str:
        """Version of the encoder."""
        return self.latents.version

    @property
    def capacity(self) -> int | None:
        """Maximum number of transitions; None if the real buffer does not say it."""
        return getattr(self.real, "capacity", None)

    def __len__(self) -> int:
        """Number of transitions held."""
        return len(self.real)

    def add(self, transitions: Transitions) -> None:
        """Add transitions with observations as they are."""
        self.real.add(transitions)

    def sample(self, n: int) -> Transitions:
        """Draw `n` encoded transitions by the sampling rule of the real buffer."""
        return self._encoded(self.real.sample(n))

    def reseed(self, seed: int) -> None:
        """Draw in another order from now on, if the real buffer can."""
        if hasattr(self.real, "reseed"):
            self.real.reseed(seed)

    def transitions(self) -> Transitions:
        """Return all transitions, encoded."""
        return self._encoded(self.real.transitions())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the real buffer."""
        return stateful(self.real, "real").state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the real buffer."""
        stateful(self.real, "real").load_state_dict(state)

    def _encoded(self, transitions: Transitions) -> Transitions:
        spec, rows = self.input_spec, transitions.rows
        parts = [
            self.latents(transitions.observations),
            rows[:, spec.actions.start : spec.rewards.stop],
            self.latents(transitions.next_observations),
            rows[:, spec.terminated.start :],
        ]
        return Transitions(self.spec, torch.cat([part.to(rows.device) for part in parts], dim=1))
