"""Evaluation of deterministic policies in a process pool, while the learner continues."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

from synther_replay.benchmarks.agents.networks.mlp import Layers
from synther_replay.benchmarks.agents.policy import Policy, policies_of
from synther_replay.benchmarks.common.processes import WorkerPool
from synther_replay.benchmarks.environments.tasks import Environment, environment_seed, make_environment

_STREAM = 77  # seeds of evaluation episodes have one more key than those of training, so the two never coincide
_BLOCK = 10  # episodes of a policy that one process evaluates; more are shared between processes
_MAX_POOL_FAILURES = 3  # per run

_environments: dict[str, Environment] = {}  # cache of a worker process


def mean_return(task: str, policy: Policy, seed: int, episodes: int, first: int = 0) -> float:
    """Mean return of a deterministic policy; NaN if the policy or the task becomes non-finite.

    Args:
        task: Name of the task.
        policy: The policy.
        seed: Seed of all episodes.
        episodes: Number of episodes.
        first: Number of the first episode; each has its own seed.
    """
    if task not in _environments:
        _environments[task] = make_environment(task)
    environment = _environments[task]
    total = 0.0
    for episode in range(first, first + episodes):
        observation, over = environment.reset(evaluation_seed(seed, episode)), False
        while not over:
            action = policy.mean_action(observation)
            if not np.isfinite(action).all():
                return float("nan")
            observation, reward, terminated, truncated = environment.step(action)
            total += reward
            over = terminated or truncated
    return total / episodes


def evaluation_seed(seed: int, episode: int) -> int:
    """Seed of an episode in which policies are evaluated; it is of no episode of the training."""
    return environment_seed(seed, _STREAM, episode)


class Evaluator:
    """Evaluates snapshots of policies in a process pool.

    Args:
        task: Name of the task.
        seeds: One per agent.
        episodes: Episodes per agent and snapshot.
        workers: Number of processes.
    """

    def __init__(self, task: str, seeds: list[int], *, episodes: int, workers: int) -> None:
        """Worker processes start with the first evaluation."""
        self.task, self.seeds, self.episodes = task, seeds, episodes
        self.results: dict[int, list[float]] = {}  # step -> one return per agent
        self._workers, self._failures = workers, 0
        self._policies: dict[int, list[Policy]] = {}  # not evaluated yet
        self._blocks = [(first, min(_BLOCK, episodes - first)) for first in range(0, episodes, _BLOCK)]
        self._pending: dict[int, list[list[Future[float]]]] = {}  # by step, agent and block
        self._pool = WorkerPool(self._workers)

    def submit(self, step: int, weights: Layers) -> None:
        """Queue the evaluation of these policies."""
        self._policies[step] = list(policies_of(weights))
        try:
            self._enqueue(step)
        except BrokenProcessPool as error:
            self._restart_pool(error)

    def collect(self, *, wait: bool = False) -> list[int]:
        """Move finished evaluations to `results`; with `wait`, wait for all. Returns their steps.

        Raises:
            OSError: Worker processes were killed too often.
        """
        collected = []
        while ready := [step for step, pending in self._pending.items() if wait or _all_done(pending)]:
            try:
                self.results[ready[0]] = [self._mean(blocks) for blocks in self._pending[ready[0]]]
            except BrokenProcessPool as error:
                self._restart_pool(error)
                continue
            del self._pending[ready[0]], self._policies[ready[0]]
            collected.append(ready[0])
        return collected

    def _enqueue(self, step: int) -> None:
        self._pending[step] = [
            [self._pool.submit(mean_return, self.task, policy, seed, count, first) for first, count in self._blocks]
            for policy, seed in zip(self._policies[step], self.seeds, strict=True)
        ]

    def _mean(self, blocks: list[Future[float]]) -> float:
        """Mean return over all episodes of an agent."""
        total = sum(block.result() * count for block, (_, count) in zip(blocks, self._blocks, strict=True))
        return total / self.episodes

    def _restart_pool(self, error: BrokenProcessPool) -> None:
        """Replace a pool whose process was killed, and queue all unfinished evaluations again."""
        self._failures += 1
        if self._failures > _MAX_POOL_FAILURES:
            raise OSError(
                f"evaluation processes were killed {self._failures} times, possibly because the machine ran out of "
                "memory; use fewer --workers"
            ) from error
        self._pool.kill()
        self._pool = WorkerPool(self._workers)
        for step in self._policies:
            self._enqueue(step)

    def __enter__(self) -> Evaluator:
        """Return itself."""
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop the worker processes."""
        self._pool.__exit__(*error)


def tasks_of(agents: int, episodes: int) -> int:
    """Number of processes that an evaluation can keep busy."""
    return agents * -(-episodes // _BLOCK)


def _all_done(pending: list[list[Future[float]]]) -> bool:
    return all(future.done() for blocks in pending for future in blocks)
