"""Hundreds of refits in one process: memory, threads and open files must not grow with their number.

    python many_refits.py FOLDER REFITS

prints one JSON object per hundred refits.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from synther_replay import (
    GeneratorConfig,
    RetrainSchedule,
    RingBuffer,
    SyntheticReplayBuffer,
    Transitions,
    TransitionSpec,
)
from synther_replay.watching import RefitLog, RunFolder

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-1, 1, (2,)))
SMALL = {"width": 32, "depth": 1, "embedding": 8, "steps": 20, "refit_steps": 10, "batch_size": 64}
TINY = GeneratorConfig.tiny(**SMALL, sampling_steps=4)
ROWS = 2_000


def rows(number: int, n: int = 200) -> Transitions:
    made = torch.rand(n, SPEC.dim, generator=torch.Generator().manual_seed(number)) * 2 - 1
    made[:, -1] = (made[:, -1] > 0.8).float()
    return Transitions(SPEC, made)


def used(folder: Path) -> dict[str, Any]:
    """What this process holds now, and what it has written."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "memory": int(status["VmRSS"].split()[0]) * 1024,
        "threads": int(status["Threads"]),
        "files": len(os.listdir("/proc/self/fd")),
        "written": {path.name: path.stat().st_size for path in folder.iterdir()},
    }


def main(folder: Path, refits: int) -> None:
    log = RefitLog(RunFolder(folder, report_every=50), fidelity_rows=1_000)
    buffer = SyntheticReplayBuffer(
        RingBuffer(SPEC, 5_000, device="cpu"), TINY, schedule=RetrainSchedule(rows=ROWS), on_refit=log, seed=0
    )
    for number in range(1, refits + 1):
        buffer.add(rows(number))
        buffer.refit()
        buffer.sample(256)
        if number % 100 == 0:
            print(json.dumps(used(folder)), flush=True)
    assert buffer.refits == refits


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
