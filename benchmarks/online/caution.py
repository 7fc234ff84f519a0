"""Caution of the critics' targets: taken where values promise more than the agent's own latest rows gave.

An error of the critics can make actions look good that no row contradicts, above all synthetic rows: they come from the
states that the agent has seen. Values then run away within a few thousand steps. What followed on the latest rows says
so at once, and the disagreement of the critics says where values are least certain.
"""

from __future__ import annotations

import torch

from synther_replay.benchmarks.agents.sac import StackedSAC
from synther_replay.benchmarks.online.overestimation import values_and_excess

_TOLERANCE = 0.2  # of the values: those of a policy that improves are ahead of the returns of its last episodes
# Per check, of the largest caution. Values run away fast, so caution comes fast and goes slowly.
_MORE, _LESS = 0.25, 0.05


@torch.no_grad()
def adjust_caution(learner: StackedSAC) -> None:
    """Change the caution of each agent's targets; call it at regular steps."""
    values, excess = values_and_excess(learner)
    caution, largest = learner.critics.caution, learner.settings.max_caution
    too_high = excess > _TOLERANCE * values.abs().mean(1)  # never where values are not finite
    caution.add_(torch.where(too_high, _MORE, -_LESS) * largest).clamp_(0, largest)
