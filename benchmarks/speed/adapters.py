"""Overhead of the adapters over the frameworks' own replay buffers: `add`, `sample` and memory, alternating in one run.

    python -m synther_replay.benchmarks.speed.adapters --corl path/to/CORL --out adapters-cpu.json

Also part of `throughput.py`. Batches contain synthetic rows; the time of refits is not included.
"""

from __future__ import annotations

import argparse
import ast
import gc
import multiprocessing
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from synther_replay import GeneratorConfig, RetrainSchedule
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.common.timing import synchronise
from synther_replay.common.checks import resolve_device

OBSERVATION, ACTION, BATCH = 17, 6, 256  # as in HalfCheetah
ROWS, SYNTHETIC = 100_000, 20_000
ROUNDS, CALLS = 15, 200
_CORL_FILE = Path("algorithms") / "finetune" / "iql.py"

# A minimal fit: the speed of sampling does not depend on the quality of the rows.
_OPTIONS: dict[str, Any] = {
    "generator": GeneratorConfig.tiny(steps=10, width=32, depth=1),
    "schedule": RetrainSchedule(every=10**9, rows=SYNTHETIC, start=1_000),
    "seed": 0,
}


class Pair:
    """The framework's own buffer and our adapter: how to build, fill and use them with the same data."""

    def __init__(self, device: torch.device, rows: int = ROWS) -> None:
        """Draw one transition; buffers are built by `make`."""
        self.device, self.rows = device, rows
        rng = np.random.default_rng(0)
        self.observation = rng.normal(size=(1, OBSERVATION)).astype(np.float32)
        self.action = rng.uniform(-1, 1, (1, ACTION)).astype(np.float32)

    def make(self, ours: bool) -> Any:
        """Build an empty buffer."""
        raise NotImplementedError

    def add(self, buffer: Any) -> None:
        """Add one transition."""
        raise NotImplementedError

    def fill(self, buffer: Any) -> None:
        """Fill the buffer with `rows` transitions in the fastest way."""
        for _ in range(self.rows):
            self.add(buffer)


class SB3(Pair):
    """Stable-Baselines3's `ReplayBuffer`."""

    def make(self, ours: bool) -> Any:
        """Build a buffer on the device."""
        from stable_baselines3.common.buffers import ReplayBuffer

        from synther_replay.adapters.sb3 import SynthERBuffer

        spaces = gym.spaces.Box(-np.inf, np.inf, (OBSERVATION,)), gym.spaces.Box(-1, 1, (ACTION,))
        cls, options = (SynthERBuffer, _OPTIONS) if ours else (ReplayBuffer, {})
        return cls(self.rows, *spaces, device=self.device, **options)

    def add(self, buffer: Any) -> None:
        """Add one transition, as `collect_rollouts` does."""
        buffer.add(self.observation, self.observation, self.action, np.ones(1), np.zeros(1), [{}])


class TorchRL(Pair):
    """TorchRL's `TensorDictReplayBuffer` with a tensor storage and the entries of a collector."""

    def make(self, ours: bool) -> Any:
        """Build a buffer on the device."""
        from torchrl.data import Bounded, LazyTensorStorage, TensorDictReplayBuffer

        from synther_replay.adapters.torchrl import SynthERReplayBuffer

        real = TensorDictReplayBuffer(storage=LazyTensorStorage(self.rows, device=self.device), batch_size=BATCH)
        return SynthERReplayBuffer(real, action_spec=Bounded(-1, 1, (ACTION,)), **_OPTIONS) if ours else real

    def _data(self, n: int) -> Any:
        from tensordict import TensorDict

        down = {name: torch.zeros(n, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        state = torch.from_numpy(self.observation).expand(n, -1)
        after = {"observation": state, "reward": torch.ones(n, 1), **down}
        return TensorDict(
            {"observation": state, "action": torch.from_numpy(self.action).expand(n, -1), "next": after, **down},
            [n],
        ).clone()

    def add(self, buffer: Any) -> None:
        """Add one transition, as a collector with one frame per batch does; the data are built once, outside."""
        if not hasattr(self, "_one"):
            self._one = self._data(1)
        buffer.extend(self._one)

    def fill(self, buffer: Any) -> None:
        """Add all transitions at once."""
        buffer.extend(self._data(self.rows))


class CORL(Pair):
    """The `ReplayBuffer` in a checkout of CORL."""

    checkout = Path()

    def make(self, ours: bool) -> Any:
        """Build a buffer on the device."""
        from synther_replay.adapters.corl import ReplayBuffer

        options = {key: value for key, value in _OPTIONS.items() if key != "schedule"}
        # Twice the rows, because CORL cannot add to a buffer that a data set has filled.
        arguments = (OBSERVATION, ACTION, 2 * self.rows, str(self.device))
        return ReplayBuffer(*arguments, real_ratio=0.5, **options) if ours else self._own()(*arguments)

    def _own(self) -> Any:
        """CORL's `ReplayBuffer` class, extracted from one of its scripts."""
        tree = ast.parse((self.checkout / _CORL_FILE).read_text())
        tree.body = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "ReplayBuffer"]
        names: dict[str, Any] = {"np": np, "torch": torch, "TensorBatch": list, "Dict": dict, "print": lambda *_: None}
        exec(compile(tree, "iql.py", "exec"), names)
        return names["ReplayBuffer"]

    def add(self, buffer: Any) -> None:
        """Add one transition, as a fine-tuning loop does."""
        buffer.add_transition(self.observation[0], self.action[0], 1.0, self.observation[0], False)

    def fill(self, buffer: Any) -> None:
        """Load a data set and, for ours, generate synthetic rows."""
        n = self.rows
        state = np.repeat(self.observation, n, 0)
        data = {"observations": state, "actions": np.repeat(self.action, n, 0), "rewards": np.ones(n, np.float32)}
        buffer.load_d4rl_dataset({**data, "next_observations": state, "terminals": np.zeros(n, np.float32)})
        if hasattr(buffer, "upsample"):
            buffer.upsample(SYNTHETIC)


def check_corl(checkout: Path) -> None:
    """Raise `ValueError` if a folder is not a checkout of CORL."""
    if not (checkout / _CORL_FILE).is_file():
        raise ValueError(f"--corl: {checkout} is not a checkout of CORL: no {checkout / _CORL_FILE}")


def overhead(device: torch.device, corl: Path | None) -> dict[str, dict[str, Any]]:
    """Compare with every framework that is installed, and with CORL if a checkout is given; in one CPU thread.

    With several threads, the time of small operations depends on what else the cores do.
    """
    torch.set_num_threads(1)
    results = {}
    CORL.checkout = corl or Path()
    for name, pair, available in (
        ("Stable-Baselines3", SB3, find_spec("stable_baselines3")),
        ("TorchRL", TorchRL, find_spec("torchrl")),
        ("CORL", CORL, corl),
    ):
        if available:
            results[f"adapter, {name}"] = compare(pair(device))
    return results


def compare(pair: Pair) -> dict[str, Any]:
    """Times per call, their ratios, and the memory of the buffers."""
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
    """Memory of a full buffer of each kind, measured in a new process, and the nominal size of the synthetic rows."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        own, ours = (pool.apply(_held, (type(pair), CORL.checkout, ours)) for ours in (False, True))
    store = SYNTHETIC * (2 * OBSERVATION + ACTION + 2) * 4 / 1e6
    return {"own_mb": own, "ours_mb": ours, "store_mb": store}


def _held(kind: type[Pair], checkout: Path, ours: bool) -> float:
    """Resident megabytes of a full buffer; a small buffer is built first, so that all code is loaded."""
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
    started = time.perf_counter()
    for _ in range(CALLS):
        call(buffer)
    synchronise(device)
    return (time.perf_counter() - started) / CALLS * 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--corl", type=Path, help="checkout of CORL, to compare its replay buffer with ours")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    try:
        device = resolve_device(options.device)
        if options.out:
            make_folder_of(options.out)
        if options.corl:
            check_corl(options.corl)
    except ValueError as error:
        parser.error(str(error))
    results = overhead(device, options.corl)
    figures = [f"{part}_{unit}" for part in ("add", "sample", "add and sample") for unit in ("own_us", "us", "ratio")]
    print(markdown_table(("", *figures), [[name, *map(entry.get, figures)] for name, entry in results.items()]))
    if options.out:
        write_json(options.out, {"results": results, **origin(device)})


if __name__ == "__main__":
    main()
