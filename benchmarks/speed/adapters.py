"""What an adapter costs beside the framework's own buffer: `add`, `sample` and memory, alternating in one run.

Part of `throughput.py`; refits are left out of the times, the rows they made are in the batches.
"""

from __future__ import annotations

import ast
import gc
import multiprocessing
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from synther_replay import GeneratorConfig, RetrainSchedule
from synther_replay.benchmarks.common.timing import synchronise

OBSERVATION, ACTION, BATCH = 17, 6, 256  # as in HalfCheetah
ROWS, SYNTHETIC = 100_000, 20_000
ROUNDS, CALLS = 15, 200
_CORL_FILE = Path("algorithms") / "finetune" / "iql.py"

# One fit that takes no time: how well the rows are made does not matter for how fast they are drawn.
_OPTIONS: dict[str, Any] = {
    "generator": GeneratorConfig.tiny(steps=10, width=32, depth=1),
    "schedule": RetrainSchedule(every=10**9, rows=SYNTHETIC, start=1_000),
    "seed": 0,
}


class Pair:
    """The framework's own buffer and ours around the same data: how to make, fill and use them."""

    def __init__(self, device: torch.device, rows: int = ROWS) -> None:
        """Make nothing yet."""
        self.device, self.rows = device, rows
        rng = np.random.default_rng(0)
        self.observation = rng.normal(size=(1, OBSERVATION)).astype(np.float32)
        self.action = rng.uniform(-1, 1, (1, ACTION)).astype(np.float32)

    def make(self, ours: bool) -> Any:
        """An empty buffer."""
        raise NotImplementedError

    def add(self, buffer: Any) -> None:
        """One transition."""
        raise NotImplementedError

    def fill(self, buffer: Any) -> None:
        """As many transitions as it takes, in the quickest way."""
        for _ in range(self.rows):
            self.add(buffer)


class SB3(Pair):
    """Stable-Baselines3's `ReplayBuffer`."""

    def make(self, ours: bool) -> Any:
        """On the device of a learner."""
        from stable_baselines3.common.buffers import ReplayBuffer

        from synther_replay.adapters.sb3 import SynthERBuffer

        spaces = gym.spaces.Box(-np.inf, np.inf, (OBSERVATION,)), gym.spaces.Box(-1, 1, (ACTION,))
        cls, options = (SynthERBuffer, _OPTIONS) if ours else (ReplayBuffer, {})
        return cls(self.rows, *spaces, device=self.device, **options)

    def add(self, buffer: Any) -> None:
        """As `collect_rollouts` does."""
        buffer.add(self.observation, self.observation, self.action, np.ones(1), np.zeros(1), [{}])


class TorchRL(Pair):
    """TorchRL's `TensorDictReplayBuffer` on a tensor storage, with the entries that a collector gives."""

    def make(self, ours: bool) -> Any:
        """On the device of a learner."""
        from torchrl.data import Bounded, LazyTensorStorage, TensorDictReplayBuffer

        from synther_replay.adapters.torchrl import SynthERReplayBuffer

        real = TensorDictReplayBuffer(storage=LazyTensorStorage(self.rows, device=self.device), batch_size=BATCH)
        return SynthERReplayBuffer(real, action_spec=Bounded(-1, 1, (ACTION,)), **_OPTIONS) if ours else real

    def _data(self, n: int) -> Any:
        from tensordict import TensorDict

        down = {name: torch.zeros(n, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        state = torch.from_numpy(self.observation).expand(n, -1)
        following = {"observation": state, "reward": torch.ones(n, 1), **down}
        return TensorDict(
            {"observation": state, "action": torch.from_numpy(self.action).expand(n, -1), "next": following, **down},
            [n],
        ).clone()

    def add(self, buffer: Any) -> None:
        """As a collector of one frame per batch does; making the data is the greater part of it."""
        if not hasattr(self, "_one"):
            self._one = self._data(1)
        buffer.extend(self._one)

    def fill(self, buffer: Any) -> None:
        """All at once."""
        buffer.extend(self._data(self.rows))


class CORL(Pair):
    """The `ReplayBuffer` in a checkout of CORL."""

    checkout = Path()

    def make(self, ours: bool) -> Any:
        """On the device of a learner."""
        from synther_replay.adapters.corl import ReplayBuffer

        options = {key: value for key, value in _OPTIONS.items() if key != "schedule"}
        arguments = (
            OBSERVATION,
            ACTION,
            2 * self.rows,
            str(self.device),
        )  # CORL's cannot add to one that was loaded full
        return ReplayBuffer(*arguments, real_ratio=0.5, **options) if ours else self._own()(*arguments)

    def _own(self) -> Any:
        """The class alone, taken out of the file of an algorithm."""
        tree = ast.parse((self.checkout / _CORL_FILE).read_text())
        tree.body = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "ReplayBuffer"]
        names: dict[str, Any] = {"np": np, "torch": torch, "TensorBatch": list, "Dict": dict, "print": lambda *_: None}
        exec(compile(tree, "iql.py", "exec"), names)
        return names["ReplayBuffer"]

    def add(self, buffer: Any) -> None:
        """As a fine-tuning loop does."""
        buffer.add_transition(self.observation[0], self.action[0], 1.0, self.observation[0], False)

    def fill(self, buffer: Any) -> None:
        """A data set."""
        n = self.rows
        state = np.repeat(self.observation, n, 0)
        data = {"observations": state, "actions": np.repeat(self.action, n, 0), "rewards": np.ones(n, np.float32)}
        buffer.load_d4rl_dataset({**data, "next_observations": state, "terminals": np.zeros(n, np.float32)})
        if hasattr(buffer, "upsample"):
            buffer.upsample(SYNTHETIC)


def check_corl(checkout: Path) -> None:
    """Refuse a folder that is none of CORL's."""
    if not (checkout / _CORL_FILE).is_file():
        raise ValueError(f"corl: {checkout} is not a checkout of CORL, it has no {_CORL_FILE}")


def overhead(device: torch.device, corl: Path | None) -> dict[str, dict[str, Any]]:
    """Compare with every framework that is there."""
    results = {}
    CORL.checkout = corl or Path()
    for name, pair, there in (
        ("Stable-Baselines3", SB3, find_spec("stable_baselines3")),
        ("TorchRL", TorchRL, find_spec("torchrl")),
        ("CORL", CORL, corl),
    ):
        if there:
            results[f"adapter, {name}"] = compare(pair(device))
    return results


def compare(pair: Pair) -> dict[str, Any]:
    """Times per call and their ratios, and what the buffers hold in memory."""
    own, ours = pair.make(ours=False), pair.make(ours=True)
    for buffer in (own, ours):
        pair.fill(buffer)
        buffer.sample(BATCH)
    entry: dict[str, Any] = {"rows": pair.rows, "synthetic_rows": SYNTHETIC, "batch": BATCH, "real_ratio": 0.5}
    work: dict[str, Callable[[Any], Any]] = {
        "sample": lambda buffer: buffer.sample(BATCH),
        "add": pair.add,
        "add and sample": lambda buffer: (pair.add(buffer), buffer.sample(BATCH)),
    }
    for name, call in work.items():
        times = np.array([[_microseconds(call, buffer, pair.device) for buffer in (own, ours)] for _ in range(ROUNDS)])
        entry[f"{name}_own_us"], entry[f"{name}_us"] = (float(t) for t in np.median(times, 0))
        entry[f"{name}_ratio"] = float(np.median(times[:, 1] / times[:, 0]))
    if pair.device.type == "cpu" and Path("/proc/self/statm").exists():
        entry |= memory(pair)
    return entry


def memory(pair: Pair) -> dict[str, float]:
    """What a full buffer of each kind adds to a process of its own, and what the synthetic rows should take."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        own, ours = (pool.apply(_held, (type(pair), CORL.checkout, ours)) for ours in (False, True))
    store = SYNTHETIC * (2 * OBSERVATION + ACTION + 2) * 4 / 1e6
    return {"own_mb": own, "ours_mb": ours, "store_mb": store}


def _held(kind: type[Pair], checkout: Path, ours: bool) -> float:
    """Megabytes of a full buffer, after one of a few rows has loaded all code."""
    CORL.checkout = checkout
    torch.set_num_threads(1)
    for rows in (2_000, 1_000_000):
        pair = kind(torch.device("cpu"), rows)
        before = _resident()
        buffer = pair.make(ours)
        pair.fill(buffer)
        buffer.sample(BATCH)
        gc.collect()
    return _resident() - before


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def _microseconds(call: Callable[[Any], Any], buffer: Any, device: torch.device) -> float:
    synchronise(device)
    begun = time.perf_counter()
    for _ in range(CALLS):
        call(buffer)
    synchronise(device)
    return (time.perf_counter() - begun) / CALLS * 1e6
