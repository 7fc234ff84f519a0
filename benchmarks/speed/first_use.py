"""Time of the first uses of the generator, which compile kernels and capture graphs, in fresh processes.

    python -m synther_replay.benchmarks.speed.first_use --out first-use-h200.json

Two processes measure the same: one with empty caches of Triton and PyTorch, and one with those that the first left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.common.timing import synchronise
from synther_replay.common.checks import resolve_device

STATES = ("empty caches", "filled caches")
_STEPS = 10  # a fit that takes no time by itself


def toy_rows(observations: int, actions: int, device: torch.device, rows: int = 10_000) -> Transitions:
    """Random transitions, some of them terminated."""
    box = gym.spaces.Box
    spec = TransitionSpec.from_spaces(box(-np.inf, np.inf, (observations,)), box(-1, 1, (actions,)))
    x = torch.randn(rows, spec.dim, generator=torch.Generator(device).manual_seed(0), device=device)
    x[:, spec.actions].clamp_(-1, 1)
    x[:, spec.terminated] = (x[:, spec.terminated] > 2.5).float()
    return Transitions(spec, x)


def measure(device: torch.device) -> dict[str, float]:
    """Seconds of fit and sample for one size of rows after the other, in this process."""
    config = GeneratorConfig.fast() if device.type == "cuda" else GeneratorConfig.tiny(width=32, depth=1)
    wide = replace(config, width=2 * config.width)
    found: dict[str, float] = {}

    def clock(name: str, work: Callable[[], Any]) -> None:
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        found[name] = time.perf_counter() - started

    clock("device", lambda: torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device))
    for name, sizes, settings in (
        ("first", (17, 6), config),
        ("other observations", (11, 3), config),
        ("other network", (17, 6), wide),
        ("long observations", (348, 17), config),
    ):
        rows = toy_rows(*sizes, device)
        generator = DiffusionGenerator(rows.spec, settings, device=device)
        clock(f"{name}, fit", lambda generator=generator, rows=rows: generator.fit(rows, steps=_STEPS, progress=False))
        clock(f"{name}, sample", lambda generator=generator: generator.sample(1_000))
    return found


def measure_in_fresh_processes(device: torch.device) -> dict[str, dict[str, float]]:
    """Result of `measure` with empty and with filled caches."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        command = [sys.executable, "-m", "synther_replay.benchmarks.speed.first_use", "--child", str(device)]
        for state in STATES:
            run = subprocess.run(command, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True, check=True)
            results[state] = json.loads(run.stdout.splitlines()[-1])
    return results


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(torch.device(args.child))))
        return
    device = resolve_device(args.device)
    if args.out:
        make_folder_of(args.out)
    results = measure_in_fresh_processes(device)
    rows = [[name, *(results[state][name] for state in STATES)] for name in results[STATES[0]]]
    print(markdown_table(("seconds", *STATES), rows))
    if args.out:
        write_json(args.out, {"results": results, **origin(device)})


if __name__ == "__main__":
    main()
