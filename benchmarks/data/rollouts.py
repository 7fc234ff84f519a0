"""Rollouts in a process pool: episodes of a policy and walks through a maze, returned in order.

A rollout depends on its source and seed only, so the result does not depend on the number of processes.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from synther_replay.benchmarks.agents.policy import Policy
from synther_replay.benchmarks.common.processes import WorkerPool
from synther_replay.benchmarks.data.hdf5 import Rows
from synther_replay.benchmarks.data.waypoints import collect
from synther_replay.benchmarks.environments.tasks import Environment, environment_seed, make_environment
from synther_replay.common.seeding import derive_seed

_BLOCK = 2_000  # rows per task of the pool: enough to hide its overhead, few enough to keep all processes busy


class EpisodeSource(Protocol):
    """A source of rollouts; it is pickled to worker processes."""

    @property
    def length(self) -> int:
        """Largest number of rows of a rollout."""

    def rollout(self, seed: int) -> Rows:
        """One rollout, with D4RL's keys and `next_observations`; its last row is a terminal or a timeout."""


@dataclass(frozen=True)
class Episodes:
    """Episodes of a task with sampled actions.

    Args:
        task: Name of the task; actions lie in [-1, 1].
        policy: Policy to sample actions from; None for uniform actions.
        length: Steps after which an episode is truncated.
    """

    task: str
    policy: Policy | None
    length: int = 1_000

    def rollout(self, seed: int) -> Rows:
        """One episode."""
        environment, rng = _environment(self.task), np.random.default_rng(derive_seed(seed, 1))
        observations = np.empty((self.length + 1, environment.observation_dim), np.float32)
        actions = np.empty((self.length, environment.action_dim), np.float32)
        rewards = np.empty(self.length, np.float32)
        # Draw all random numbers at once: one call takes about as long as a layer of the policy.
        if self.policy is None:
            actions[:] = rng.uniform(-1, 1, actions.shape)
        else:
            noise = rng.standard_normal(actions.shape, np.float32)
        observation = observations[0] = environment.reset(environment_seed(seed, 0))
        for step in range(self.length):
            if self.policy is not None:
                actions[step] = self.policy.sampled_action(observation, noise[step])
            observation, rewards[step], terminated, truncated = environment.step(actions[step])
            observations[step + 1] = observation
            if terminated or truncated:
                break
        count = step + 1
        ends = np.arange(count) == step
        return {
            "observations": observations[:count],
            "actions": actions[:count],
            "rewards": rewards[:count],
            "next_observations": observations[1 : count + 1],
            "terminals": ends & terminated,
            "timeouts": ends & (not terminated),  # readers drop rows with a timeout, and a terminal row must stay
        }


@cache
def _environment(task: str) -> Environment:
    """The environment of this process, built once."""
    return make_environment(task)


@dataclass(frozen=True)
class Walks:
    """Walks from cell to cell of a maze, by a waypoint controller.

    Args:
        size: Size of the maze.
        length: Steps of a walk.
    """

    size: str
    length: int = 20_000

    def rollout(self, seed: int) -> Rows:
        """One walk."""
        rows = collect(self.size, self.length, seed)
        rows["timeouts"][-1] = True  # the next walk starts elsewhere
        return rows


class _InlineExecutor(Executor):
    """Runs tasks in this process, to avoid the start-up time of a single worker."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


class RolloutPool:
    """A process pool for rollouts.

    Args:
        workers: Number of processes; with one, rollouts run in this process.
    """

    def __init__(self, workers: int) -> None:
        """Worker processes start with the first rollout."""
        self._ahead = 2 * workers  # tasks in the queue: one running per process, and one waiting
        self._pool: Executor = _InlineExecutor()
        if workers > 1:
            # One thread per process, as there is one process per core. Read when a worker imports NumPy.
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            self._pool = WorkerPool(workers)

    def rollouts(self, source: EpisodeSource, seed: Callable[[int], int], rows: int) -> Iterator[Rows]:
        """Yield rollouts 0, 1, 2, ... until they have at least `rows` rows in total.

        Args:
            source: Source of the rollouts.
            seed: Gives the seed of a rollout by its number.
            rows: Smallest total number of rows.
        """
        tasks: deque[Future[list[Rows]]] = deque()
        submitted = received = collected = 0  # rollouts submitted, rollouts received, and their rows
        try:
            while collected < rows:
                length = collected / received if received else source.length
                while len(tasks) < self._ahead:
                    missing = math.ceil((rows - collected) / length) - (submitted - received)
                    if tasks and missing < 1:
                        break
                    count = max(1, min(missing, int(_BLOCK / length)))
                    seeds = [seed(number) for number in range(submitted, submitted + count)]
                    tasks.append(self._pool.submit(_run, source, seeds))
                    submitted += count
                for rollout in tasks.popleft().result():
                    if collected < rows:
                        collected += len(rollout["rewards"])
                        received += 1
                        yield rollout
        finally:
            for task in tasks:
                task.cancel()

    def __enter__(self) -> RolloutPool:
        """Return itself."""
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop the worker processes."""
        self._pool.__exit__(*error)


def _run(source: EpisodeSource, seeds: list[int]) -> list[Rows]:
    return [source.rollout(seed) for seed in seeds]
