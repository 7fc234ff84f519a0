"""Rows for the tests of the quality report."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gymnasium import spaces

from synther_replay import Transitions, TransitionSpec

SPEC = TransitionSpec.from_spaces(spaces.Box(-5, 5, (4,)), spaces.Box(-1, 1, (2,)))


@pytest.fixture(scope="session")
def rows() -> Callable[..., Transitions]:
    """Makes correlated transitions with a sparse reward and some terminations."""

    def make(n: int, seed: int, *, shift: float = 0.0, rate: float = 0.05) -> Transitions:
        stream = torch.Generator().manual_seed(seed)
        matrix = torch.randn(n, SPEC.dim, generator=stream)
        matrix[:, SPEC.next_observations] = 0.9 * matrix[:, SPEC.observations] + 0.1 * matrix[:, SPEC.next_observations]
        matrix[:, SPEC.actions] = matrix[:, SPEC.actions].tanh()
        matrix[:, SPEC.rewards] = (matrix[:, SPEC.rewards] > 1).float()
        matrix[:, SPEC.terminated] = (torch.rand(n, 1, generator=stream) < rate).float()
        matrix[:, 0] += shift
        return Transitions(SPEC, matrix)

    return make
