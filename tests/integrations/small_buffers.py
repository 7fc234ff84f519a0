"""A small buffer of every adapter, with two observations and one action, for tests of what all adapters share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

OBSERVATIONS, ACTIONS = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Box(-1, 1, (1,))
NAMES = ["observations", "actions", "rewards", "next_observations", "terminated"]  # of skrl


def sb3_buffer(capacity: int = 200, **options: Any) -> Any:
    pytest.importorskip("stable_baselines3")
    from synther_replay.adapters.sb3 import SynthERBuffer

    return SynthERBuffer(capacity, OBSERVATIONS, ACTIONS, device="cpu", **options)


def torchrl_buffer(capacity: int = 200, **options: Any) -> Any:
    pytest.importorskip("torchrl")
    from torchrl.data import Bounded, LazyTensorStorage, TensorDictReplayBuffer

    from synther_replay.adapters.torchrl import SynthERReplayBuffer

    real = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=16)
    return SynthERReplayBuffer(real, **{"action_spec": Bounded(-1, 1, (1,)), **options})


def skrl_memory(capacity: int = 200, **options: Any) -> Any:
    pytest.importorskip("skrl")
    from synther_replay.adapters.skrl import SynthERMemory

    memory = SynthERMemory(memory_size=capacity, device="cpu", **options)
    spaces = {"observations": OBSERVATIONS, "actions": ACTIONS, "next_observations": OBSERVATIONS}
    for name in (*NAMES, "truncated"):
        memory.create_tensor(
            name=name, size=spaces.get(name, 1), dtype=torch.bool if name.endswith("ated") else torch.float32
        )
    return memory


def corl_buffer(capacity: int = 200, **options: Any) -> Any:
    from synther_replay.adapters.corl import ReplayBuffer

    return ReplayBuffer(2, 1, capacity, max_action=1.0, **options)


MAKERS: list[Callable[..., Any]] = [sb3_buffer, torchrl_buffer, skrl_memory, corl_buffer]


def torchrl_step(buffer: Any, rows: int = 1) -> None:
    """Add rows and draw a batch."""
    from tensordict import TensorDict

    flags = {name: torch.zeros(rows, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
    data = {"observation": torch.randn(rows, 2), "action": torch.rand(rows, 1), **flags}
    following = {"observation": torch.randn(rows, 2), "reward": torch.randn(rows, 1), **flags}
    buffer.extend(TensorDict({**data, "next": following}, [rows]))
    buffer.sample()


def skrl_step(memory: Any) -> None:
    """Add a row and draw a batch."""
    values = {name: torch.rand(1, 2 if "observations" in name else 1) for name in NAMES[:4]}
    memory.add_samples(**values, **dict.fromkeys(("terminated", "truncated"), torch.zeros(1, 1).bool()))
    memory.sample(NAMES, batch_size=16)


def corl_step(buffer: Any, rng: np.random.Generator) -> None:
    """Add a row and draw a batch."""
    state, following = rng.normal(size=(2, 2))
    buffer.add_transition(state, rng.uniform(-1, 1, 1), 0.5, following, False)
    buffer.sample(16)
