"""n-step returns of the rows in a Stable-Baselines3 buffer, with the arithmetic of its `NStepReplayBuffer`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class NStepReturns(NamedTuple):
    """What differs between n-step rows and the single steps that they begin with, for n rows.

    Attributes:
        rewards: Discounted sums of rewards, float32 ``(n, 1)``.
        last: Row numbers of the last steps, whose next observation and termination the rows have, ``(n,)``.
        discounts: gamma to the power of the number of steps, float32 ``(n, 1)``.
    """

    rewards: np.ndarray
    last: np.ndarray
    discounts: np.ndarray


def n_step_returns(buffer: Any, index: np.ndarray) -> NStepReturns:
    """Compute the returns of rows of an `NStepReplayBuffer`.

    A row has fewer than `buffer.n_steps` steps if its episode ends earlier, and at the newest rows, which are followed
    by the oldest ones or by none.

    Args:
        buffer: The buffer.
        index: Row numbers ``position * n_envs + environment``, ``(n,)``.
    """
    position, environment = np.divmod(index, buffer.n_envs)
    steps = np.arange(buffer.n_steps)
    window = (position[:, None] + steps) % buffer.buffer_size
    chosen = window, environment[:, None]
    ends = (buffer.dones[chosen] != 0) | (buffer.timeouts[chosen] != 0)
    ends |= window == (buffer.pos - 1) % buffer.buffer_size
    ends[:, -1] = True
    past = ends.argmax(1)  # steps before the last one
    taken = steps <= past[:, None]
    weights = buffer.gamma ** steps.astype(np.float32)
    return NStepReturns(
        rewards=(buffer.rewards[chosen] * weights * taken).sum(1, keepdims=True),
        last=(position + past) % buffer.buffer_size * buffer.n_envs + environment,
        discounts=buffer.gamma ** (past[:, None] + 1).astype(np.float32),
    )
