"""What the buffer asks of its parts.

The loop that the buffer runs over them::

    real.add(transitions)                      # the caller, through SyntheticReplayBuffer.add
    if schedule.is_due(...):
        generator.fit(real.transitions())
        store.replace(generator.sample(n))
    batch = real.sample(k) and store.sample(rest)
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from synther_replay.data.transitions import Transitions


@runtime_checkable
class RealTransitions(Protocol):
    """Real transitions that a generator can learn from."""

    def transitions(self) -> Transitions:
        """Everything that is held."""

    def __len__(self) -> int:
        """Number of transitions held."""


@runtime_checkable
class RealBuffer(RealTransitions, Protocol):
    """Any replay buffer of real transitions."""

    def add(self, transitions: Transitions) -> None:
        """Take in new transitions."""

    def sample(self, n: int) -> Transitions:
        """Draw `n` transitions by the buffer's own rule; the caller may keep and change them."""


@runtime_checkable
class Generator(Protocol):
    """Anything that can learn a distribution of transitions and draw from it.

    `fit` either succeeds or raises and leaves the generator as it was. A diffusion model is the one that this library
    brings; a Gaussian, a VAE or a simulator with noise does as well.
    """

    def fit(self, transitions: Transitions) -> Any:
        """Learn from real transitions; what it returns is kept as the report of the refit."""

    def sample(self, n: int) -> Transitions:
        """Draw `n` transitions; all of them finite and within the spec."""


@runtime_checkable
class Stateful(Protocol):
    """A part that a checkpoint can hold: a tree of dicts, lists, tensors and plain JSON values."""

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; on an unfit state raise and change nothing."""
