"""Small data, a small generator, and ways to kill an actor, for the tests of Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from gymnasium import spaces

from synther_replay import GeneratorConfig, Transitions, TransitionSpec

SPEC = TransitionSpec.from_spaces(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)))
CONFIG = GeneratorConfig.tiny(width=16, steps=40, refit_steps=20, sampling_steps=4)
ON_SECOND = {"num_gpus": 0, "resources": {"second": 1}}


def transitions(rows: int = 600, seed: int = 0) -> Transitions:
    values = torch.rand(rows, SPEC.dim, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    values[:, -1] = 0.0  # nothing for the outcome model to learn, which would take most of the time
    return Transitions(SPEC, values)


def process_of(worker: Any) -> int:
    """The process of the actor of a `RayWorker`."""
    import ray

    worker.start()  # it may be starting again
    actor = ray.get_actor(worker.name, namespace="synther_replay")
    number: int = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    return number


@contextmanager
def killed_after_submitting(worker: Any) -> Iterator[None]:
    """Kills the actor just when it gets a request, once."""
    started: Callable[[], Any] = worker._started

    def killing() -> Any:
        worker._started = started
        actor, process = started(), process_of(worker)
        os.kill(process, signal.SIGKILL)
        return actor

    worker._started = killing
    yield
    worker._started = started
