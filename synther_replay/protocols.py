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

from synther_replay.common.by_attributes import ByAttributes
from synther_replay.data.transitions import Transitions


@runtime_checkable
class RealTransitions(Protocol, metaclass=ByAttributes):
    """Real transitions to fit a generator to.

    An object with an attribute `version` (int or str) may change what its rows mean, for example because another
    encoder makes them. Synthetic rows and model of another version are then dropped. One whose rows are in random order
    says so by ``is_ordered = False``, and one whose `transitions` are never written to afterwards by
    ``gives_copies = True``: a refit in the background then needs no copy of its own. One with an attribute `capacity`,
    the most transitions that it holds, is warned of if a generator needs more.
    """

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
class Generator(Protocol, metaclass=ByAttributes):
    """A generative model of transitions.

    `fit` must either succeed, or raise and leave the generator unchanged. `DiffusionGenerator` is the implementation of
    this library; any other model (Gaussian, VAE, learned dynamics) can be used instead.
    """

    def fit(self, transitions: Transitions) -> Any:
        """Fit to real transitions; the return value is stored in `RefitReport.fit`."""

    def sample(self, n: int) -> Transitions:
        """Generate `n` transitions, all finite and within the bounds of the spec."""


@runtime_checkable
class JobGenerator(Generator, Protocol):
    """A generator whose fits are jobs, so that they can run beside the training and be taken at a chosen step.

    A job has ``run()``, which fits and may be called in another thread, and ``sample(n)``, which generates from the
    result. The generator itself changes only in `commit`. One whose jobs compute somewhere else, so that a thread which
    waits for them costs the learner nothing, says so by ``background = "thread"``; any other is pickled and sent to a
    process when it is refitted in the background on a CPU.
    """

    def begin(self, transitions: Transitions, **options: Any) -> Any:
        """Prepare a fit and return its job; the transitions may change afterwards."""

    def commit(self, job: Any) -> Any:
        """Make the result of a job the model; returns what `fit` returns."""

    def revert(self, job: Any) -> None:
        """Undo the commit of a job, the last one."""


@runtime_checkable
class Schedule(Protocol, metaclass=ByAttributes):
    """Decides when to refit. `RetrainSchedule` is the implementation of this library.

    A schedule with `state_dict` and `restored` (see `RetrainSchedule`) is saved in checkpoints, any other is not.
    """

    @property
    def rows(self) -> int:
        """Number of rows to generate at the next refit."""

    def is_due(self, steps: int, last_refit: int | None) -> bool:
        """Return whether a refit is due, given the current step and the step of the last refit (None: no refit yet)."""


@runtime_checkable
class Stateful(Protocol, metaclass=ByAttributes):
    """An object that a checkpoint can hold: its state is a tree of dicts, lists, tensors and JSON values."""

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state; on a mismatch raise and change nothing."""
