"""Value and TDError: relevance by the critics of an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from synther_replay.data.spec import DISCOUNT
from synther_replay.data.transitions import Transitions
from synther_replay.data.validation import as_tensor
from synther_replay.relevance.function import WithFunctions

_ROWS_AT_ONCE = 65_536  # critics are wide: bounds the memory of their activations


class _OfCritic(WithFunctions):
    """Base: functions of an agent, which may come after construction."""

    _needed: tuple[str, ...] = ()  # names of the functions that must be there

    @property
    def is_attached(self) -> bool:
        """Whether it has all functions that it needs."""
        return all(getattr(self, name) is not None for name in self._needed)

    @torch.no_grad()
    def score(self, transitions: Transitions) -> Tensor:
        """Return the score of each row.

        Raises:
            ValueError: The functions of the agent are missing.
        """
        if not self.is_attached:
            raise ValueError(f"relevance: {type(self).__name__} has no critic yet; pass one, or call attach")
        starts = range(0, len(transitions), _ROWS_AT_ONCE)
        return torch.cat([self._block(transitions[start : start + _ROWS_AT_ONCE]) for start in starts], dim=-1)

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

    def __init__(self, value: Callable[[Any], Any] | None = None) -> None:
        """Keep the function."""
        _check_functions(value=value)
        self.value = value

    def attach(self, *, value: Callable[[Any], Any], **_: Any) -> None:
        """Take the functions of an agent; those that are not needed here are ignored."""
        self.__init__(value)  # type: ignore[misc]

    def _block(self, transitions: Transitions) -> Tensor:
        assert self.value is not None
        return self._scores(self.value(transitions.observations), transitions, "value")


class TDError(_OfCritic):
    """The size of each row's TD error, ``|r + gamma * value(s') - q(s, a)|``, without the second part at terminations.

    Args:
        q: A function from observations and actions to values ``(n,)``. None: comes later, see `attach`.
        value: A function from observations to values ``(n,)``, such as ``lambda s: q(s, actor(s))``.
        gamma: Discount; rows with a field ``discount`` have their own.
        rewards: A function from rewards to those that the critic is trained on, if they differ.
    """

    _functions = "q", "value", "rewards"
    _needed = "q", "value"

    def __init__(
        self,
        q: Callable[[Any, Any], Any] | None = None,
        value: Callable[[Any], Any] | None = None,
        *,
        gamma: float = 0.99,
        rewards: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Keep the functions."""
        _check_functions(q=q, value=value, rewards=rewards)
        if not isinstance(gamma, int | float) or not 0 <= gamma <= 1:
            raise ValueError(f"gamma: expected a number from 0 to 1, got {gamma!r}")
        self.q, self.value, self.gamma, self.rewards = q, value, gamma, rewards

    def attach(self, **of_agent: Any) -> None:
        """Take `q`, `value`, `gamma` and `rewards` of an agent."""
        self.__init__(**of_agent)  # type: ignore[misc]

    def _block(self, transitions: Transitions) -> Tensor:
        assert self.q is not None and self.value is not None
        q = self._scores(self.q(transitions.observations, transitions.actions), transitions, "q")
        after = self._scores(self.value(transitions.next_observations), transitions, "value")
        discount = transitions.field(DISCOUNT) if DISCOUNT in transitions.spec.extra else self.gamma
        rewards = transitions.rewards if self.rewards is None else self.rewards(transitions.rewards)
        return (rewards + discount * ~transitions.terminated * after - q).abs()


def _check_functions(**functions: Any) -> None:
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name}: expected a function, got {function!r}")
