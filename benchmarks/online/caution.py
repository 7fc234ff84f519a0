"""Caution of the critics' targets: follows whether values promise more than the agent's own latest rows gave, or less.

An error of the critics can make actions look good that no row contradicts, above all synthetic rows: they come from the
states that the agent has seen. Values then run away within a few thousand steps. What followed on the latest rows says
so at once, and the disagreement of the critics says where values are least certain.

The minimum over several critics makes values too low in turn, once the policy is good: on most tasks by a third with
four critics. An agent with a negative `min_caution` then takes less than the minimum away.
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
    caution, least, largest = learner.critics.caution, learner.settings.min_caution, learner.settings.max_caution
    too_high = excess > _TOLERANCE * values.abs().mean(1)  # never where values are not finite
    less = torch.where((caution > 0) | (excess < 0), -_LESS, 0.0)  # below the minimum only where values are too low
    caution.add_(torch.where(too_high, _MORE, less) * max(largest, -least)).clamp_(least, largest)
