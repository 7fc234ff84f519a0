"""Fits by several processes of torch.distributed (gloo) together."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions, TransitionSpec
from synther_replay.data.stream import ArrayRows

pytestmark = pytest.mark.slow  # starts processes

SPEC = TransitionSpec.from_spaces(gym.spaces.Box(-9, 9, (3,)), gym.spaces.Box(-1, 1, (2,)))
CONFIG = GeneratorConfig.tiny(width=32, depth=1, steps=200, batch_size=64, patience=3, average_every=10)
CASES = ("fit", "warm refit", "stream", "time limit", "diverged")


def rows_of(n: int) -> Tensor:
    rows = torch.randn(n, SPEC.dim, generator=torch.Generator().manual_seed(0)).clamp(-4, 4)
    rows[:, SPEC.actions] = rows[:, SPEC.actions].tanh()
    rows[:, SPEC.next_observations] = 0.9 * rows[:, SPEC.observations] + 0.1
    rows[:, SPEC.terminated] = 0
    return rows


def fitted(case: str, group: object, rank: int) -> dict[str, object]:
    """What one process has after a fit: digest of its weights and rows, steps, losses."""
    rows = Transitions(SPEC, rows_of(2_000))
    generator = DiffusionGenerator(SPEC, CONFIG, device="cpu", seed=1, group=group)
    if case == "stream":
        report = generator.fit(ArrayRows(SPEC, rows.rows.numpy()), window=300)
    elif case == "time limit":
        if rank:  # a slower machine
            torch.set_num_threads(1)
        report = generator.fit(rows, steps=100_000, max_seconds=0.5)
    else:
        report = generator.fit(rows)
    if case == "warm refit":
        report = generator.fit(rows)
    if case == "diverged":
        trainer = generator._engine.trainer(0)
        if rank:
            trainer.loss_sum = torch.full_like(trainer.loss_sum, torch.nan)
            trainer.loss_sum.zero_ = lambda: None  # type: ignore[method-assign]
        try:
            generator.fit(rows)
        except Exception as error:
            return {"error": type(error).__name__, "weights": digest(generator.model.weights)}
    sampled = generator.sample(50).rows
    values = {"steps": report.steps, "loss": report.loss, "held_out": report.held_out_loss}
    return {**values, "weights": digest(generator.model.weights), "rows": digest(sampled)}


def digest(tensor: Tensor) -> list[float]:
    values = tensor.double().flatten()
    return [float(values.sum()), float(values.square().sum()), float((values * torch.arange(len(values))).sum())]


def main(rank: int, size: int, folder: Path) -> None:
    """One process of a group; its results are written to a file."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    results = {case: fitted(case, dist.group.WORLD, rank) for case in CASES}
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of two processes that fit together."""
    folder = tmp_path_factory.mktemp("group")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__]
    processes = [subprocess.Popen([*command, str(rank), "2", str(folder)], env=environment) for rank in range(2)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_all_processes_end_with_the_same_model(results, case):
    assert results[0][case] == results[1][case]


def test_a_process_that_diverges_stops_all(results):
    assert results[0]["diverged"]["error"] == "DivergedError"
    assert results[0]["diverged"]["weights"] == results[0]["fit"]["weights"]  # as before that fit


def test_two_processes_fit_as_well_as_one(results):
    together, alone = results[0]["fit"], fitted("fit", None, 0)
    assert together["held_out"] == pytest.approx(alone["held_out"], rel=0.1)
    assert together["weights"] != alone["weights"]  # other draws


def test_a_group_must_be_initialised():
    with pytest.raises(ValueError, match="init_process_group"):
        DiffusionGenerator(SPEC, CONFIG, device="cpu", group="world")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
