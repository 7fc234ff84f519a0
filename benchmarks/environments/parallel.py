"""Environments of all seeds in worker processes, which step while the learner trains."""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from synther_replay.benchmarks.common.processes import worker_context
from synther_replay.benchmarks.environments.tasks import Step, Task, environment_seed, make_environment


class EpisodeStream:
    """The consecutive episodes of one seed.

    Args:
        name: Name of the task.
        seed: Seed from which the seeds of all episodes are derived.
    """

    def __init__(self, name: str, seed: int) -> None:
        """Start the first episode."""
        self.environment = make_environment(name)
        self.seed = seed
        self.episode = 0  # number of the current episode
        self.observation = self._reset(0)

    def step(self, action: np.ndarray) -> Step:
        """Step, and start the next episode if this one ended; `observation` is the input of the next action."""
        after = self.environment.step(action)
        over = after.terminated or after.truncated
        self.observation = self._reset(self.episode + 1) if over else after.observation
        return after

    def replay_to(self, episode: int, actions: np.ndarray) -> None:
        """Restore a point within an episode by repeating its actions."""
        self.observation = self._reset(episode)
        for action in actions:
            self.observation = self.environment.step(action).observation

    def _reset(self, episode: int) -> np.ndarray:
        self.episode = episode
        return self.environment.reset(environment_seed(self.seed, episode))


_STEP, _DONE = b"s", b"d"
_DIED = (
    "an environment worker process died; if no traceback of it was printed, it was killed, possibly because the "
    "machine ran out of memory"
)


class WorkerDiedError(RuntimeError):
    """An environment worker process died; its running episodes are lost."""


class Steps(NamedTuple):
    """Results of one environment step of M agents."""

    next_observations: np.ndarray  # (M, O): observations after the step
    observations: np.ndarray  # (M, O): inputs of the next actions; after the end of an episode, those of the new one
    rewards: np.ndarray  # (M,)
    terminated: np.ndarray  # (M,), 0 or 1
    episodes: np.ndarray  # (M,): number of the current episode
    failed: np.ndarray  # (M,), bool: an action, an observation or a reward was non-finite


class EnvGroup:
    """Streams that are stepped one after the other; a stream that becomes non-finite is not stepped any more."""

    def __init__(self, task: str, seeds: list[int]) -> None:
        """Start the first episode of each stream."""
        self.streams = [EpisodeStream(task, seed) for seed in seeds]
        self.failed = np.zeros(len(seeds), bool)

    def observations(self) -> np.ndarray:
        """Inputs of the next actions, ``(m, O)``."""
        return np.stack([stream.observation for stream in self.streams])

    def step(self, actions: np.ndarray) -> Steps:
        """Step each stream with one row of `actions` ``(m, A)``."""
        count, width = len(self.streams), len(self.streams[0].observation)
        next_observations, observations = np.zeros((2, count, width), np.float32)
        rewards, terminated = np.zeros(count, np.float32), np.zeros(count, np.float32)
        for k, stream in enumerate(self.streams):
            self.failed[k] = self.failed[k] or not np.isfinite(actions[k]).all()
            if not self.failed[k]:
                after = stream.step(actions[k])
                reward = np.float32(after.reward)  # stored as float32, so check for overflow in float32
                self.failed[k] = not (np.isfinite(after.observation).all() and np.isfinite(reward))
                if not self.failed[k]:
                    next_observations[k], rewards[k], terminated[k] = after.observation, reward, after.terminated
                    observations[k] = stream.observation
        episodes = np.array([stream.episode for stream in self.streams])
        return Steps(next_observations, observations, rewards, terminated, episodes, self.failed.copy())

    def replay_to(self, episodes: list[int], actions: list[np.ndarray], failed: list[bool]) -> np.ndarray:
        """Restore points within episodes by repeating their actions; failed streams are skipped.

        Returns:
            The observations there, ``(m, O)``.
        """
        self.failed = np.array(failed)
        for stream, episode, taken, skip in zip(self.streams, episodes, actions, failed, strict=True):
            if not skip:
                stream.replay_to(episode, taken)
        return self.observations()


class _SharedArrays:
    """Shared memory of the learner and all workers, so that a step sends one byte each way."""

    def __init__(self, context: Any, agents: int, observation_dim: int, action_dim: int) -> None:
        widths = {"actions": action_dim, "next_observations": observation_dim, "observations": observation_dim}
        shapes = {name: ("f", (agents, width)) for name, width in widths.items()}
        shapes |= {"rewards": ("f", (agents,)), "terminated": ("f", (agents,))}
        shapes |= {"episodes": ("q", (agents,)), "failed": ("?", (agents,))}
        self._shared = {
            name: (context.RawArray("b", int(np.prod(shape)) * np.dtype(kind).itemsize), kind, shape)
            for name, (kind, shape) in shapes.items()
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """NumPy views of the shared memory, by name."""
        return {name: np.frombuffer(raw, kind).reshape(shape) for name, (raw, kind, shape) in self._shared.items()}


def _serve(connection: Connection, shared: _SharedArrays, task: str, first: int, seeds: list[int]) -> None:
    """The loop of a worker process; its streams are agents `first` to ``first + len(seeds) - 1``.

    A message is `_STEP`, empty (report the observations) or pickled arguments of `EnvGroup.replay_to`.
    """
    own = slice(first, first + len(seeds))
    arrays = {name: array[own] for name, array in shared.arrays().items()}
    try:
        group = EnvGroup(task, seeds)
        while True:
            message = connection.recv_bytes()
            if message == _STEP:
                for name, values in group.step(arrays["actions"])._asdict().items():
                    arrays[name][:] = values
            else:
                arrays["observations"][:] = group.replay_to(*pickle.loads(message)) if message else group.observations()
            connection.send_bytes(_DONE)
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        return  # the learner exited


class Environments:
    """The streams of M agents, distributed over worker processes.

    Args:
        task: The task.
        seeds: One per agent.
        workers: Number of processes, at most one per agent.
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
        """Inputs of the next actions, ``(M, O)``."""
        self._send([b""] * len(self._connections))
        self._wait()
        return self._arrays["observations"].copy()

    def begin_step(self, actions: np.ndarray) -> None:
        """Send actions ``(M, A)`` and return at once; `end_step` returns the results."""
        self._arrays["actions"][:] = actions
        self._send([_STEP] * len(self._connections))

    def end_step(self) -> Steps:
        """Wait for the results of the last actions; the arrays are valid until the next `begin_step`."""
        self._wait()
        return Steps(**{name: self._arrays[name] for name in Steps._fields})

    def replay_to(self, episodes: list[int], actions: list[np.ndarray], failed: list[bool]) -> np.ndarray:
        """Restore all streams, see `EnvGroup.replay_to`."""
        bounds = zip(self._bounds[:-1], self._bounds[1:], strict=True)
        self._send([pickle.dumps((episodes[a:b], actions[a:b], failed[a:b])) for a, b in bounds])
        self._wait()
        return self._arrays["observations"].copy()

    def __enter__(self) -> Environments:
        """Return itself."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Stop the processes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(timeout=5)
            process.terminate()

    def _send(self, messages: list[bytes]) -> None:
        try:
            for connection, message in zip(self._connections, messages, strict=True):
                connection.send_bytes(message)
        except BrokenPipeError as error:
            raise WorkerDiedError(_DIED) from error

    def _wait(self) -> None:
        try:
            for connection in self._connections:
                connection.recv_bytes()
        except (EOFError, ConnectionResetError) as error:
            raise WorkerDiedError(_DIED) from error
