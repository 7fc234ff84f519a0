"""Environments of all seeds in processes of their own, which step while the learner learns."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from tasks import Lane


class Steps(NamedTuple):
    """What follows the actions of M agents."""

    following: np.ndarray  # (M, O): where the actions led
    observations: np.ndarray  # (M, O): where the next actions are taken; differs where an episode is over
    rewards: np.ndarray  # (M,)
    terminated: np.ndarray  # (M,), 0 or 1
    episodes: np.ndarray  # (M,): number of the running episode
    failed: np.ndarray  # (M,), bool: an action, an observation or a reward was not a number


class LaneGroup:
    """Some lanes that are stepped one after the other; a lane that leaves the numbers stands still from then on."""

    def __init__(self, task: str, seeds: list[int]) -> None:
        """Begin all first episodes."""
        self.lanes = [Lane(task, seed) for seed in seeds]
        self.failed = np.zeros(len(seeds), bool)

    def observations(self) -> np.ndarray:
        """Where the next actions are taken, ``(m, O)``."""
        return np.stack([lane.observation for lane in self.lanes])

    def step(self, actions: np.ndarray) -> Steps:
        """Act in each lane with one row of actions ``(m, A)``."""
        count, width = len(self.lanes), len(self.lanes[0].observation)
        following, observations = np.zeros((count, width), np.float32), np.zeros((count, width), np.float32)
        rewards, terminated = np.zeros(count, np.float32), np.zeros(count, np.float32)
        for k, lane in enumerate(self.lanes):
            self.failed[k] = self.failed[k] or not np.isfinite(actions[k]).all()
            if not self.failed[k]:
                after = lane.step(actions[k])
                self.failed[k] = not (np.isfinite(after.observation).all() and np.isfinite(after.reward))
                if not self.failed[k]:
                    following[k], rewards[k], terminated[k] = after.observation, after.reward, after.terminated
                    observations[k] = lane.observation
        episodes = np.array([lane.episode for lane in self.lanes])
        return Steps(following, observations, rewards, terminated, episodes, self.failed.copy())

    def return_to(self, episodes: list[int], actions: list[np.ndarray], failed: list[bool]) -> np.ndarray:
        """Come back to points of episodes by the actions that led there; returns the observations."""
        self.failed = np.array(failed)
        for lane, episode, taken, lost in zip(self.lanes, episodes, actions, failed, strict=True):
            if not lost:
                lane.return_to(episode, taken)
        return self.observations()


def _serve(connection: Connection, task: str, seeds: list[int]) -> None:
    """The loop of a worker process."""
    try:
        group = LaneGroup(task, seeds)
        while True:
            method, arguments = connection.recv()
            connection.send(getattr(group, method)(*arguments))
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        return  # the learner is gone or going


class Environments:
    """The lanes of M agents, spread over worker processes.

    Args:
        task: Name of the task.
        seeds: One per agent.
        workers: Processes, at most one per agent.
    """

    def __init__(self, task: str, seeds: list[int], *, workers: int) -> None:
        """Start the processes."""
        context = multiprocessing.get_context("spawn")
        shares = np.array_split(seeds, min(workers, len(seeds)))
        self._bounds = np.cumsum([0, *map(len, shares)])
        self._connections, self._processes = [], []
        for share in shares:
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, task, share.tolist()), daemon=True)
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)

    def observations(self) -> np.ndarray:
        """Where the next actions are taken, ``(M, O)``."""
        self._send("observations", [()] * len(self._connections))
        return np.concatenate(self._receive())

    def begin_step(self, actions: np.ndarray) -> None:
        """Hand over actions ``(M, A)`` and go on; `end_step` gets what follows."""
        self._send("step", [(part,) for part in self._parts(actions)])

    def end_step(self) -> Steps:
        """Wait for what follows the last actions."""
        return Steps(*(np.concatenate(parts) for parts in zip(*self._receive(), strict=True)))

    def return_to(self, episodes: list[int], actions: list[np.ndarray], failed: list[bool]) -> np.ndarray:
        """Bring all lanes to points of episodes, see `LaneGroup.return_to`."""
        self._send("return_to", list(zip(*(self._parts(part) for part in (episodes, actions, failed)), strict=True)))
        return np.concatenate(self._receive())

    def __enter__(self) -> Environments:
        """Usable as a context."""
        return self

    def __exit__(self, *_: Any) -> None:
        """End the processes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(timeout=5)
            process.terminate()

    def _parts(self, whole: Any) -> list[Any]:
        return [whole[a:b] for a, b in zip(self._bounds[:-1], self._bounds[1:], strict=True)]

    def _send(self, method: str, arguments: list[tuple[Any, ...]]) -> None:
        for connection, part in zip(self._connections, arguments, strict=True):
            connection.send((method, part))

    def _receive(self) -> list[Any]:
        try:
            return [connection.recv() for connection in self._connections]
        except EOFError as error:
            raise RuntimeError("a process that steps environments has died; its own message is above") from error
