"""Deterministic policies judged in processes of their own, so that the learner does not wait."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

from synther_replay.benchmarks.agents.networks.mlp import Layers
from synther_replay.benchmarks.agents.policy import Policy, policies_of
from synther_replay.benchmarks.common.processes import WorkerPool
from synther_replay.benchmarks.environments.tasks import Environment, make_environment
from synther_replay.common.seeding import derive_seed

# Evaluation episodes have a range of seeds that no stream reaches: one more key, and the same for each policy.
_STREAM = 77

_MOST_LOSSES = 3  # of pools of processes in a run

_environments: dict[str, Environment] = {}  # of a worker process, built once


def mean_return(task: str, policy: Policy, seed: int, episodes: int) -> float:
    """Mean return of a deterministic policy over `episodes`; NaN if the policy or the task becomes non-finite."""
    if task not in _environments:
        _environments[task] = make_environment(task)
    environment = _environments[task]
    total = 0.0
    for episode in range(episodes):
        observation, over = environment.reset(derive_seed(seed, _STREAM, episode) % 2**31), False
        while not over:
            action = policy.mean_action(observation)
            if not np.isfinite(action).all():
                return float("nan")
            observation, reward, terminated, truncated = environment.step(action)
            total += reward
            over = terminated or truncated
    return total / episodes


class Evaluator:
    """Evaluates snapshots of policies on the side.

    Args:
        task: Name of the task.
        seeds: One per agent.
        episodes: Per agent and snapshot.
        workers: Processes.
    """

    def __init__(self, task: str, seeds: list[int], *, episodes: int, workers: int) -> None:
        """Start no process yet."""
        self.task, self.seeds, self.episodes = task, seeds, episodes
        self.results: dict[int, list[float]] = {}  # step -> one return per agent
        self._workers, self._losses = workers, 0
        self._policies: dict[int, list[Policy]] = {}  # that are not judged yet
        self._pending: dict[int, list[Future[float]]] = {}
        self._pool = WorkerPool(self._workers)

    def submit(self, step: int, weights: Layers) -> None:
        """Evaluate these policies when there is time."""
        self._policies[step] = list(policies_of(weights))
        try:
            self._begin(step)
        except BrokenProcessPool as error:
            self._begin_again(error)

    def collect(self, *, wait: bool = False) -> list[int]:
        """Move what is ready (or, waiting, everything) to `results`; returns the steps that came in.

        Raises:
            OSError: Processes are ended from outside again and again.
        """
        collected = []
        while ready := [step for step, futures in self._pending.items() if wait or all(f.done() for f in futures)]:
            try:
                self.results[ready[0]] = [future.result() for future in self._pending[ready[0]]]
            except BrokenProcessPool as error:
                self._begin_again(error)
                continue
            del self._pending[ready[0]], self._policies[ready[0]]
            collected.append(ready[0])
        return collected

    def _begin(self, step: int) -> None:
        self._pending[step] = [
            self._pool.submit(mean_return, self.task, policy, seed, self.episodes)
            for policy, seed in zip(self._policies[step], self.seeds, strict=True)
        ]

    def _begin_again(self, error: BrokenProcessPool) -> None:
        """A process was killed, and with it the pool: what is not judged yet goes to a new one."""
        self._losses += 1
        if self._losses > _MOST_LOSSES:
            raise OSError(
                f"processes that evaluate were ended from outside {self._losses} times; is there memory for them? "
                "Fewer --workers need less"
            ) from error
        self._pool.end()
        self._pool = WorkerPool(self._workers)
        for step in self._policies:
            self._begin(step)

    def __enter__(self) -> Evaluator:
        """Usable as a context."""
        return self

    def __exit__(self, *fault: Any) -> None:
        """Begin no more of them."""
        self._pool.__exit__(*fault)
