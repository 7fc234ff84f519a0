"""Fidelity and speed of samplers: solver x steps x precision with the same fitted model, on replay data.

    python benchmarks/make_datasets.py halfcheetah-medium-replay
    python -m synther_replay.benchmarks.fidelity.compare_samplers --dataset halfcheetah-medium-replay-regen

Models are fitted with the `paper` preset, in fp32 and in bf16, and with `fast`. Each sampler then draws as many rows as
there are real ones from the same weights. The reference is the paper's sampler: 128 steps of stochastic Heun in fp32.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions
from synther_replay.benchmarks.common.files import write_json
from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.common.timing import synchronise
from synther_replay.benchmarks.fidelity.rows import draw as draw_rows
from synther_replay.benchmarks.fidelity.rows import read_dataset
from synther_replay.common.checks import resolve_device
from synther_replay.metrics import fidelity

HEADER = ("trained", "solver", "steps", "precision", "marginal", "correlation", "seconds")


def variants() -> list[dict[str, Any]]:
    """Sampler settings to compare, the paper's first."""
    published = {"sigma_min": 0.002, "sigma_max": 80.0, "rho": 7.0}
    narrow = {"sigma_min": 0.005, "sigma_max": 20.0, "rho": 9.0}
    heun = [{"solver": "heun", "sampling_steps": n, "churn": 80.0, **published} for n in (128, 64, 32, 18)]
    plain = [{"solver": "heun", "sampling_steps": n, "churn": 0.0, **published} for n in (32, 18)]
    multistep = [
        {"solver": "dpm_solver_2m", "sampling_steps": n, "eta": eta, **span}
        for eta, span in ((0.0, published), (1.0, published), (0.0, narrow))
        for n in (32, 24, 18, 12)
    ]
    return [*heun, *plain, *multistep]


def describe(config: GeneratorConfig) -> str:
    """Name of the solver, its stochasticity (churn or eta) and its range of sigma."""
    noise = {"heun": f"churn {config.churn:g}", "dpm_solver_2m": f"eta {config.eta:g}"}
    return f"{config.solver}, {noise[config.solver]}, sigma {config.sigma_min:g}..{config.sigma_max:g}"


def draw(
    trained: DiffusionGenerator, label: str, real: Transitions, changes: dict[str, Any], precision: str
) -> dict[str, Any]:
    """Sample from the weights of `trained` with other sampler options, and measure fidelity and time."""
    config = replace(trained.config, precision=precision, **changes)
    generator = DiffusionGenerator(real.spec, config, device=trained.device)
    generator.load_state_dict({**trained.state_dict(), "config": config.to_json()})  # loads no other sampler by itself
    generator.sample(min(len(real), config.chunk))
    synchronise(trained.device)
    started = time.perf_counter()
    synthetic = generator.sample(len(real))
    synchronise(trained.device)
    elapsed = time.perf_counter() - started
    result = fidelity(real, synthetic, warn=False)
    values = (label, describe(config), config.sampling_steps, precision)
    return dict(zip(HEADER, (*values, result.marginal, result.correlation, elapsed), strict=True))


def compare(real: Transitions, device: torch.device, steps: int | None) -> list[dict[str, Any]]:
    """All rows of the table."""
    rows = []
    changes = {} if steps is None else {"steps": steps}
    for precision in ("fp32", "bf16"):
        paper = DiffusionGenerator(real.spec, GeneratorConfig.paper(precision=precision, **changes), device=device)
        report = paper.fit(real)
        label = f"paper, {precision}, {report.steps} steps, {report.seconds:.0f} s"
        for setting in variants() if precision == "bf16" else variants()[:1]:
            rows += [draw(paper, label, real, setting, sampling) for sampling in ("fp32", "bf16")]
            print(".", end="", flush=True)
    fast = DiffusionGenerator(real.spec, GeneratorConfig.fast(**changes), device=device)
    report = fast.fit(real)
    label = f"fast, {report.steps} steps, {report.seconds:.1f} s"
    rows += [draw(fast, label, real, setting, "bf16") for setting in (variants()[0], {})]
    print()
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="a data set name as in offline_d4rl.py, or an .npz file")
    parser.add_argument("--rows", type=int, default=100_000, help="rows to fit to, and rows to generate (100,000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the row selection (0)")
    parser.add_argument("--steps", type=int, help="training steps (default: those of the presets)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    device = resolve_device(args.device)
    dataset = read_dataset(args.dataset)
    real, _ = draw_rows(dataset, args.rows, args.seed, device)
    rows = compare(real, device, args.steps)
    print(markdown_table(HEADER, [[row[key] for key in HEADER] for row in rows]))
    if args.out:
        result = {"data": dataset.name, "real_rows": len(real), "table": rows}
        write_json(args.out, {**result, **origin(device)})


if __name__ == "__main__":
    main()
