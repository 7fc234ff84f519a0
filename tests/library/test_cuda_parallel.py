"""Fits by processes of torch.distributed on a GPU: NCCL with one process, gloo with two that share the GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
import torch.distributed as dist

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-9, 9, (3,)), gym.spaces.Box(-1, 1, (2,)))
CONFIG = GeneratorConfig.fast(width=64, depth=2, steps=400, batch_size=128)


def fitted(group: Any) -> dict[str, Any]:
    """What a process has after a fit and a warm refit."""
    rows = torch.randn(2_000, SPEC.dim, generator=torch.Generator().manual_seed(0)).clamp(-4, 4)
    rows[:, SPEC.actions] = rows[:, SPEC.actions].tanh()
    rows[:, SPEC.terminated] = 0
    generator = DiffusionGenerator(SPEC, CONFIG, device="cuda", seed=1, group=group)
    for _ in range(2):
        report = generator.fit(Transitions(SPEC, rows.cuda()))
    weights = generator.model.weights.double()
    return {
        "held_out": report.held_out_loss,
        "weights": [float(weights.sum()), float(weights.square().sum())],
        "rows": float(generator.sample(500).rows.double().sum()),
    }


def main(backend: str, rank: int, size: int, folder: Path) -> None:
    """One process of a group; its results are written to a file."""
    torch.cuda.set_device(0)
    dist.init_process_group(backend, init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    (folder / f"{rank}.json").write_text(json.dumps(fitted(dist.group.WORLD)))
    dist.destroy_process_group()


def results_of(backend: str, size: int, folder: Path) -> list[dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [(sys.executable, __file__, backend, str(rank), str(size), str(folder)) for rank in range(size)]
    processes = [subprocess.Popen(command, env=environment) for command in arguments]
    assert [process.wait(timeout=300) for process in processes] == [0] * size
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def test_a_group_of_nccl_with_one_process_fits_as_one_without(tmp_path):
    (alone,) = results_of("nccl", 1, tmp_path)
    assert alone["held_out"] == pytest.approx(fitted(None)["held_out"], rel=0.02)


def test_two_processes_end_with_the_same_model(tmp_path):
    first, second = results_of("gloo", 2, tmp_path)
    assert first == second
    assert first["held_out"] == pytest.approx(fitted(None)["held_out"], rel=0.1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
