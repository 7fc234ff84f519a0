"""TorchRL's own replay buffer tests with its buffers wrapped in ours; see run_framework_tests.py.

The four replay buffer classes are replaced by the original class inside a `SynthERReplayBuffer`. With synthetic rows,
tests whose data are not transitions are skipped with a message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchrl.data
from substitution import CannotApply, Framework, Record
from tensordict import TensorDictBase
from torchrl.data import Categorical, OneHot, Unbounded, replay_buffers

from synther_replay.adapters.torchrl import SynthERReplayBuffer

NAMES = ("ReplayBuffer", "TensorDictReplayBuffer", "PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer")
# Files, and name filters for files with tests other than of replay buffers in one process.
TESTS = {
    "rb/test_rb_core.py": ("",),
    "rb/test_prioritized.py": ("",),
    "rb/test_rb_transforms.py": ("",),
    "rb/test_samplers.py": ("",),
    "rb/test_composable.py": ("",),
    "rb/test_writers.py": ("",),
    "rb/test_storages.py": ("",),
    "rb/test_query.py": ("",),
    "rb/test_ensemble.py": ("",),
    "test_offline_to_online.py": ("",),
    "objectives/test_dqn.py": ("prioritized",),
    "objectives/test_ddpg.py": ("prioritized",),
    "objectives/test_sac.py": ("prioritized",),
    "test_trainer.py": ("TestRB",),
    "test_collectors.py": (
        "rb_sync",
        "rb_uses_lazy_stack",
        "replay_buffer_sync",
        "completeness_single",
        "start_single",
    ),
}

# Waits for other processes, which are skipped with synthetic rows because the data are not transitions.
WAITING = "test_shared_storage_multiprocess"


class Wrapped(SynthERReplayBuffer):
    """Infers the specs and whether the data are transitions."""

    record: Record

    def __init__(self, real: Any) -> None:
        with _single_transitions():
            super().__init__(real, action_spec=Unbounded(), **self.record.buffer_options())

    def add(self, data: Any) -> Any:
        self._find_specs(data)
        with _single_transitions():
            return super().add(data)

    def extend(self, data: Any, **options: Any) -> Any:
        self._find_specs(data)
        with _single_transitions():
            return super().extend(data, **options)

    def sample(self, *args: Any, **options: Any) -> Any:
        with _single_transitions():
            batch = super().sample(*args, **options)
        self.record.mixed |= self.source is not None and len(self.source.store) > 0
        return batch

    def _find_specs(self, data: Any) -> None:
        if isinstance(data, TensorDictBase) and self.source is None:
            action, observation = data.get("action", None), data.get("observation", None)
            if action is not None and observation is not None:
                bounds = Unbounded(observation.shape[data.ndim :], dtype=observation.dtype)
                self._specs = (_action_spec(action, action.shape[data.ndim :]), bounds)


@contextlib.contextmanager
def _single_transitions() -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        if str(error).startswith("data: "):
            pytest.skip("does not apply: data are no transitions")
        if str(error).startswith("real: "):
            pytest.skip("does not apply: batches are no single transitions")
        raise


def _action_spec(action: torch.Tensor, shape: torch.Size) -> Any:
    if action.dtype.is_floating_point:
        return Unbounded(shape)
    if shape and shape[-1] > 1 and bool((action.sum(-1) == 1).all()):
        return OneHot(shape[-1], dtype=action.dtype)
    return Categorical(int(action.max()) + 1, shape=shape)


class Substitute(type):
    """Metaclass: builds the original and wraps it; instances of the original count as instances."""

    original: Any

    def __call__(cls, *args: Any, **options: Any) -> Wrapped:
        return Wrapped(cls.original(*args, **options))

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(getattr(instance, "real", instance), cls.original)


def substitute(record: Record) -> None:
    """Replace the four replay buffers where tests import them; TorchRL itself keeps its own."""
    Wrapped.record = record
    for name in NAMES:
        wrapper = Substitute(name, (), {"original": getattr(replay_buffers, name)})
        for module in (torchrl.data, replay_buffers):
            setattr(module, name, wrapper)


def leaves_out(item: pytest.Item, real_ratio: float) -> bool:
    """Whether a test does not concern replay buffers, or would wait for ever."""
    concerns = {Path(name).name: parts for name, parts in TESTS.items()}[item.path.name]
    return not any(part in item.nodeid for part in concerns) or (WAITING in item.name and real_ratio < 1)


FRAMEWORK = Framework(
    distribution="torchrl",
    folder="test",
    files={name: {} for name in TESTS},
    substitute=substitute,
    mixed=10,
    leaves_out=leaves_out,
    cannot_apply=(
        CannotApply(
            "test_samplers.py::test_prioritized_parameter_scheduler",
            "ParameterScheduler asks for TorchRL's own class; it takes rb.sampler as well",
            when_mixed=False,
        ),
        CannotApply(
            "test_collectors.py::test_trajs_per_batch_replay_buffer_sync",
            "looks for traj_ids, which are no part of a transition",
        ),
        CannotApply(
            "test_offline_to_online.py::test_train_grows_online_and_anneals",
            "joins batches of two buffers, of which only one has is_synthetic",
        ),
        CannotApply(
            "test_writers.py::test_async_prioritized_rb_multiproc_writes",
            "data are no transitions, which another process finds out",
        ),
    ),
)
