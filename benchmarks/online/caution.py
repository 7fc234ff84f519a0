"""How cautious targets are: values are compared with the returns that followed in the agent's own latest episodes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

TOLERANCE = 0.2  # of the mean value: values of a policy that improves are ahead of the returns of earlier steps
# Values run away within a few thousand steps, so caution comes fast and goes slowly. Critics per check.
MORE, LESS = 0.25, 0.05


def overestimation(
    values: Tensor, rewards: Tensor, terminated: Tensor, last: Tensor, bonus: Tensor, gamma: float
) -> Tensor:
    """Share of the values that the returns which followed do not have, ``(M,)``; negative: the returns are larger.

    A return is that of the rows until the end of the episode; where an episode was cut or goes on, the last value
    takes the place of the rest, and the share is corrected for it.

    Args:
        values: Values of consecutive real rows, ``(M, n)``.
        rewards: Their rewards, ``(M, n)``.
        terminated: Whether their episodes terminated, ``(M, n)``.
        last: Whether they are the last known ones of their episodes, ``(M, n)``.
        bonus: Temperature times entropy, part of soft values, ``(M,)``.
        gamma: Discount.
    """
    q, r, ended, cut, extra = (part.double().cpu().numpy() for part in (values, rewards, terminated, last, bonus))
    returns, known = np.empty_like(q), np.empty_like(q)  # known: share of a return that is not a value
    for t in reversed(range(q.shape[1])):
        after = min(t + 1, q.shape[1] - 1)
        goes_on, is_cut = 1 - ended[:, t], (cut[:, t] > 0) & (ended[:, t] == 0)
        returns[:, t] = np.where(is_cut, q[:, t], r[:, t] + gamma * goes_on * (extra + returns[:, after]))
        known[:, t] = np.where(is_cut, 0.0, 1 - gamma * goes_on * (1 - known[:, after]))
    error = (q - returns).sum(1) / np.maximum(known.sum(1), 1e-9)
    share = error / np.maximum(np.abs(q).mean(1), 1e-9)
    return torch.from_numpy(share)


def adjusted(caution: Tensor, share: Tensor, least: float, most: float) -> Tensor:
    """Number of critics in the minimum, ``(M, 1)``, after a check that found `share`."""
    too_high = (share > TOLERANCE).to(caution).view_as(caution)
    return (caution + (most - least) * (too_high * MORE - (1 - too_high) * LESS)).clamp(least, most)
