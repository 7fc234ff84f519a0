"""Units of stored actions: Stable-Baselines3 scales them to [-1, 1], a loop of one's own may not."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor

_EDGE = 0.05  # values this close to a bound, as a share of the range, are counted as near it
_LEAST_NEAR = 0.01  # share of values near a bound that tells a cliff from the tail of a distribution
_EVIDENCE = 20.0  # minus the logarithm of the chance that uniform scaled actions all lie within the bounds


def look_unscaled(actions: Tensor, space: spaces.Box) -> bool:
    """Return whether actions seem to be in the units of an environment whose bounds are narrower than [-1, 1].

    Scaled actions fill [-1, 1], at the latest when SB3 explores. Unscaled ones stay within the environment's bounds and
    reach them: there is a cliff. A policy that only takes small actions stays within the bounds, too, but there is no
    cliff. In a space that is as wide as [-1, 1] or wider this cannot tell anything.

    Args:
        actions: Stored actions, finite, ``(n, action_dim)``.
        space: Action space of the environment.
    """
    low, high = (torch.as_tensor(bound.reshape(-1), dtype=torch.float32) for bound in (space.low, space.high))
    narrow = (low >= -1) & (high <= 1) & ((low > -1) | (high < 1)) & (low < high)
    width = (high - low)[narrow]
    if not len(width) or not len(actions) or len(actions) * float((2 / width).log().sum()) < _EVIDENCE:
        return False
    values, low, high = actions.cpu()[:, narrow], low[narrow], high[narrow]
    if bool(((values < low - 1e-5) | (values > high + 1e-5)).any()):
        return False
    near_low = (values <= low + _EDGE * width).float().mean(0) >= _LEAST_NEAR
    near_high = (values >= high - _EDGE * width).float().mean(0) >= _LEAST_NEAR
    at_cliff = (near_low | (low == -1)) & (near_high | (high == 1))
    spread = values.amax(0) - values.amin(0) >= width / 2  # else all values may be one, such as 0 in [0, 1]
    return float((at_cliff & spread).float().mean()) >= 0.5
