"""Critics of Stable-Baselines3's algorithms as functions, for the relevances `TDError` and `Value`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from torch import Tensor

from synther_replay.relevance import TDError, Value


class ModelCritic:
    """Values that a model gives to observations and actions as its buffer stores them.

    Args:
        model: SAC, TD3, DDPG, DQN, TQC, CrossQ, or one like them. It owns the buffer and is referred to weakly.
    """

    def __init__(self, model: Any) -> None:
        """Keep the model; its networks are read at every call."""
        if not hasattr(model, "q_net") and not (hasattr(model, "actor") and hasattr(model, "critic")):
            raise TypeError(f"model: {type(model).__name__} has neither q_net nor actor and critic")
        self._model = weakref.ref(model)

    def q(self, observations: Any, actions: Tensor) -> Tensor:
        """Values ``(n,)``; the lowest of several critics."""
        with self._evaluating() as model:
            observations = self._normalised(model, observations)
            if hasattr(model, "q_net"):
                values: Tensor = model.q_net(observations)
                return values.gather(1, actions.long().reshape(-1, 1))[:, 0]
            return self._least(model, observations, actions)

    def value(self, observations: Any) -> Tensor:
        """Values ``(n,)`` of the actions that the model takes without exploring."""
        with self._evaluating() as model:
            observations = self._normalised(model, observations)
            if hasattr(model, "q_net"):
                values: Tensor = model.q_net(observations)
                return values.amax(1)
            return self._least(model, observations, model.actor._predict(observations, deterministic=True))

    def rewards(self, rewards: Tensor) -> Tensor:
        """Rewards as the critic sees them."""
        with self._evaluating() as model:
            if (env := model.get_vec_normalize_env()) is None:
                return rewards
            normal: Tensor = model.replay_buffer.normalised_rewards(rewards, env)
            return normal

    @staticmethod
    def _least(model: Any, observations: Any, actions: Tensor) -> Tensor:
        values = model.critic(observations, actions.reshape(len(actions), -1))
        if isinstance(values, Tensor):  # quantiles of TQC, (n, critics, quantiles)
            return values.mean(2).amin(1)
        return torch.cat(values, dim=1).amin(1)

    @staticmethod
    def _normalised(model: Any, observations: Any) -> Any:
        """Observations as the networks see them, on the device of the model."""
        env = model.get_vec_normalize_env()
        if env is None or model.replay_buffer.latents is not None:  # batches hold latents as they are
            return observations
        if isinstance(observations, dict):
            normal = env.normalize_obs({key: part.cpu().numpy() for key, part in observations.items()})
            return {key: torch.as_tensor(part, device=model.device) for key, part in normal.items()}
        return torch.as_tensor(env.normalize_obs(observations.cpu().numpy()), device=model.device)

    @contextmanager
    def _evaluating(self) -> Iterator[Any]:
        """The model with dropout and batch norm as in evaluation; a refit may be in the middle of `train`."""
        if (model := self._model()) is None:
            raise ReferenceError("relevance: the model of the critics was deleted")
        training = model.policy.training
        model.policy.set_training_mode(False)
        try:
            with torch.no_grad():
                yield model
        finally:
            model.policy.set_training_mode(training)


def attach_critics(buffer: Any, model: Any) -> None:
    """Let `TDError` and `Value` without functions of their own use the critics of a model.

    Raises:
        ValueError: The buffer has goals, which rows do not hold as part of the observation.
    """
    relevance = buffer.source.relevance
    if not isinstance(relevance, TDError | Value) or relevance.is_own:
        return
    if buffer.has_goals:
        raise ValueError(
            f"relevance: {type(relevance).__name__} needs functions of its own here, because the goal is a field "
            "beside the observation; use a function of transitions"
        )
    critic = ModelCritic(model)
    relevance.attach(q=critic.q, value=critic.value, gamma=model.gamma, rewards=critic.rewards, is_own=False)


def attach_critics_of_models(ours: type[Any]) -> None:
    """Attach the critics of models to buffers of the class `ours` when training starts.

    SB3's buffers do not know their model, and there is no hook there, so `_setup_learn` itself is extended.
    """
    set_up = OffPolicyAlgorithm._setup_learn

    @functools.wraps(set_up)
    def _setup_learn(self: Any, *args: Any, **options: Any) -> Any:
        if isinstance(buffer := getattr(self, "replay_buffer", None), ours):
            attach_critics(buffer, self)
        return set_up(self, *args, **options)

    OffPolicyAlgorithm._setup_learn = _setup_learn
