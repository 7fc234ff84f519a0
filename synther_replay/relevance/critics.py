"""Value and TDError: relevance by the critics of an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from synther_replay.common.checks import received
from synther_replay.data.spec import DISCOUNT
from synther_replay.data.transitions import Transitions
from synther_replay.data.validation import as_tensor
from synther_replay.relevance.function import WithFunctions

_GAMMA = 0.99
_ROWS_AT_ONCE = 65_536  # critics are wide: bounds the memory of their activations


class _OfCritic(WithFunctions):
    """Base: functions of an agent, which may come after construction.

    Attributes:
        is_own: Whether the functions are the user's. Then no critic of a model takes their place, not even where a copy
            or pickle has lost them.
    """

    _needed: tuple[str, ...] = ()  # names of the functions that must be there
    is_own = False

    @property
    def is_attached(self) -> bool:
        """Whether it has all functions that it needs."""
        return all(getattr(self, name) is not None for name in self._needed)

    def take_functions(self, other: object) -> None:
        """Take the functions of a relevance of the same class, and whose they are."""
        super().take_functions(other)
        if type(other) is type(self):
            self.is_own = other.is_own

    @torch.no_grad()
    def score(self, transitions: Transitions) -> Tensor:
        """Return the score of each row.

        Raises:
            ValueError: The functions of the agent are missing.
        """
        if not self.is_attached:
            missing = " and ".join(name for name in self._needed if getattr(self, name) is None)
            raise ValueError(
                f"relevance: {type(self).__name__} lacks {missing}, which copies and pickles do not have; "
                "pass them, or call attach"
            )
        starts = range(0, len(transitions), _ROWS_AT_ONCE)
        return torch.cat([self._block(transitions[start : start + _ROWS_AT_ONCE]) for start in starts], dim=-1)

    def _set(self, *, is_own: bool, **functions: Callable[..., Any] | None) -> None:
        for name, function in functions.items():
            if isinstance(function, type) or not (function is None or callable(function)):
                raise TypeError(f"{name}: expected a function, {received(function)}")
        vars(self).update(functions, is_own=is_own)

    def _block(self, transitions: Transitions) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def _scores(values: Any, transitions: Transitions, name: str) -> Tensor:
        """Values ``(n,)``; a critic may return a column ``(n, 1)``."""
        found, lead = as_tensor(values, name, transitions.rows.device), transitions.rows.shape[:-1]
        if found.shape == (*lead, 1):
            found = found[..., 0]
        if found.shape != lead:
            raise ValueError(f"relevance: {name} returned shape {tuple(found.shape)}, expected {tuple(lead)}")
        return found.double()


class Value(_OfCritic):
    """The value of each row's observation under the agent.

    Args:
        value: A function from observations to their values ``(n,)``, such as ``lambda s: critic(s, actor(s))``. None:
            comes later, see `attach`.
    """

    _functions = _needed = ("value",)
    value: Callable[[Any], Any] | None

    def __init__(self, value: Callable[[Any], Any] | None = None) -> None:
        """Keep the function."""
        self._set(value=value, is_own=value is not None)

    def attach(self, *, value: Callable[[Any], Any], is_own: bool = True, **_: Any) -> None:
        """Take the functions of an agent; those that are not needed here are ignored.

        Args:
            value: As in the constructor.
            is_own: False: the critic of a model may take their place later.
            **_: Ignored.
        """
        self._set(value=value, is_own=is_own)

    def _block(self, transitions: Transitions) -> Tensor:
        assert self.value is not None
        return self._scores(self.value(transitions.observations), transitions, "value")


class TDError(_OfCritic):
    """The size of each row's TD error, ``|r + gamma * value(s') - q(s, a)|``, without the second part at terminations.

    Args:
        q: A function from observations and actions to values ``(n,)``. None: comes later, see `attach`.
        value: A function from observations to values ``(n,)``, such as ``lambda s: q(s, actor(s))``.
        gamma: Discount; rows with a field ``discount`` have their own. None: that of `attach`, 0.99 before.
        rewards: A function from rewards to those that the critic is trained on, if they differ.
    """

    _functions = "q", "value", "rewards"
    _needed = "q", "value"
    q: Callable[[Any, Any], Any] | None
    value: Callable[[Any], Any] | None
    rewards: Callable[[Tensor], Tensor] | None

    def __init__(
        self,
        q: Callable[[Any, Any], Any] | None = None,
        value: Callable[[Any], Any] | None = None,
        *,
        gamma: float | None = None,
        rewards: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Keep the functions."""
        given = any(function is not None for function in (q, value, rewards))
        self._set(q=q, value=value, rewards=rewards, is_own=given)
        self._has_gamma = gamma is not None
        self.gamma = _checked_gamma(_GAMMA if gamma is None else gamma)

    def attach(
        self,
        *,
        q: Callable[[Any, Any], Any],
        value: Callable[[Any], Any],
        gamma: float | None = None,
        rewards: Callable[[Tensor], Tensor] | None = None,
        is_own: bool = True,
    ) -> None:
        """Take the functions of an agent.

        Args:
            q: As in the constructor.
            value: As in the constructor.
            gamma: Discount of the agent; that of the constructor comes first.
            rewards: As in the constructor.
            is_own: False: the critics of a model may take their place later.
        """
        discount = self.gamma if gamma is None or self._has_gamma else _checked_gamma(gamma)
        self._set(q=q, value=value, rewards=rewards, is_own=is_own)
        self.gamma = discount

    def _block(self, transitions: Transitions) -> Tensor:
        assert self.q is not None and self.value is not None
        q = self._scores(self.q(transitions.observations, transitions.actions), transitions, "q")
        after = self._scores(self.value(transitions.next_observations), transitions, "value")
        discount = transitions.field(DISCOUNT) if DISCOUNT in transitions.spec.extra else self.gamma
        rewards = transitions.rewards if self.rewards is None else self.rewards(transitions.rewards)
        return (rewards + discount * ~transitions.terminated * after - q).abs()


def _checked_gamma(gamma: Any) -> float:
    if not isinstance(gamma, int | float) or not 0 <= gamma <= 1:
        raise ValueError(f"gamma: expected a number from 0 to 1, got {gamma!r}")
    return gamma
