"""Environments of all seeds in processes of their own, which step while the learner learns."""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from synther_replay.benchmarks.common.processes import worker_context
from synther_replay.benchmarks.environments.tasks import Step, Task, make_environment
from synther_replay.common.seeding import derive_seed


class EpisodeStream:
    """The episodes of one seed, one after the other.

    Args:
        name: Of the task.
        seed: Of all its episodes.
    """

    def __init__(self, name: str, seed: int) -> None:
        """Begin the first episode."""
        self.environment = make_environment(name)
        self.seed = seed
        self.episode = 0  # number of the running one
        self.observation = self._begin(0)

    def step(self, action: np.ndarray) -> Step:
        """Act, and begin the next episode when this one is over; `observation` is where the next action is taken."""
        after = self.environment.step(action)
        over = after.terminated or after.truncated
        self.observation = self._begin(self.episode + 1) if over else after.observation
        return after

    def replay_to(self, episode: int, actions: np.ndarray) -> None:
        """Come back to a point of an episode, by the actions that led there."""
        self.observation = self._begin(episode)
        for action in actions:
            self.observation = self.environment.step(action).observation

    def _begin(self, episode: int) -> np.ndarray:
        self.episode = episode
        return self.environment.reset(derive_seed(self.seed, episode) % 2**31)


_STEP, _DONE = b"s", b"d"
_DIED = (
    "a process that steps environments has died; if it has said nothing, it was ended from outside, "
    "as happens where there is no memory left"
)


class WorkerDiedError(RuntimeError):
    """A process that steps environments is gone, and with it the episodes under way."""


class Steps(NamedTuple):
    """What follows the actions of M agents."""

    following: np.ndarray  # (M, O): where the actions led
    observations: np.ndarray  # (M, O): where the next actions are taken; differs where an episode is over
    rewards: np.ndarray  # (M,)
    terminated: np.ndarray  # (M,), 0 or 1
    episodes: np.ndarray  # (M,): number of the running episode
    failed: np.ndarray  # (M,), bool: an action, an observation or a reward was not a number


class EnvGroup:
    """Some streams that are stepped one after the other; a stream that becomes non-finite stands still from then on."""

    def __init__(self, task: str, seeds: list[int]) -> None:
        """Begin all first episodes."""
        self.streams = [EpisodeStream(task, seed) for seed in seeds]
        self.failed = np.zeros(len(seeds), bool)

    def observations(self) -> np.ndarray:
        """Where the next actions are taken, ``(m, O)``."""
        return np.stack([stream.observation for stream in self.streams])

    def step(self, actions: np.ndarray) -> Steps:
        """Act in each stream with one row of actions ``(m, A)``."""
        count, width = len(self.streams), len(self.streams[0].observation)
        following, observations = np.zeros((count, width), np.float32), np.zeros((count, width), np.float32)
        rewards, terminated = np.zeros(count, np.float32), np.zeros(count, np.float32)
        for k, stream in enumerate(self.streams):
            self.failed[k] = self.failed[k] or not np.isfinite(actions[k]).all()
            if not self.failed[k]:
                after = stream.step(actions[k])
                reward = np.float32(after.reward)  # as it is stored: what overflows there is no number
                self.failed[k] = not (np.isfinite(after.observation).all() and np.isfinite(reward))
                if not self.failed[k]:
                    following[k], rewards[k], terminated[k] = after.observation, reward, after.terminated
                    observations[k] = stream.observation
        episodes = np.array([stream.episode for stream in self.streams])
        return Steps(following, observations, rewards, terminated, episodes, self.failed.copy())

    def replay_to(self, episodes: list[int], actions: list[np.ndarray], failed: list[bool]) -> np.ndarray:
        """Come back to points of episodes by the actions that led there; returns the observations."""
        self.failed = np.array(failed)
        for stream, episode, taken, lost in zip(self.streams, episodes, actions, failed, strict=True):
            if not lost:
                stream.replay_to(episode, taken)
        return self.observations()


class _SharedArrays:
    """Arrays that the learner and all workers see, so that a step sends one byte back and forth."""

    def __init__(self, context: Any, agents: int, observation_dim: int, action_dim: int) -> None:
        widths = {"actions": action_dim, "following": observation_dim, "observations": observation_dim}
        shapes = {name: ("f", (agents, width)) for name, width in widths.items()}
        shapes |= {"rewards": ("f", (agents,)), "terminated": ("f", (agents,))}
        shapes |= {"episodes": ("q", (agents,)), "failed": ("?", (agents,))}
        self._shared = {
            name: (context.RawArray("b", int(np.prod(shape)) * np.dtype(kind).itemsize), kind, shape)
            for name, (kind, shape) in shapes.items()
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Views by name; processes share what they point at."""
        return {name: np.frombuffer(raw, kind).reshape(shape) for name, (raw, kind, shape) in self._shared.items()}


def _serve(connection: Connection, shared: _SharedArrays, task: str, first: int, seeds: list[int]) -> None:
    """The loop of a worker process: its streams are those from `first` on."""
    mine = slice(first, first + len(seeds))
    arrays = {name: array[mine] for name, array in shared.arrays().items()}
    try:
        group = EnvGroup(task, seeds)
        while True:
            order = connection.recv_bytes()
            if order == _STEP:
                for name, values in group.step(arrays["actions"])._asdict().items():
                    arrays[name][:] = values
            else:
                arrays["observations"][:] = group.replay_to(*pickle.loads(order)) if order else group.observations()
            connection.send_bytes(_DONE)
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        return  # the learner is gone or going


class Environments:
    """The streams of M agents, spread over worker processes.

    Args:
        task: The task.
        seeds: One per agent.
        workers: Processes, at most one per agent.
    """

    def __init__(self, task: Task, seeds: list[int], *, workers: int) -> None:
        """Start the processes."""
        context = worker_context()
        shared = _SharedArrays(context, len(seeds), task.observation_dim, task.action_dim)
        self._arrays = shared.arrays()
        shares = np.array_split(seeds, min(workers, len(seeds)))
        self._bounds = np.cumsum([0, *map(len, shares)])
        self._connections, self._processes = [], []
        for first, share in zip(self._bounds[:-1].tolist(), shares, strict=True):
            here, there = context.Pipe()
            arguments = (there, shared, task.name, first, share.tolist())
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)

    def observations(self) -> np.ndarray:
        """Where the next actions are taken, ``(M, O)``."""
        self._send([b""] * len(self._connections))
        self._wait()
        return self._arrays["observations"].copy()

    def begin_step(self, actions: np.ndarray) -> None:
        """Hand over actions ``(M, A)`` and go on; `end_step` gets what follows."""
        self._arrays["actions"][:] = actions
        self._send([_STEP] * len(self._connections))

    def end_step(self) -> Steps:
        """Wait for what follows the last actions; the arrays are valid until the next ones."""
        self._wait()
        return Steps(**{name: self._arrays[name] for name in Steps._fields})

    def replay_to(self, episodes: list[int], actions: list[np.ndarray], failed: list[bool]) -> np.ndarray:
        """Bring all streams to points of episodes, see `EnvGroup.replay_to`."""
        bounds = zip(self._bounds[:-1], self._bounds[1:], strict=True)
        self._send([pickle.dumps((episodes[a:b], actions[a:b], failed[a:b])) for a, b in bounds])
        self._wait()
        return self._arrays["observations"].copy()

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

    def _send(self, orders: list[bytes]) -> None:
        try:
            for connection, order in zip(self._connections, orders, strict=True):
                connection.send_bytes(order)
        except BrokenPipeError as error:
            raise WorkerDiedError(_DIED) from error

    def _wait(self) -> None:
        try:
            for connection in self._connections:
                connection.recv_bytes()
        except (EOFError, ConnectionResetError) as error:
            raise WorkerDiedError(_DIED) from error
