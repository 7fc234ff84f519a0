"""Generated `terminated` flags against the task's own rule, with and without `exact`.

    python benchmarks/make_datasets.py hopper-medium-replay walker2d-medium-replay
    python -m synther_replay.benchmarks.fidelity.terminations --datasets hopper-medium-replay-regen \
        walker2d-medium-replay-regen --out terminations.json

A generator is fitted to all rows of a data set, or to `--real-rows` of a random policy in a task of Gymnasium
(``random:Ant-v4``). Precision is the share of its terminated rows that the rule terminates,
recall the share of the rows to terminate by the rule that are.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.environments.simulators import simulator_of
from synther_replay.benchmarks.environments.terminals import has_fallen, terminal_counts
from synther_replay.benchmarks.fidelity.rows import random_rows, read_dataset
from synther_replay.common.checks import resolve_device
from synther_replay.metrics import fidelity

_KEYS = ("real_rate", "rate", "precision", "recall", "marginal", "correlation", "fit_seconds")


def rates(task: str, rows: Transitions) -> dict[str, float]:
    """Counts of `terminal_counts`, and rate, precision and recall."""
    found = terminal_counts(task, rows)
    rate = {"rate": found["terminated"] / found["rows"]}
    return found | rate | agreement(found["terminated"], found["by_rule"], found["both"])


def agreement(flagged: int, by_rule: int, both: int) -> dict[str, float]:
    """Precision and recall, by the numbers of rows with a flag, of rows that need one, and of rows of both kinds."""
    return {"precision": both / max(1, flagged), "recall": both / max(1, by_rule)}


def measure(real: Transitions, task: str, config: GeneratorConfig, rows: int, device: torch.device) -> dict[str, Any]:
    """Fit a generator to all real rows, generate `rows`, and count their flags."""
    generator = DiffusionGenerator(real.spec, config, device=device, seed=0)
    report = generator.fit(real)
    generated = generator.sample(rows)
    scores = fidelity(real, generated[: len(real)], warn=False)
    measured = {"marginal": scores.marginal, "correlation": scores.correlation, "fit_seconds": report.seconds}
    return {**rates(task, generated), "real_rate": rates(task, real)["rate"], **measured}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", required=True, help="data sets, or random:TASK")
    parser.add_argument("--presets", nargs="+", default=["offline", "fast"], choices=("offline", "fast", "tiny"))
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows to generate (1,000,000)")
    parser.add_argument("--real-rows", type=int, default=30_000, help="rows of a random policy (30,000)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    device = resolve_device(args.device)
    if args.out:
        make_folder_of(args.out)
    results: dict[str, dict[str, Any]] = {}
    for name in args.datasets:
        kind, _, task = name.partition(":")
        if kind == "random":
            real = random_rows(task, args.real_rows, seed=0).to(device)
        else:
            dataset = read_dataset(name)
            real, task = dataset.transitions().to(device), simulator_of(dataset.name) or ""
        if has_fallen(task, real.rows[:1, real.spec.next_observations]) is None:
            parser.error(f"--datasets: expected tasks with a rule in environments/terminals.py, got {name}")
        results[name] = {
            f"{preset}, exact={exact}": measure(
                real, task, getattr(GeneratorConfig, preset)(exact=exact), args.rows, device
            )
            for preset in args.presets
            for exact in (False, True)
        }
    lines = [
        [name, kind, *(found[key] for key in _KEYS)] for name, own in results.items() for kind, found in own.items()
    ]
    print(markdown_table(("data set", "generator", *_KEYS), lines))
    if args.out:
        write_json(args.out, {"results": results, **origin(device)})


if __name__ == "__main__":
    main()
