"""Relevance by a user's functions, which copies and pickles do not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from synther_replay.data.transitions import Transitions


class WithFunctions:
    """Base of relevances that call functions of the user or of an agent.

    Copies and pickles do not have them: pickle cannot hold many functions, and some belong to a whole agent.
    """

    _functions: tuple[str, ...] = ()  # names of the attributes

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without functions."""
        return {**vars(self), **dict.fromkeys(self._functions)}

    def take_functions(self, other: object) -> None:
        """Take the functions of a relevance of the same class, for example of the original of a copy."""
        if type(other) is type(self):
            vars(self).update({name: getattr(other, name) for name in self._functions})


class OfFunction(WithFunctions):
    """Scores by a function from transitions to numbers ``(n,)``."""

    _functions = ("function",)

    def __init__(self, function: Callable[[Transitions], Any] | None) -> None:
        """Keep the function."""
        self.function = function

    @torch.no_grad()
    def score(self, transitions: Transitions) -> Any:
        """Call the function."""
        if self.function is None:
            raise ValueError("relevance: the function is missing, because copies and pickles do not have it")
        return self.function(transitions)
