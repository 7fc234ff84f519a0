"""Generated rows with what truly follows them, to see what a generator's errors in the dynamics do to an agent.

Observations and actions stay as they were generated. Next observations and rewards are the simulator's, but those of
rows that it has no answer to, as Hopper or Walker2d has clipped their velocities, or it leaves the numbers.
Episodes end by the rule of the task, where it has one.
"""

from __future__ import annotations

import os
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from itertools import repeat

import numpy as np
import torch
from pools import WorkerPool
from simulators import Simulator, make_simulator
from terminals import has_fallen

from synther_replay import Transitions

_PART = 20_000  # rows that a process is asked about at a time


def simulated(task: str, rows: Transitions, *, workers: int | None = None) -> tuple[Transitions, int]:
    """The rows with what follows in a task, on the device where they were, and how many it had an answer to.

    Args:
        task: One of `simulators.SIMULATORS`.
        rows: Observations and actions, and what follows them where there is no answer.
        workers: Processes that simulate; None as many as there are cores.

    Raises:
        OSError: A process was ended from outside.
    """
    spec, made = rows.spec, rows.rows.cpu().clone()
    asked = [made[:, columns].numpy() for columns in (spec.observations, spec.actions)]
    parts = [[array[k : k + _PART] for k in range(0, len(made), _PART)] for array in asked]
    processes = min(workers or os.cpu_count() or 1, len(parts[0]))
    try:
        with WorkerPool(processes) as pool:
            answers = list(pool.map(_answers, repeat(task), *parts))
    except BrokenProcessPool as error:
        raise OSError(
            "a process that simulates was ended from outside; is there memory for it? Fewer --workers need less"
        ) from error
    following, rewards = (torch.from_numpy(np.concatenate(part)) for part in zip(*answers, strict=True))
    answered = torch.isfinite(following).all(1) & torch.isfinite(rewards)
    here = answered.nonzero()[:, 0]
    made[here, spec.next_observations] = following[here]
    made[here, spec.rewards.start] = rewards[here]
    fallen = has_fallen(task, made[:, spec.next_observations])
    if fallen is not None:
        made[:, spec.terminated.start] = fallen.float()
    return Transitions(spec, made.to(rows.rows.device)), len(here)


_simulator = cache(make_simulator)  # of a worker process, built once


def _answers(task: str, observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Next observations ``(n, O)`` and rewards ``(n,)``, not finite where there is no answer."""
    simulator: Simulator = _simulator(task)
    following = np.full(observations.shape, np.nan, np.float32)
    rewards = np.full(len(observations), np.nan, np.float32)
    asked = simulator.restorable(observations)
    following[asked], rewards[asked] = simulator(observations[asked], actions[asked])
    return following, rewards
