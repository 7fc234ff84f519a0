"""Pieces of data: episodes of a policy and walks through a maze, played in processes and handed over in order.

A piece depends on its player and its seed alone, so it does not matter how many processes there are.
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
from synther_replay.benchmarks.environments.tasks import Environment, make_environment
from synther_replay.common.seeding import derive_seed

_BLOCK = 2_000  # rows that a process is asked for at once: so many that asking costs nothing, so few that none waits


class EpisodeSource(Protocol):
    """What plays pieces; processes receive it."""

    @property
    def length(self) -> int:
        """Rows of a piece, at most."""

    def play(self, seed: int) -> Rows:
        """One piece, with all of D4RL's keys and `next_observations`; it ends with a terminal or a timeout."""


@dataclass(frozen=True)
class Episodes:
    """Plays episodes of a task with actions that are drawn.

    Args:
        task: Its name; its actions lie in [-1, 1].
        policy: That they are drawn from; None for uniform ones.
        length: Steps after which an episode times out.
    """

    task: str
    policy: Policy | None
    length: int = 1_000

    def play(self, seed: int) -> Rows:
        """One episode."""
        environment, rng = _environment(self.task), np.random.default_rng(derive_seed(seed, 1))
        observations = np.empty((self.length + 1, environment.observation_dim), np.float32)
        actions = np.empty((self.length, environment.action_dim), np.float32)
        rewards = np.empty(self.length, np.float32)
        # All that is drawn is drawn at once: a call takes about as long as a layer of the policy.
        if self.policy is None:
            actions[:] = rng.uniform(-1, 1, actions.shape)
        else:
            noise = rng.standard_normal(actions.shape, np.float32)
        observation = observations[0] = environment.reset(derive_seed(seed, 0) % 2**31)
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
            "timeouts": ends & (not terminated),  # readers leave timeouts out, and a terminal step must stay
        }


@cache
def _environment(task: str) -> Environment:
    """Of this process, built once."""
    return make_environment(task)


@dataclass(frozen=True)
class Walks:
    """Plays walks from cell to cell of a maze.

    Args:
        size: Of the maze.
        length: Steps of a walk.
    """

    size: str
    length: int = 20_000

    def play(self, seed: int) -> Rows:
        """One walk."""
        rows = collect(self.size, self.length, seed)
        rows["timeouts"][-1] = True  # the next walk begins elsewhere
        return rows


class _InlineExecutor(Executor):
    """Stands for one process where starting it would take longer than the work."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


class RolloutPool:
    """Processes that play.

    Args:
        workers: How many; with one it is this process that plays.
    """

    def __init__(self, workers: int) -> None:
        """Start them when there is something to play."""
        self._ahead = 2 * workers  # orders under way: one in each process, and one that waits for it
        self._pool: Executor = _InlineExecutor()
        if workers > 1:
            # Each process has a core, so its products want no threads. The variable is read where NumPy is loaded.
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            self._pool = WorkerPool(workers)

    def pieces(self, player: EpisodeSource, seed: Callable[[int], int], rows: int) -> Iterator[Rows]:
        """Pieces 0, 1, 2, ... until together they have at least so many rows.

        Args:
            player: Plays them.
            seed: Of a piece, by its number.
            rows: The least number of rows.
        """
        orders: deque[Future[list[Rows]]] = deque()
        ordered = pieces = got = 0  # pieces that were asked for, those that came, and their rows
        try:
            while got < rows:
                length = got / pieces if pieces else player.length
                while len(orders) < self._ahead:
                    missing = math.ceil((rows - got) / length) - (ordered - pieces)
                    if orders and missing < 1:
                        break
                    count = max(1, min(missing, int(_BLOCK / length)))
                    seeds = [seed(number) for number in range(ordered, ordered + count)]
                    orders.append(self._pool.submit(_play, player, seeds))
                    ordered += count
                for piece in orders.popleft().result():
                    if got < rows:
                        got += len(piece["rewards"])
                        pieces += 1
                        yield piece
        finally:
            for order in orders:
                order.cancel()

    def __enter__(self) -> RolloutPool:
        """Usable as a context."""
        return self

    def __exit__(self, *fault: Any) -> None:
        """Begin nothing more."""
        self._pool.__exit__(*fault)


def _play(player: EpisodeSource, seeds: list[int]) -> list[Rows]:
    return [player.play(seed) for seed in seeds]
