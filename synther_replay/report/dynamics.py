"""Dynamics error of real and synthetic rows against a simulator."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from synther_replay.data.transitions import Transitions
from synther_replay.metrics import DynamicsError, StepFunction, dynamics_error
from synther_replay.report.comparison import Comparison, compare
from synther_replay.simulators import Simulator, make_simulator

ROWS = 1_000  # evenly spaced rows of each set: a step of a simulator takes up to a millisecond


@dataclass(frozen=True, eq=False)
class Dynamics:
    """Squared errors by row against a simulator.

    Attributes:
        simulator: Its name.
        next_observation: Errors of the next observation, mean over its columns.
        reward: Errors of the reward.
        variance_next_observation: Variance of the real next observations, mean over columns: the error of a guess that
            is always their mean.
        variance_reward: Variance of the real rewards.
        unanswered: Rows of both sets that the simulator cannot answer: it diverged, or the observation does not
            determine the state.
    """

    simulator: str
    next_observation: Comparison
    reward: Comparison
    variance_next_observation: float
    variance_reward: float
    unanswered: int


def compare_dynamics(real: Transitions, synthetic: Transitions, env: str | StepFunction) -> Dynamics:
    """Compare the errors of real and synthetic rows against the simulator of a task, or a function.

    Raises:
        ValueError: The task has no simulator, its spaces have other sizes, or it answers no row.
    """
    simulator = make_simulator(env) if isinstance(env, str) else None
    step = simulator or env
    assert callable(step)
    if simulator is not None:
        sizes = real.spec.observation_dim, real.spec.action_dim
        expected = simulator.observation_dim, simulator.action_dim
        if sizes != expected:
            raise ValueError(f"env: {env} has observations and actions of {expected} values, the rows have {sizes}")
    (one, asked_real), (two, asked_synthetic) = (_errors(rows, step, simulator) for rows in (real, synthetic))
    name = env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)
    return Dynamics(
        simulator=name,
        next_observation=compare(one.next_observation_by_row, two.next_observation_by_row, logarithmic=True),
        reward=compare(one.reward_by_row, two.reward_by_row, logarithmic=True),
        variance_next_observation=_variance(real, real.spec.next_observations),
        variance_reward=_variance(real, real.spec.rewards),
        unanswered=asked_real + asked_synthetic - len(one.indices) - len(two.indices),
    )


def _errors(rows: Transitions, step: StepFunction, simulator: Simulator | None) -> tuple[DynamicsError, int]:
    """Errors of some rows, and how many were chosen."""
    count = min(ROWS, len(rows))
    some = rows[torch.arange(count, device="cpu") * len(rows) // count].to("cpu")
    if simulator is not None:
        some = some[torch.from_numpy(simulator.restorable(some.rows[:, some.spec.observations].numpy()))]
    if len(some):
        found = dynamics_error(some, step)
        if len(found.indices):
            return found, count
    raise ValueError(f"env: the simulator answers none of {count} rows")


def _variance(rows: Transitions, columns: slice) -> float:
    return float(rows.rows[:, columns].double().var(0, correction=0).mean())
