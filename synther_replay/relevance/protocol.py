"""Relevance: scores real rows, so that rows like the highest ones can be generated."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from synther_replay.common.by_attributes import ByAttributes
from synther_replay.data.transitions import Transitions


@runtime_checkable
class Relevance(Protocol, metaclass=ByAttributes):
    """Scores real transitions; the generator is then asked for rows like those with the highest scores.

    A refit uses it like this::

        relevance.learn(real, new_rows)          # if it has this method
        scores = relevance.score(real)

    Only the order of the scores matters. An error in either method, NaN or a wrong length cost the guidance of that
    refit and nothing else. A relevance with `state_dict` and `load_state_dict` is saved in checkpoints. One with
    `reset` starts from nothing when the meaning of the rows changes, and one with `reseed` takes the buffer's seed. One
    with ``is_self_contained = True`` uses nothing but the rows and itself: it is called when the job of a refit runs,
    which may be in another thread. Any other is called when the refit begins, because an agent goes on learning.
    """

    def score(self, transitions: Transitions) -> Any:
        """Return one number per row, ``(n,)``, or ``(M, n)`` for the rows of M runs; higher is more relevant."""


@runtime_checkable
class Learner(Protocol, metaclass=ByAttributes):
    """A relevance that is trained on the real rows as the run goes on."""

    def learn(self, transitions: Transitions, new_rows: int) -> None:
        """Train on all real rows, of which `new_rows` were added since the last call."""
