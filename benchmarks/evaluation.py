"""Deterministic policies judged in processes of their own, so that the learner does not wait."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from stacked import Layers
from tasks import Environment, make_environment
from workers import worker_context

from synther_replay.seeding import derive_seed

# Evaluation episodes have a range of seeds that no lane reaches: one more key, and the same for each policy.
_STREAM = 77

_environments: dict[str, Environment] = {}  # of a worker process, built once


def _end_with_parent() -> None:
    """Let this worker end when the learner is killed: it would wait for work for ever."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class Policy(NamedTuple):
    """One agent's policy network in NumPy; the bias of the first layer is the row of `w1` after the inputs."""

    w1: np.ndarray
    w2: np.ndarray
    w3: np.ndarray
    b2: np.ndarray
    b3: np.ndarray

    def mean_action(self, observation: np.ndarray) -> np.ndarray:
        """The deterministic action, ``(A,)``."""
        inputs = len(observation)
        h1 = np.maximum(observation @ self.w1[:inputs] + self.w1[inputs], 0)
        h2 = np.maximum(h1 @ self.w2 + self.b2[0], 0)
        return np.tanh(np.split(h2 @ self.w3 + self.b3[0], 2)[0])


def policies_of(weights: Layers) -> list[Policy]:
    """One policy per agent from stacked weights on the CPU."""
    arrays = [np.ascontiguousarray(part.numpy()) for part in weights]
    return [Policy(*(part[agent] for part in arrays)) for agent in range(len(arrays[0]))]


def mean_return(task: str, policy: Policy, seed: int, episodes: int) -> float:
    """Mean return of a deterministic policy over `episodes`; NaN if the policy or the task leaves the numbers."""
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
        self._pending: dict[int, list[Future[float]]] = {}
        self._pool = ProcessPoolExecutor(workers, mp_context=worker_context(), initializer=_end_with_parent)

    def submit(self, step: int, weights: Layers) -> None:
        """Evaluate these policies when there is time."""
        self._pending[step] = [
            self._pool.submit(mean_return, self.task, policy, seed, self.episodes)
            for policy, seed in zip(policies_of(weights), self.seeds, strict=True)
        ]

    def collect(self, *, wait: bool = False) -> list[int]:
        """Move what is ready (or, waiting, everything) to `results`; returns the steps that came in."""
        ready = [step for step, futures in self._pending.items() if wait or all(f.done() for f in futures)]
        for step in ready:
            self.results[step] = [future.result() for future in self._pending.pop(step)]
        return ready

    def __enter__(self) -> Evaluator:
        """Usable as a context."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Begin no more of them; a process ends when it is through with what it is evaluating."""
        self._pool.shutdown(wait=False, cancel_futures=True)
