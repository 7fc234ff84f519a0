"""Interfaces of the real buffer and the generator.

The buffer uses them like this::

    real.add(transitions)                      # in SyntheticReplayBuffer.add
    if schedule.is_due(...):
        generator.fit(real.transitions())
        store.replace(generator.sample(n))
    batch = mix(real.sample(k), store.sample(batch_size - k))
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from synther_replay.data.transitions import Transitions


@runtime_checkable
class RealTransitions(Protocol):
    """Real transitions to fit a generator to."""

    def transitions(self) -> Transitions:
        """Return all transitions."""

    def __len__(self) -> int:
        """Number of transitions held."""


@runtime_checkable
class RealBuffer(RealTransitions, Protocol):
    """A replay buffer of real transitions."""

    def add(self, transitions: Transitions) -> None:
        """Add transitions."""

    def sample(self, n: int) -> Transitions:
        """Draw `n` transitions by the buffer's own sampling rule; the caller may modify them."""


@runtime_checkable
class Generator(Protocol):
    """A generative model of transitions.

    `fit` must either succeed, or raise and leave the generator unchanged. `DiffusionGenerator` is the implementation of
    this library; any other model (Gaussian, VAE, learned dynamics) can be used instead.
    """

    def fit(self, transitions: Transitions) -> Any:
        """Fit to real transitions; the return value is stored in `RefitReport.fit`."""

    def sample(self, n: int) -> Transitions:
        """Generate `n` transitions, all finite and within the bounds of the spec."""


@runtime_checkable
class Stateful(Protocol):
    """An object that a checkpoint can hold: its state is a tree of dicts, lists, tensors and JSON values."""

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state; on a mismatch raise and change nothing."""
