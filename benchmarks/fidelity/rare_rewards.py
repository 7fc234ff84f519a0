"""Rewards that few real rows have: whether generated rows have them where the task gives them.

    python -m synther_replay.benchmarks.fidelity.rare_rewards --tasks reacher-hard --hits 4 16 --out rare.json

A generator is fitted to rows of a random policy, so many of them rewarded. Precision is the share of its rewarded rows
that the task's rule rewards, recall the share of the rows to reward by the rule that are. `drawn` are rows of the same
generator where no outcome counts as rare: its classifier alone tells which are rewarded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from synther_replay import DiffusionGenerator, GeneratorConfig, Transitions
from synther_replay.benchmarks.common.files import make_folder_of, write_json
from synther_replay.benchmarks.common.formatting import markdown_table
from synther_replay.benchmarks.common.provenance import origin
from synther_replay.benchmarks.environments.goals import GOAL_TASKS, is_rewarded
from synther_replay.benchmarks.fidelity.rows import random_rows
from synther_replay.benchmarks.fidelity.terminations import agreement
from synther_replay.common.checks import resolve_device

_KINDS = ("drawn", "rare")
_KEYS = ("rewarded", "precision", "recall")
_POLICY_ROWS = 60_000  # of the random policy, which the real rows are drawn from


def counts(task: str, rows: Transitions) -> dict[str, int]:
    """Counts of all rows, of rewarded rows, of rows to reward by the rule, and of rows where both agree."""
    by_rule = is_rewarded(task, _next(rows))
    rewarded = rows.rewards > 0.5
    both = rewarded & by_rule
    return {
        name: int(found.sum())
        for name, found in (
            ("rewarded", rewarded),
            ("by_rule", by_rule),
            ("both", both),
            ("rows", torch.ones_like(by_rule)),
        )
    }


def with_hits(rows: Transitions, hits: int, count: int, seed: int) -> Transitions:
    """Draw `count` rows, `hits` of them rewarded."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    rewarded = rows.rewards[order] > 0.5
    if int(rewarded.sum()) < hits:
        raise ValueError(f"--hits: the random policy was rewarded {int(rewarded.sum())} times, expected {hits}")
    return rows[torch.cat((order[rewarded][:hits], order[~rewarded][: count - hits]))]


def measure(data: Transitions, task: str, config: GeneratorConfig, rows: int, seed: int) -> dict[str, Any]:
    """Fit a generator, and count the rewards of rows with and without the real rows of rare outcomes."""
    device = data.rows.device
    generator = DiffusionGenerator(data.spec, config, device=device, seed=seed)
    generator.fit(data)
    drawn = DiffusionGenerator(data.spec, config, device=device, seed=seed)
    drawn.load_state_dict({**generator.state_dict(), "rare": None})
    found = {"rare": counts(task, generator.sample(rows)), "drawn": counts(task, drawn.sample(rows))}
    for entry in found.values():
        entry |= agreement(entry["rewarded"], entry["by_rule"], entry["both"])
    return {"real": counts(task, data), "seed": seed, **found}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", required=True, choices=GOAL_TASKS)
    parser.add_argument("--hits", nargs="+", type=int, default=[4, 16], help="rewarded real rows (4 16)")
    parser.add_argument("--real-rows", type=int, default=2_000, help="real rows (2,000)")
    parser.add_argument("--rows", type=int, default=100_000, help="rows to generate (100,000)")
    parser.add_argument("--preset", default="tiny", choices=("paper", "fast", "tiny"))
    parser.add_argument("--seeds", type=int, default=3, help="number of draws of the real rows (3)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    device = resolve_device(args.device)
    if args.out:
        make_folder_of(args.out)
    config = getattr(GeneratorConfig, args.preset)()
    results: dict[str, list[dict[str, Any]]] = {}
    for task in args.tasks:
        policy = random_rows(task, _POLICY_ROWS, seed=0)
        results[task] = [
            measure(with_hits(policy, hits, args.real_rows, seed).to(device), task, config, args.rows, seed)
            for hits in args.hits
            for seed in range(args.seeds)
        ]
    lines = [
        [task, run["real"]["rewarded"], run["seed"], kind, *(run[kind][key] for key in _KEYS)]
        for task, runs in results.items()
        for run in runs
        for kind in _KINDS
    ]
    print(markdown_table(("task", "rewarded real rows", "seed", "rows", *_KEYS), lines))
    if args.out:
        write_json(args.out, {"results": results, "preset": args.preset, **origin(device)})


def _next(rows: Transitions) -> Tensor:
    return rows.rows[:, rows.spec.next_observations]


if __name__ == "__main__":
    main()
