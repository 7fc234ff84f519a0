"""Gradient updates per second in Stable-Baselines3: SAC with its own buffer and with ours, and FastSAC.

    python -m synther_replay.benchmarks.speed.sb3_updates --out sb3-updates.json

Spaces and networks are those of HalfCheetah, rows are random, and half of each batch of `SynthERBuffer` is synthetic.
Times include sampling of batches, but no environment steps and no refits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger

from synther_replay import RetrainSchedule, Transitions
from synther_replay.adapters.sb3 import FastSAC, SynthERBuffer
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.common.timing import seconds, synchronise
from synther_replay.common.checks import resolve_device

OBSERVATION, ACTION = 17, 6
GRADIENT_STEPS, BATCH, SYNTHETIC = 20, 256, 20_000


class Copies:
    """A generator that returns copies of its training rows; the speed of updates does not depend on their quality."""

    def fit(self, transitions: Transitions) -> None:
        """Keep the transitions."""
        self.seen = transitions

    def sample(self, n: int) -> Transitions:
        """The first `n` rows, repeated if there are fewer."""
        return self.seen[torch.arange(n, device=self.seen.rows.device) % len(self.seen)]


OURS: dict[str, Any] = {
    "replay_buffer_class": SynthERBuffer,
    "replay_buffer_kwargs": {
        "generator": Copies(),
        "schedule": RetrainSchedule(every=10**9, rows=SYNTHETIC, start=1),
        "real_ratio": 0.5,
    },
}
CASES: dict[str, tuple[type[SAC], dict[str, Any]]] = {
    "SAC, own buffer": (SAC, {}),
    "SAC, SynthERBuffer": (SAC, OURS),
    "FastSAC, SynthERBuffer, policy_delay=1": (FastSAC, {**OURS, "policy_delay": 1}),
    "FastSAC, SynthERBuffer, policy_delay=20": (FastSAC, {**OURS, "policy_delay": 20}),
}


class Spaces(gym.Env[Any, Any]):
    """An environment with the spaces of HalfCheetah; it cannot be stepped."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (ACTION,), np.float32)


def make(algorithm: type[SAC], options: dict[str, Any], device: torch.device, rows: int) -> SAC:
    """Build a model with `rows` random transitions in its buffer."""
    model = algorithm("MlpPolicy", Spaces(), buffer_size=rows, batch_size=BATCH, device=device, seed=0, **options)
    model.set_logger(Logger(None, []))
    rng = np.random.default_rng(0)
    for _ in range(rows):
        observation, next_observation = rng.normal(size=(2, 1, OBSERVATION)).astype(np.float32)
        action = rng.uniform(-1, 1, (1, ACTION)).astype(np.float32)
        model.replay_buffer.add(observation, next_observation, action, rng.normal(size=1), np.zeros(1), [{}])
    return model


def measure(device: torch.device, *, rows: int, calls: int, repeats: int) -> dict[str, Any]:
    """Time every case, one after the other."""
    results, steps = {}, GRADIENT_STEPS
    for name, (algorithm, options) in CASES.items():
        model = make(algorithm, options, device, rows)

        def train(model: SAC = model) -> None:
            for _ in range(calls):
                model.train(steps, BATCH)

        synchronise(device)
        started = time.perf_counter()
        model.train(steps, BATCH)  # first call: refit and graph capture
        synchronise(device)
        first = time.perf_counter() - started
        took = seconds(train, device, repeats=repeats) / calls
        results[name] = {
            "updates_per_second": steps / took,
            "ms_per_call": took * 1e3,
            "first_call_s": first,
            "gradient_steps": steps,
            "batch": BATCH,
            "rows": rows,
            "captured": len(getattr(getattr(model, "_graphs", None), "names", list)()),
        }
        if hasattr(model.replay_buffer, "sample_batches"):
            drawn = seconds(lambda buffer=model.replay_buffer: buffer.sample_batches(steps, BATCH), device, repeats=50)
            results[name]["sampling_ms_per_call"] = drawn * 1e3
    return results


def table(results: dict[str, Any]) -> str:
    """Markdown table with one row per case."""
    base = results["SAC, own buffer"]["updates_per_second"]
    rows = [
        (name, entry["updates_per_second"], entry["updates_per_second"] / base, entry["first_call_s"])
        for name, entry in results.items()
    ]
    return markdown_table(("case", "updates per second", "ratio", "first call, s"), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--rows", type=int, default=10_000, help="real transitions in the buffer (10,000)")
    parser.add_argument("--calls", type=int, help="calls of train() per timing (GPU: 5, CPU: 1)")
    parser.add_argument("--repeats", type=int, default=5, help="timings, of which the median is reported (5)")
    options = parser.parse_args(arguments)
    try:
        device = resolve_device(options.device)
        if options.out:
            make_folder_of(options.out)
    except ValueError as error:
        parser.error(str(error))
    calls = options.calls or (5 if device.type == "cuda" else 1)
    results = measure(device, rows=options.rows, calls=calls, repeats=options.repeats)
    print(table(results))
    if options.out:
        write_json(options.out, {**origin(device), "results": results})


if __name__ == "__main__":
    main()
