"""n-step returns of the rows in a Stable-Baselines3 buffer, with the arithmetic of its `NStepReplayBuffer`."""

from __future__ import annotations

import functools
import warnings
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm


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


def take_n_steps_of_models(ours: type[Any]) -> None:
    """Let models with ``n_steps > 1`` pass it to buffers of the class `ours`, as SB3 does for its own buffer alone.

    SB3 ignores `n_steps` with any other class. It has no hook there, so `_setup_model` itself is extended. What
    ``replay_buffer_kwargs`` says comes first.
    """
    set_up = OffPolicyAlgorithm._setup_model

    @functools.wraps(set_up)
    def _setup_model(self: Any) -> None:
        with warnings.catch_warnings():
            if self.n_steps > 1 and issubclass(self.replay_buffer_class or object, ours):
                self.replay_buffer_kwargs = {"n_steps": self.n_steps, "gamma": self.gamma, **self.replay_buffer_kwargs}
                warnings.filterwarnings("ignore", message=r"`n_steps=\d+` is ignored")
            set_up(self)

    OffPolicyAlgorithm._setup_model = _setup_model
