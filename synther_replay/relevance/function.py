"""OfFunction: a user's function as a relevance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from synther_replay.data.transitions import Transitions


class OfFunction:
    """Scores by a function from transitions to numbers ``(n,)``. Copies and pickles do not have the function."""

    def __init__(self, function: Callable[[Transitions], Any] | None) -> None:
        """Keep the function."""
        self.function = function

    @torch.no_grad()
    def score(self, transitions: Transitions) -> Any:
        """Call the function."""
        if self.function is None:
            raise ValueError("relevance: the function is missing, because copies and pickles do not have it")
        return self.function(transitions)

    def __getstate__(self) -> dict[str, Any]:
        """State for pickle and deepcopy, without the function, which pickle often cannot hold."""
        return {"function": None}
